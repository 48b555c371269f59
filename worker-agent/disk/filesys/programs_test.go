package filesys

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
)

// The agent runs the programs of a list only, and each word reaches a program as it is.
func TestS42OnlyProgramsOfTheListAreRun(t *testing.T) {
	t.Parallel()
	h := HostFilesystems{}
	for _, program := range []string{"sh", "/bin/sh", "../bin/sh", "busybox", ""} {
		if _, err := h.Run(t.Context(), program, []string{"-c", "true"}, func(string) {}); err == nil || h.Has(program) == nil {
			t.Errorf("%q was run", program)
		}
	}
	formats := action.StorageFormats()
	for _, format := range formats {
		program, _, err := action.Mkfs(format, nil)
		if _, ok := programs[program]; err != nil || !ok {
			t.Errorf("%s: %q is not in the list", format, program)
		}
	}

	disktest.Need(t, "mkswap")
	file := filepath.Join(t.TempDir(), "a $(reboot); `b`")
	disktest.NewFile(t, file, blockdev.MiB)
	var log []string
	exit, err := h.Run(t.Context(), "mkswap", []string{"-L", "$HOME", file}, func(line string) { log = append(log, line) })
	if exit != 0 || err != nil || !strings.Contains(strings.Join(log, "\n"), "LABEL=$HOME") ||
		string(disktest.MapFile(t, file)[4086:4096]) != "SWAPSPACE2" {
		t.Errorf("%d %v %q", exit, err, log)
	}
	exit, err = h.Run(t.Context(), "mkswap", []string{file + "x"}, func(line string) { log = append(log, line) })
	if exit != 1 || err == nil {
		t.Errorf("exit %d, %v", exit, err)
	}
}

// The kernel's view of arrays and logical volumes.
func TestVolume(t *testing.T) {
	t.Parallel()
	h := HostFilesystems{Sys: t.TempDir()}
	for file, text := range map[string]string{
		"block/md0/size": "2048", "block/md0/md/level": "raid1", "block/md0/md/raid_disks": "2",
		"block/md1/size": "0", "block/dm-3/size": "8", "block/dm-3/dm/name": "vg--0-root",
	} {
		p := filepath.Join(h.Sys, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]Volume{
		"md0":        {Partition: Partition{Path: "/dev/md0", Size: 1 << 20}, Level: "raid1", Members: 2},
		"vg--0-root": {Partition: Partition{Path: "/dev/dm-3", Size: 4096}},
	} {
		if v, ok := h.Volume(name); !ok || v != want {
			t.Errorf("%s: %+v", name, v)
		}
	}
	for _, name := range []string{"md1", "md2", "vg-0-root"} { // md1 is stopped
		if v, ok := h.Volume(name); ok {
			t.Errorf("%s: %+v", name, v)
		}
	}
}
