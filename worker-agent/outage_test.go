package agent

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
)

// wire is a TCP proxy in front of a server that can be cut and restored.
type wire struct {
	t      *testing.T
	target string
	addr   string

	mu       sync.Mutex
	listener net.Listener
	conns    []net.Conn
}

func newWire(t *testing.T, target string) *wire {
	t.Helper()
	w := &wire{t: t, target: target, addr: "127.0.0.1:0"}
	w.mend()
	t.Cleanup(w.cut)
	return w
}

// mend listens at the same address, also after a cut.
func (w *wire) mend() {
	w.t.Helper()
	l, err := net.Listen("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	w.listener, w.addr = l, l.Addr().String()
	w.mu.Unlock()
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", w.target)
			if err != nil {
				_ = near.Close() // as if the server were away
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, near, far)
			w.mu.Unlock()
			for _, d := range [][2]net.Conn{{near, far}, {far, near}} {
				go func() {
					_, err := io.Copy(d[0], d[1])
					if err != nil && !errors.Is(err, net.ErrClosed) {
						w.t.Log(err)
					}
					_, _ = d[0].Close(), d[1].Close() // close both sides together
				}()
			}
		}
	}()
}

// cut closes every connection and refuses new ones, like kill -9 of a server.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.listener.Close() // may be closed already
	for _, c := range w.conns {
		_ = c.Close() // the other side may have closed it
	}
	w.conns = nil
}

// The server is killed when half of the image is on the disk, and comes back: the agent continues
// at the same byte.
func TestServerOutageDuringImage(t *testing.T) {
	t.Parallel()
	image := disktest.TestImage()
	for _, format := range []string{"raw", "gz", "zst", "xz"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			s := newFakeServer(t)
			line := newWire(t, s.http.Listener.Addr().String())
			data := disktest.PackedImage(t, format)
			half := len(data) / 2
			sent := make(chan struct{})
			m := &disktest.Mirror{Data: data, Etag: `"digest"`}
			m.Serve = func(w http.ResponseWriter, r *http.Request, n int) bool {
				if n > 1 {
					return false
				}
				w.Header().Set("ETag", m.Etag)
				w.Header().Set("Content-Length", strconv.Itoa(len(data)))
				_, _ = w.Write(data[:half]) // the wire is cut
				w.(http.Flusher).Flush()
				close(sent)
				<-r.Context().Done()
				return true
			}
			s.files = m.ServeHTTP
			files, disk, file := disktest.OldDisk(t, disktest.ImageDiskSize)
			cfg := s.config()
			cfg.Server, cfg.Disks = "https://"+line.addr, files
			s.start(cfg)
			key := s.give(0, action.Image2Disk, disk, map[string]string{
				"IMG_URL": cfg.Server + "/agent/v1/images/debian", "IMG_SHA256": disktest.SHA256(data), "DEST_DISK": "/dev/alias",
			})
			<-sent
			s.wait("progress in the midst", func() bool {
				for _, b := range s.beats {
					if b.Running != nil && b.Running.Key == key && b.Running.Done > 0 && b.Running.Done < b.Running.Total {
						return true
					}
				}
				return false
			})
			line.cut()
			line.mend()
			res := s.result(key)
			content := disktest.MapFile(t, file)
			disktest.RequireImage(t, res, content, image, m.Data)
			if len(m.Requests) != 2 || m.Requests[1] == "" {
				t.Fatalf("it asked for %q", m.Requests)
			}
		})
	}
}
