package lab

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

func TestBootEntries(t *testing.T) {
	vars, err := os.ReadFile(ovmfVars)
	if err != nil {
		t.Fatalf("%v (make deps)", err)
	}
	m := &Machine{dir: t.TempDir(), spec: Spec{Name: "a", DiskSerial: "D"}}
	disk := make([]byte, 4*512)
	copy(disk[512:], "EFI PART")
	binary.LittleEndian.PutUint64(disk[1024+32:], 2048)
	for name, b := range map[string][]byte{"vars.fd": vars, filepath.Base(m.DiskPath()): disk} {
		if err := os.WriteFile(m.path(name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, label := range []string{"one", "two"} {
		name, err := m.AddBootEntry(label)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := m.BootEntries(); err != nil || got[name] != label {
			t.Fatalf("%s: %v, %v", name, got, err)
		}
	}
	_, all, _, err := m.nvram()
	if err != nil || len(all) != 3 || all[2].name != "BootOrder" || len(all[2].value) != 4 {
		t.Errorf("two entries and one order of two: %v, %v", all, err)
	}
}
