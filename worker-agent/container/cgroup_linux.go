package container

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	cgroups  = "/sys/fs/cgroup"
	maxTasks = 4096 // processes and threads of a container
)

// prepareKernel mounts the hierarchy of cgroups and enables what limits a container. It disables user namespaces: in one of its own, a
// process would have all capabilities.
func prepareKernel() error {
	var fs unix.Statfs_t
	if err := unix.Statfs(cgroups, &fs); err != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
		if err := unix.Mount("cgroup2", cgroups, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mounting cgroup2: %w", err)
		}
	}
	if err := writeFile(filepath.Join(cgroups, "cgroup.subtree_control"), "+cpu +memory +pids"); err != nil {
		return err
	}
	return writeFile("/proc/sys/user/max_user_namespaces", "0")
}

// writeFile writes to a file of the kernel, which must exist.
func writeFile(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// A cgroup holds all processes of a container.
type cgroup struct{ dir string }

// newCgroup makes the cgroup of a container that may use limit bytes of memory.
func newCgroup(limit int64) (c cgroup, err error) {
	c.dir = filepath.Join(cgroups, "ingot-container")
	if err := c.remove(); err != nil {
		return c, err
	}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return c, err
	}
	for name, value := range map[string]string{
		"memory.max": fmt.Sprint(limit), "memory.oom.group": "1", "pids.max": fmt.Sprint(maxTasks),
		"cpu.weight": "10", // a tenth of the agent's, whose heartbeats must not be late
	} {
		err = errors.Join(err, writeFile(filepath.Join(c.dir, name), value))
	}
	if e := writeFile(filepath.Join(c.dir, "memory.swap.max"), "0"); !errors.Is(e, os.ErrNotExist) { // without swap there is no such file
		err = errors.Join(err, e)
	}
	return c, err
}

// killTime is how long the kernel may take to end the processes of a cgroup that it has killed. A process that waits for a disk ends late.
const killTime = 30 * time.Second

// kill kills all processes of the cgroup, and returns when none is left.
func (c cgroup) kill() error {
	if err := writeFile(filepath.Join(c.dir, "cgroup.kill"), "1"); err != nil {
		return fmt.Errorf("killing the container: %w", err)
	}
	for end := time.Now().Add(killTime); ; time.Sleep(20 * time.Millisecond) {
		b, err := os.ReadFile(filepath.Join(c.dir, "cgroup.events"))
		if err != nil || bytes.Contains(b, []byte("populated 0")) {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("killing the container: processes are left after %s", killTime)
		}
	}
}

// remove kills all processes of the cgroup and removes it. It returns nil if there is no such cgroup.
func (c cgroup) remove() error {
	if _, err := os.Stat(c.dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return errors.Join(c.kill(), os.Remove(c.dir))
}

// isOutOfMemory reports whether the kernel has killed the cgroup because it needed more memory than it may use.
func (c cgroup) isOutOfMemory() bool {
	b, err := os.ReadFile(filepath.Join(c.dir, "memory.events"))
	return err == nil && numberIn(b, "oom_kill") > 0
}

// freeMemory returns how many bytes of memory programs can still get.
func freeMemory() (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	return numberIn(b, "MemAvailable:") << 10, nil
}

// numberIn returns the number after a name at the beginning of a line; 0 if there is none.
func numberIn(text []byte, name string) int64 {
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		if f := strings.Fields(s.Text()); len(f) > 1 && f[0] == name {
			n, _ := strconv.ParseInt(f[1], 10, 64) // 0 for what is no number
			return n
		}
	}
	return 0
}
