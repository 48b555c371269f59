package template

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ingotmetal/ingot/action"
)

// findDiskAlias returns the disk that the template names, or else the first disk that the machine declares.
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

// findDisk returns the disk that the template names first, and where; "" for none.
func (c *checker) findDisk() (alias, where string) {
	for i, t := range c.doc.Tasks {
		for j, s := range t.Actions {
			for _, key := range action.DiskVariables() {
				value := cmp.Or(s.Environment[key], t.Environment[key])
				if value == "" || c.open(value) || c.declares(t.Environment, s.Environment, value) {
					continue
				}

				path := fmt.Sprintf("tasks[%d].actions[%d].environment.%s", i, j, key)
				disk := action.DiskOf(value)
				switch err := action.CheckDevicePath(value); {
				case err != nil:
					c.add(path, "give a path such as /dev/sda, or leave it out for the machine's own disk", "%v", err)
				case action.IsVolume(value):
					c.add(path, "declare it in the machine's storage, or name a disk",
						"%q is an array or a logical volume that the storage of the machine does not declare", value)
				case alias == "":
					alias, where = disk, path
				case alias != disk:
					c.add(path, "name one disk in all actions", "%q is a second disk next to %q; a run is bound to one disk", disk,
						alias)
				}
			}
		}
	}
	return alias, where
}

// declares reports whether the storage of an action, in one of its environments, declares an array or a logical volume at
// device, or a partition of another disk than its first. Without data, it reports whether a machine's storage may do so.
func (c *checker) declares(task, step map[string]string, device string) bool {
	text := cmp.Or(step[action.StorageVariable], task[action.StorageVariable])
	if text == "" && c.data == nil {
		return action.IsVolume(device) || action.DiskOf(device) != device
	}
	storage, err := action.ParseStorage(cmp.Or(text, c.machineStorage()))
	if err != nil {
		return false // reported where it is read
	}
	disk, _ := storage.Disk(device)
	return disk != 0 && storage.Declares(device)
}

// checkDevice checks the device that an action names. It gives the action the machine's storage if that declares the device. disk
// is the run's.
func (p *planner) checkDevice(path, native string, env environment, disk string) {
	variable := action.DiskVariable(native, env.values)
	device := env.values[variable]
	_, own := action.PartitionOf(device, disk)
	path, step := path+".environment."+variable, path
	switch declared := !own && device != "" && p.check.declares(nil, env.values, device); {
	case declared && action.Describe(native).Volumes:
		p.setStorage(step, env, disk)
	case declared:
		p.check.add(path, "name a disk", "%q is part of the machine's storage, and %s needs a disk", device, native)
		return
	case !own && device != "" && action.DiskOf(device) != disk:
		return // findDisk reports it
	}
	if err := action.CheckDevice(native, env.values, disk); err != nil {
		p.check.add(path, "see "+actionsPage, "%v", err)
	}
}

// deviceVariables are the variables that action.CheckDevice reads, besides those that name a disk.
var deviceVariables = []string{
	action.PartitionVariable, action.AllDisksVariable, action.StorageVariable, action.FileSystemVariable, action.GrubDisksVariable,
}

// checkLiteralDevice checks the device that an action names as far as the template alone shows it.
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
