package filesys

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
)

// programDirs are the folders in which findProgram looks.
var programDirs = []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"}

// bootCodeDir is the folder of the boot code of SYSLINUX in the agent's system.
const bootCodeDir = "/usr/lib/syslinux/mbr"

// programs are the programs that the agent may run, each with the kernel modules that it needs.
var programs = map[string][]string{
	"mdadm": {"md_mod", "raid0", "raid1", "raid10"}, "lvm": {"dm_mod"},
	"mke2fs": nil, "mkfs.xfs": nil, "mkfs.fat": nil, "mkswap": nil,
	"extlinux": nil,
}

// findProgram returns the path of a program of the agent's system.
func findProgram(program string) (string, error) {
	if _, ok := programs[program]; !ok {
		return "", fmt.Errorf("finding the program %q: the agent does not run this program", program)
	}
	for _, dir := range programDirs {
		p := filepath.Join(dir, program)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("finding the program %s: the agent OS does not contain it: build the agent OS again with deploy/agentos/build.sh",
		program)
}

// Has implements Programs.
func (h HostFilesystems) Has(program string) error {
	_, err := findProgram(program)
	return err
}

// BootCode implements Programs.
func (h HostFilesystems) BootCode(table string) ([]byte, error) {
	name, ok := map[string]string{"gpt": "gptmbr.bin", "mbr": "mbr.bin"}[table]
	if !ok {
		return nil, fmt.Errorf("finding boot code: no boot code exists for partition table %q", table)
	}
	return os.ReadFile(filepath.Join(bootCodeDir, name))
}

// Run implements Programs. The arguments are not interpreted by a shell.
func (h HostFilesystems) Run(ctx context.Context, program string, args []string, log func(string)) (int, error) {
	file, err := findProgram(program)
	if err != nil {
		return 0, err
	}
	for _, module := range programs[program] {
		if h.Load == nil {
			break
		}
		if err := h.Load(module); err != nil {
			return 0, fmt.Errorf("loading kernel module %s for %s: %w", module, program, err)
		}
	}

	cmd := exec.CommandContext(ctx, file, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/sbin:/usr/bin:/bin", "LC_ALL=C", "HOME=/", "LVM_SYSTEM_DIR="}
	cmd.Dir = "/"
	return h.run(cmd, log)
}

// run runs cmd and passes its output to log, line by line. exit is the exit code; it is 0 for an error without an exit code.
func (h HostFilesystems) run(cmd *exec.Cmd, log func(string)) (exit int, err error) {
	if h.Children != nil {
		h.Children.Lock()
		defer h.Children.Unlock()
	}
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	EachLine(out, log)

	var failed *exec.ExitError
	if err = cmd.Wait(); errors.As(err, &failed) && failed.ExitCode() > 0 {
		return failed.ExitCode(), err
	}
	if err != nil {
		return 0, fmt.Errorf("running %s: %w", cmd.Path, err)
	}
	return 0, nil
}

// EachLine reads r to its end and calls log for each line. It splits lines that are too long.
func EachLine(r io.Reader, log func(string)) {
	lines := bufio.NewReaderSize(r, 4096)
	for {
		line, err := lines.ReadSlice('\n')
		if text := strings.TrimRight(string(line), "\r\n"); text != "" {
			log(text)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// Volume implements Programs.
func (h HostFilesystems) Volume(name string) (Volume, bool) {
	dirs := []string{filepath.Join(cmp.Or(h.Sys, "/sys"), "block", name)}
	if names, err := filepath.Glob(filepath.Join(cmp.Or(h.Sys, "/sys"), "block/dm-*/dm/name")); err == nil {
		for _, file := range names {
			if blockdev.Attribute(file) == name {
				dirs = append(dirs, filepath.Dir(filepath.Dir(file)))
			}
		}
	}

	for _, dir := range dirs {
		sectors, err := strconv.ParseInt(blockdev.Attribute(dir, "size"), 10, 64)
		if err != nil || sectors == 0 {
			continue // a stopped array has the size 0
		}
		v := Volume{Partition: Partition{Path: "/dev/" + filepath.Base(dir), Size: sectors * 512}, Level: blockdev.Attribute(dir, "md/level")}
		v.Members, _ = strconv.Atoi(blockdev.Attribute(dir, "md/raid_disks")) // 0 for a logical volume
		return v, true
	}
	return Volume{}, false
}
