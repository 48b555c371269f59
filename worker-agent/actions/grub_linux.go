package actions

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
	"github.com/ingotmetal/ingot/worker-agent/disk/probe"
)

// grub2disk installs GRUB for BIOS. For this, it runs programs of the installed system.
//
//	GRUB_INSTALL_PATH, PARTITION, FS_TYPE  where the system is, as cexec
//	GRUB_DISK                              the disks that get GRUB, separated by blanks; default: the run's disk
//
// Output: disks.
func grub2disk(ctx context.Context, t *Task) (err error) {
	part, err := t.place(ctx, action.GrubSystemVariable)
	if err != nil {
		return err
	}
	defer part.release(ctx, &err)
	disks, err := grubDisks(ctx, t, part)
	if err != nil {
		return err
	}

	remove, err := linkByUUID(part)
	if err != nil {
		return err
	}
	defer remove()

	return inSystem(ctx, t, part, func(root filesys.Tree, run func(words ...string) error) error {
		name := "grub" // prefix of the programs' names: grub on Debian, grub2 on Red Hat and SUSE
		if slices.ContainsFunc(
			[]string{"/usr/sbin", "/sbin"},
			func(dir string) bool { return slices.Contains(root.List(dir), "grub2-install") },
		) {
			name = "grub2"
		}
		for i, d := range disks {
			t.progress(int64(i), int64(len(disks)), "installing GRUB on "+d.Path)
			if err := run(name+"-install", "--target=i386-pc", "--recheck", d.Path); err != nil {
				return fmt.Errorf("installing GRUB on %s: %w", d.Path, err)
			}
			t.output["disks"] = fmt.Sprint(i + 1)
		}
		if err := run(name+"-mkconfig", "-o", path.Join("/boot", name, "grub.cfg")); err != nil {
			return fmt.Errorf("writing the configuration of GRUB: %w", err)
		}
		return nil
	})
}

// linkByUUID creates the link in /dev/disk/by-uuid that udev would create for part. Without this link, grub-mkconfig names the root file
// system by the path that it has in the agent, which may differ from the path in the installed system. remove removes the link.
func linkByUUID(part place) (remove func(), err error) {
	f, err := os.Open(part.Path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened only for reading
	_, uuid := probe.Names(f, part.fstype)
	link := filepath.Join("/dev/disk/by-uuid", uuid)
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return nil, err
	}
	if err := os.Symlink(part.Path, link); err != nil {
		return func() {}, nil // the link exists already, or the file system has no UUID
	}
	return func() { _ = os.Remove(link) }, nil
}

// grubDisks returns the disks on which GRUB has to be installed, with the paths that they have now.
func grubDisks(ctx context.Context, t *Task, part place) (disks []action.Disk, err error) {
	for _, device := range action.GrubDisks(t.env) {
		disk := *t.bound
		if n, err := t.partitionOf(device); err != nil || n != 0 {
			if disk, err = part.diskOf(device); err != nil {
				return nil, fmt.Errorf("finding the disk %s=%q: %w", action.GrubDisksVariable, device, err)
			}
		}
		if disk, err = t.lookUp(ctx, disk); err != nil {
			return nil, err
		}
		disks = append(disks, disk)
	}
	if len(disks) == 0 {
		disks = []action.Disk{part.disk}
	}
	return disks, nil
}

// diskOf returns the disk that the storage names by the path device.
func (p place) diskOf(device string) (action.Disk, error) {
	if p.storage != nil {
		for i, d := range p.storage.storage.Disks {
			if d.Device == device {
				return p.storage.disks[i], nil
			}
		}
	}
	return action.Disk{}, fmt.Errorf("must be the disk bound to this run or a disk of the storage of %s", p.Path)
}
