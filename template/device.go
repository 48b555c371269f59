package template

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ingotmetal/ingot/action"
)

// findDiskAlias returns the path for the run's disk: the disk that the template names, or else the first disk that the machine declares,
// the first disk of its storage, or DefaultDisk.
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

// findDisk returns the disk that the template names first, and the path of the variable that names it; both are "" if there is none. It
// adds a problem for each further disk.
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
					c.add(path, "give a path such as /dev/sda, or leave the variable out for the machine's own disk", "%v", err)
				case action.IsVolume(value):
					c.add(path, "declare the volume in the machine's storage, or name a disk",
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

// declares reports whether device is an array, a logical volume, or a partition of a disk other than the first one in the storage for an
// action. The storage is the value of STORAGE in step or task, or else the machine's. If the machine is not known, declares reports
// whether some machine's storage could declare device.
func (c *checker) declares(task, step map[string]string, device string) bool {
	text := cmp.Or(step[action.StorageVariable], task[action.StorageVariable])
	if text == "" && c.data == nil {
		return action.IsVolume(device) || action.DiskOf(device) != device
	}
	storage, err := action.ParseStorage(cmp.Or(text, c.machineStorage()))
	if err != nil {
		return false // the check of STORAGE reports it
	}
	disk, _ := storage.Disk(device)
	return disk != 0 && storage.Declares(device)
}

// checkDevice checks the device that the environment of an action names. If the machine's storage declares the device, it also sets
// STORAGE. disk is the path of the run's disk.
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

// deviceVariables are the variables that action.CheckDevice reads, besides action.DiskVariables.
var deviceVariables = []string{
	action.PartitionVariable, action.AllDisksVariable, action.StorageVariable, action.FileSystemVariable, action.GrubDisksVariable,
}

// checkLiteralDevice checks the device that an action names. It does nothing if the device, or a variable that action.CheckDevice reads,
// may depend on data.
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
