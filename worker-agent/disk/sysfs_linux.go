package disk

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/probe"
	"golang.org/x/sys/unix"
)

// diskFirmware returns the firmware revision of a disk, or "". The SCSI revision of a SATA disk is only half of its firmware
// revision. The whole one is in words 23 to 26 of the IDENTIFY DEVICE data, which begins at byte 60 of VPD page 89h (SAT-3 §12.4.2,
// ACS-3 §7.12.7).
func diskFirmware(dir string) string {
	const revision = 60 + 2*23
	if page, err := os.ReadFile(filepath.Join(dir, "device/vpd_pg89")); err == nil && len(page) >= revision+8 {
		text := page[revision : revision+8]
		for i := 0; i < len(text); i += 2 { // the first character is in the high byte of a word
			text[i], text[i+1] = text[i+1], text[i]
		}
		return plaintext.Words(string(text))
	}
	return cmp.Or(blockdev.Attribute(dir, "device/firmware_rev"), blockdev.Attribute(dir, "device/rev")) // of NVMe, or of SCSI
}

// noDisks are the name prefixes of block devices on which no system can be installed.
var noDisks = []string{"loop", "ram", "sr", "zram", "dm-", "md", "fd", "nbd", "mtdblock"}

// List returns the disks in sysfs, without reading the disks themselves.
func List(sys string) ([]action.Disk, error) {
	entries, err := os.ReadDir(filepath.Join(sys, "block"))
	if err != nil {
		return nil, fmt.Errorf("listing disks: %w", err)
	}

	var disks []action.Disk
	for _, e := range entries {
		name := e.Name()
		if slices.ContainsFunc(noDisks, func(p string) bool { return strings.HasPrefix(name, p) }) {
			continue
		}

		dir := filepath.Join(sys, "block", name)
		sectors, err := strconv.ParseInt(blockdev.Attribute(dir, "size"), 10, 64)

		// Sysfs counts in units of 512 bytes, whatever the disk's sector size is. "hidden" marks the path devices of a multipath NVMe disk.
		if err != nil || sectors == 0 || blockdev.Attribute(dir, "hidden") == "1" {
			continue
		}

		where, err := filepath.EvalSymlinks(dir)
		if err != nil {
			where = dir
		}

		d := action.Disk{
			Path: "/dev/" + strings.ReplaceAll(name, "!", "/"), Size: sectors * 512,
			Rotational: blockdev.Attribute(dir, "queue/rotational") == "1",
			Removable:  blockdev.Attribute(dir, "removable") == "1",
			ReadOnly:   blockdev.Attribute(dir, "ro") == "1",
			Model:      blockdev.Attribute(dir, "device/model"),
			Firmware:   diskFirmware(dir),
		}
		d.SectorSize, _ = strconv.Atoi(blockdev.Attribute(dir, "queue/logical_block_size")) // 0 if it is missing

		identity(&d, dir, name, where)
		disks = append(disks, d)
	}

	return disks, nil
}

// identity sets the serial number, WWN and transport of d, and the by-id names that udev's rules (60-persistent-storage.rules)
// would give the disk.
func identity(d *action.Disk, dir, name, where string) {
	wwid := cmp.Or(blockdev.Attribute(dir, "wwid"), blockdev.Attribute(dir, "device/wwid"))
	switch {
	case strings.HasPrefix(name, "vd"):
		d.Transport, d.Serial = "virtio", blockdev.Attribute(dir, "serial")
		if d.Serial != "" {
			d.ByID = append(d.ByID, "/dev/disk/by-id/virtio-"+under(d.Serial))
		}

	case strings.HasPrefix(name, "nvme"):
		d.Transport, d.Serial, d.WWN = "nvme", blockdev.Attribute(dir, "device/serial"), wwid
		if wwid != "" {
			d.ByID = append(d.ByID, "/dev/disk/by-id/nvme-"+wwid)
		}

		if d.Serial != "" {
			id := "/dev/disk/by-id/nvme-" + under(d.Model) + "_" + under(d.Serial)
			d.ByID = append(d.ByID, id)
			if ns := blockdev.Attribute(dir, "nsid"); ns != "" {
				d.ByID = append(d.ByID, id+"_"+ns)
			}
		}

	case strings.HasPrefix(name, "mmcblk"):
		d.Transport = "mmc"
		d.Serial = strings.TrimPrefix(blockdev.Attribute(dir, "device/serial"), "0x")
		d.Model = blockdev.Attribute(dir, "device/name")
		if d.Serial != "" {
			d.ByID = append(d.ByID, "/dev/disk/by-id/mmc-"+under(d.Model)+"_0x"+d.Serial)
		}

	default:
		scsiIdentity(d, dir, where, wwid)
	}
}

