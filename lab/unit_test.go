package lab

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestSpecDefaults(t *testing.T) {
	s, err := Spec{Name: "node-1", VLAN: RelayedVLAN}.complete(3)
	if err != nil {
		t.Fatal(err)
	}
	want := Spec{
		Name: "node-1", VLAN: 30, MAC: "52:54:00:30:00:03", Firmware: BIOS, Bus: Virtio, DiskSize: 4 << 30, DiskSerial: "DISK-node-1",
		Order: DiskFirst, MemoryMB: 512, Serial: "SN-node-1", UUID: "00000000-0000-4000-8000-525400300003",
		BMCAddress: "10.10.10.13", BMCUser: "admin", BMCPassword: "password",
	}
	if s.Decoys != nil || s.MAC != want.MAC || s.UUID != want.UUID || s.BMCAddress != want.BMCAddress || s.DiskSerial != want.DiskSerial ||
		s.DiskSize != want.DiskSize || s.Firmware != want.Firmware || s.Bus != want.Bus || s.Order != want.Order || s.MemoryMB != want.MemoryMB {
		t.Errorf("got  %+v\nwant %+v", s, want)
	}
}

func TestSpecRefused(t *testing.T) {
	for name, s := range map[string]Spec{
		"no name":         {},
		"path as name":    {Name: "../x"},
		"unknown VLAN":    {Name: "a", VLAN: 7},
		"firmware":        {Name: "a", Firmware: "coreboot"},
		"bus":             {Name: "a", Bus: "floppy"},
		"order":           {Name: "a", Order: "tape"},
		"same serials":    {Name: "a", DiskSerial: "S", Decoys: []string{"S"}},
		"comma in serial": {Name: "a", Decoys: []string{"a,b"}},
		"long serial":     {Name: "a", DiskSerial: strings.Repeat("x", 21)},
	} {
		if _, err := s.complete(1); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// args returns the values of all options with that name.
func args(all []string, option string) []string {
	var found []string
	for i, a := range all[:len(all)-1] {
		if a == option {
			found = append(found, all[i+1])
		}
	}
	return found
}

func TestQEMUArguments(t *testing.T) {
	s, err := Spec{Name: "n", Bus: NVMe, Firmware: UEFIHTTP, Decoys: []string{"D1"}}.complete(1)
	if err != nil {
		t.Fatal(err)
	}
	m := &Machine{lab: &Lab{name: "ilab0"}, spec: s, num: 1, dir: "/d"}
	a := m.qemuArgs(NetworkFirst, "/run/s")
	if got := args(a, "-accel"); !slices.Equal(got, []string{"tcg,thread=multi"}) {
		t.Errorf("accel = %q", got)
	}
	devices := args(a, "-device")
	find := func(prefix string) []string {
		return slices.DeleteFunc(slices.Clone(devices), func(d string) bool { return !strings.HasPrefix(d, prefix) })
	}
	if got := find("virtio-net-pci"); len(got) != 1 || !strings.Contains(got[0], "bootindex=1,romfile=") {
		t.Errorf("network card = %q", got)
	}
	if got := find(
		"nvme",
	); !slices.Equal(got,
		[]string{"nvme,drive=drive0,serial=DISK-n,id=blk0,bootindex=2", "nvme,drive=drive1,serial=D1"}) {
		t.Errorf("disks = %q", got)
	}
	if got := args(a, "-fw_cfg"); !slices.Contains(got, "name=opt/org.tianocore/IPv4PXESupport,string=no") {
		t.Errorf("fw_cfg = %q", got)
	}
	m.SetDecoysFirst(true)
	devices = args(m.qemuArgs(DiskFirst, "/run/s"), "-device")
	if got := find(
		"nvme",
	); !slices.Equal(got,
		[]string{"nvme,drive=drive0,serial=D1", "nvme,drive=drive1,serial=DISK-n,id=blk0,bootindex=1"}) {
		t.Errorf("disks, decoys first = %q", got)
	}
}

func TestChassis(t *testing.T) {
	m := &Machine{lab: &Lab{}, spec: Spec{Name: "n"}, next: NextDefault, order: DiskFirst}
	for _, c := range []struct{ ask, answer string }{
		{"get power boot", "power:0\nboot:none\n"},
		{"set boot pxe", ""},
		{"get boot", "boot:pxe\n"},
		{"set identify 15 0 boot default", ""},
		{"get boot", "boot:default\n"},
		{"set boot none", ""},
		{"get boot", "boot:none\n"},
		{"set power 0", ""},
		{"set reset 1", ""},
	} {
		got, err := m.chassis(t.Context(), strings.Fields(c.ask))
		if err != nil || got != c.answer {
			t.Errorf("%q: %q, %v; want %q", c.ask, got, err, c.answer)
		}
	}
	for _, ask := range []string{"", "get", "get weather", "set boot cdrom", "set weather 1", "put power 1"} {
		if _, err := m.chassis(t.Context(), strings.Fields(ask)); err == nil {
			t.Errorf("%q: no error", ask)
		}
	}
}

func TestBootOrder(t *testing.T) {
	for _, c := range []struct {
		order BootOrder
		next  NextBoot
		want  BootOrder
	}{
		{DiskFirst, NextDefault, DiskFirst},
		{DiskFirst, NextNetwork, NetworkFirst},
		{NetworkFirst, NextDefault, NetworkFirst},
		{NetworkFirst, NextDisk, DiskFirst},
	} {
		m := &Machine{order: c.order, next: c.next}
		if got := m.first(); got != c.want {
			t.Errorf("%s with %s: %s, want %s", c.order, c.next, got, c.want)
		}
	}
}

func TestSerialLines(t *testing.T) {
	text := "\x1b[2J\x1b[01;01Hfirmware\r\n[    1.0] LAB-MINI-BOOTED fw=efi\r\r\nLAB-MINI-PHONED-HOME half"
	if line, ok := findLine(text, regexp.MustCompile(`LAB-MINI-BOOTED`)); !ok || line != "[    1.0] LAB-MINI-BOOTED fw=efi" {
		t.Errorf("line = %q, %v", line, ok)
	}
	if line, ok := findLine(text, regexp.MustCompile(`PHONED-HOME`)); ok {
		t.Errorf("a line without its end was found: %q", line)
	}
	if got := tail(text, 2); !slices.Equal(got, []string{"[    1.0] LAB-MINI-BOOTED fw=efi", "LAB-MINI-PHONED-HOME half"}) {
		t.Errorf("tail = %q", got)
	}
}

func TestRequirementsNamed(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/c")
	all := func(string) (string, error) { return "", nil }
	there := func(string) error { return nil }
	if err := requirements(0, all, there); err != nil {
		t.Errorf("nothing is missing: %v", err)
	}
	err := requirements(1000,
		func(p string) (string, error) {
			if p == "tc" || p == "sgdisk" {
				return "", errors.New("not found")
			}
			return "", nil
		},
		func(p string) error {
			if strings.HasPrefix(p, "/c/ingot-lab/pkg/relay/") || p == "/dev/net/tun" {
				return fs.ErrNotExist
			}
			return nil
		})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"tc, sgdisk; run `make deps`", "/c/ingot-lab/pkg/relay; run `make deps`", "as root", "/dev/net/tun"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
}

// TestKillRecorded: a recorded process is killed only if it is still the same; an id that belongs
// to another process now is skipped.
func TestKillRecorded(t *testing.T) {
	start, err := startTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if again, err := startTime(os.Getpid()); err != nil || again != start {
		t.Errorf("start time %s, then %s (%v)", start, again, err)
	}
	path := filepath.Join(t.TempDir(), "pids")
	if err := record(path, os.Getpid(), []string{"ip", "netns", "exec", "ns", "/usr/bin/another-program", "-x"}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil || !strings.HasSuffix(string(b), start+" another-program\n") {
		t.Errorf("record = %q (%v)", b, err)
	}
	killRecorded(path) // this program is not another-program: it survives
	killRecorded(filepath.Join(t.TempDir(), "none"))
}
