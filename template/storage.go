package template

import (
	"encoding/json"
	"fmt"

	"github.com/ingotmetal/ingot/action"
)

// storage gives rootio the machine's storage, and checks that each disk of it is known: alias is the
// path of the run's disk.
func (c *checker) storage(path string, env environment, alias string) {
	if s := c.data.Machine.Storage; s != nil && env.values[action.StorageVariable] == "" {
		raw, err := json.Marshal(s)
		if err != nil {
			c.add(path+".environment", "correct the storage of the machine", "%v", err)
			return
		}
		env.setDefault(action.StorageVariable, string(raw), "the machine's storage")
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
