package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/ingotmetal/ingot/action"
	"golang.org/x/sys/unix"
)

// option encodes an EFI_LOAD_OPTION.
func option(label string, nodes ...[]byte) []byte {
	path := slices.Concat(nodes...)
	b := binary.LittleEndian.AppendUint32(nil, loadActive)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(path)))
	for _, c := range append(utf16.Encode([]rune(label)), 0) {
		b = binary.LittleEndian.AppendUint16(b, c)
	}
	return append(append(b, path...), "optional data"...)
}

func node(kind, sub byte, data []byte) []byte {
	b := []byte{kind, sub, 0, 0}
	binary.LittleEndian.PutUint16(b[2:], uint16(4+len(data)))
	return append(b, data...)
}

// hardDrive returns the node of a partition, with the 16 bytes of its signature.
func hardDrive(number uint32, signature []byte, format, kind byte) []byte {
	d := make([]byte, 38)
	binary.LittleEndian.PutUint32(d, number)
	copy(d[20:], signature)
	d[36], d[37] = format, kind
	return node(pathMedia, pathHardDrive, d)
}

func fileNode(name string) []byte {
	var d []byte
	for _, c := range append(utf16.Encode([]rune(name)), 0) {
		d = binary.LittleEndian.AppendUint16(d, c)
	}
	return node(pathMedia, pathFile, d)
}

var pathEnds = node(pathEnd, pathEndWhole, nil)

func TestParseLoadOption(t *testing.T) {
	t.Parallel()
	id := []byte{0x33, 0x22, 0x11, 0x00, 0x55, 0x44, 0x77, 0x66, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}
	pci := node(1, 1, []byte{0, 2})
	for name, c := range map[string]struct {
		b    []byte
		want loadOption
	}{
		"a disk": {
			option("debian", hardDrive(1, id, 2, signatureGUID), fileNode(`\EFI\debian\shimx64.efi`), pathEnds),
			loadOption{true, "debian", "00112233-4455-6677-8899-aabbccddeeff", `\EFI\debian\shimx64.efi`},
		},
		"an MBR": {
			option("old", hardDrive(2, []byte{0x78, 0x56, 0x34, 0x12}, 1, signatureMBR), pathEnds),
			loadOption{true, "old", "12345678-02", ""},
		},
		"no signature": {option("none", hardDrive(2, id, 2, 0), pathEnds), loadOption{true, "none", "", ""}},
		"a card":       {option("UEFI: PXE IPv4 ☃", pci, pathEnds), loadOption{true, "UEFI: PXE IPv4 ☃", "", ""}},
		"several paths": {
			option("x", pci, node(pathEnd, pathEndOne, nil), hardDrive(1, id, 2, signatureGUID), pathEnds),
			loadOption{true, "x", "", ""},
		},
		"no path":        {option("x"), loadOption{true, "x", "", ""}},
		"no description": {option("", pci, pathEnds), loadOption{true, "", "", ""}},
	} {
		got, err := parseLoadOption(c.b)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
	}
	cut := option("debian", hardDrive(1, id, 2, signatureGUID), pathEnds)
	long := bytes.Clone(cut)
	binary.LittleEndian.PutUint16(long[4:], 0xffff)
	for name, b := range map[string][]byte{
		"nothing": nil, "cut": cut[:30], "a path that is longer than all": long, "a description without end": cut[:12],
		"a node of 3 bytes":       option("x", []byte{1, 1, 3, 0}, pathEnds),
		"a node that is too long": option("x", []byte{1, 1, 99, 0}),
		"a short hard drive":      option("x", node(pathMedia, pathHardDrive, make([]byte, 30)), pathEnds),
		"an odd file":             option("x", node(pathMedia, pathFile, []byte{1}), pathEnds),
		"no end":                  option("x", pci), "an odd end": option("x", node(pathEnd, 7, nil)),
		"half a node": option("x", []byte{1, 1}),
	} {
		if got, err := parseLoadOption(b); err == nil {
			t.Errorf("%s was accepted: %+v", name, got)
		}
	}
}

func FuzzParseLoadOption(f *testing.F) {
	f.Add(option("debian", hardDrive(1, make([]byte, 16), 2, signatureGUID), fileNode(`\EFI\BOOT`), pathEnds))
	f.Add(option("", pathEnds))
	f.Add([]byte{1, 0, 0, 0, 4, 0, 'x', 0, 0, 0, 0x7f, 0xff, 4, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := parseLoadOption(b)
		if err == nil && len(o.description) > 2*len(b) {
			t.Errorf("%d bytes became a description of %d", len(b), len(o.description))
		}
	})
}

