package template

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/ingotmetal/ingot/action"
)

// findDiskAlias returns the path that the actions use for the run's disk. If the template names a disk, this is the path. Otherwise it is
// the first disk that the machine declares, the first disk of the machine's storage, or DefaultDisk, whichever exists first.
func (p *planner) findDiskAlias() string {
	alias, path := p.check.findDisk()
	switch m := p.data.Machine; {
	case alias != "":
		p.why.DiskAlias = path
	case len(m.Disks) > 0:
		alias, p.why.DiskAlias = m.Disks[0].Device, "the first disk that the machine declares"
	case m.Storage != nil && len(m.Storage.Disks) > 0:
		alias, p.why.DiskAlias = m.Storage.Disks[0].Device, "the first disk of the machine's storage"
	default:
		alias, p.why.DiskAlias = DefaultDisk, "default: neither template nor machine names one"
	}
	return alias
}

// findDisk returns the first disk that the template names, and the path of the variable that names it. Both are "" if the template names
// none. findDisk adds a problem if the template names a second disk.
func (c *checker) findDisk() (alias, where string) {
	for i, t := range c.doc.Tasks {
		if c.foreign(t) {
			continue
		}
		for j, s := range t.Actions {
			for _, key := range action.DiskVariables() {
				value := cmp.Or(s.Environment[key], t.Environment[key])
				if value == "" || c.open(value) || c.declares(t.Environment, s.Environment, value) || c.secondDisk(value) != nil {
					continue
				}

				path := fmt.Sprintf("tasks[%d].actions[%d].environment.%s", i, j, key)
				disk := action.DiskOf(value)
				switch err := action.CheckDevicePath(value); {
				case err != nil:
					c.add(path, "give a path such as /dev/sda, or leave the variable out for the machine's own disk", "%v", err)
				case action.IsVolume(value):
					c.add(path, "declare the volume in the machine's storage, or name a disk",
						"%q is an array or a logical volume that the storage of the machine does not declare", value)
				case alias == "":
					alias, where = disk, path
				case alias != disk && c.data != nil:
					c.add(path, c.secondDiskRemedy(disk), "%q is a second disk next to %q; a run is bound to one disk", disk, alias)
				}
			}
		}
	}
	return alias, where
}

// secondDisk returns the second disk (see inventory.Machine.SecondDisk) that device or its partition is; nil if the machine declares no
// such disk, or declares it without an identity.
func (c *checker) secondDisk(device string) *action.SecondDisk {
	if c.data == nil {
		return nil
	}
	if d, _ := c.data.Machine.SecondDisk(action.DiskOf(device)); d.DiskID != (action.DiskID{}) {
		return &d
	}
	return nil
}

// secondDiskRemedy returns what to do about an action that names a disk which is neither the run's disk nor declared by its identity.
func (c *checker) secondDiskRemedy(device string) string {
	if _, ok := c.data.Machine.SecondDisk(device); ok {
		return fmt.Sprintf("give %s a serial or wwn in the document of machine %s", device, c.data.Machine.Name)
	}
	return fmt.Sprintf("name one disk in all actions, or declare %s in the disks of machine %s with its serial or wwn", device,
		c.data.Machine.Name)
}

// setSecondDisk sets the disk of the action a if its environment names a second disk, and returns the path by which the environment names
// the disk of a. It adds a problem if the second disk is protected, or is the disk that the machine's disk selector chooses as the run's
// disk, which the environment calls alias.
func (p *planner) setSecondDisk(path, native string, env environment, a *action.Action, alias string) string {
	variable := action.DiskVariable(native, env.values)
	d := p.check.secondDisk(env.values[variable])
	if d == nil || action.Describe(native).Volumes && p.check.declares(nil, env.values, env.values[variable]) {
		return alias
	}

	path += ".environment." + variable
	m, disk := p.data.Machine, action.Disk{Serial: d.Serial, WWN: d.WWN}
	sel := m.DiskSelector
	switch {
	case native == action.RootIO:
		p.check.add(path, "leave it out, and describe the disk in the machine's storage", "rootio finds its disks in the storage")
	case m.Protects(disk):
		p.check.add(path, "name another disk, or remove it from protectedDisks", "%q is protected, so Ingot never writes to it", d.Device)
	case sel != nil && (action.DiskID{Serial: sel.Serial, WWN: sel.WWN}).Is(disk):
		p.check.add(path, "name the disk as "+alias, "%q is the disk that the machine's disk selector names for %s", d.Device, alias)
	}
	a.Second = d
	return d.Device
}

