package main

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

func TestModuleIndex(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"modules.dep":     "kernel/fs/xfs/xfs.ko: kernel/lib/libcrc32c.ko\nkernel/lib/libcrc32c.ko:\nkernel/net/my-nic.ko: kernel/b.ko kernel/a.ko\n",
		"modules.alias":   "# made by depmod\nalias pci:v00008086d0000100Esv*sd*bc*sc*i* my_nic\nalias fs-xfs xfs\n",
		"modules.softdep": "softdep libcrc32c pre: crc32c\nsoftdep xfs pre: a-b c post: d\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, err := loadModuleIndex(dir)
	if err != nil {
		t.Fatal(err)
	}
	if m.paths["my_nic"] != "kernel/net/my-nic.ko" ||
		!reflect.DeepEqual(m.depends["kernel/net/my-nic.ko"], []string{"kernel/b.ko", "kernel/a.ko"}) {
		t.Errorf("%+v", m)
	}
	if !reflect.DeepEqual(m.soft, map[string][]string{"libcrc32c": {"crc32c"}, "xfs": {"a_b", "c"}}) {
		t.Errorf("soft dependencies %v", m.soft)
	}
	// The files do not exist: an error shows that the alias matched.
	if err := m.loadAlias("pci:v00008086d0000100Esv00001AF4sd00001100bc02sc00i00"); err == nil {
		t.Error("the interface's module was not found")
	}
	if err := m.loadAlias("fs-xfs"); err == nil {
		t.Error("the file system's module was not found")
	}
	if err := m.loadAlias("pci:v00008086d0000100Fsv00001AF4sd00001100bc02sc00i00"); err != nil {
		t.Errorf("another device: %v", err)
	}
	if err := m.load("not-there"); err != nil {
		t.Errorf("an unknown module: %v", err)
	}
	if _, err := loadModuleIndex(filepath.Join(dir, "none")); err == nil {
		t.Error("a missing index was not reported")
	}
}

func TestDiskFlag(t *testing.T) {
	var s simulated
	for _, bad := range []string{"", "/dev/sda", "/dev/sda=", "/dev/sda=f,colour=red"} {
		if s.addDisk(bad) == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	if err := s.addDisk("/dev/sda=f,serial=A1,wwn=0x5"); err != nil {
		t.Fatal(err)
	}
	if d := s.disks[0]; d.Path != "/dev/sda" || d.File != "f" || d.Serial != "A1" || d.WWN != "0x5" {
		t.Fatalf("%+v", d)
	}
}

func TestOpticalDriveIsNotADisk(t *testing.T) {
	dir := t.TempDir()
	add := func(elem ...string) {
		if err := os.MkdirAll(filepath.Join(append([]string{dir}, elem...)...), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	add("sr0", "device")
	add("fd0", "device")
	add("loop0") // no hardware
	if anyDisk(dir) {
		t.Error("there is no disk")
	}
	add("sda", "device")
	if !anyDisk(dir) {
		t.Error("sda is a disk")
	}
}

// A disk that hangs in the kernel does not keep the machine from leaving.
func TestWithin(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	within(time.Millisecond, "a disk", func() { <-hang })
	ran := false
	within(time.Hour, "a disk", func() { ran = true })
	if !ran {
		t.Error("it was not called")
	}
}
