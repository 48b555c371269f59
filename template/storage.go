package template

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
)

// setStorage sets the variable STORAGE in env, the environment of the action at path, to the machine's storage. If STORAGE is set already,
// it stays. setStorage also checks the disks of STORAGE. alias is the path by which the run's disk is named.
func (p *planner) setStorage(path string, env environment, alias string) {
	if raw := p.check.machineStorage(); raw != "" {
		env.setDefault(action.StorageVariable, raw, "the machine's storage")
	}

	if env.values[action.StorageVariable] == "" {
		p.check.add(path+".image", fmt.Sprintf("give machine %s a storage (disks, filesystems), or set %s", p.data.Machine.Name,
			action.StorageVariable), "partitions and formats what the machine's storage describes, but machine %q has no storage",
			p.data.Machine.Name)
		return
	}
	storage, err := action.ParseStorage(env.values[action.StorageVariable])
	if err != nil {
		return // the check of the variable STORAGE reports the error
	}
	if err := action.CheckStorageDisks(env.values, alias); err != nil {
		p.check.add(path+".environment."+action.StorageVariable, "see "+actionsPage, "%v", err)
	}
	p.checkStorageDisks(path, storage, alias)
}

// checkStorageDisks adds a problem if a disk of the storage s is protected, or contradicts the machine's disk selector, by which the agent
// finds the run's disk.
func (p *planner) checkStorageDisks(path string, s action.Storage, alias string) {
	m := p.data.Machine
	for i, d := range s.Disks {
		field, own := fmt.Sprintf("%s.environment.%s", path, action.StorageVariable), d.Device == alias
		if slices.ContainsFunc(m.ProtectedDisks, func(p action.DiskID) bool { return p.Is(action.Disk{Serial: d.Serial, WWN: d.WWN}) }) {
			p.check.add(field, "remove the disk from the storage, or from protectedDisks",
				"disks[%d] (%s) is protected, so Ingot never writes to it", i, d.Device)
		}
		sel := m.DiskSelector
		if sel == nil {
			continue
		}
		bound := action.DiskID{Serial: sel.Serial, WWN: sel.WWN}
		differs := func(a, b string) bool { return a != "" && b != "" && !strings.EqualFold(a, b) }
		switch {
		case own && (differs(d.Serial, bound.Serial) || differs(d.WWN, bound.WWN)):
			p.check.add(field, "give the disk the serial or wwn of the disk selector, or neither",
				"disks[%d] (%s) is the run's disk, but the machine's disk selector names another disk", i, d.Device)
		case !own && bound.Is(action.Disk{Serial: d.Serial, WWN: d.WWN}):
			p.check.add(field, "name the disk as "+alias,
				"disks[%d] (%s) is the disk that the machine's disk selector names for %s", i, d.Device, alias)
		}
	}
}

// machineStorage returns the machine's storage as JSON; "" if it has none.
func (c *checker) machineStorage() string {
	if c.data == nil || c.data.Machine.Storage == nil {
		return ""
	}
	raw, err := json.Marshal(c.data.Machine.Storage)
	if err != nil {
		panic(fmt.Sprintf("encoding a storage: %v", err)) // never happens: a Storage can always be encoded
	}
	return string(raw)
}
