package action

import (
	"errors"
	"fmt"
	"strings"
)

// StorageVariable is the variable that contains the machine's Storage as JSON.
const StorageVariable = "STORAGE"

// RootIOCommands are the values of command for rootio.
var RootIOCommands = []string{"wipe", "partition", "format", "mount", "version"}

// rootIO partitions and formats disks as described by the machine's storage.
var rootIO = Description{
	Text: "Partitions and formats disks as the machine's `storage` says: `command` is one of " + strings.Join(RootIOCommands, ", ") +
		". `wipe` clears the disks. `partition` makes partitions, then md arrays (`raid`) and LVM (`volume_groups`). `mount` mounts " +
		"each file system once, creates the mount points below it, and unmounts it.",
	Writes: true, Whole: true, Disk: "DEST_DISK", Commands: RootIOCommands,
	Variables: []Variable{
		{
			Name: StorageVariable, Text: "JSON in the form of the machine's `storage`", Default: "the machine's `storage`",
			check: storageOfRun,
		},
		{Name: "DEST_DISK", Text: "path that the storage uses for the run's disk", Default: runDisk},
		{Name: "MBR", Text: "only empty: the partition table is always a GPT; BIOS needs a partition `BIOS`", check: onlyGPT},
		{Name: "MIRROR_HOST", Text: "not needed: the plan contains the storage"},
		{Name: "METADATA_SERVICE_PORT", Text: "not needed", check: number},
		{Name: "TEST", Text: "not read"},
		{Name: "JSON_FILE", Text: "not read: give STORAGE"},
	},
	Output: []string{"command", "disks", "partitions", "filesystems"},
	Limits: "Disks other than the run's need `serial` or `wwn` in the storage. Without `wipe_table`, `partition` refuses a disk " +
		"that is not empty, except if it has the same table already. Disks of `raid` and `volume_groups` need `wipe_table`. Arrays have level " +
		strings.Join(RAIDLevels, ", ") + " and metadata 1.2; volumes are linear. Nothing stays mounted or assembled: other " +
		"actions activate and mount what they need.",
	Adds: "STORAGE.",
}

func onlyGPT(env map[string]string, name string) error {
	if env[name] != "" {
		return fmt.Errorf("reading %s: only GPT is written: leave the variable out; for BIOS, add a partition with the label BIOS to the storage",
			name)
	}
	return nil
}

func storageOfRun(env map[string]string, name string) error {
	if env[name] == "" {
		return nil // the plan sets STORAGE to the machine's storage
	}
	s, err := ParseStorage(env[name])
	if err != nil {
		return fmt.Errorf("reading %s: %w", name, err)
	}

	var errs []error
	for _, p := range s.Problems() {
		errs = append(errs, fmt.Errorf("reading %s: %s", name, p))
	}
	if len(s.Disks) == 0 {
		errs = append(errs, fmt.Errorf("reading %s: it has no disks: name the disk and its partitions", name))
	}
	return errors.Join(errs...)
}

// ParseStorage parses the JSON of a Storage. Unknown keys are errors.
func ParseStorage(text string) (Storage, error) {
	var s Storage
	if err := decodeStrictly(text, "JSON object", &s); err != nil {
		return s, fmt.Errorf("decoding the storage: %w", err)
	}
	return s, nil
}

// CheckStorageDisks returns an error for each disk of STORAGE, other than the run's disk, that has neither a serial number nor a
// WWN. alias is the path that STORAGE uses for the run's disk.
func CheckStorageDisks(env map[string]string, alias string) error {
	s, err := ParseStorage(env[StorageVariable])
	if err != nil {
		return fmt.Errorf("reading %s: %w", StorageVariable, err)
	}

	var errs []error
	for i, d := range s.Disks {
		if d.Device != alias && d.Serial == "" && d.WWN == "" {
			errs = append(errs, fmt.Errorf("reading %s: disks[%d]: %s is not the run's disk (%s): give its serial or wwn, "+
				"or set DEST_DISK to its path", StorageVariable, i, d.Device, alias))
		}
	}
	return errors.Join(errs...)
}
