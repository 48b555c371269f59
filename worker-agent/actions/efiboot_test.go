package actions

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/efi"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
)

func TestEFIBoot(t *testing.T) {
	t.Parallel()
	gone := []byte("gone gone gone g")
	files, disk, file := disktest.Sparse(t, 24*blockdev.MiB)
	disktest.NewGPT(t, file, parttable.Span{Start: blockdev.MiB, Size: 8 * blockdev.MiB})
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	here := b[1024+16:][:16]
	pxe := disktest.LoadOption("PXE", disktest.PathNode(1, 1, []byte{0, 2}), disktest.PathEnd)
	start := map[string][]byte{
		"Boot0000":    disktest.LoadOption("ubuntu", disktest.HardDrive(1, here, 2, 2), disktest.PathEnd),
		"Boot0001":    disktest.LoadOption("VyOS", disktest.HardDrive(1, gone, 2, 2), disktest.PathEnd),
		"Boot0002":    disktest.LoadOption("VyOS", disktest.HardDrive(1, here, 2, 2), disktest.PathEnd),
		"Boot000A":    pxe,
		"Boot00FF":    []byte("\x01"),
		"BootOrder":   disktest.BootNumbers(1, 0xa, 0, 2),
		"BootNext":    disktest.BootNumbers(1),
		"BootCurrent": disktest.BootNumbers(0xa),
		"Timeout":     disktest.BootNumbers(3),
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
		"none of that name": {env: map[string]string{"BOOT_ORDER": "0007"}, fail: `not found among: 0000 "ubuntu"`},
		"no truth":          {env: map[string]string{"DELETE_STALE": "perhaps"}, fail: "true or false"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vars := efi.VarFS(disktest.Firmware(t, start))
			cfg := Machine{Disks: files, EFI: vars}
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
			if b, err := vars.Get("Timeout"); err != nil || !bytes.Equal(b, disktest.BootNumbers(3)) {
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
	for _, vars := range []efi.Variables{nil, efi.VarFS(filepath.Join(t.TempDir(), "none"))} {
		out, log, err := try(t, Machine{EFI: vars}, action.EFIBoot, nil, map[string]string{"BOOT_NEXT": "x"})
		if err != nil || out["firmware"] != "bios" || !strings.Contains(log, "nothing to do") {
			t.Errorf("%v %v %s", out, err, log)
		}
		if _, _, err := try(t, Machine{EFI: vars}, action.EFIBoot, nil, map[string]string{"REQUIRED": "true"}); err == nil {
			t.Error("REQUIRED, and it is a success")
		}
	}
	if _, _, err := try(t, Machine{EFI: efi.VarFS(t.TempDir())}, action.EFIBoot, nil, nil); err == nil ||
		!strings.Contains(err.Error(), "not mounted") {
		t.Errorf("an empty directory: %v", err)
	}
}

// An entry is stale only if its partition is known to be gone.
func TestEFIBootDeletesNothingWhenADiskCannotBeRead(t *testing.T) {
	t.Parallel()
	files, _, file := disktest.Sparse(t, 24*blockdev.MiB)
	disktest.NewGPT(t, file, parttable.Span{Start: blockdev.MiB, Size: 8 * blockdev.MiB})
	disktest.WriteAt(t, file, 1024, []byte("damaged"))
	vars := efi.VarFS(
		disktest.Firmware(
			t,
			map[string][]byte{"Boot0001": disktest.LoadOption("x", disktest.HardDrive(1, make([]byte, 16), 2, 2), disktest.PathEnd)},
		),
	)
	for name, disks := range map[string]disk.Disks{
		"damaged": files, "not there": disk.FileDisks{{Disk: action.Disk{Path: "/dev/x"}, File: "/nowhere"}},
		"unreadable": faultyDisks{files, 1, true}, "unreadable from the beginning": faultyDisks{files, 0, true},
	} {
		if _, _, err := try(t, Machine{Disks: disks, EFI: vars}, action.EFIBoot, nil, map[string]string{"DELETE_STALE": "true"}); err == nil {
			t.Errorf("%s: it was a success", name)
		}
		if _, err := vars.Get("Boot0001"); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	// A blank disk is known to have no partitions.
	blank, _, _ := disktest.Sparse(t, 24*blockdev.MiB)
	if out, log, err := try(t, Machine{Disks: blank, EFI: vars}, action.EFIBoot, nil, map[string]string{"DELETE_STALE": "true"}); err != nil ||
		out["deleted"] != "Boot0001" {
		t.Errorf("%v %v\n%s", out, err, log)
	}
}

// stubborn firmware reports success and ignores the write.
type stubborn struct{ efi.VarFS }

func (stubborn) Set(string, []byte) error { return nil }
func (stubborn) Delete(string) error      { return nil }

func TestEFIBootReadsBack(t *testing.T) {
	t.Parallel()
	vars := stubborn{
		efi.VarFS(
			disktest.Firmware(t, map[string][]byte{"Boot0001": disktest.LoadOption("x", disktest.PathEnd), "BootOrder": disktest.BootNumbers(1, 2)}),
		),
	}
	for _, env := range []map[string]string{{"DELETE_LABEL": "x"}, {"BOOT_NEXT": "x"}, {"BOOT_ORDER": "x"}} {
		if env["BOOT_ORDER"] != "" {
			if err := vars.VarFS.Set("BootOrder", disktest.BootNumbers(2, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := try(t, Machine{EFI: vars}, action.EFIBoot, nil, env); err == nil {
			t.Errorf("%v: a success", env)
		}
	}
}

// efiboot creates an entry once, and corrects it when its partition is another one, for example after the disk was partitioned again.
func TestEFIBootCreatesAnEntry(t *testing.T) {
	t.Parallel()
	files, disk, file := disktest.Sparse(t, 24*blockdev.MiB)
	esp, err := parttable.ParseGUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
	require.NoError(t, err)
	dev, err := files.Open("/dev/sda")
	require.NoError(t, err)
	g := parttable.NewGPT(dev.Size(), 512)
	g.Entry(1).Set(esp, 2048, 4095, "ESP")
	g.Entry(2).Set(parttable.BasicData, 8192, 16383, "other")
	require.NoError(t, errors.Join(g.Write(dev), dev.Close()))
	spans := disktest.ReadSpans(t, file)

	here, err := parttable.ParseGUID(spans[0].UUID)
	require.NoError(t, err)
	twice := disktest.LoadOption("twice", disktest.PathEnd)
	vars := efi.VarFS(disktest.Firmware(t, map[string][]byte{
		"Boot0000": disktest.LoadOption("PXE", disktest.PathEnd), "Boot0002": twice, "Boot0003": twice, "BootOrder": disktest.BootNumbers(0, 2),
	}))
	create := func(env map[string]string) (map[string]string, error) {
		out, _, err := try(t, Machine{Disks: files, EFI: vars}, action.EFIBoot, disk, env)
		return out, err
	}

	env := map[string]string{"CREATE_LABEL": "two", "LOADER": "/EFI/two/shimx64.efi", "BOOT_NEXT": "two"}
	for range 2 {
		out, err := create(env)
		require.NoError(t, err)
		require.Equal(t, "0000,0002,0001", out["order"])
		require.Equal(t, "0001", out["next"])
		require.Contains(
			t,
			out["entries"],
			`{"number":"0001","label":"two","active":true,"partition":"`+spans[0].UUID+`","file":"\\EFI\\two\\shimx64.efi"}`,
		)
	}
	drive := disktest.HardDrive(2, here, 2, 2)
	binary.LittleEndian.PutUint64(drive[8:], 2048)  // first sector
	binary.LittleEndian.PutUint64(drive[16:], 2048) // number of sectors
	want := disktest.LoadOption("two", drive, disktest.FileNode(`\EFI\two\shimx64.efi`), disktest.PathEnd)
	got, err := vars.Get("Boot0001")
	require.NoError(t, err)
	require.Equal(t, bytes.TrimSuffix(want, []byte("optional data")), got)

	out, err := create(map[string]string{"CREATE_LABEL": "two", "LOADER": `\EFI\two\grubx64.efi`, "PARTITION": "3", "BOOT_ORDER": "two"})
	require.NoError(t, err)
	require.Equal(t, "0001,0000,0002", out["order"])
	require.Contains(t, out["entries"], `"partition":"`+spans[1].UUID+`","file":"\\EFI\\two\\grubx64.efi"`)

	for text, env := range map[string]map[string]string{
		"entries 0002 and 0003 both":           {"CREATE_LABEL": "twice", "LOADER": "/x"},
		"give LOADER":                          {"CREATE_LABEL": "x"},
		"must be the absolute path of a file":  {"CREATE_LABEL": "x", "LOADER": "x/../y"},
		"finding the partition NUMBER=1":       {"CREATE_LABEL": "x", "LOADER": "/x", "PARTITION": "1"},
		"is not the disk bound to this run":    {"CREATE_LABEL": "x", "LOADER": "/x", "DEST_DISK": "/dev/other"},
		`not found among: 0000 "PXE", 0001 "t`: {"BOOT_NEXT": "x", "LOADER": "/x"},
	} {
		_, err := create(env)
		require.ErrorContains(t, err, text)
	}
	disktest.WriteAt(t, file, 0, make([]byte, 24*blockdev.MiB))
	disktest.WriteMBR(t, file, 0, 0x0c, 2048, 8192)
	_, err = create(map[string]string{"CREATE_LABEL": "x", "LOADER": "/x", "PARTITION": "1"})
	require.ErrorContains(t, err, "partition 1 is not in a GPT")
}
