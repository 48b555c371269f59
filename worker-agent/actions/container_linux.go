package actions

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/container"
)

// runContainer runs the container image of the action a. The action fails with the exit code of the container.
func runContainer(ctx context.Context, t *Task, a action.Action) (err error) {
	if t.machine.Containers == nil {
		return errors.New("running a container: this agent cannot run containers")
	}
	if err := a.CheckContainer(t.alias); err != nil {
		return err
	}
	if a.Container.Privileged && len(t.spared) > 0 {
		return errors.New("running a container: a privileged container could write to the machine's protected disks")
	}
	c := container.Container{
		Action: a, Hostname: t.machine.Name, Runtime: t.machine.RuntimeURL, Opener: t.opener(), Log: t.logf,
		Track: func(message string, total int64, done func() int64) { t.track(total, message, done) },
	}
	if a.Container.Disk {
		if err := t.present(ctx); err != nil {
			return err
		}
		c.Names = t.diskNames()
		c.FindDisk = func() (string, error) {
			d, _, err := t.target(ctx, "")
			if err == nil {
				t.machine.Wrote()
			}
			return filepath.Base(d.Path), err
		}
	}
	for _, text := range a.Volumes {
		v, release, err := t.openVolume(ctx, a, text)
		if err != nil {
			return fmt.Errorf("volume %q: %w", text, err)
		}
		defer func() { err = errors.Join(err, release()) }()
		if !v.Device || v.Source != v.Target { // a container has /dev, /dev/null and /dev/console in any case
			c.Volumes = append(c.Volumes, v)
		}
	}

	exit, err := t.machine.Containers.Run(ctx, c)
	if exit != 0 {
		err = errors.Join(&exitError{code: exit, text: fmt.Sprintf("the container has ended with exit code %d; see the log", exit)}, err)
	}
	return err
}

// openVolume returns what the container sees of a volume. It mounts the file system of a partition, and release unmounts it.
func (t *Task) openVolume(ctx context.Context, a action.Action, text string) (out container.Volume, release func() error, err error) {
	v, err := action.ParseVolume(text, t.alias)
	if err != nil {
		return out, nil, err
	}
	source, _, _ := strings.Cut(text, ":")
	out = container.Volume{Source: source, Target: v.Target, ReadOnly: v.ReadOnly, Device: v.Devices}
	release = func() error { return nil }
	switch {
	case v.Devices:
	case v.Directory == "" && !a.Container.Disk:
		err = errors.New("the plan does not let this container use the disk")
	case v.Directory == "":
		out.Source, release, err = t.mountVolume(ctx, source, v)
	case slices.Contains(action.SystemVolumes, v.Directory):
		err = os.MkdirAll(source, 0o755) // a system without firmware has no such directory
	default:
		out.Source, err = t.machine.Containers.SharedDir(t.order.Run, source)
	}
	return out, release, err
}

// mountVolume mounts the file system of a partition of the bound disk. source is the text of v that selects it.
func (t *Task) mountVolume(ctx context.Context, source string, v action.Volume) (dir string, unmount func() error, err error) {
	x := *t // the variables of the container select nothing
	x.env = map[string]string{"VOLUME": v.Device}
	if v.Partition.By != "" {
		x.env[action.PartitionVariable] = source
	}
	d, number, err := x.partition(ctx, "VOLUME")
	if err != nil {
		return "", nil, err
	}
	if number == 0 {
		return "", nil, fmt.Errorf("%s is the whole disk; must be a partition", source)
	}
	part, fstype, err := x.locate(ctx, d, number)
	if err != nil {
		return "", nil, err
	}
	if !v.ReadOnly {
		t.machine.Wrote()
	}
	return t.machine.Files.Mount(ctx, part.Path, fstype, v.ReadOnly)
}
