// Package facts collects facts about the machine: its hardware, its management controller and its LLDP neighbours.
package facts

import (
	"bytes"
	"cmp"
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"golang.org/x/sys/unix"
)

// HostFinder reads the facts of the machine on which it runs.
type HostFinder struct {
	// Sys is the directory on which sysfs is mounted; "" = /sys.
	Sys string
	// Proc is the directory on which procfs is mounted; "" = /proc.
	Proc string
	// Neighbours are the neighbours that LLDP has found; nil = none.
	Neighbours *Neighbours

	nicFirmware func(name string) string // nil = the kernel is asked
}

// Facts implements Finder. It omits facts that cannot be read; an error means that the disks could not be listed.
func (h HostFinder) Facts(context.Context) (action.Facts, error) {
	sys := cmp.Or(h.Sys, "/sys")
	f := action.Facts{
		Manufacturer: blockdev.Attribute(sys, "class/dmi/id/sys_vendor"),
		Product:      blockdev.Attribute(sys, "class/dmi/id/product_name"),
		Serial:       blockdev.Attribute(sys, "class/dmi/id/product_serial"),
		UUID:         strings.ToLower(blockdev.Attribute(sys, "class/dmi/id/product_uuid")),
		Firmware:     "bios",
		Arch:         map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH],
		CPUs:         runtime.NumCPU(),
		CPU:          cpuModel(cmp.Or(h.Proc, "/proc")),
		BIOS: strings.TrimSpace(
			blockdev.Attribute(sys, "class/dmi/id/bios_vendor") + " " + blockdev.Attribute(sys, "class/dmi/id/bios_version") + " " +
				blockdev.Attribute(sys, "class/dmi/id/bios_date"),
		),
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
	neighbours := h.Neighbours.Last()
	for i, n := range f.NICs {
		if neighbour, ok := neighbours[n.Name]; ok {
			f.NICs[i].Neighbour = &neighbour
		}
	}
	disks, err := disk.List(sys)
	for i := range disks {
		disk.Probe(&disks[i])
	}
	f.Disks = disks
	return f, err
}

// insideBMC returns the facts about the management controller, or nil if there are none.
func (h HostFinder) insideBMC(sys string) *action.InsideBMC {
	tables, err := os.ReadFile(filepath.Join(sys, "firmware/dmi/tables/DMI"))
	if err != nil {
		tables = nil // no SMBIOS, as on some virtual machines
	}
	out := ReadSMBIOS(tables)
	if h.Sys != "" {
		return out // a test's sysfs: do not ask the controller of this host
	}
	bmc, err := openIPMI()
	if err != nil {
		return out
	}
	defer bmc.Close()
	out, _ = askIPMI(bmc, out) // without a response, out stays as it is
	return out
}

// cpuModel returns the model of the first processor in cpuinfo, proc(5), or "".
func cpuModel(proc string) string {
	b, err := os.ReadFile(filepath.Join(proc, "cpuinfo"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return plaintext.Words(value)
		}
	}
	return ""
}

// nicFirmware returns the firmware version that a network interface's driver reports (ETHTOOL_GDRVINFO), or "".
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
	version := plaintext.Words(unix.ByteSliceToString(info.Fw_version[:]))
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
		mac := blockdev.Attribute(dir, "address")
		hw, err := net.ParseMAC(mac)
		if blockdev.Attribute(dir, "type") != "1" || err != nil || len(hw) != 6 || bytes.Equal(hw, make([]byte, 6)) {
			continue
		}
		nic := action.NIC{Name: e.Name(), MAC: mac, Up: blockdev.Attribute(dir, "carrier") == "1", Firmware: firmware(e.Name())}
		if speed, err := strconv.Atoi(blockdev.Attribute(dir, "speed")); err == nil && speed > 0 {
			nic.Speed = speed
		}
		nics = append(nics, nic)
	}

	return nics
}