// declares reports whether the storage declares device, and device is not on the storage's first disk: it is an array, a logical volume, or
// a partition of another disk. The storage is the value of STORAGE in step or task, or else the machine's storage. If neither is known,
// declares reports whether device could be declared by a storage.
func (c *checker) declares(task, step map[string]string, device string) bool {
	text := cmp.Or(step[action.StorageVariable], task[action.StorageVariable])
	if text == "" && c.data == nil {
		return action.IsVolume(device) || action.DiskOf(device) != device
	}
	storage, err := action.ParseStorage(cmp.Or(text, c.machineStorage()))
	if err != nil {
		return false // the check of the variable STORAGE reports the error
	}
	disk, _ := storage.Disk(device)
	return disk != 0 && storage.Declares(device)
}

// checkDevice checks the device that a variable of an action names. If the machine's storage declares this device, and the action can use
// it, checkDevice also sets STORAGE. disk is the path of the run's disk.
func (p *planner) checkDevice(path, native string, env environment, disk string) {
	variable := action.DiskVariable(native, env.values)
	device := env.values[variable]
	_, own := action.PartitionOf(device, disk)
	path, step := path+".environment."+variable, path
	switch declared := !own && device != "" && p.check.declares(nil, env.values, device); {
	case declared && action.Describe(native).Volumes:
		p.setStorage(step, env, disk)
	case declared:
		p.check.add(path, "name a disk", "%q is a volume of the machine's storage, but %s needs a disk", device, native)
		return
	case !own && device != "" && action.DiskOf(device) != disk:
		return // findDisk reports it
	}
	if err := action.CheckDevice(native, env.values, disk); err != nil {
		p.check.add(path, "see "+actionsPage, "%v", err)
	}
}

// checkPartitionImage adds a problem if an action writes an image of this server to a partition, and the image has a partition table or is
// larger than the partition. The size is known only if the machine's storage declares the partition with a size.
func (p *planner) checkPartitionImage(path, native string, env environment, disk string) {
	row := action.Describe(native)
	img, served := p.data.imageAt(env.values[row.URL])
	a := action.Action{Image: native, Environment: env.values}
	if served == "" || !row.Whole || a.WritesWhole(disk) {
		return
	}

	if img.SectorSize != 0 {
		p.check.add(path+".environment."+row.URL, "name the disk, or an image of one file system",
			"image %s has a partition table (%s), so it cannot be written to a partition", img.Name, img.Contents)
	}
	number, _ := action.PartitionOf(env.values[row.Disk], disk)
	if sel, err := action.ParsePartition(env.values[action.PartitionVariable]); err == nil && sel.By == action.ByNumber {
		number, _ = strconv.Atoi(sel.Value)
	}
	if size := p.partitionSize(disk, number); size > 0 && img.DiskSize > size {
		p.check.add(path+".environment."+row.URL, "make the partition larger in the machine's storage, or use a smaller image",
			"image %s needs %d bytes, but partition %d has only %d", img.Name, img.DiskSize, number, size)
	}
}

// partitionSize returns the size in bytes that the machine's storage declares for a partition of disk; 0 if it declares none.
func (p *planner) partitionSize(disk string, number int) int64 {
	if p.data.Machine.Storage == nil {
		return 0
	}
	for _, d := range p.data.Machine.Storage.Disks {
		placed, _ := d.Layout(0, 512)
		if i := slices.IndexFunc(placed, func(x action.PlacedPartition) bool { return x.Number == number }); i >= 0 && d.Device == disk {
			return placed[i].Size
		}
	}
	return 0
}

// deviceVariables and action.DiskVariables are all variables that action.CheckDevice reads.
var deviceVariables = []string{
	action.PartitionVariable, action.AllDisksVariable, action.StorageVariable, action.FileSystemVariable, action.GrubDisksVariable,
}

// checkLiteralDevice checks the device that an action names, without a machine. It does nothing if the values of the variables that
// action.CheckDevice reads may depend on data.
func (l *linter) checkLiteralDevice(at place, native string, env environment) {
	read := slices.Concat(deviceVariables, action.DiskVariables())
	for _, v := range action.Describe(native).Variables {
		value, set := env.values[v.Name]
		if slices.Contains(read, v.Name) && (set && !at.isLiteral(v.Name, value) || !set && at.conditions) {
			return
		}
	}
	variable := action.DiskVariable(native, env.values)
	if action.CheckDevicePath(env.values[variable]) != nil {
		return // findDisk reports it
	}
	if err := action.CheckDevice(native, env.values); err != nil {
		l.check.add(at.step+".environment."+variable, "see "+actionsPage, "%v", err)
	}
}
