package actions

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
)

// lvmConfig makes LVM work without udev, without daemons, and without files that outlive a command.
const lvmConfig = `global{event_activation=0 use_lvmpolld=0 use_lvmlockd=0} activation{udev_sync=0 udev_rules=0 monitoring=0} ` +
	`devices{obtain_device_list_from_udev=0 external_device_info_source="none" use_devicesfile=0} backup{backup=0 archive=0}`

// findPrograms returns an error for each missing program that the rootio command needs.
func (r *rootIO) findPrograms(command string) error {
	var needed []string
	if len(r.storage.RAID) > 0 {
		needed = append(needed, "mdadm")
	}
	if len(r.storage.VolumeGroups) > 0 {
		needed = append(needed, "lvm")
	}
	if command == "format" {
		for _, f := range r.storage.Filesystems {
			program, _, err := action.Mkfs(f.Mount.Format, f.Mount.Create.Options)
			if err != nil {
				return err
			}
			needed = append(needed, program)
		}
	}

	programs, ok := r.machine.Files.(filesys.Programs)
	if !ok && len(needed) > 0 {
		return fmt.Errorf("finding the programs %s: this agent cannot run programs", strings.Join(needed, ", "))
	}
	slices.Sort(needed)
	var errs []error
	for _, p := range slices.Compact(needed) {
		errs = append(errs, programs.Has(p))
	}
	return errors.Join(errs...)
}

// exec runs a program, and logs its command line and its output. An exit code other than 0 is an *exitError.
func (r *rootIO) exec(ctx context.Context, program string, args ...string) error {
	r.machine.Wrote()
	r.logf("%s %s", program, strings.Join(args, " "))
	exit, err := r.machine.Files.(filesys.Programs).Run(ctx, program, args, func(line string) { r.logf("%s: %s", program, line) })
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if exit != 0 {
		return &exitError{code: exit, text: fmt.Sprintf("running %s: exit code %d; see the log", program, exit)}
	}
	return err
}

// lvm runs an LVM command that can see only the physical volumes of g.
func (r *rootIO) lvm(ctx context.Context, g action.StorageVolumes, command string, args ...string) error {
	var members []string
	for _, p := range g.PhysicalVolumes {
		part, err := r.node(ctx, p)
		if err != nil {
			return err
		}
		members = append(members, part.Path)
	}
	if command == "pvcreate" || command == "vgcreate" {
		args = append(args, members...)
	}
	return r.exec(ctx, "lvm", append([]string{command, "--config", lvmConfig, "--devices", strings.Join(members, ",")}, args...)...)
}

// makeVolumes creates the arrays, and then the volume groups with their logical volumes.
func (r *rootIO) makeVolumes(ctx context.Context) error {
	for _, a := range r.storage.RAID {
		r.progress(0, 0, "making the array "+a.Device())
		// --run and --force make mdadm ask no question, because no one can answer it. They do no harm, because the partitions were
		// cleared.
		args := []string{
			"--create", a.Device(), "--run", "--force", "--metadata=1.2", "--homehost=any", "--level=" + a.Kind(),
			fmt.Sprintf("--raid-devices=%d", len(a.Devices)-a.Spare),
		}
		if a.Spare > 0 {
			args = append(args, fmt.Sprintf("--spare-devices=%d", a.Spare))
		}
		members, err := r.nodes(ctx, a.Devices)
		if err != nil {
			return err
		}
		if err := r.exec(ctx, "mdadm", append(args, members...)...); err != nil {
			return fmt.Errorf("making the array %s: %w", a.Device(), err)
		}
		if err := r.proveArray(a); err != nil {
			return err
		}
	}

	for _, g := range r.storage.VolumeGroups {
		r.progress(0, 0, "making the volume group "+g.Name)
		tags := []string{}
		for _, t := range g.Tags {
			tags = append(tags, "--addtag", t)
		}
		if err := r.lvm(ctx, g, "pvcreate", "--yes", "-ff", "--zero", "y"); err != nil {
			return fmt.Errorf("making the physical volumes of %s: %w", g.Name, err)
		}
		if err := r.lvm(ctx, g, "vgcreate", append(append([]string{"--yes"}, tags...), g.Name)...); err != nil {
			return fmt.Errorf("making the volume group %s: %w", g.Name, err)
		}

		for _, v := range g.LogicalVolumes {
			size := []string{"--size", fmt.Sprintf("%db", v.Size)}
			if v.Size == 0 {
				size = []string{"--extents", "100%FREE"}
			}
			args := append([]string{"--yes", "--wipesignatures", "y", "--zero", "y", "--name", v.Name}, size...)
			if err := r.lvm(ctx, g, "lvcreate", append(args, g.Name)...); err != nil {
				return fmt.Errorf("making the logical volume %s: %w", g.Path(v), err)
			}
			if part, err := r.volume(g.Path(v)); err != nil || part.Size < v.Size {
				return errors.Join(err, fmt.Errorf("reading %s back: the volume has %d bytes instead of %d", g.Path(v), part.Size, v.Size))
			}
		}
	}
	return nil
}

