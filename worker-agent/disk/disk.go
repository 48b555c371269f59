// Package disk finds and opens the machine's disks.
package disk

import (
	"context"
	"fmt"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
)

// Identify returns the disk in disks that matches bound. It returns an error if no disk or more than one matches, or if the disk is
// read-only. The serial number, WWN and size of bound must agree; if bound has neither serial number nor WWN, path and size must
// agree.
func Identify(bound action.Disk, disks []action.Disk) (action.Disk, error) {
	var found []action.Disk
	for _, d := range disks {
		switch {
		case bound.Serial == "" && bound.WWN == "":
			if d.Path != bound.Path || d.Serial != "" || d.WWN != "" {
				continue
			}
		case bound.Serial != "" && d.Serial != bound.Serial, bound.WWN != "" && d.WWN != bound.WWN:
			continue
		}
		if d.Size != bound.Size {
			return d, fmt.Errorf("finding the disk %s: %s has %d bytes instead of %d", Describe(bound), d.Path, d.Size, bound.Size)
		}
		found = append(found, d)
	}

	switch {
	case len(found) == 0:
		there := make([]string, 0, len(disks))
		for _, d := range disks {
			there = append(there, d.Path+" "+Describe(d))
		}
		return action.Disk{}, fmt.Errorf("finding the disk %s: not found among the machine's disks: %s", Describe(bound),
			strings.Join(there, "; "))

	case len(found) > 1:
		return action.Disk{}, fmt.Errorf("finding the disk %s: %s and %s both match", Describe(bound), found[0].Path,
			found[1].Path)
	case found[0].ReadOnly:
		return action.Disk{}, fmt.Errorf("finding the disk %s: %s is read-only", Describe(bound), found[0].Path)
	}

	return found[0], nil
}

// Describe returns the identity of a disk for messages.
func Describe(d action.Disk) string {
	var s []string
	if d.Serial != "" {
		s = append(s, "serial "+d.Serial)
	}
	if d.WWN != "" {
		s = append(s, "WWN "+d.WWN)
	}
	if len(s) == 0 {
		s = append(s, d.Path)
	}
	return strings.Join(append(s, fmt.Sprintf("%d bytes", d.Size)), ", ")
}

// Disks lists and opens the machine's disks.
type Disks interface {
	Disks(ctx context.Context) ([]action.Disk, error)
	// Open opens one of Disks by its path, exclusively, for reading and writing.
	Open(path string) (blockdev.Device, error)
}