// firmware returns a set of variables in the form of efivarfs.
func firmware(t *testing.T, vars map[string][]byte) EFIVarFS {
	t.Helper()
	dir := EFIVarFS(t.TempDir())
	for name, b := range vars {
		if err := dir.Set(name, b); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(string(dir), "Boot0001-00000000-0000-0000-0000-000000000000"), []byte("another vendor's"),
		0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func numbers(n ...uint16) []byte {
	var b []byte
	for _, v := range n {
		b = binary.LittleEndian.AppendUint16(b, v)
	}
	return b
}

func TestEFIBoot(t *testing.T) {
	t.Parallel()
	gone := []byte("gone gone gone g")
	files, disk, file := sparse(t, 24*mib)
	newGPT(t, file, span{start: mib, size: 8 * mib})
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	here := b[1024+16:][:16]
	pxe := option("PXE", node(1, 1, []byte{0, 2}), pathEnds)
	start := map[string][]byte{
		"Boot0000": option("ubuntu", hardDrive(1, here, 2, signatureGUID), pathEnds),
		"Boot0001": option("VyOS", hardDrive(1, gone, 2, signatureGUID), pathEnds),
		"Boot0002": option("VyOS", hardDrive(1, here, 2, signatureGUID), pathEnds),
		"Boot000A": pxe, "Boot00FF": []byte("\x01"), "BootOrder": numbers(1, 0xa, 0, 2), "BootNext": numbers(1), "BootCurrent": numbers(0xa),
		"Timeout": numbers(3),
	}
	for name, c := range map[string]struct {
		env           map[string]string
		gone          []string
		order, next   string
		deleted, fail string
	}{
		"list": {order: "0001,000A,0000,0002", next: "0001"},
		"delete by label": {
			env: map[string]string{"DELETE_LABEL": "VyOS\nnobody\n"}, gone: []string{"Boot0001", "Boot0002", "BootNext"},
			order: "000A,0000", deleted: "Boot0001,Boot0002",
		},
		"delete all": {
			env:  map[string]string{"DELETE_LABEL": "VyOS\nubuntu\nPXE"},
			gone: []string{"Boot0000", "Boot0001", "Boot0002", "Boot000A", "BootNext", "BootOrder"}, deleted: "Boot0000,Boot0001,Boot0002,Boot000A",
		},
		"delete what is stale": {
			env: map[string]string{"DELETE_STALE": "true"}, gone: []string{"Boot0001", "BootNext"}, order: "000A,0000,0002",
			deleted: "Boot0001",
		},
		"next":           {env: map[string]string{"BOOT_NEXT": "PXE"}, order: "0001,000A,0000,0002", next: "000A"},
		"next by number": {env: map[string]string{"BOOT_NEXT": "Boot0002"}, order: "0001,000A,0000,0002", next: "0002"},
		"order":          {env: map[string]string{"BOOT_ORDER": "PXE, 0002"}, order: "000A,0002,0001,0000", next: "0001"},
		"all at once": {
			env:  map[string]string{"DELETE_STALE": "1", "BOOT_ORDER": "VyOS", "BOOT_NEXT": "ubuntu"},
			gone: []string{"Boot0001"}, order: "0002,000A,0000", next: "0000", deleted: "Boot0001",
		},
		"two of that name":  {env: map[string]string{"BOOT_NEXT": "VyOS"}, fail: "0001 and 0002 both"},
		"none of that name": {env: map[string]string{"BOOT_ORDER": "0007"}, fail: `there is none; there are: 0000 "ubuntu"`},
		"no truth":          {env: map[string]string{"DELETE_STALE": "perhaps"}, fail: "true or false"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vars := firmware(t, start)
			cfg := Config{Disks: files, EFI: vars}
			out, log, err := try(t, cfg, action.EFIBoot, disk, c.env)
			if c.fail != "" {
				if err == nil || !strings.Contains(err.Error(), c.fail) {
					t.Errorf("%v, want %q", err, c.fail)
				}
				return
			}
			if err != nil || out["order"] != c.order || out["next"] != c.next || out["deleted"] != c.deleted || out["firmware"] != "uefi" {
				t.Fatalf("%v %v\n%s", out, err, log)
			}
			if !strings.Contains(out["entries"], `"number":"00FF"`) || !strings.Contains(out["entries"], "cut short") {
				t.Errorf("the invalid entry is not listed: %s", out["entries"])
			}
			names, err := vars.Names()
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range slices.Sorted(maps.Keys(start)) {
				if slices.Contains(names, n) == slices.Contains(c.gone, n) {
					t.Errorf("%s: gone should be %v", n, slices.Contains(c.gone, n))
				}
			}
			if b, err := vars.Get("Timeout"); err != nil || !bytes.Equal(b, numbers(3)) {
				t.Errorf("another variable changed: %v %v", b, err)
			}
			if c.env["BOOT_NEXT"] == "" && c.env["BOOT_ORDER"] == "" { // these may name an entry that the first call deleted
				if _, _, err := try(t, cfg, action.EFIBoot, disk, c.env); err != nil {
					t.Errorf("again: %v", err)
				}
			}
		})
	}
}

func TestEFIBootWithoutUEFI(t *testing.T) {
	t.Parallel()
	for _, vars := range []EFIVariables{nil, EFIVarFS(filepath.Join(t.TempDir(), "none"))} {
		out, log, err := try(t, Config{EFI: vars}, action.EFIBoot, nil, map[string]string{"BOOT_NEXT": "x"})
		if err != nil || out["firmware"] != "bios" || !strings.Contains(log, "nothing is done") {
			t.Errorf("%v %v %s", out, err, log)
		}
		if _, _, err := try(t, Config{EFI: vars}, action.EFIBoot, nil, map[string]string{"REQUIRED": "true"}); err == nil {
			t.Error("REQUIRED, and it is a success")
		}
	}
	if _, _, err := try(t, Config{EFI: EFIVarFS(t.TempDir())}, action.EFIBoot, nil, nil); err == nil ||
		!strings.Contains(err.Error(), "not mounted") {
		t.Errorf("an empty directory: %v", err)
	}
}

// An entry is stale only if its partition is known to be gone.
func TestEFIBootDeletesNothingWhenADiskCannotBeRead(t *testing.T) {
	t.Parallel()
	files, _, file := sparse(t, 24*mib)
	newGPT(t, file, span{start: mib, size: 8 * mib})
	write(t, file, 1024, []byte("damaged"))
	vars := firmware(t, map[string][]byte{"Boot0001": option("x", hardDrive(1, make([]byte, 16), 2, signatureGUID), pathEnds)})
	for name, disks := range map[string]Disks{
		"damaged": files, "not there": FileDisks{{Disk: action.Disk{Path: "/dev/x"}, File: "/nowhere"}},
		"unreadable": faultyDisks{files, 1, true}, "unreadable from the beginning": faultyDisks{files, 0, true},
	} {
		if _, _, err := try(t, Config{Disks: disks, EFI: vars}, action.EFIBoot, nil, map[string]string{"DELETE_STALE": "true"}); err == nil {
			t.Errorf("%s: it was a success", name)
		}
		if _, err := vars.Get("Boot0001"); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	// A blank disk is known to have no partitions.
	blank, _, _ := sparse(t, 24*mib)
	if out, log, err := try(t, Config{Disks: blank, EFI: vars}, action.EFIBoot, nil, map[string]string{"DELETE_STALE": "true"}); err != nil ||
		out["deleted"] != "Boot0001" {
		t.Errorf("%v %v\n%s", out, err, log)
	}
}

// stubborn firmware reports success and ignores the write.
type stubborn struct{ EFIVarFS }

func (stubborn) Set(string, []byte) error { return nil }
func (stubborn) Delete(string) error      { return nil }

func TestEFIBootReadsBack(t *testing.T) {
	t.Parallel()
	vars := stubborn{firmware(t, map[string][]byte{"Boot0001": option("x", pathEnds), "BootOrder": numbers(1, 2)})}
	for _, env := range []map[string]string{{"DELETE_LABEL": "x"}, {"BOOT_NEXT": "x"}, {"BOOT_ORDER": "x"}} {
		if env["BOOT_ORDER"] != "" {
			if err := vars.EFIVarFS.Set("BootOrder", numbers(2, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := try(t, Config{EFI: vars}, action.EFIBoot, nil, env); err == nil {
			t.Errorf("%v: a success", env)
		}
	}
}

// The kernel protects variables with the immutable flag: Set and Delete remove it.
func TestEFIVarFSClearsImmutableFlag(t *testing.T) {
	t.Parallel()
	vars := firmware(t, map[string][]byte{"BootNext": numbers(1)})
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
	if err := vars.Set("BootNext", numbers(2)); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, immutable); err != nil {
		t.Fatal(err)
	}
	if err := vars.Delete("BootNext"); err != nil {
		t.Fatal(err)
	}
}
