package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ingotmetal/ingot/action"
)

// fakeFiles are directories that stand in for mounted partitions.
type fakeFiles struct {
	parts  []Partition
	dirs   map[string]string // by Partition.Path
	misses int               // so often there are no partitions yet
	mounts []string
	stuck  bool
}

func (f *fakeFiles) Partitions(context.Context, string) ([]Partition, error) {
	if f.misses > 0 {
		f.misses--
		return nil, nil
	}
	return f.parts, nil
}

func (f *fakeFiles) Mount(_ context.Context, device, fstype string, readOnly bool) (string, func() error, error) {
	f.mounts = append(f.mounts, fstype)
	return f.dirs[device], func() error {
		if f.stuck && !readOnly {
			return errors.New("device or resource busy")
		}
		return nil
	}, nil
}

// extPartition is a file that looks like an ext file system.
func extPartition(t *testing.T, n int, size int64) Partition {
	t.Helper()
	b := make([]byte, 4096)
	b[0x438], b[0x439] = 0x53, 0xef
	file := filepath.Join(t.TempDir(), "part")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return Partition{Number: n, Path: file, Size: size}
}

func TestWriteFile(t *testing.T) {
	root, boot := t.TempDir(), t.TempDir()
	outside := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(root, "etc"), 0o755), os.WriteFile(filepath.Join(root, "etc/os-release"), nil, 0o644),
		os.Symlink("/etc", filepath.Join(root, "absolute")), os.Symlink(outside, filepath.Join(root, "escape")),
		os.Symlink("../../../../../../../../.."+outside, filepath.Join(root, "dots")),
		os.Symlink(filepath.Join(outside, "victim"), filepath.Join(root, "etc/link")),
		os.Mkdir(filepath.Join(root, "etc/dir"), 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	small, large := extPartition(t, 2, 4096), extPartition(t, 1, 8192)
	files := &fakeFiles{parts: []Partition{small, large}, dirs: map[string]string{large.Path: root, small.Path: boot}, misses: 2}
	s := newFakeServer(t)
	disks, disk, _ := testDisk(t, 8*mib)
	cfg := s.config()
	cfg.Disks, cfg.Files = disks, files
	s.start(cfg)
	old := syscall.Umask(0o077) // it must not matter
	t.Cleanup(func() { syscall.Umask(old) })
	n := 0
	write := func(env map[string]string) action.Result {
		n++
		if _, ok := env["CONTENTS"]; !ok {
			env["CONTENTS"] = "geheim"
		}
		res := s.result(s.give(n, action.WriteFile, disk, env))
		if strings.Contains(res.Log, "geheim") {
			t.Error("the log shows the contents")
		}
		return res
	}
	check := func(path, contents string, mode os.FileMode) {
		t.Helper()
		st, err := os.Lstat(path)
		if err != nil {
			t.Error(err)
			return
		}
		b, err := os.ReadFile(path)
		if st.Mode() != mode || !st.IsDir() && (err != nil || string(b) != contents) {
			t.Errorf("%s: %v %q %v", path, st.Mode(), b, err)
		}
	}
	if res := write(map[string]string{"DEST_DISK": "/dev/alias", "DEST_PATH": "/etc/a/b/conf", "MODE": "0666", "DIRMODE": "0775"}); res.State != action.Success {
		t.Fatalf("%+v", res)
	}
	check(root+"/etc/a/b/conf", "geheim", 0o666)
	check(root+"/etc/a/b", "", os.ModeDir|0o775)
	if res := write(map[string]string{"DEST_DISK": "/dev/alias2", "FS_TYPE": "vfat", "DEST_PATH": "/x", "CONTENTS": ""}); res.State != action.Success {
		t.Fatalf("%+v", res)
	}
	check(boot+"/x", "", 0o644)
	if last := files.mounts[len(files.mounts)-1]; last != "vfat" {
		t.Errorf("mounted as %s", last)
	}
	// Links of the installed system mean what they mean there.
	for _, path := range []string{"/absolute/one", "/escape/two", "/dots/three", "/../../four"} {
		write(map[string]string{"DEST_PATH": path})
	}
	check(root+"/etc/one", "geheim", 0o644)
	check(root+"/four", "geheim", 0o644)
	if e, err := os.ReadDir(outside); err != nil || len(e) != 0 {
		t.Errorf("outside of the root there is %v, %v", e, err)
	}
	if res := write(map[string]string{"DEST_PATH": "/etc/link"}); res.State != action.Success {
		t.Errorf("%+v", res)
	}
	check(root+"/etc/link", "geheim", 0o644)
	for name, env := range map[string]map[string]string{
		"a directory":    {"DEST_PATH": "/etc/dir"},
		"relative":       {"DEST_PATH": "etc/x"},
		"no path":        {},
		"a slash":        {"DEST_PATH": "/etc/"},
		"mode":           {"DEST_PATH": "/x", "MODE": "rw"},
		"no octal":       {"DEST_PATH": "/x", "MODE": "0689"},
		"owner":          {"DEST_PATH": "/x", "UID": "root"},
		"no such disk":   {"DEST_PATH": "/x", "DEST_DISK": "/dev/sdb1"},
		"unknown format": {"DEST_PATH": "/x", "DEST_DISK": "/dev/alias1", "FS_TYPE": "ntfs"},
	} {
		if res := write(env); res.State != action.Failed || res.Message == "" {
			t.Errorf("%s: %+v", name, res)
		}
	}
	files.stuck = true
	if res := write(map[string]string{"DEST_PATH": "/y"}); res.State != action.Failed || !strings.Contains(res.Message, "busy") {
		t.Errorf("a failed unmount: %+v", res)
	}
}
