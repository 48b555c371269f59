package container

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
	"golang.org/x/sys/unix"
)

// A boundDisk is the disk that a container may use, as the kernel knows it.
type boundDisk struct {
	sys     string   // directory of sysfs
	name    string   // the kernel's name, such as sda
	aliases []string // further paths of the disk in the container
	serial  string   // the kernel's number of this disk, which no other disk gets until the next boot
}

// A node is a block device of the bound disk: the whole disk, or a partition.
type node struct {
	device
	paths       []string // in the container
	number      int      // of the partition; 0 = the whole disk
	start, size int64    // bytes
}

// findDisk returns the disk whose name find returns. It calls find twice: in between, the name must not pass to another disk.
func findDisk(sys string, find func() (name string, err error), aliases []string) (*boundDisk, error) {
	name, err := find()
	if err != nil {
		return nil, err
	}
	d := &boundDisk{sys: sys, name: name, aliases: aliases, serial: blockdev.Attribute(sys, "block", name, "diskseq")}
	if d.serial == "" {
		return nil, fmt.Errorf("finding the disk %s: the kernel does not number its disks; Linux 5.15 is needed", name)
	}
	again, err := find()
	if err == nil && again != name {
		err = fmt.Errorf("finding the disk %s: it has the name %s now", name, again)
	}
	return d, err
}

// nodes returns the disk and its partitions as the kernel has them now. If the disk is gone, and another one has its name, nodes returns an
// error.
func (d *boundDisk) nodes() ([]node, error) {
	dir := filepath.Join(d.sys, "block", d.name)
	whole, err := d.node(dir, 0)
	if err != nil {
		return nil, err
	}
	if got := blockdev.Attribute(dir, "diskseq"); got != d.serial {
		return nil, fmt.Errorf("finding the disk %s: the name belongs to another disk now", d.name)
	}
	nodes := []node{whole}
	found, err := filepath.Glob(filepath.Join(dir, "*", "partition"))
	if err != nil {
		return nil, err
	}
	for _, file := range found {
		n, err := strconv.Atoi(blockdev.Attribute(file))
		if err != nil {
			continue // the partition was removed just now
		}
		if p, err := d.node(filepath.Dir(file), n); err == nil {
			nodes = append(nodes, p)
		}
	}
	return nodes, nil
}

// node returns the block device at dir in sysfs.
func (d *boundDisk) node(dir string, number int) (n node, err error) {
	text := blockdev.Attribute(dir, "dev")
	if _, err := fmt.Sscanf(text, "%d:%d", &n.major, &n.minor); err != nil {
		return n, fmt.Errorf("reading the number of %s: %w", dir, err)
	}
	own, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return n, err
	}
	if other, err := filepath.EvalSymlinks(filepath.Join(d.sys, "dev/block", text)); err != nil || other != own {
		return n, fmt.Errorf("reading the number of %s: %s belongs to another disk now", dir, text)
	}
	n.block, n.number = true, number
	for attribute, value := range map[string]*int64{"start": &n.start, "size": &n.size} {
		sectors, err := strconv.ParseInt(blockdev.Attribute(dir, attribute), 10, 64)
		if err == nil { // a whole disk has no start
			*value = sectors * 512
		}
	}
	n.paths = []string{"/dev/" + filepath.Base(dir)}
	for _, alias := range d.aliases {
		if number > 0 {
			alias = action.PartitionPath(alias, number)
		}
		if !slices.Contains(n.paths, alias) && strings.HasPrefix(alias, "/dev/") && filepath.Clean(alias) == alias {
			n.paths = append(n.paths, alias)
		}
	}
	return n, nil
}

// reread makes the kernel read the partition table of the disk again if the table differs from what the kernel has. A container cannot do
// that, because it lacks CAP_SYS_ADMIN. before is called if the table differs. If a partition is in use, reread returns unix.EBUSY.
func (d *boundDisk) reread(before func() error) error {
	f, err := os.Open("/dev/" + d.name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened only for reading
	nodes, err := d.nodes()
	if err != nil || !isTableChanged(f, nodes) {
		return err
	}
	if err := before(); err != nil {
		return err
	}
	if err := unix.IoctlSetInt(int(f.Fd()), unix.BLKRRPART, 0); err != nil && !errors.Is(err, unix.EINVAL) {
		return err // EINVAL: the disk does not support partitions
	}
	return nil
}

// sync returns when all data of the disk is on stable storage.
func (d *boundDisk) sync() error {
	nodes, err := d.nodes()
	if err != nil {
		return err
	}
	for _, n := range nodes {
		f, err := os.Open(n.paths[0])
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return fmt.Errorf("syncing %s: %w", n.paths[0], err)
		}
	}
	return nil
}

// isTableChanged reports whether the table in f may differ from the partitions in nodes. The first node is the whole disk.
func isTableChanged(f io.ReaderAt, nodes []node) bool {
	sector := 512
	if file, ok := f.(*os.File); ok {
		if n, err := unix.IoctlGetInt(int(file.Fd()), unix.BLKSSZGET); err == nil {
			sector = n
		}
	}
	t, err := parttable.Read(f, nodes[0].size, sector)
	if errors.Is(err, parttable.ErrNoTable) && !parttable.IsDamaged(err) {
		return len(nodes) > 1
	}
	if err != nil || t.Kind != "gpt" || len(t.Parts) != len(nodes)-1 {
		return true // an MBR may have logical partitions, which Read does not return
	}
	for _, p := range t.Parts {
		if !slices.ContainsFunc(nodes, func(n node) bool { return n.number == p.Number && n.start == p.Start && n.size == p.Size }) {
			return true
		}
	}
	return false
}
