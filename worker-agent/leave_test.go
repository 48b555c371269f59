package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ingotmetal/ingot/worker-agent/disk/filesystest"

	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
)

// kexecHost refuses to load or to start a kernel.
type kexecHost struct {
	fakeHost
	refuse, refuseToStart error
}

func (h *kexecHost) LoadKernel(*os.File, *os.File, string) error { return h.refuse }

func (h *kexecHost) Kexec() error {
	if h.refuseToStart != nil {
		return h.refuseToStart
	}
	return h.leave("kexec")
}

// The report is delivered before the machine leaves, and the machine leaves in the way that was
// reported.
func TestKexecLeaves(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refuse, refuseToStart error
		leaving               string // what the report says
		went                  string // what happens
		state                 action.State
	}{
		"kexec":                     {nil, nil, "kexec", "kexec", action.Success},
		"lockdown":                  {unix.EPERM, nil, "reboot", "reboot", action.Success},
		"it is not signed":          {fmt.Errorf("loading: %w", unix.EKEYREJECTED), nil, "reboot", "reboot", action.Success},
		"a kernel without the call": {unix.ENOSYS, nil, "reboot", "reboot", action.Success},
		"no kernel":                 {unix.ENOEXEC, nil, "kexec", "", action.Failed},
		"it does not start":         {nil, unix.EINVAL, "kexec", "reboot", action.Success},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newFakeServer(t)
			root := t.TempDir()
			if err := os.WriteFile(filepath.Join(root, "vmlinuz"), []byte("a kernel"), 0o600); err != nil {
				t.Fatal(err)
			}
			part := filesystest.ExtPartition(t, 1, 8192)
			disks, disk, _ := disktest.OldDisk(t, 8*blockdev.MiB)
			cfg := s.config()
			cfg.Disks, cfg.Files = disks, &filesystest.FakeFiles{Parts: []filesys.Partition{part}, Dirs: map[string]string{part.Path: root}}
			host := &kexecHost{refuse: c.refuse, refuseToStart: c.refuseToStart}
			r := s.startOn(cfg, host, &host.fakeHost)
			res := s.result(s.give(0, "quay.io/tinkerbell/actions/kexec:latest", disk, map[string]string{
				"BLOCK_DEVICE": "/dev/alias1", "KERNEL_PATH": "/vmlinuz", "CMD_LINE": "quiet",
			}))
			if res.State != c.state || res.State == action.Success && res.Output["leaving"] != c.leaving {
				t.Fatalf("%+v", res)
			}
			if c.went == "" {
				return
			}
			if went := r.ended(); len(went) != 1 || went[0] != c.went {
				t.Errorf("the machine went by %v", went)
			}
		})
	}
}