// under replaces blanks with underscores, as udev does in link names.
func under(s string) string { return strings.ReplaceAll(s, " ", "_") }

func scsiIdentity(d *action.Disk, dir, where, wwid string) {
	switch {
	case strings.Contains(where, "/usb"):
		d.Transport = "usb"
	case strings.Contains(where, "/ata"):
		d.Transport = "sata"
	case strings.Contains(where, "/virtio"):
		d.Transport = "virtio"
	case strings.Contains(where, "/end_device-"):
		d.Transport = "sas"
	default:
		d.Transport = "scsi"
	}

	// Page 0x80 contains the unit serial number: 4 bytes of header, then text.
	if page, err := os.ReadFile(filepath.Join(dir, "device/vpd_pg80")); err == nil && len(page) > 4 {
		d.Serial = plaintext.Words(string(page[4:]))
	}

	vendor := blockdev.Attribute(dir, "device/vendor")
	if naa, ok := strings.CutPrefix(wwid, "naa."); ok {
		// The first 64 bits are the WWN; the rest is a vendor-specific extension.
		d.WWN = "0x" + naa[:min(16, len(naa))]
		d.ByID = append(d.ByID, "/dev/disk/by-id/wwn-0x"+naa, "/dev/disk/by-id/scsi-3"+naa)
	} else if eui, ok := strings.CutPrefix(wwid, "eui."); ok {
		d.WWN = "eui." + eui
		d.ByID = append(d.ByID, "/dev/disk/by-id/scsi-2"+eui)
	}

	if d.Serial == "" {
		// Without page 0x80, the serial number of an ATA disk is at the end of its t10 designator: "t10.ATA MODEL(40)SERIAL".
		if t10, ok := strings.CutPrefix(wwid, "t10.ATA "); ok {
			if f := strings.Fields(t10); len(f) > 1 {
				d.Serial = f[len(f)-1]
			}
		}
	}
	if d.Serial == "" {
		return
	}

	switch d.Transport {
	case "sata":
		// udev would read the vendor and all 40 characters of the model from the ATA disk itself; sysfs has "ATA" and 16 characters.
		d.ByID = append(d.ByID, "/dev/disk/by-id/ata-"+under(d.Model)+"_"+under(d.Serial))
	case "usb":
		d.ByID = append(d.ByID, "/dev/disk/by-id/usb-"+under(vendor)+"_"+under(d.Model)+"_"+under(d.Serial)+"-0:0")
	default:
		d.ByID = append(d.ByID, "/dev/disk/by-id/scsi-S"+under(vendor)+"_"+under(d.Model)+"_"+under(d.Serial))
	}
}

// Probe sets the signatures of d and whether it is blank. If the disk cannot be read, it does not count as blank.
func Probe(d *action.Disk) {
	f, err := os.Open(d.Path)
	if err != nil {
		return
	}
	// Opened only for reading.
	defer func() { _ = f.Close() }()
	sector := 512
	if n, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKSSZGET); err == nil {
		sector = n
	}
	d.Signatures, d.Blank = probe.Signatures(f, d.Size, sector)
}
