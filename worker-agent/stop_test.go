package agent

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/worker-agent/disk/filesystest"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
)

// closedWhenReported fails the test if a report arrives while a disk is open.
func closedWhenReported(t *testing.T, s *fakeServer, disks *disktest.WatchedDisks) {
	t.Helper()
	s.onReport = func(http.ResponseWriter, int) bool {
		if open, _ := disks.Counts(); open != 0 {
			t.Errorf("reported while %d disks are open", open)
		}
		return false
	}
}

// The image server stops sending: an order to stop does not wait for it.
func TestStopDuringSlowDownload(t *testing.T) {
	t.Parallel()
	for name, cancel := range map[string]func(*fakeServer, action.Key){
		"order":   func(s *fakeServer, k action.Key) { s.update(func() { s.orders.Stop = []action.Key{k} }) },
		"revoked": func(s *fakeServer, _ action.Key) { s.update(func() { s.refuse = http.StatusForbidden }) },
	} {
		for _, format := range []string{"raw", "gz", "zst", "xz"} {
			t.Run(name+" "+format, func(t *testing.T) {
				t.Parallel()
				data := disktest.PackedImage(t, format)
				web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Length", fmt.Sprint(len(data)))
					_, _ = w.Write(data[:len(data)/2])
					w.(http.Flusher).Flush()
					<-r.Context().Done()
				}))
				t.Cleanup(web.Close)
				s := newFakeServer(t)
				files, disk, _ := disktest.OldDisk(t, disktest.ImageDiskSize)
				disks := &disktest.WatchedDisks{Inner: files}
				closedWhenReported(t, s, disks)
				cfg := s.config()
				cfg.Disks = disks
				s.start(cfg)
				key := s.give(
					0,
					action.Image2Disk,
					disk,
					map[string]string{"IMG_URL": web.URL, "IMG_SHA256": disktest.SHA256(data), "DEST_DISK": "/dev/alias"},
				)
				s.wait("the first bytes", func() bool {
					n := len(s.beats)
					return n > 0 && s.beats[n-1].Running != nil && s.beats[n-1].Running.Done > 0
				})
				cancel(s, key)
				if name == "revoked" {
					s.wait("requests that are refused", func() bool { return s.refused > 5 })
					s.update(func() { s.refuse = 0 })
				}
				if res := s.result(key); res.State != action.Stopped {
					t.Fatalf("%s %s", res.State, res.Message)
				}
				if _, opened := disks.Counts(); opened != 1 {
					t.Fatalf("the disk was opened %d times", opened)
				}
			})
		}
	}
}

// slowDisks hang in a write, zeroing or sync, like a failing disk.
type slowDisks struct {
	disktest.WatchedDisks
	in      string
	hanging chan struct{} // closed when a call hangs
	release chan struct{}
}

func (d *slowDisks) Open(path string) (blockdev.Device, error) {
	dev, err := d.WatchedDisks.Open(path)
	return &slowDevice{dev, d}, err
}

type slowDevice struct {
	blockdev.Device
	disks *slowDisks
}

func (d *slowDevice) hang(in string) {
	if d.disks.in == in {
		select {
		case <-d.disks.hanging:
		default:
			close(d.disks.hanging)
		}
		<-d.disks.release
	}
}

func (d *slowDevice) WriteAt(p []byte, off int64) (int, error) {
	if off > blockdev.MiB {
		d.hang("write")
	}
	return d.Device.WriteAt(p, off)
}

func (d *slowDevice) Zero(off, n int64) error { d.hang("zero"); return d.Device.Zero(off, n) }
func (d *slowDevice) Sync() error             { d.hang("sync"); return d.Device.Sync() }
func (d *slowDevice) Close() error            { d.hang("close"); return d.Device.Close() }

