package agent

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/plaintext"
	"golang.org/x/sys/unix"
)

// HostFinder reads the facts of the machine on which it runs.
type HostFinder struct {
	// Sys is where sysfs is mounted; "" means /sys.
	Sys string
	// Proc is where procfs is mounted; "" means /proc.
	Proc string
	// Neighbours are what LLDP has heard; nil: nothing.
	Neighbours *Neighbours

	nicFirmware func(name string) string // nil: asks the kernel
}

// Facts implements Finder. Facts that cannot be read are left out.
func (h HostFinder) Facts(context.Context) (action.Facts, error) {
	sys := cmp.Or(h.Sys, "/sys")
	f := action.Facts{
		Manufacturer: word(sys, "class/dmi/id/sys_vendor"),
		Product:      word(sys, "class/dmi/id/product_name"),
		Serial:       word(sys, "class/dmi/id/product_serial"),
		UUID:         strings.ToLower(word(sys, "class/dmi/id/product_uuid")),
		Firmware:     "bios",
		Arch:         map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH],
		CPUs:         runtime.NumCPU(),
		CPU:          cpuModel(cmp.Or(h.Proc, "/proc")),
		BIOS: strings.TrimSpace(word(sys, "class/dmi/id/bios_vendor") + " " + word(sys, "class/dmi/id/bios_version") + " " +
			word(sys, "class/dmi/id/bios_date")),
	}
	if _, err := os.Stat(filepath.Join(sys, "firmware/efi")); err == nil {
		f.Firmware = "uefi"
	}

	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		f.Memory = int64(info.Totalram) * int64(info.Unit)
	}

	f.BMC = h.insideBMC(sys)
	firmware := nicFirmware
	if h.nicFirmware != nil {
		firmware = h.nicFirmware
	}
	f.NICs = listNICs(sys, firmware)
	heard := h.Neighbours.Heard()
	for i, n := range f.NICs {
		if neighbour, ok := heard[n.Name]; ok {
			f.NICs[i].Neighbour = &neighbour
		}
	}
	disks, err := listDisks(sys)
	for i := range disks {
		probeDisk(&disks[i])
	}
	f.Disks = disks
	return f, err
}

// insideBMC returns the management controller, or nil if none is known.
func (h HostFinder) insideBMC(sys string) *action.InsideBMC {
	tables, err := os.ReadFile(filepath.Join(sys, "firmware/dmi/tables/DMI"))
	if err != nil {
		tables = nil // no SMBIOS, as on some virtual machines
	}
	out := ReadSMBIOS(tables)
	if h.Sys != "" {
		return out // not of this machine
	}
	bmc, err := openIPMI()
	if err != nil {
		return out
	}
	defer bmc.Close()
	out, _ = askIPMI(bmc, out) // a controller that does not answer adds nothing
	return out
}

// cpuModel returns the model of the first processor (proc(5), cpuinfo), or "".
func cpuModel(proc string) string {
	b, err := os.ReadFile(filepath.Join(proc, "cpuinfo"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return clean(value)
		}
	}
	return ""
}

// word reads a sysfs file of one line; it returns "" if there is none.
func word(elem ...string) string {
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		return ""
	}
	return clean(string(b))
}

// clean removes characters that cannot be printed: firmware may fill such fields with garbage.
func clean(s string) string {
	return strings.Join(strings.Fields(plaintext.Line(s, len(s))), " ")
}

// diskFirmware returns the firmware revision of a disk, or "". Of a SATA disk, the SCSI revision has only half of it, and the
// whole is in words 23 to 26 of IDENTIFY DEVICE, from byte 60 of VPD page 89h (SAT-3 §12.4.2, ACS-3 §7.12.7).
func diskFirmware(dir string) string {
	const revision = 60 + 2*23
	if page, err := os.ReadFile(filepath.Join(dir, "device/vpd_pg89")); err == nil && len(page) >= revision+8 {
		text := page[revision : revision+8]
		for i := 0; i < len(text); i += 2 { // the first character is in the high byte of a word
			text[i], text[i+1] = text[i+1], text[i]
		}
		return clean(string(text))
	}
	return cmp.Or(word(dir, "device/firmware_rev"), word(dir, "device/rev")) // of NVMe, of SCSI
}

// nicFirmware returns the firmware version that the driver of a network interface reports (ETHTOOL_GDRVINFO), or "".
func nicFirmware(name string) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, name)
	if err != nil {
		return ""
	}
	version := clean(unix.ByteSliceToString(info.Fw_version[:]))
	if version == "N/A" {
		return ""
	}
	return version
}

func listNICs(sys string, firmware func(name string) string) []action.NIC {
	entries, err := os.ReadDir(filepath.Join(sys, "class/net"))
	if err != nil {
		return nil
	}

	var nics []action.NIC
	for _, e := range entries {
		dir := filepath.Join(sys, "class/net", e.Name())
		mac := word(dir, "address")
		hw, err := net.ParseMAC(mac)
		if word(dir, "type") != "1" || err != nil || len(hw) != 6 || bytes.Equal(hw, make([]byte, 6)) {
			continue
		}
		nic := action.NIC{Name: e.Name(), MAC: mac, Up: word(dir, "carrier") == "1", Firmware: firmware(e.Name())}
		if speed, err := strconv.Atoi(word(dir, "speed")); err == nil && speed > 0 {
			nic.Speed = speed
		}
		nics = append(nics, nic)
	}

	return nics
}

