package disktest

import (
	"context"
	"sync"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
)

// WatchedDisks counts how often disks are opened and closed, and calls OnWrite before each write.
type WatchedDisks struct {
	Inner        disk.Disks
	mu           sync.Mutex
	open, opened int
	OnWrite      func(off int64)
}

// Disks implements disk.Disks.
func (w *WatchedDisks) Disks(ctx context.Context) ([]action.Disk, error) { return w.Inner.Disks(ctx) }

// Open implements disk.Disks.
func (w *WatchedDisks) Open(path string) (blockdev.Device, error) {
	d, err := w.Inner.Open(path)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open++
	w.opened++
	return &watchedDevice{d, w}, nil
}

// Counts returns how many disks are open now, and how often disks were opened.
func (w *WatchedDisks) Counts() (open, opened int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.open, w.opened
}

type watchedDevice struct {
	blockdev.Device
	disks *WatchedDisks
}

func (d *watchedDevice) WriteAt(p []byte, off int64) (int, error) {
	if d.disks.OnWrite != nil {
		d.disks.OnWrite(off)
	}
	return d.Device.WriteAt(p, off)
}

func (d *watchedDevice) Close() error {
	d.disks.mu.Lock()
	d.disks.open--
	d.disks.mu.Unlock()
	return d.Device.Close()
}
