package main

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk"
)

// The root file system of a simulated machine is read, written and read again without loop devices.
// A read-only mount changes nothing.
func TestSimulatedFilesystem(t *testing.T) {
	for _, program := range []string{"sgdisk", "mke2fs", "debugfs"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: run make deps", err)
		}
	}
	dir := t.TempDir()
	image := filepath.Join(dir, "disk")
	run := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
	}
	root := filepath.Join(dir, "root")
	for _, d := range []string{root, filepath.Join(root, "etc")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "etc", "os-release"), []byte("ID=sim\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	run("truncate", "-s", "8M", image)
	run("sgdisk", "-o", "-n", "1:2048:+1M", "-n", "2:0:+2M", image)
	run("mke2fs", "-q", "-t", "ext4", "-b", "1024", "-O", "^has_journal", "-L", "labroot", "-d", root, filepath.Join(dir, "fs"), "2M")
	run("dd", "if="+filepath.Join(dir, "fs"), "of="+image, "bs=1M", "seek=2", "conv=notrunc", "status=none")

	s := simulated{disks: disk.FileDisks{{Disk: action.Disk{Path: "/dev/vda"}, File: image}}}
	parts, err := s.Partitions(t.Context(), "/dev/vda")
	if err != nil || len(parts) != 2 || parts[1].Number != 2 || parts[1].Size != 2<<20 {
		t.Fatalf("%+v, %v", parts, err)
	}
	in := func(readOnly bool, f func(dir string)) {
		t.Helper()
		dir, unmount, err := s.Mount(t.Context(), parts[1].Path, "ext4", readOnly)
		if err != nil {
			t.Fatal(err)
		}
		f(dir)
		if err := unmount(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
	write := func(dir string) {
		if err := os.WriteFile(filepath.Join(dir, "etc", "new"), []byte("hello"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	there := func() (found bool) {
		t.Helper()
		if parts, err = s.Partitions(t.Context(), "/dev/vda"); err != nil { // a new boot reads the image again
			t.Fatal(err)
		}
		in(true, func(dir string) {
			b, err := os.ReadFile(filepath.Join(dir, "etc", "os-release"))
			if err != nil || string(b) != "ID=sim\n" {
				t.Errorf("%q, %v", b, err)
			}
			b, err = os.ReadFile(filepath.Join(dir, "etc", "new"))
			found = err == nil && string(b) == "hello"
		})
		return found
	}
	in(true, write)
	if there() {
		t.Error("a read-only mount changed the image")
	}
	in(false, write)
	if !there() {
		t.Error("the file is not on the image")
	}
	b, err := os.ReadFile(image)
	if err != nil || string(b[2<<20+1024+120:][:9]) != "labroot\x00\x00" {
		t.Errorf("the label is lost: %v", err)
	}
	// The partition grows, then its file system.
	run("sgdisk", "-d", "2", "-n", "2:4096:+4M", image)
	if parts, err = s.Partitions(t.Context(), "/dev/vda"); err != nil {
		t.Fatal(err)
	}
	if err := s.Grow(t.Context(), parts[1].Path, "ext4", parts[1].Size); err != nil {
		t.Fatal(err)
	}
	if !there() {
		t.Error("the file is lost")
	}
	if b, err = os.ReadFile(image); err != nil || binary.LittleEndian.Uint32(b[2<<20+1024+4:]) != 4096 {
		t.Errorf("the file system has not grown: %v", err)
	}
	if err := s.Grow(t.Context(), parts[1].Path, "xfs", parts[1].Size); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("xfs: %v", err)
	}
	if _, _, err := s.Mount(t.Context(), parts[1].Path, "xfs", true); err == nil {
		t.Error("xfs was mounted")
	}
	if _, _, err := s.Mount(t.Context(), "/dev/vda2", "ext4", true); err == nil {
		t.Error("a path that is not a partition was mounted")
	}
}
