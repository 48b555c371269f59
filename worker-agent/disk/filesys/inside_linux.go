package filesys

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Enter allows programs in root to be executed, and mounts the agent's /dev, /proc and /sys there. It returns the path of root.
// leave unmounts these three; when it is called, no program may be running in root any more.
func Enter(root Tree) (dir string, leave func() error, err error) {
	if dir, err = root.Path(); err != nil {
		return "", nil, err
	}
	var mounts []string
	leave = func() error {
		var errs []error
		for _, m := range slices.Backward(mounts) {
			// Unmount lazily, and with all mounts that the commands have added below: these are mounts of the agent and contain no
			// data of the disk.
			if err := unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				errs = append(errs, fmt.Errorf("unmounting %s: %w", m, err))
			}
		}
		return errors.Join(errs...)
	}

	// Mount has mounted the file system with nosuid, nodev and noexec: remove these flags.
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND, ""); err != nil {
		return "", nil, fmt.Errorf("allowing programs: %w", err)
	}
	for _, name := range []string{"/dev", "/proc", "/sys"} {
		target, err := folderIn(root, name)
		if err == nil {
			err = unix.Mount(name, target, "", unix.MS_BIND|unix.MS_REC, "")
		}
		if err == nil {
			mounts = append(mounts, target)
			// Make the mounts private: an unmount below them must not propagate to the agent's own tree.
			err = unix.Mount("", target, "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err != nil {
			return "", nil, errors.Join(fmt.Errorf("mounting %s: %w", name, err), leave())
		}
	}
	return dir, leave, nil
}

// folderIn returns the path of a folder in root, as the agent sees it. It creates the folder if the folder is missing. Links cannot
// lead out of root.
func folderIn(root Tree, name string) (string, error) {
	parent, err := File{Path: path.Join(name, "entry"), DirMode: 0o755}.parent(root, true)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(parent) }() // no data is written through parent
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", parent))
}

// RunInside implements Commander. The program is the first process of its own PID namespace: when it ends, the kernel ends all
// processes that it has started.
func (h HostFilesystems) RunInside(ctx context.Context, root string, words, env []string, log func(string)) (int, error) {
	file, err := lookInside(root, words[0], env)
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, file)
	cmd.Args, cmd.Env, cmd.Dir = words, env, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Chroot: root, Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC,
	}
	return h.run(cmd, log)
}

// lookInside returns the path, in root, of a program of the installed system.
func lookInside(root, program string, env []string) (string, error) {
	system, err := OpenTree(root)
	if err != nil {
		return "", err
	}
	defer system.Close()

	candidates := []string{path.Join("/", program)}
	if !strings.Contains(program, "/") {
		candidates = nil
		for _, v := range env {
			if dirs, ok := strings.CutPrefix(v, "PATH="); ok {
				for _, dir := range strings.Split(dirs, ":") {
					candidates = append(candidates, path.Join("/", dir, program))
				}
			}
		}
	}
	for _, file := range candidates {
		fd, err := system.open(file, unix.O_PATH)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		_ = unix.Close(fd) // nothing was written through fd
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("the installed system has no program %q", program)
}
