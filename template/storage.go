package template

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ingotmetal/ingot/action"
)

// storage gives an action the machine's storage, and checks that each disk of it is known: alias is
// the path of the run's disk.
func (c *checker) storage(path string, env environment, alias string) {
	if raw := c.machineStorage(); raw != "" {
		env.setDefault(action.StorageVariable, raw, "the machine's storage")
	}

	if env.values[action.StorageVariable] == "" {
		c.add(path+".image", fmt.Sprintf("give machine %s a storage (disks, filesystems), or set %s", c.data.Machine.Name,
			action.StorageVariable), "partitions and formats what the machine's storage says, but machine %q has none",
			c.data.Machine.Name)
		return
	}
	if _, err := action.ParseStorage(env.values[action.StorageVariable]); err != nil {
		return // reported with the other variables
	}
	if err := action.CheckStorageDisks(env.values, alias); err != nil {
		c.add(path+".environment."+action.StorageVariable, "see "+actionsPage, "%v", err)
	}
}

// machineStorage returns the machine's storage as JSON; "" if it has none.
func (c *checker) machineStorage() string {
	if c.data.Machine.Storage == nil {
		return ""
	}
	raw, err := json.Marshal(c.data.Machine.Storage)
	if err != nil {
		panic(fmt.Sprintf("encoding a storage: %v", err)) // it has strings and numbers only
	}
	return string(raw)
}

// declares reports whether the storage of a step declares an array or a logical volume at device, or
// a partition of another disk than its first.
func (c *checker) declares(t task, s step, device string) bool {
	text := cmp.Or(s.Environment[action.StorageVariable], t.Environment[action.StorageVariable], c.machineStorage())
	storage, err := action.ParseStorage(text)
	if err != nil {
		return false // reported where it is read
	}
	disk, _ := storage.Disk(device)
	return disk != 0 && storage.Declares(device)
}

// volume gives an action the machine's storage if its disk is a device that the storage declares.
// disk is the run's. It refuses what the action cannot do there.
func (c *checker) volume(path, native string, env environment, disk string) {
	variable := action.DiskVariable(native)
	device := env.values[variable]
	own := device == "" || wholeDisk(device) == disk
	if native == action.Grub2Disk {
		for _, d := range action.GrubDisks(env.values) {
			if d != disk && (own || !c.hasDisk(env, d)) {
				c.add(path+".environment."+action.GrubDisksVariable, "name the run's disk, or those of the storage that holds the system",
					"%q is a second disk beside %q", d, disk)
			}
		}
	}
	if own {
		return
	}

	if !action.Describe(native).Volumes {
		c.add(path+".environment."+variable, "name a disk", "%q is part of the machine's storage, and %s needs a disk", device, native)
		return
	}
	if env.values[action.PartitionVariable] != "" {
		c.add(path+".environment."+action.PartitionVariable, "leave it out", "%s=%q names a file system already", variable, device)
	}
	c.storage(path, env, disk)
}

// hasDisk reports whether the storage of an action has a disk at device.
func (c *checker) hasDisk(env environment, device string) bool {
	storage, err := action.ParseStorage(cmp.Or(env.values[action.StorageVariable], c.machineStorage()))
	return err == nil && slices.ContainsFunc(storage.Disks, func(d action.StorageDisk) bool { return d.Device == device })
}
