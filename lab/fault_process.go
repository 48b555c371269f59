package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Role is the function of an Ingot process in the lab.
type Role string

// The roles.
const (
	RoleServe    Role = "ingot serve"
	RoleTemporal Role = "ingot temporal-child" // the Temporal server, a child of RoleServe
	RoleAgent    Role = "worker-agent"         // of simulated machines; in QEMU it runs inside the guest
)

// matches compares a role with an argument list.
func (r Role) matches(argv []string) bool {
	program, sub, _ := strings.Cut(string(r), " ")
	return len(argv) > 0 && filepath.Base(argv[0]) == program && (sub == "" || len(argv) > 1 && argv[1] == sub)
}

// Processes returns the ids of the lab's processes with a role, in any of its namespaces. It leaves
// out zombies.
func (l *Lab) Processes(role Role) ([]int, error) {
	spaces, err := l.inodes()
	if err != nil {
		return nil, err
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, dir := range dirs {
		argv, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !role.matches(strings.Split(string(bytes.TrimRight(argv, "\x00")), "\x00")) {
			continue // it has ended, or is another program
		}
		var st unix.Stat_t
		if unix.Stat(filepath.Join(dir, "ns/net"), &st) != nil || !spaces[st.Ino] {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// inodes returns the inodes by which the kernel identifies the lab's network namespaces, including
// those of single machines.
func (l *Lab) inodes() (map[uint64]bool, error) {
	paths, err := filepath.Glob(filepath.Join(netnsDir, l.name+"-*"))
	if err != nil {
		return nil, err
	}
	found := map[uint64]bool{}
	for _, p := range paths {
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err != nil {
			return nil, fmt.Errorf("looking at namespace %q: %w", p, err)
		}
		found[st.Ino] = true
	}
	return found, nil
}

// KillRole kills all processes of a role with SIGKILL, each with its process group, and returns
// their number. It is not an error if there are none. It has no undo: the role determines what
// starts the process again.
func (l *Lab) KillRole(role Role) (int, error) {
	pids, err := l.Processes(role)
	for _, pid := range pids {
		Kill(pid)
	}
	l.log.Info("fault", "what", "killed", "role", role, "processes", len(pids))
	return len(pids), err
}

// Kill ends a process with SIGKILL, and its process group if it leads one. It is not an error if
// the process has ended.
func Kill(pid int) {
	if pgid, err := syscall.Getpgid(pid); err == nil && pgid == pid {
		_ = syscall.Kill(-pid, syscall.SIGKILL) // ESRCH: it has just ended
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

// Freeze stops a process, and its process group if it leads one, with SIGSTOP, and waits until all
// threads are stopped. The process keeps its memory, files and connections, and does not answer its
// peers. Undo continues it; it is not an error if the process was killed in the meantime.
func (l *Lab) Freeze(ctx context.Context, pid int) (Undo, error) {
	target := pid
	if pgid, err := syscall.Getpgid(pid); err != nil {
		return nil, fmt.Errorf("freezing process %d: %w", pid, err)
	} else if pgid == pid {
		target = -pid
	}
	born, err := startTime(pid)
	if err == nil {
		err = syscall.Kill(target, syscall.SIGSTOP)
	}
	if err != nil {
		return nil, fmt.Errorf("freezing process %d: %w", pid, err)
	}
	undo, err := l.undoable(fmt.Sprintf("process %d frozen", pid), func() error {
		if now, err := startTime(pid); err != nil || now != born {
			return nil //nolint:nilerr // it has ended, and its id may belong to another process
		}
		if err := syscall.Kill(target, syscall.SIGCONT); !errors.Is(err, syscall.ESRCH) {
			return err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := poll(ctx, func() (bool, error) { return standsStill(pid) }); err != nil {
		return nil, errors.Join(fmt.Errorf("freezing process %d: %w", pid, err), undo())
	}
	return undo, nil
}

// standsStill reports whether every thread of a process is stopped.
func standsStill(pid int) (bool, error) {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return false, err
	}
	if len(stats) == 0 {
		return false, os.ErrProcessDone
	}
	for _, s := range stats {
		b, err := os.ReadFile(s)
		if err != nil {
			continue // the thread has ended
		}
		if i := bytes.LastIndexByte(b, ')'); i < 0 || i+2 >= len(b) || b[i+2] != 'T' {
			return false, nil
		}
	}
	return true, nil
}

// Sever closes the TCP connections of process pid to a port of its own host and refuses new ones.
// All other processes can still use the port.
//
// This simulates the loss of a worker alone. Ingot's worker is not a process but a part of `ingot
// serve`, which polls Temporal and holds only the tasks from its polls. Without a connection to
// Temporal's frontend it is lost as far as Temporal can see: its tasks time out, and Temporal may
// give activities that it is still running to its successor. DHCP, boot files, the APIs of agents
// and operators, and the Temporal server continue. Everything else that the process needs from
// Temporal stops, too: its event pump waits. Undo lets it connect again.
func (l *Lab) Sever(ns Namespace, pid, port int) (Undo, error) {
	root, err := cgroupRoot()
	if err != nil {
		return nil, err
	}
	fail := func(err error) (Undo, error) {
		return nil, fmt.Errorf("severing process %d from port %d: %w", pid, port, err)
	}
	group := fmt.Sprintf("%s-%d-%d", l.name, pid, port)
	dir := filepath.Join(root, group)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fail(err)
	}
	rel, err := filepath.Rel("/sys/fs/cgroup", dir)
	if err != nil {
		return fail(err)
	}
	table := fmt.Sprintf("sever_%d_%d", pid, port)
	undo, err := l.undoable(fmt.Sprintf("process %d severed from port %d", pid, port), func() error {
		err := l.dropTable(ns, "inet", table)
		// The group includes processes that the process has started since.
		return errors.Join(err, emptyCgroup(root, dir))
	})
	if err != nil {
		return fail(err)
	}
	// A socket belongs to the group of its process when it was created: destroy the earlier ones.
	err = os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
	if err == nil {
		err = l.nft(ns, "inet", table, "output",
			"socket cgroupv2 level 1 "+strconv.Quote(rel)+" tcp dport "+strconv.Itoa(port)+" reject with tcp reset")
	}
	if err == nil {
		err = l.destroy(ns, pid, "dport = :"+strconv.Itoa(port))
	}
	if err != nil {
		return fail(errors.Join(err, undo()))
	}
	return undo, nil
}

// cgroupRoot is the mount point of the unified control group hierarchy. nft searches for groups
// only below /sys/fs/cgroup.
func cgroupRoot() (string, error) {
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
			if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err == nil {
				return dir, nil
			}
		}
	}
	return "", errors.New("there is no control group hierarchy of version 2 below /sys/fs/cgroup: mount one")
}

// emptyCgroup moves the processes of a group back into the root and removes the group.
func emptyCgroup(root, dir string) error {
	for range 100 { // a process that forks may leave another one in the group
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, pid := range strings.Fields(string(b)) {
			// ESRCH: it has ended.
			if err := os.WriteFile(filepath.Join(root, "cgroup.procs"), []byte(pid), 0); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
		if err := os.Remove(dir); !errors.Is(err, syscall.EBUSY) {
			return err
		}
	}
	return fmt.Errorf("control group %q does not become empty", dir)
}

// removeGroups removes the control groups of a lab.
func removeGroups(name string) error {
	root, err := cgroupRoot()
	if err != nil {
		return nil //nolint:nilerr // the lab has no groups
	}
	dirs, err := filepath.Glob(filepath.Join(root, name+"-*"))
	errs := []error{err}
	for _, dir := range dirs {
		errs = append(errs, emptyCgroup(root, dir))
	}
	return errors.Join(errs...)
}
