package actions

import (
	"bytes"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/stretchr/testify/require"
)

// The agent implements every native action and no others.
func TestEveryNativeActionIsImplemented(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, name := range action.Natives() {
		known[name] = true
		if performers[name] == nil && !action.Leaves(name) {
			t.Errorf("%s: this agent does not carry it out", name)
		}
	}
	for name := range performers {
		if !known[name] {
			t.Errorf("%s: package action does not list it", name)
		}
	}
}

// S23: the agent refuses what is not a native action, even if the server has signed it, and before it opens a disk.
func TestS23OtherActionsAreRefused(t *testing.T) {
	for _, name := range []string{"nginx", "docker.io/library/image2disk", "docker.io/acme/tinkerbell-actions/image2disk", "", "sh", "image2disk "} {
		files, disk, image := disktest.OldDisk(t, disktest.ImageDiskSize)
		s := newWorker(t)
		cfg := s.config()
		cfg.Disks = files
		s.start(cfg)

		res := s.result(s.give(0, name, disk, map[string]string{"IMG_URL": "https://192.0.2.1/x", "DEST_DISK": "/dev/alias"}))
		require.Equal(t, action.Failed, res.State, name)
		require.True(t, bytes.Equal(disktest.OldData(disktest.ImageDiskSize), disktest.MapFile(t, image)), "%q: the disk was written", name)
	}
}
