package efi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"golang.org/x/sys/unix"
)

func TestParseLoadOption(t *testing.T) {
	t.Parallel()
	id := []byte{0x33, 0x22, 0x11, 0x00, 0x55, 0x44, 0x77, 0x66, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}
	pci := disktest.PathNode(1, 1, []byte{0, 2})
	for name, c := range map[string]struct {
		b    []byte
		want loadOption
	}{
		"a disk": {
			disktest.LoadOption("debian", disktest.HardDrive(1, id, 2, signatureGUID), disktest.FileNode(`\EFI\debian\shimx64.efi`), disktest.PathEnd),
			loadOption{true, "debian", "00112233-4455-6677-8899-aabbccddeeff", `\EFI\debian\shimx64.efi`},
		},
		"an MBR": {
			disktest.LoadOption("old", disktest.HardDrive(2, []byte{0x78, 0x56, 0x34, 0x12}, 1, signatureMBR), disktest.PathEnd),
			loadOption{true, "old", "12345678-02", ""},
		},
		"no signature": {disktest.LoadOption("none", disktest.HardDrive(2, id, 2, 0), disktest.PathEnd), loadOption{true, "none", "", ""}},
		"a card":       {disktest.LoadOption("UEFI: PXE IPv4 ☃", pci, disktest.PathEnd), loadOption{true, "UEFI: PXE IPv4 ☃", "", ""}},
		"several paths": {
			disktest.LoadOption("x", pci, disktest.PathNode(pathEnd, pathEndOne, nil), disktest.HardDrive(1, id, 2, signatureGUID), disktest.PathEnd),
			loadOption{true, "x", "", ""},
		},
		"no path":        {disktest.LoadOption("x"), loadOption{true, "x", "", ""}},
		"no description": {disktest.LoadOption("", pci, disktest.PathEnd), loadOption{true, "", "", ""}},
	} {
		got, err := parseLoadOption(c.b)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
	}
	cut := disktest.LoadOption("debian", disktest.HardDrive(1, id, 2, signatureGUID), disktest.PathEnd)
	long := bytes.Clone(cut)
	binary.LittleEndian.PutUint16(long[4:], 0xffff)
	for name, b := range map[string][]byte{
		"nothing": nil, "cut": cut[:30], "a path that is longer than all": long, "a description without end": cut[:12],
		"a node of 3 bytes":       disktest.LoadOption("x", []byte{1, 1, 3, 0}, disktest.PathEnd),
		"a node that is too long": disktest.LoadOption("x", []byte{1, 1, 99, 0}),
		"a short hard drive":      disktest.LoadOption("x", disktest.PathNode(pathMedia, pathHardDrive, make([]byte, 30)), disktest.PathEnd),
		"an odd file":             disktest.LoadOption("x", disktest.PathNode(pathMedia, pathFile, []byte{1}), disktest.PathEnd),
		"no end":                  disktest.LoadOption("x", pci), "an odd end": disktest.LoadOption("x", disktest.PathNode(pathEnd, 7, nil)),
		"half a node": disktest.LoadOption("x", []byte{1, 1}),
	} {
		if got, err := parseLoadOption(b); err == nil {
			t.Errorf("%s was accepted: %+v", name, got)
		}
	}
}

func FuzzParseLoadOption(f *testing.F) {
	f.Add(
		disktest.LoadOption(
			"debian",
			disktest.HardDrive(1, make([]byte, 16), 2, signatureGUID),
			disktest.FileNode(`\EFI\BOOT`),
			disktest.PathEnd,
		),
	)
	f.Add(disktest.LoadOption("", disktest.PathEnd))
	f.Add([]byte{1, 0, 0, 0, 4, 0, 'x', 0, 0, 0, 0x7f, 0xff, 4, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := parseLoadOption(b)
		if err == nil && len(o.description) > 2*len(b) {
			t.Errorf("%d bytes became a description of %d", len(b), len(o.description))
		}
	})
}

// The kernel protects variables with the immutable flag: Set and Delete remove it.
func TestEFIVarFSClearsImmutableFlag(t *testing.T) {
	t.Parallel()
	vars := VarFS(disktest.Firmware(t, map[string][]byte{"BootNext": disktest.BootNumbers(1)}))
	f, err := os.Open(vars.file("BootNext"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, immutable); err != nil {
		t.Skipf("files cannot be made immutable here: %v", err)
	}
	if err := os.Remove(f.Name()); !errors.Is(err, fs.ErrPermission) {
		t.Skipf("an immutable file is not protected here: %v", err)
	}
	if err := vars.Set("BootNext", disktest.BootNumbers(2)); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, immutable); err != nil {
		t.Fatal(err)
	}
	if err := vars.Delete("BootNext"); err != nil {
		t.Fatal(err)
	}
}
