package inventory

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
)

// Choose returns the disk that s selects. If s is nil or zero, Choose returns the only fixed disk, provided that this disk is blank or was
// last written by Ingot. If no disk or several disks are possible, Choose returns nil and the reason.
func (s *DiskSelector) Choose(disks []action.Disk) (*action.Disk, string) {
	var fit []action.Disk
	if s == nil || *s == (DiskSelector{}) {
		for _, d := range disks {
			if !d.Removable && !d.ReadOnly && d.Transport != "usb" {
				fit = append(fit, d)
			}
		}
		switch {
		case len(fit) == 0:
			return nil, "the machine has no fixed disk"
		case len(fit) > 1:
			return nil, fmt.Sprintf("the machine has %d fixed disks and no disk selector", len(fit))
		case !fit[0].Blank && fit[0].Written == "":
			return nil, fmt.Sprintf("disk %s holds %s, which Ingot did not write; to overwrite this disk, name its serial",
				fit[0].Path, contentsOf(fit[0]))
		}
		return &fit[0], ""
	}

	for _, d := range disks {
		if !d.ReadOnly && s.Matches(d) {
			fit = append(fit, d)
		}
	}

	switch len(fit) {
	case 1:
		return &fit[0], ""
	case 0:
		return nil, "no disk matches the disk selector"
	}
	return nil, fmt.Sprintf("%d disks match the disk selector", len(fit))
}

func contentsOf(d action.Disk) string {
	if len(d.Signatures) == 0 {
		return "data"
	}
	return strings.Join(d.Signatures, ", ")
}

// Matches reports whether d matches each field of s that is set.
func (s *DiskSelector) Matches(d action.Disk) bool {
	return (s.Serial == "" || s.Serial == d.Serial) &&
		(s.WWN == "" || strings.EqualFold(s.WWN, d.WWN)) &&
		(s.ByID == "" || slices.Contains(d.ByID, strings.TrimPrefix(s.ByID, "/dev/disk/by-id/"))) &&
		(s.Model == "" || s.Model == d.Model) &&
		(s.MinSize == 0 || d.Size >= int64(s.MinSize)) &&
		(s.MaxSize == 0 || d.Size <= int64(s.MaxSize))
}
