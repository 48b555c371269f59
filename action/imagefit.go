package action

import "fmt"

// ImageFits returns an error if no system would find the partitions of a disk image on d. Its partition table counts in
// logical sectors of sectorSize bytes (UEFI 2.10, 5.3), and end is the offset of its last byte that counts; 0 = not known.
func ImageFits(sectorSize int, end int64, d Disk) error {
	switch {
	case sectorSize != 0 && d.SectorSize != 0 && sectorSize != d.SectorSize:
		return fmt.Errorf("the image's partition table is for disks with %d-byte sectors, and this disk has %d-byte sectors: "+
			"use an image that is made for %d-byte sectors, or another disk", sectorSize, d.SectorSize, d.SectorSize)
	case end > d.Size:
		return fmt.Errorf("the image needs %d bytes, and this disk has %d: use a smaller image or a larger disk", end, d.Size)
	}
	return nil
}

// BootForm returns how the firmware of a machine starts a disk without a boot entry: bios, or uefi- and the architecture;
// "" if the facts do not have it.
func (f Facts) BootForm() string {
	switch {
	case f.Firmware == "uefi" && f.Arch != "":
		return "uefi-" + f.Arch
	case f.Firmware == "bios":
		return f.Firmware
	}
	return ""
}