// A disk that hangs is still being written: the agent must not report before it is closed.
func TestStopDuringSlowWrite(t *testing.T) {
	t.Parallel()
	data := disktest.TestImage()
	web := httptest.NewServer(&disktest.Mirror{Data: data})
	t.Cleanup(web.Close)
	for _, in := range []string{"write", "zero", "sync", "close"} {
		t.Run(in, func(t *testing.T) {
			t.Parallel()
			s := newFakeServer(t)
			files, disk, _ := disktest.OldDisk(t, disktest.ImageDiskSize)
			disks := &slowDisks{
				WatchedDisks: disktest.WatchedDisks{Inner: files},
				in:           in,
				hanging:      make(chan struct{}),
				release:      make(chan struct{}),
			}
			closedWhenReported(t, s, &disks.WatchedDisks)
			cfg := s.config()
			cfg.Disks = disks
			s.start(cfg)
			sum := disktest.SHA256(data)
			if in == "close" {
				sum = disktest.SHA256([]byte("x")) // ends the action before it could wait for anything else
			}
			key := s.give(0, action.Image2Disk, disk, map[string]string{"IMG_URL": web.URL, "IMG_SHA256": sum, "DEST_DISK": "/dev/alias"})
			<-disks.hanging
			var beats int
			s.update(func() { s.orders.Stop, beats = []action.Key{key}, len(s.beats) })
			// The order arrived; the agent waits for the disk.
			s.wait("heartbeats", func() bool { return len(s.beats) >= beats+3 })
			s.locked(func() {
				if len(s.reports) != 0 || s.beats[len(s.beats)-1].Running == nil {
					t.Errorf("reported while the disk is written: %+v", s.reports)
				}
			})
			close(disks.release)
			if res := s.result(key); res.State != action.Stopped && (in != "close" || res.State != action.Failed) {
				t.Fatalf("%s %s", res.State, res.Message)
			}
		})
	}
}

// 410 during a write: the disk is closed first, then the machine is powered off.
func TestGoneDuringWrite(t *testing.T) {
	t.Parallel()
	data := disktest.TestImage()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = w.Write(data[:len(data)/2])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(web.Close)
	s := newFakeServer(t)
	files, disk, _ := disktest.OldDisk(t, disktest.ImageDiskSize)
	disks := &disktest.WatchedDisks{Inner: files}
	cfg := s.config()
	cfg.Disks = disks
	r := s.start(cfg)
	r.host.mu.Lock()
	r.host.onGo = func() {
		if open, opened := disks.Counts(); open != 0 || opened != 1 {
			t.Errorf("%d of %d are open, and the machine goes", open, opened)
		}
	}
	r.host.mu.Unlock()
	s.give(0, action.Image2Disk, disk, map[string]string{"IMG_URL": web.URL, "IMG_SHA256": disktest.SHA256(data), "DEST_DISK": "/dev/alias"})
	s.wait("a write", func() bool { return len(s.beats) > 0 && s.beats[len(s.beats)-1].Wrote })
	s.update(func() { s.gone = "another run owns the machine" })
	if went := r.ended(); strings.Join(went, " ") != "poweroff" {
		t.Fatalf("the machine went %v", went)
	}
}

// The time of an action is measured with a monotonic clock: its deadline has a monotonic reading,
// which Go prefers to the wall clock. The reported end is the start plus the measured time.
func TestClockStepHasNoEffect(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	cfg := s.config()
	seen := &deadlines{}
	cfg.Finder = seen
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	a.welcome = action.Welcome{Run: "run", Epoch: 7, Boot: 1}
	res := a.execute(t.Context(), s.signed(action.Assignment{
		Key:    action.Key{Epoch: 7, Attempt: 1},
		Action: action.Action{Name: "n", Image: action.Inspect, Timeout: 600},
	}))
	if res.State != action.Success {
		t.Fatalf("%+v", res)
	}
	for what, text := range map[string]string{"deadline": seen.text, "start": res.Started.String(), "end": res.Ended.String()} {
		if !strings.Contains(text, " m=+") {
			t.Errorf("the %s %q has no monotonic reading", what, text)
		}
	}
	if wall := res.Ended.Round(0).Sub(res.Started.Round(0)); wall != res.Ended.Sub(res.Started) {
		t.Errorf("the report says %s, and it took %s", wall, res.Ended.Sub(res.Started))
	}
}