func (r *rootIO) nodes(ctx context.Context, devices []string) ([]string, error) {
	var paths []string
	for _, d := range devices {
		part, err := r.node(ctx, d)
		if err != nil {
			return nil, err
		}
		paths = append(paths, part.Path)
	}
	return paths, nil
}

// proveArray returns an error if the active array differs from a.
func (r *rootIO) proveArray(a action.StorageRAID) error {
	v, ok := r.machine.Files.(filesys.Programs).Volume(path.Base(a.Device()))
	switch want := len(a.Devices) - a.Spare; {
	case !ok:
		return fmt.Errorf("reading the array %s back: the kernel does not list this array", a.Device())
	case v.Level != "raid"+a.Kind() || v.Members != want:
		return fmt.Errorf("reading the array %s back: it is a %s of %d devices instead of a raid%s of %d", a.Device(), v.Level,
			v.Members, a.Kind(), want)
	}
	r.logf("%s: %s of %d devices, %d bytes", a.Device(), v.Level, v.Members, v.Size)
	return nil
}

// volume returns the active array or logical volume with the given path in the storage.
func (r *rootIO) volume(device string) (filesys.Partition, error) {
	name := path.Base(device)
	for _, g := range r.storage.VolumeGroups {
		for _, v := range g.LogicalVolumes {
			if g.Path(v) == device {
				name = g.Mapped(v)
			}
		}
	}
	v, ok := r.machine.Files.(filesys.Programs).Volume(name)
	if !ok {
		return filesys.Partition{}, fmt.Errorf("finding %s: the kernel does not list this device", device)
	}
	return v.Partition, nil
}

// assemble activates the arrays and volume groups of the storage, which an earlier action must have created.
func (r *rootIO) assemble(ctx context.Context) error {
	for _, a := range r.storage.RAID {
		members, err := r.nodes(ctx, a.Devices)
		if err != nil {
			return err
		}
		if err := r.exec(ctx, "mdadm", append([]string{"--assemble", a.Device()}, members...)...); err != nil {
			return fmt.Errorf("assembling the array %s (run rootio with command partition first): %w", a.Device(), err)
		}
		if err := r.proveArray(a); err != nil {
			return err
		}
	}
	for _, g := range r.storage.VolumeGroups {
		if err := r.lvm(ctx, g, "vgchange", "--activate", "y", g.Name); err != nil {
			return fmt.Errorf("activating the volume group %s (run rootio with command partition first): %w", g.Name, err)
		}
	}
	return nil
}

// release deactivates the active volume groups and arrays of the storage. Then the next action can write to their disks, and the
// next boot finds cleanly stopped arrays.
func (r *rootIO) release(ctx context.Context) error {
	programs, ok := r.machine.Files.(filesys.Programs)
	if !ok {
		return nil // without programs, the agent cannot have activated anything
	}

	var errs []error
	for _, g := range slices.Backward(r.storage.VolumeGroups) {
		active := slices.ContainsFunc(g.LogicalVolumes, func(v action.StorageVolume) bool {
			_, ok := programs.Volume(g.Mapped(v))
			return ok
		})
		if active {
			errs = append(errs, r.lvm(ctx, g, "vgchange", "--activate", "n", g.Name))
		}
	}
	for _, a := range slices.Backward(r.storage.RAID) {
		if _, ok := programs.Volume(path.Base(a.Device())); ok {
			errs = append(errs, r.exec(ctx, "mdadm", "--stop", a.Device()))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("deactivating the storage's arrays and volume groups: %w", err)
	}
	return nil
}