// noDisks are name prefixes of block devices on which no system can be installed.
var noDisks = []string{"loop", "ram", "sr", "zram", "dm-", "md", "fd", "nbd", "mtdblock"}

// listDisks lists the disks in sysfs without reading their contents.
func listDisks(sys string) ([]action.Disk, error) {
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
		sectors, err := strconv.ParseInt(word(dir, "size"), 10, 64)

		// Sysfs counts units of 512 bytes, independent of the disk's sector size. The path devices
		// of a multipath NVMe disk are hidden.
		if err != nil || sectors == 0 || word(dir, "hidden") == "1" {
			continue
		}

		where, err := filepath.EvalSymlinks(dir)
		if err != nil {
			where = dir
		}

		d := action.Disk{
			Path: "/dev/" + strings.ReplaceAll(name, "!", "/"), Size: sectors * 512,
			Rotational: word(dir, "queue/rotational") == "1",
			Removable:  word(dir, "removable") == "1",
			ReadOnly:   word(dir, "ro") == "1",
			Model:      word(dir, "device/model"),
			Firmware:   diskFirmware(dir),
		}
		d.SectorSize, _ = strconv.Atoi(word(dir, "queue/logical_block_size")) // 0 if it is missing

		identity(&d, dir, name, where)
		disks = append(disks, d)
	}

	return disks, nil
}

// identity sets serial number, WWN and transport of d, and the by-id names that udev's rules
// (60-persistent-storage.rules) would give it.
func identity(d *action.Disk, dir, name, where string) {
	wwid := cmp.Or(word(dir, "wwid"), word(dir, "device/wwid"))
	switch {
	case strings.HasPrefix(name, "vd"):
		d.Transport = "virtio"
		d.Serial = word(dir, "serial")
		if d.Serial != "" {
			d.ByID = append(d.ByID, "/dev/disk/by-id/virtio-"+under(d.Serial))
		}

	case strings.HasPrefix(name, "nvme"):
		d.Transport = "nvme"
		d.Serial = word(dir, "device/serial")
		d.WWN = wwid
		if wwid != "" {
			d.ByID = append(d.ByID, "/dev/disk/by-id/nvme-"+wwid)
		}

		if d.Serial != "" {
			id := "/dev/disk/by-id/nvme-" + under(d.Model) + "_" + under(d.Serial)
			d.ByID = append(d.ByID, id)
			if ns := word(dir, "nsid"); ns != "" {
				d.ByID = append(d.ByID, id+"_"+ns)
			}
		}

	case strings.HasPrefix(name, "mmcblk"):
		d.Transport = "mmc"
		d.Serial = strings.TrimPrefix(word(dir, "device/serial"), "0x")
		d.Model = word(dir, "device/name")
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

	// Page 0x80, unit serial number: 4 bytes of header, then text.
	if page, err := os.ReadFile(filepath.Join(dir, "device/vpd_pg80")); err == nil && len(page) > 4 {
		d.Serial = clean(string(page[4:]))
	}

	vendor := word(dir, "device/vendor")
	if naa, ok := strings.CutPrefix(wwid, "naa."); ok {
		// The first 64 bits are the WWN; the rest is the vendor's extension.
		d.WWN = "0x" + naa[:min(16, len(naa))]
		d.ByID = append(d.ByID, "/dev/disk/by-id/wwn-0x"+naa, "/dev/disk/by-id/scsi-3"+naa)
	} else if eui, ok := strings.CutPrefix(wwid, "eui."); ok {
		d.WWN = "eui." + eui
		d.ByID = append(d.ByID, "/dev/disk/by-id/scsi-2"+eui)
	}

	if d.Serial == "" {
		// An ATA disk without page 0x80 has its serial number in its t10 designator: "t10.ATA
		// MODEL(40)SERIAL".
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
		// For an ATA disk, the vendor field is "ATA" and the model has only 16 of its 40 characters
		// here; udev reads all of them from the disk.
		d.ByID = append(d.ByID, "/dev/disk/by-id/ata-"+under(d.Model)+"_"+under(d.Serial))
	case "usb":
		d.ByID = append(d.ByID, "/dev/disk/by-id/usb-"+under(vendor)+"_"+under(d.Model)+"_"+under(d.Serial)+"-0:0")
	default:
		d.ByID = append(d.ByID, "/dev/disk/by-id/scsi-S"+under(vendor)+"_"+under(d.Model)+"_"+under(d.Serial))
	}
}

// probeDisk sets the signatures on d. If they cannot be read, d does not count as blank.
func probeDisk(d *action.Disk) {
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
	d.Signatures, d.Blank = Signatures(f, d.Size, sector)
}
