package actions

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
)

// cexec runs commands in the installed system.
//
//	CMD_LINE             commands, separated by ;
//	DEFAULT_INTERPRETER  program that reads CMD_LINE
//	UPDATE_RESOLV_CONF   true: the system gets the agent's /etc/resolv.conf
//	BLOCK_DEVICE, PARTITION, FS_TYPE  where the system is, as inject; default: the root file system
//
// Output: commands, the number of commands that have succeeded. If a command fails, its exit code becomes the exit code of the action.
func cexec(ctx context.Context, t *Task) (err error) {
	commands, err := action.Commands(t.env)
	if err != nil {
		return err
	}
	part, err := t.place(ctx, "BLOCK_DEVICE")
	if err != nil {
		return err
	}
	defer part.release(ctx, &err)

	return inSystem(ctx, t, part, func(root filesys.Tree, run func(words ...string) error) error {
		if err := updateResolver(t, root); err != nil {
			return err
		}
		for n, words := range commands {
			if err := run(words...); err != nil {
				return fmt.Errorf("command %d of %d: %w", n+1, len(commands), err)
			}
			t.output["commands"] = fmt.Sprint(n + 1)
		}
		return nil
	})
}

// inSystem mounts the installed system on part and calls do. do gets the file tree of the system, and the function run, which runs a
// program of the system. If the program exits with another code than 0, run returns an *exitError.
func inSystem(ctx context.Context, t *Task, part place, do func(root filesys.Tree, run func(words ...string) error) error) error {
	commander, ok := t.machine.Files.(filesys.Commander)
	if !ok {
		return errors.New("running commands: this agent cannot run programs")
	}

	t.machine.Wrote()
	return filesys.UseMounted(ctx, t.machine.Files, part.Partition, part.fstype, false, func(root filesys.Tree) (err error) {
		dir, leave, err := filesys.Enter(root)
		if err != nil {
			return fmt.Errorf("entering the installed system on %s: %w", part.Path, err)
		}
		defer func() { err = errors.Join(err, leave()) }()

		return do(root, func(words ...string) error {
			t.logf("%s", strings.Join(words, " "))
			exit, err := commander.RunInside(ctx, dir, words, commandEnvironment(t), func(line string) { t.logf("%s", line) })
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case exit != 0:
				return &exitError{code: exit, text: fmt.Sprintf("%s: exit code %d; see the log", words[0], exit)}
			case err != nil:
				return fmt.Errorf("%s: %w", words[0], err)
			}
			return nil
		})
	})
}

// commandEnvironment returns the environment variables for the commands of cexec. These are the variables of the action, except those that
// configure cexec itself and those that contain credentials.
func commandEnvironment(t *Task) []string {
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

// updateResolver copies the agent's resolv.conf into the installed system if UPDATE_RESOLV_CONF is true.
func updateResolver(t *Task, root filesys.Tree) error {
	wanted, err := action.Bool(t.env, action.ResolverVariable, false)
	if err != nil || !wanted {
		return err
	}
	text, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return fmt.Errorf("%s: %w", action.ResolverVariable, err)
	}
	f := filesys.File{Path: "/etc/resolv.conf", Contents: string(text), Mode: 0o644, DirMode: 0o755}
	if err := f.Write(root); err != nil {
		return fmt.Errorf("%s: %w", action.ResolverVariable, err)
	}
	return nil
}
