package actions

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ingotmetal/ingot/worker-agent/disk/filesystest"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
)

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
	small, large := filesystest.ExtPartition(t, 2, 4096), filesystest.ExtPartition(t, 1, 8192)
	files := &filesystest.FakeFiles{
		Parts:  []filesys.Partition{small, large},
		Dirs:   map[string]string{large.Path: root, small.Path: boot},
		Misses: 2,
	}
	s := newWorker(t)
	disks, disk, _ := disktest.OldDisk(t, 8*blockdev.MiB)
	cfg := s.config()
	cfg.Disks, cfg.Files = disks, files
	s.start(cfg)
	old := syscall.Umask(0o077) // the umask must not have an effect
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
	if res := write(map[string]string{
		"DEST_DISK": "/dev/alias", "DEST_PATH": "/etc/a/b/conf", "MODE": "0666",
		"DIRMODE": "0775",
	}); res.State != action.Success {
		t.Fatalf("%+v", res)
	}
	check(root+"/etc/a/b/conf", "geheim", 0o666)
	check(root+"/etc/a/b", "", os.ModeDir|0o775)
	if res := write(map[string]string{
		"DEST_DISK": "/dev/alias2", "FS_TYPE": "vfat", "DEST_PATH": "/x",
		"CONTENTS": "",
	}); res.State != action.Success {
		t.Fatalf("%+v", res)
	}
	check(boot+"/x", "", 0o644)
	if last := files.Mounts[len(files.Mounts)-1]; last != "vfat" {
		t.Errorf("mounted as %s", last)
	}
	// Absolute links in the installed system are resolved inside it.
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
	files.Stuck = true
	if res := write(map[string]string{"DEST_PATH": "/y"}); res.State != action.Failed || !strings.Contains(res.Message, "busy") {
		t.Errorf("a failed unmount: %+v", res)
	}
}