type deadlines struct{ text string }

func (d *deadlines) Facts(ctx context.Context) (action.Facts, error) {
	if at, ok := ctx.Deadline(); ok {
		d.text = at.String()
	}
	return action.Facts{}, nil
}

// An order to stop ends every action that writes. It is reported when the disk is closed.
func TestStopEachWritingAction(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		native, in string
		env        map[string]string
	}{
		{action.Wipe, "zero", nil},
		{action.Wipe, "sync", map[string]string{"WIPE_MODE": "quick"}},
		{action.GrowPart, "sync", nil},
		{action.ConfigDrive, "sync", nil},
	} {
		t.Run(c.native+" "+c.in, func(t *testing.T) {
			t.Parallel()
			s := newFakeServer(t)
			files, disk, _ := disktest.GrownDisk(t, 64*blockdev.MiB)
			disks := &slowDisks{
				WatchedDisks: disktest.WatchedDisks{Inner: files},
				in:           c.in,
				hanging:      make(chan struct{}),
				release:      make(chan struct{}),
			}
			closedWhenReported(t, s, &disks.WatchedDisks)
			cfg := s.config()
			// An action that cannot be interrupted while it writes the table checks for a stop
			// before it grows the file system.
			cfg.Disks, cfg.Files = disks, &filesystest.FakeFiles{}
			s.start(cfg)
			key := s.give(0, c.native, disk, c.env)
			<-disks.hanging
			var beats int
			s.update(func() { s.orders.Stop, beats = []action.Key{key}, len(s.beats) })
			s.wait("the order's delivery", func() bool { return len(s.beats) >= beats+3 })
			close(disks.release)
			res := s.result(key)
			if res.State != action.Stopped && (c.native != action.ConfigDrive || res.State != action.Success) {
				t.Errorf("%+v", res)
			}
		})
	}
}

// stoppingFiles delivers an order to stop between two files.
type stoppingFiles struct {
	filesystest.FakeFiles
	mounted int
	during  func()
}

func (f *stoppingFiles) Mount(ctx context.Context, device, fstype string, readOnly bool) (string, func() error, error) {
	dir, unmount, err := f.FakeFiles.Mount(ctx, device, fstype, readOnly)
	f.mounted++
	f.during()
	return dir, func() error { f.mounted--; return unmount() }, err
}

func TestStopDuringInject(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	disks, disk, _ := disktest.OldDisk(t, 8*blockdev.MiB)
	part, root := filesystest.ExtPartition(t, 1, 8192), t.TempDir()
	hanging, release := make(chan struct{}), make(chan struct{})
	files := &stoppingFiles{
		FakeFiles: filesystest.FakeFiles{Parts: []filesys.Partition{part}, Dirs: map[string]string{part.Path: root}},
		during:    func() { close(hanging); <-release },
	}
	cfg := s.config()
	cfg.Disks, cfg.Files = disks, files
	s.onReport = func(http.ResponseWriter, int) bool {
		if files.mounted != 0 {
			t.Error("reported while a file system is mounted")
		}
		return false
	}
	s.start(cfg)
	key := s.give(0, action.Inject, disk, map[string]string{"DEST_DISK": "/dev/alias1", "FILES": `[{"path": "/a"}, {"path": "/b"}]`})
	<-hanging
	s.update(func() { s.refuse = http.StatusForbidden }) // revoked: it stops at once
	s.wait("requests that are refused", func() bool { return s.refused > 3 })
	s.update(func() { s.refuse = 0 })
	close(release)
	if res := s.result(key); res.State != action.Stopped {
		t.Errorf("%+v", res)
	}
	if e, err := os.ReadDir(root); err != nil || len(e) != 0 {
		t.Errorf("%v, %v", e, err)
	}
}
