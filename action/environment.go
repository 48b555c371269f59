package action

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Variables that several native actions read, or that a plan checks.
const (
	PartitionVariable  = "PARTITION"   // see ParsePartition
	FileSystemVariable = "FS_TYPE"     // one of FileSystems
	ReserveVariable    = "RESERVE_MIB" // see MiB
	WipeModeVariable   = "WIPE_MODE"   // one of WipeModes
	AllDisksVariable   = "ALL_DISKS"   // true: wipe every fixed disk
)

// WipeModes are the values of WIPE_MODE. The first is the default.
var WipeModes = [...]string{"metadata", "quick"}

// Ways to select a partition of a disk, in the notation of fstab(5) and blkid(8).
const (
	ByNumber = "NUMBER"
	ByLabel  = "LABEL"     // label of the file system
	ByUUID   = "UUID"      // UUID of the file system
	ByName   = "PARTLABEL" // name of the partition in a GPT
	ByGUID   = "PARTUUID"
	ByType   = "PARTTYPE" // type of the partition: a GUID, or a number such as 0x83 in an MBR
)

// Partition selects a partition of a disk. By is one of the constants above. The zero value selects no partition.
type Partition struct{ By, Value string }

func (p Partition) String() string { return p.By + "=" + p.Value }

// ParsePartition parses a partition number (from 1), or a selector such as LABEL=root. A selector begins with one of the constants
// above other than ByNumber. For "", ParsePartition returns the zero value.
func ParsePartition(text string) (Partition, error) {
	if text == "" {
		return Partition{}, nil
	}
	if n, err := strconv.Atoi(text); err == nil && n > 0 {
		return Partition{ByNumber, strconv.Itoa(n)}, nil
	}
	by, value, ok := strings.Cut(text, "=")
	by = strings.ToUpper(by)
	if !ok || value == "" || !slices.Contains([]string{ByLabel, ByUUID, ByName, ByGUID, ByType}, by) {
		return Partition{}, fmt.Errorf("invalid %s %q; must be a number from 1, "+
			"or LABEL=, UUID=, PARTLABEL=, PARTUUID= or PARTTYPE= and a value", PartitionVariable, text)
	}
	return Partition{by, value}, nil
}

// Bool parses the variable called name, which is true or false. If the variable is empty or invalid, Bool returns the argument
// otherwise.
func Bool(env map[string]string, name string, otherwise bool) (bool, error) {
	if env[name] == "" {
		return otherwise, nil
	}
	b, err := strconv.ParseBool(env[name])
	if err != nil {
		return otherwise, fmt.Errorf("invalid %s %q; must be true or false", name, env[name])
	}
	return b, nil
}

// MiB parses the variable called name, which is a number of MiB, and returns the number of bytes; 0 if the variable is empty.
func MiB(env map[string]string, name string) (int64, error) {
	if env[name] == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(env[name], 10, 31)
	if err != nil {
		return 0, fmt.Errorf("invalid %s %q; must be a whole number of MiB", name, env[name])
	}
	return int64(n) << 20, nil
}