func TestInject(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	outside := t.TempDir()
	me, group := fmt.Sprint(os.Getuid()), fmt.Sprint(os.Getgid())
	for _, err := range []error{
		os.MkdirAll(filepath.Join(root, "etc"), 0o755), os.WriteFile(filepath.Join(root, "etc/os-release"), nil, 0o644),
		os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("root:x:0:0::/:/bin/sh\nvyos:x:"+me+":"+group+"::/:/bin/sh\nbad:x:no:0::/:\n"),
			0o644),
		os.WriteFile(filepath.Join(root, "etc/group"), []byte("vyattacfg:x:"+group+":\n"), 0o644),
		os.Symlink(outside, filepath.Join(root, "escape")), os.Symlink("../../../../../.."+outside, filepath.Join(root, "dots")),
		os.Mkdir(filepath.Join(root, "there"), 0o700), os.Symlink(outside, filepath.Join(root, "link")),
		os.Mkdir(filepath.Join(root, "etc", ".ingot-"+disktest.SHA256([]byte("/etc/left"))[:16]), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	part := filesystest.ExtPartition(t, 3, 8192)
	files := &filesystest.FakeFiles{Parts: []filesys.Partition{part}, Dirs: map[string]string{part.Path: root}}
	disks, disk, _ := disktest.OldDisk(t, 8*blockdev.MiB)
	cfg := Machine{Disks: disks, Files: files}
	list := `[
		{"path": "/opt/config", "directory": true, "owner": "vyos", "group": "vyattacfg", "mode": "2775", "dirMode": "0711"},
		{"path": "/opt/config/config.boot", "from": "CONFIG", "owner": "vyos", "group": "vyattacfg", "mode": "0664"},
		{"path": "/opt/config/.vyatta_config", "owner": "` + me + `"},
		{"path": "/there", "directory": true, "mode": "0750", "owner": "` + me + `", "group": "` + group + `"},
		{"path": "/escape/../etc/data", "base64": "AAEC\n/w==", "owner": "` + me + `"}
	]`
	env := map[string]string{"FILES": list, "CONFIG": "geheim \"quoted\"\n// vyos-config-version: x\n"}
	if os.Getuid() != 0 { // without an owner, root is meant
		t.Skip("giving files to root needs root")
	}
	for range 2 {
		out, log, err := try(t, cfg, action.Inject, disk, env)
		if err != nil || out["files"] != "5" {
			t.Fatalf("%v %v\n%s", out, err, log)
		}
		if strings.Contains(log, "geheim") {
			t.Error("the log shows the contents")
		}
	}
	for name, want := range map[string]os.FileMode{
		"opt": os.ModeDir | 0o711, "opt/config": os.ModeDir | os.ModeSetgid | 0o775, "opt/config/config.boot": 0o664,
		"opt/config/.vyatta_config": 0o644, "there": os.ModeDir | 0o750, "etc/data": 0o644,
	} {
		st, err := os.Lstat(filepath.Join(root, name))
		if err != nil || st.Mode() != want {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(root, "etc/data")); err != nil || string(b) != "\x00\x01\x02\xff" {
		t.Errorf("%q, %v", b, err)
	}
	for name, text := range map[string]string{
		`[{"path": "/x", "directory": true, "contents": "a"}]`:          "must not have contents",
		`[{"path": "/x", "base64": "%"}]`:                               "base64",
		`[{"path": "/x", "owner": "a b"}]`:                              "must be a name, or a number",
		`[{"path": "/x", "owner": "nobody"}]`:                           `"nobody" in the file system's /etc/passwd: not found`,
		`[{"path": "/x", "owner": "bad"}]`:                              `invalid numeric id "no"`,
		`[{"path": "/link", "directory": true}]`:                        "opening the directory",
		`[{"path": "/etc/passwd/x"}]`:                                   "not a directory",
		`[{"path": "/there"}]`:                                          "a directory with this name exists",
		`[{"path": "/x", "contents": "a", "base64": "YQ=="}]`:           "one of contents, base64 and from",
		`[{"path": "/x", "from": "NONE"}]`:                              "which the environment does not contain",
		`[{"path": "/x", "size": 1}]`:                                   "unknown field",
		`[{"path": "x"}, {"path": "/y/"}, {"path": "/z", "mode": "9"}]`: "octal",
		`[{"path": "/x"}, {"path": "/./x"}]`:                            "listed twice",
		`[]`:                                                            "0 files",
		`[] []`:                                                         "unexpected text after the array",
		``:                                                              "it is missing",
	} {
		if _, _, err := try(t, cfg, action.Inject, disk, map[string]string{"FILES": name}); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", name, err, text)
		}
	}
	for _, path := range []string{"/escape/one", "/dots/two"} {
		_, _, err := try(t, cfg, action.Inject, disk, map[string]string{"FILES": `[{"path": "` + path + `"}]`})
		if err != nil && !strings.Contains(err.Error(), "opening the directory") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if e, err := os.ReadDir(outside); err != nil || len(e) != 0 {
		t.Errorf("outside of the root there is %v, %v", e, err)
	}
}

// forgettingFiles report success and lose the data.
type forgettingFiles struct {
	filesystest.FakeFiles
	empty string
}

func (f *forgettingFiles) Mount(ctx context.Context, device, fstype string, readOnly bool) (string, func() error, error) {
	if readOnly {
		return f.empty, func() error { return nil }, nil
	}
	return f.FakeFiles.Mount(ctx, device, fstype, readOnly)
}

func TestInjectIsReadBack(t *testing.T) {
	t.Parallel()
	part := filesystest.ExtPartition(t, 1, 8192)
	me := fmt.Sprintf(`"owner": "%d", "group": "%d"`, os.Getuid(), os.Getgid())
	for what, left := range map[string]string{"nothing": "", "other contents": "other", "more": "x and more"} {
		empty := t.TempDir()
		if left != "" {
			if err := os.WriteFile(filepath.Join(empty, "x"), []byte(left), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		files := &forgettingFiles{filesystest.FakeFiles{Parts: []filesys.Partition{part}, Dirs: map[string]string{part.Path: t.TempDir()}}, empty}
		disks, disk, _ := disktest.OldDisk(t, 8*blockdev.MiB)
		env := map[string]string{"DEST_DISK": "/dev/alias1", "FILES": `[{"path": "/x", "contents": "x", ` + me + `}]`}
		if _, _, err := try(t, Machine{Disks: disks, Files: files}, action.Inject, disk, env); err == nil ||
			!strings.Contains(err.Error(), "back") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Real file systems are mounted by the real kernel. The partition is selected in every possible
// way.
func TestInjectIntoRealFileSystems(t *testing.T) {
	for fstype, mkfs := range map[string][]string{
		"ext4":  {"mke2fs", "-q", "-t", "ext4", "-L", "persistence", "-U", "11111111-2222-3333-4444-555555555555"},
		"xfs":   {"mkfs.xfs", "-q", "-L", "persistence", "-m", "uuid=11111111-2222-3333-4444-555555555555"},
		"btrfs": {"mkfs.btrfs", "-q", "-L", "persistence", "-U", "11111111-2222-3333-4444-555555555555"},
		"vfat":  {"mkfs.vfat", "-n", "PERSISTENCE", "-i", "11112222"},
	} {
		t.Run(fstype, func(t *testing.T) {
			if disktest.Program(mkfs[0]) == "" {
				t.Skipf("%s is not installed", mkfs[0])
			}
			n := int64(320 * blockdev.MiB)
			files, disk, file := disktest.Sparse(t, n+4*blockdev.MiB)
			disktest.NewGPT(
				t,
				file,
				parttable.Span{Start: blockdev.MiB, Size: blockdev.MiB, Name: "first"},
				parttable.Span{Start: 2 * blockdev.MiB, Size: n, Name: "vyos"},
			)
			part := filepath.Join(t.TempDir(), "fs")
			disktest.NewFile(t, part, n)
			disktest.Run(t, mkfs[0], append(mkfs[1:], part)...)
			disktest.Put(t, part, file, 2*blockdev.MiB)
			loops := newLoopFiles(t, file, fstype)
			owner, label, uuid := `, "owner": "1000", "group": "102", "mode": "0640"`, "persistence", "11111111-2222-3333-4444-555555555555"
			if fstype == "vfat" {
				owner, label, uuid = "", "PERSISTENCE", "1111-2222"
			}
			guid := disktest.ReadSpans(t, file)[1].UUID
			for i, sel := range []string{"2", "LABEL=" + label, "UUID=" + uuid, "PARTLABEL=vyos", "PARTUUID=" + strings.ToUpper(guid)} {
				out, log, err := try(t, Machine{Disks: files, Files: loops}, action.Inject, disk, map[string]string{
					"PARTITION": sel, "FILES": fmt.Sprintf(`[{"path": "/boot/1.4/rw/%d/config.boot", "contents": "%s"%s}]`, i, sel, owner),
				})
				if err != nil || out["files"] != "1" {
					t.Fatalf("%s: %v %v\n%s", sel, out, err, log)
				}
			}
			parts, err := loops.Partitions(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			dir, unmount, err := loops.Mount(t.Context(), parts[1].Path, fstype, true)
			if err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(dir + "/boot/1.4/rw/3/config.boot")
			if err != nil || string(b) != "PARTLABEL=vyos" {
				t.Errorf("%q, %v", b, err)
			}
			if err := unmount(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestPartitionSelectors(t *testing.T) {
	t.Parallel()
	files, disk, file := disktest.Sparse(t, 24*blockdev.MiB)
	disktest.NewGPT(
		t,
		file,
		parttable.Span{Start: blockdev.MiB, Size: 8 * blockdev.MiB, Name: "twin"},
		parttable.Span{Start: 9 * blockdev.MiB, Size: 8 * blockdev.MiB, Name: "twin"},
		parttable.Span{Start: 17 * blockdev.MiB, Size: blockdev.MiB, Name: "other"},
	)
	small := filepath.Join(t.TempDir(), "fs")
	disktest.Run(t, "mkfs.vfat", "-C", "-n", "SEED", small, "8192")
	disktest.Put(t, small, file, 9*blockdev.MiB)
	parts := &filesystest.FakeFiles{}
	for sel, want := range map[string]string{
		"PARTLABEL=twin": "partitions 1 and 2 both match",
		"PARTLABEL=none": `not found among: 1 ( PARTLABEL="twin" LABEL=""), 2 (vfat PARTLABEL="twin" LABEL="SEED"), 3`,
		"PARTTYPE=ebd0a0a2-b9e5-4433-87c0-68b6b72699c7": "both match",
		"LABEL=":  "must be a number",
		"NAME=x":  "must be a number",
		"0":       "must be a number",
		"LABEL=x": "not found among",
	} {
		_, _, err := try(t, Machine{Disks: files, Files: parts}, action.Inject, disk,
			map[string]string{"PARTITION": sel, "FILES": `[{"path": "/x"}]`})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", sel, err, want)
		}
	}
}
