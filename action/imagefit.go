package action

import "fmt"

// ImageFits returns an error if a disk image is too large for d, or if its partition table is made for sectors of another size than
// those of d. sectorSize is the size of the logical sectors for which the table is made (UEFI 2.10, 5.3). end is how many bytes the
// image needs. 0 means that a value is not known.
func ImageFits(sectorSize int, end int64, d Disk) error {
	switch {
	case sectorSize != 0 && d.SectorSize != 0 && sectorSize != d.SectorSize:
		return fmt.Errorf("the image's partition table is for disks with %d-byte sectors, and this disk has %d-byte sectors: "+
			"use an image that is made for %d-byte sectors, or another disk", sectorSize, d.SectorSize, d.SectorSize)
	case end > d.Size:
		return fmt.Errorf("the image needs %d bytes, but this disk has only %d: use a smaller image or a larger disk", end, d.Size)
	}
	return nil
}

// BootForm returns how the machine's firmware starts a disk for which it has no boot entry: "bios", or "uefi-" and the
// architecture. BootForm returns "" if the facts do not tell this.
func (f Facts) BootForm() string {
	switch {
	case f.Firmware == "uefi" && f.Arch != "":
		return "uefi-" + f.Arch
	case f.Firmware == "bios":
		return f.Firmware
	}
	return ""
}
