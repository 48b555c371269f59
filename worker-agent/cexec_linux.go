package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/action"
)

// Commander is an optional part of a Filesystems: it can run programs of an installed system.
type Commander interface {
	// RunInside runs a program with its arguments below root, a folder that is / for it. What the
	// program has started ends with it. log gets its output, line by line. exit is its exit code; an
	// error without one has exit 0.
	RunInside(ctx context.Context, root string, words, env []string, log func(line string)) (exit int, err error)
}

// cexec runs commands in the installed system.
//
//	CMD_LINE             commands, separated by ;
//	DEFAULT_INTERPRETER  program that reads CMD_LINE
//	UPDATE_RESOLV_CONF   true: the system gets the agent's /etc/resolv.conf
//	BLOCK_DEVICE, PARTITION, FS_TYPE  where the system is, as inject; default: the root file system
//
// Output: commands, how many were run. Its exit code is that of the command that failed.
func (t *attempt) cexec(ctx context.Context) (err error) {
	commands, err := action.Commands(t.env)
	if err != nil {
		return err
	}
	part, err := t.place(ctx, "BLOCK_DEVICE")
	if err != nil {
		return err
	}
	defer part.release(ctx, &err)

	return t.inSystem(ctx, part, func(root tree, run func(words ...string) error) error {
		if err := t.updateResolver(root); err != nil {
			return err
		}
		for n, words := range commands {
			if err := run(words...); err != nil {
				return fmt.Errorf("command %d of %d, %w", n+1, len(commands), err)
			}
			t.output["commands"] = fmt.Sprint(n + 1)
		}
		return nil
	})
}

// inSystem calls do with the installed system on part. run runs a program of the system with its
// arguments, and returns an exit code other than 0 as an error.
func (t *attempt) inSystem(ctx context.Context, part place, do func(root tree, run func(words ...string) error) error) error {
	commander, ok := t.agent.cfg.Files.(Commander)
	if !ok {
		return errors.New("running commands: this agent cannot run programs")
	}

	t.agent.markWrote()
	return t.mounted(ctx, part.Partition, part.fstype, false, func(root tree) (err error) {
		dir, leave, err := enter(root)
		if err != nil {
			return fmt.Errorf("preparing the system on %s: %w", part.Path, err)
		}
		defer func() { err = errors.Join(err, leave()) }()

		return do(root, func(words ...string) error {
			t.logf("%s", strings.Join(words, " "))
			exit, err := commander.RunInside(ctx, dir, words, t.commandEnvironment(), func(line string) { t.logf("%s", line) })
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case exit != 0:
				return &exitError{code: exit, text: fmt.Sprintf("%s: exit code %d: see the log", words[0], exit)}
			case err != nil:
				return fmt.Errorf("%s: %w", words[0], err)
			}
			return nil
		})
	})
}

// commandEnvironment returns what the commands get: the action's environment without the variables
// that the action reads, and without the credentials of other actions of the task.
func (t *attempt) commandEnvironment() []string {
	env := map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
	maps.Copy(env, t.env)
	for _, v := range action.Describe(action.CExec).Variables {
		delete(env, v.Name)
	}
	for _, name := range action.Credentials {
		delete(env, name)
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return out
}

// updateResolver puts the agent's resolv.conf into the system, if that is asked for.
func (t *attempt) updateResolver(root tree) error {
	wanted, err := action.Bool(t.env, action.ResolverVariable, false)
	if err != nil || !wanted {
		return err
	}
	text, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return fmt.Errorf("%s: %w", action.ResolverVariable, err)
	}
	f := fileSpec{path: "/etc/resolv.conf", contents: string(text), mode: 0o644, dirMode: 0o755}
	if err := f.write(root); err != nil {
		return fmt.Errorf("%s: %w", action.ResolverVariable, err)
	}
	return nil
}

// enter lets programs run in root, and mounts the agent's /dev, /proc and /sys there. It returns
// the path of root. leave undoes it; no program may run there any more.
func enter(root tree) (dir string, leave func() error, err error) {
	if dir, err = os.Readlink(fmt.Sprintf("/proc/self/fd/%d", root.fd)); err != nil {
		return "", nil, err
	}
	var mounts []string
	leave = func() error {
		var errs []error
		for _, m := range slices.Backward(mounts) {
			// Recursively, and whatever the commands have mounted there: it is the agent's, and holds no data of the disk.
			if err := unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				errs = append(errs, fmt.Errorf("unmounting %s: %w", m, err))
			}
		}
		return errors.Join(errs...)
	}

	// A file system of an image is mounted without programs and devices otherwise.
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
			// What is unmounted below it later must not be unmounted in the agent's own tree.
			err = unix.Mount("", target, "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err != nil {
			return "", nil, errors.Join(fmt.Errorf("mounting %s: %w", name, err), leave())
		}
	}
	return dir, leave, nil
}

// folderIn returns the path at which a folder of root is, seen from the agent. It is made if it is
// missing. A link in root does not lead out of it.
func folderIn(root tree, name string) (string, error) {
	parent, err := fileSpec{path: path.Join(name, "entry"), dirMode: 0o755}.parent(root, true)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(parent) }() // nothing is written through it
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", parent))
}

// RunInside implements Commander. Processes have a namespace of their own, in which the program is
// the first: its end ends all others.
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

// lookInside returns the path of a program of the system in root.
func lookInside(root, program string, env []string) (string, error) {
	system, err := openTree(root)
	if err != nil {
		return "", err
	}
	defer system.close()

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
		_ = unix.Close(fd) // nothing was written through it
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("the installed system has no program %q", program)
}
