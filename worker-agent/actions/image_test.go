package actions

import (
	"bytes"
	"compress/bzip2"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
)

// install is the outcome of image2disk on a disk of size bytes.
type install struct {
	res    action.Result
	disk   []byte
	mirror *disktest.Mirror
	disks  *disktest.WatchedDisks
}

func runInstall(t *testing.T, m *disktest.Mirror, size int64, env map[string]string) install {
	t.Helper()
	return runInstallBy(t, action.Image2Disk, m, size, env)
}

// runInstallBy is runInstall with another action that takes the same variables.
func runInstallBy(t *testing.T, native string, m *disktest.Mirror, size int64, env map[string]string) install {
	t.Helper()
	return runInstallOn(t, native, m, testSectors{size, 512}, env)
}

// testSectors is the size of a disk and of its sectors in bytes.
type testSectors struct {
	size   int64
	sector int
}

// runInstallOn is runInstallBy on a disk with sectors of another size.
func runInstallOn(t *testing.T, native string, m *disktest.Mirror, d testSectors, env map[string]string) install {
	t.Helper()
	s := newWorker(t)
	web := httptest.NewServer(m)
	t.Cleanup(web.Close)
	files, disk, file := disktest.OldDisk(t, d.size)
	files[0].SectorSize = d.sector
	w := &disktest.WatchedDisks{Inner: files}
	cfg := s.config()
	cfg.Disks = w
	s.start(cfg)
	full := map[string]string{"IMG_URL": web.URL + "/image?key=geheim", "DEST_DISK": "/dev/alias"}
	for k, v := range env {
		full[k] = v
	}
	res := s.result(s.give(0, native, disk, full))
	content := disktest.MapFile(t, file)
	if open, _ := w.Counts(); open != 0 {
		t.Error("the disk is still open")
	}
	if strings.Contains(res.Log+res.Message, "geheim") {
		t.Errorf("the log shows the address's query: %s", res.Log)
	}
	return install{res, content, m, w}
}

func (i install) mustHold(t *testing.T, image []byte) {
	t.Helper()
	disktest.RequireImage(t, i.res, i.disk, image, i.mirror.Data)
}

// mustFail checks a failure after the first write: the disk has no boot sector.
func (i install) mustFail(t *testing.T, text string) {
	t.Helper()
	if i.res.State != action.Failed || !strings.Contains(i.res.Message, text) {
		t.Fatalf("%s: %q, want a failure with %q\n%s", i.res.State, i.res.Message, text, i.res.Log)
	}
	if !blockdev.AllZero(i.disk[:blockdev.MiB]) || !blockdev.AllZero(i.disk[len(i.disk)-blockdev.MiB:]) {
		t.Fatal("an end of the disk is not zero")
	}
}

// mustFailEarlyOrLate checks a failure that may come before or after the first write.
func (i install) mustFailEarlyOrLate(t *testing.T) {
	t.Helper()
	if bytes.Equal(i.disk, disktest.OldData(len(i.disk))) {
		i.mustNotTouch(t, "")
		return
	}
	i.mustFail(t, "")
}

// mustNotTouch checks a failure before the first write.
func (i install) mustNotTouch(t *testing.T, text string) {
	t.Helper()
	if i.res.State != action.Failed || !strings.Contains(i.res.Message, text) {
		t.Fatalf("%s: %q, want a failure with %q", i.res.State, i.res.Message, text)
	}
	if !bytes.Equal(i.disk, disktest.OldData(len(i.disk))) {
		t.Fatal("the disk was written")
	}
}

// An image whose partition table would not be found on the disk is refused before the first write, whatever packs it.
func TestImageThatDoesNotFitTheDiskIsRefused(t *testing.T) {
	t.Parallel()
	mbr := make([]byte, 4*blockdev.MiB)
	copy(mbr[446:], "\x80\x00\x00\x00\x83\x00\x00\x00\x00\x08\x00\x00\x00\x08\x00\x00") // from 1 to 2 MiB
	mbr[510], mbr[511] = 0x55, 0xaa
	for name, c := range map[string]struct {
		image []byte
		disk  testSectors
		want  string // "" = it is written
	}{
		"512 on 512":       {disktest.GptImage(t, 512), testSectors{16 * blockdev.MiB, 512}, ""},
		"4096 on 4096":     {disktest.GptImage(t, 4096), testSectors{16 * blockdev.MiB, 4096}, ""},
		"512 on 4096":      {disktest.GptImage(t, 512), testSectors{16 * blockdev.MiB, 4096}, "for disks with 512-byte sectors, and this disk has 4096-byte sectors"},
		"4096 on 512":      {disktest.GptImage(t, 4096), testSectors{16 * blockdev.MiB, 512}, "for disks with 4096-byte sectors, and this disk has 512-byte sectors"},
		"MBR on 512":       {mbr, testSectors{16 * blockdev.MiB, 512}, ""},
		"MBR on 4096":      {mbr, testSectors{16 * blockdev.MiB, 4096}, "for disks with 512-byte sectors"},
		"no table on 4096": {disktest.TestImage(), testSectors{16 * blockdev.MiB, 4096}, ""},
		"a smaller disk":   {disktest.GptImage(t, 512), testSectors{8 * blockdev.MiB, 512}, "use a smaller image or a larger disk"},
	} {
		for _, format := range []string{"raw", "gz", "zst", "frames"} {
			for _, native := range []string{action.Image2Disk, action.QemuImg2Disk} {
				t.Run(fmt.Sprint(name, " ", format, " ", native), func(t *testing.T) {
					m := &disktest.Mirror{Data: disktest.Pack(t, c.image, format)}
					i := runInstallOn(t, native, m, c.disk, map[string]string{"IMG_SHA256": disktest.SHA256(m.Data)})
					if c.want == "" {
						i.mustHold(t, c.image)
					} else {
						i.mustNotTouch(t, c.want)
					}
				})
			}
		}
	}
}

// TestQemuImg2Disk: it writes what image2disk writes, proven in the same way. A qcow2 image and
// what only qemu-img could do are refused before the first write, with the remedy.
func TestQemuImg2Disk(t *testing.T) {
	t.Parallel()
	image, data := disktest.TestImage(), disktest.PackedImage(t, "zst")
	env := func(more ...string) map[string]string {
		out := map[string]string{"IMG_SHA256": disktest.SHA256(data), "FORMAT": "host_device", "EXTRA_ARGS": ""}
		for n := 0; n < len(more); n += 2 {
			out[more[n]] = more[n+1]
		}
		return out
	}
	run := func(data []byte, env map[string]string) install {
		return runInstallBy(t, action.QemuImg2Disk, &disktest.Mirror{Data: data}, disktest.ImageDiskSize, env)
	}
	run(data, env()).mustHold(t, image)
	run(image, env("IMG_SHA256", disktest.SHA256(image), "FORMAT", "")).mustHold(t, image)
	run(image, env()).mustFail(t, "but the plan has "+disktest.SHA256(data))
	run(data[:len(data)/2], env()).mustFail(t, "")

	qcow2 := append([]byte("QFI\xfb\x00\x00\x00\x03"), image...)
	for _, c := range []struct {
		data []byte
		env  map[string]string
		says string
	}{
		{qcow2, env("IMG_SHA256", disktest.SHA256(qcow2)), "ingot image add NAME FILE, or NAME URL"},
		{data, env("FORMAT", "qcow2"), "must be host_device"},
		{data, env("EXTRA_ARGS", "-W -m 16"), "reading EXTRA_ARGS: it must be empty"},
		{data, env("IMG_SHA256", "abc"), "invalid IMG_SHA256"},
		{data, env("DEST_DISK", "/dev/sdz"), "not the disk bound to this run"},
	} {
		run(c.data, c.env).mustNotTouch(t, c.says)
	}
}

// S18: an image with a flipped bit at the beginning, in the middle or at the end, or one that is
// too short or too long, never boots.
// TestS18FaultyImagesAtTheDisk: for each format, how a transfer may fail, and how it ends:
//
//	whole            the disk holds the image
//	cut and resumed  the same; nothing that came is fetched again
//	changed ETag     the same; all is fetched again
//	short            failed, nothing bootable
//	long             failed, nothing bootable
//	wrong digest     failed, nothing bootable
//	flipped bit      failed, nothing bootable, or refused before the first write
//	qcow2            refused before the first write: the server converts it
func TestS18FaultyImagesAtTheDisk(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"raw", "gz", "zst", "frames", "xz", "xz blocks", "bzip2"} {
		image, data := disktest.TestImage(), disktest.PackedImage(t, format)
		if format == "bzip2" { // slow
			image = image[:blockdev.MiB+12345]
			data = disktest.Pack(t, image, format)
		}
		half := len(data) / 2
		digest := map[string]string{"IMG_SHA256": "sha256:" + strings.ToUpper(disktest.SHA256(data))}
		t.Run(format, func(t *testing.T) {
			t.Run("whole", func(t *testing.T) {
				runInstall(t, &disktest.Mirror{Data: data}, disktest.ImageDiskSize, digest).mustHold(t, image)
			})
			t.Run("first seen", func(t *testing.T) {
				i := runInstall(t, &disktest.Mirror{Data: data}, disktest.ImageDiskSize, nil)
				i.mustHold(t, image)
				if i.res.Output["firstSeen"] != "true" || !strings.Contains(i.res.Log, "first seen: sha256 "+disktest.SHA256(data)) {
					t.Fatalf("no warning: %s", i.res.Log)
				}
			})
			t.Run("cut and resumed", func(t *testing.T) {
				m := &disktest.Mirror{Data: data, Etag: `"v1"`}
				m.Serve = func(w http.ResponseWriter, r *http.Request, n int) bool {
					switch n {
					case 1:
						m.CutAfter(w, 0, half)
					case 2: // the server is away for a moment
						w.WriteHeader(http.StatusServiceUnavailable)
						return true
					}
					return false
				}
				i := runInstall(t, m, disktest.ImageDiskSize, digest)
				i.mustHold(t, image)
				if last := m.Requests[len(m.Requests)-1]; last != fmt.Sprintf("bytes=%d-", half) {
					t.Fatalf("it asked for %q", m.Requests)
				}
			})
			t.Run("changed while it was read", func(t *testing.T) {
				old := append([]byte{}, data...)
				for k := half; k < len(old); k++ {
					old[k] ^= 0x55
				}
				m := &disktest.Mirror{Data: old, Etag: `"old"`}
				m.Serve = func(w http.ResponseWriter, r *http.Request, n int) bool {
					if n == 1 {
						defer func() { m.Mu.Lock(); m.Data, m.Etag = data, `"new"`; m.Mu.Unlock() }()
						m.CutAfter(w, 0, half)
					}
					return false
				}
				i := runInstall(t, m, disktest.ImageDiskSize, digest)
				i.mustHold(t, image)
				if !strings.Contains(i.res.Log, "starting over") || m.Requests[len(m.Requests)-1] != "" {
					t.Fatalf("requests %q\n%s", m.Requests, i.res.Log)
				}
			})
			t.Run("short file", func(t *testing.T) {
				runInstall(t, &disktest.Mirror{Data: data[:half]}, disktest.ImageDiskSize, digest).mustFailEarlyOrLate(t)
				if format != "raw" {
					// Without a digest, the format detects the damage.
					runInstall(t, &disktest.Mirror{Data: data[:half]}, disktest.ImageDiskSize, nil).mustFailEarlyOrLate(t)
					runInstall(t, &disktest.Mirror{Data: data[:len(data)-1]}, disktest.ImageDiskSize, nil).mustFailEarlyOrLate(t)
				}
			})
			t.Run("long file", func(t *testing.T) {
				long := append(append([]byte{}, data...), "and something more"...)
				runInstall(t, &disktest.Mirror{Data: long}, disktest.ImageDiskSize, digest).mustFail(t, "")
				if format != "raw" {
					runInstall(t, &disktest.Mirror{Data: long}, disktest.ImageDiskSize, nil).mustFail(t, "")
				}
			})
			t.Run("wrong digest", func(t *testing.T) {
				runInstall(
					t,
					&disktest.Mirror{Data: data},
					disktest.ImageDiskSize,
					map[string]string{"IMG_SHA256": disktest.SHA256([]byte("x"))},
				).mustFail(t, "the image's SHA-256 is "+disktest.SHA256(data))
			})
			for _, at := range []int{20, half, len(data) - 1} {
				t.Run(fmt.Sprintf("bit flipped at %d", at), func(t *testing.T) {
					bad := append([]byte{}, data...)
					bad[at] ^= 1
					runInstall(t, &disktest.Mirror{Data: bad}, disktest.ImageDiskSize, digest).mustFailEarlyOrLate(t)
				})
			}
			if format == "bzip2" {
				return // its image is smaller than any disk
			}
			t.Run("larger than the disk", func(t *testing.T) {
				i := runInstall(t, &disktest.Mirror{Data: data}, 5*blockdev.MiB, digest)
				if format == "raw" {
					i.mustNotTouch(t, "the image has")
				} else {
					i.mustFail(t, "larger than the disk")
				}
			})
			t.Run("as large as the disk", func(t *testing.T) {
				runInstall(t, &disktest.Mirror{Data: data}, int64(len(image)+511)/512*512, digest).mustHold(t, image)
			})
		})
	}
	t.Run("qcow2", func(t *testing.T) {
		data := []byte("QFI\xfb\x00\x00\x00\x03" + strings.Repeat(" ", 100))
		runInstall(
			t,
			&disktest.Mirror{Data: data},
			disktest.ImageDiskSize,
			map[string]string{"IMG_SHA256": disktest.SHA256(data)},
		).mustNotTouch(t, "qcow2")
	})
}

func TestInvalidImageResponses(t *testing.T) {
	t.Parallel()
	image := disktest.TestImage()
	for _, status := range []int{300, 301, 404, 403, 409, 206, 204} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			m := &disktest.Mirror{Data: image}
			m.Serve = func(w http.ResponseWriter, _ *http.Request, _ int) bool {
				w.Header().Set("Content-Length", strconv.Itoa(len(image)))
				w.WriteHeader(status)
				_, _ = w.Write(image) // the agent hangs up
				return true
			}
			text := fmt.Sprintf("the server answers %d", status)
			switch status {
			case 301:
				text = "" // for a redirect, the client returns its own error
			case 409:
				text = "was changed after the image was added to the server"
			}
			runInstall(t, m, disktest.ImageDiskSize, map[string]string{"IMG_SHA256": disktest.SHA256(image)}).mustNotTouch(t, text)
		})
	}
	t.Run("a response without a length", func(t *testing.T) {
		m := &disktest.Mirror{Data: image}
		m.Serve = func(w http.ResponseWriter, _ *http.Request, _ int) bool {
			c, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return true
			}
			_, _ = rw.WriteString("HTTP/1.0 200 OK\r\n\r\n")
			_, _ = rw.Write(image[:5*blockdev.MiB])
			_ = rw.Flush() // like a server that crashes in the middle
			_ = c.Close()
			return true
		}
		runInstall(t, m, disktest.ImageDiskSize, nil).mustNotTouch(t, "does not send the image")
		runInstall(t, m, disktest.ImageDiskSize, map[string]string{"IMG_SHA256": disktest.SHA256(image)}).mustFail(t, "the image's SHA-256 is")
	})
	for what, data := range map[string]string{
		"a qcow2 image": "QFI\xfb\x00\x00\x00\x03", "a web page": "<!DOCTYPE html><p>log in",
		"a zip archive": "PK\x03\x04",
	} {
		t.Run(what, func(t *testing.T) {
			runInstall(t, &disktest.Mirror{Data: []byte(data + strings.Repeat(" ", 100))}, disktest.ImageDiskSize, nil).mustNotTouch(t, what)
		})
	}
	// The packed content is also checked before the first write.
	for what, data := range map[string]string{
		"a qcow2 image":        "QFI\xfb\x00\x00\x00\x03",
		"a tar archive":        strings.Repeat("\x00", 257) + "ustar",
		"an ISO 9660 image":    strings.Repeat("\x00", 0x8001) + "CD001",
		"compressed twice":     string(disktest.PackedImage(t, "gz")),
		"an initramfs (cpio a": "070701",
	} {
		t.Run(what+" in gzip", func(t *testing.T) {
			i := runInstall(t, &disktest.Mirror{Data: disktest.Pack(t, []byte(data+strings.Repeat(" ", 100)), "gz")}, disktest.ImageDiskSize, nil)
			i.mustNotTouch(t, what)
			if !strings.Contains(i.res.Message, "/image:") {
				t.Fatalf("the message does not name the image: %s", i.res.Message)
			}
		})
	}
	t.Run("a cut image names itself and the remedy", func(t *testing.T) {
		data := disktest.PackedImage(t, "gz")
		i := runInstall(t, &disktest.Mirror{Data: data[:len(data)-1]}, disktest.ImageDiskSize, nil)
		i.mustFail(t, "the gz data is cut short or damaged")
		for _, want := range []string{"/image to ", "get the file again", "ingot image add"} {
			if !strings.Contains(i.res.Message, want) {
				t.Fatalf("no %q in %q", want, i.res.Message)
			}
		}
	})
	t.Run("nothing at all", func(t *testing.T) {
		runInstall(t, &disktest.Mirror{}, disktest.ImageDiskSize, nil).mustNotTouch(t, "the image is empty")
	})
	t.Run("bad words", func(t *testing.T) {
		for _, env := range []map[string]string{
			{"IMG_SHA256": "abc"},
			{"IMG_URL": "ftp://host/x"},
			{"IMG_URL": "file:///etc/passwd"},
			{"DEST_DISK": "/dev/sdb"},
			{"DEST_DISK": "/dev/alias1"},
			{"IMG_SHA512": "00"},
		} {
			runInstall(t, &disktest.Mirror{Data: image}, disktest.ImageDiskSize, env).mustNotTouch(t, "")
		}
	})
}

func TestBzip2MatchesBzip2Program(t *testing.T) {
	t.Parallel()
	image := disktest.TestImage()
	b, err := io.ReadAll(bzip2.NewReader(bytes.NewReader(disktest.PackedImage(t, "bzip2"))))
	if err != nil || !bytes.Equal(b, image) {
		t.Fatalf("bzip2 is of no use here: %v", err)
	}
}

func TestImageFromIngotServer(t *testing.T) {
	t.Parallel()
	image := disktest.TestImage()
	m := &disktest.Mirror{Data: disktest.PackedImage(t, "zst")}
	s := newWorker(t)
	s.files = m.ServeHTTP
	files, disk, file := disktest.OldDisk(t, disktest.ImageDiskSize)
	cfg := s.config()
	cfg.Disks = files
	s.start(cfg)
	// The server is verified by its pinned key and gets the token: it has no certificate of a CA.
	res := s.result(s.give(0, action.Image2Disk, disk,
		map[string]string{"IMG_URL": s.http.URL + "/agent/v1/images/debian.zst", "DEST_DISK": "/dev/alias"}))
	content := disktest.MapFile(t, file)
	install{res: res, disk: content, mirror: m}.mustHold(t, image)
	// Another server with https has to have a valid certificate.
	other := httptest.NewTLSServer(m)
	t.Cleanup(other.Close)
	m.Mu.Lock()
	m.Requests = nil
	m.Mu.Unlock()
	res = s.result(s.give(1, action.Image2Disk, disk, map[string]string{"IMG_URL": other.URL, "DEST_DISK": "/dev/alias"}))
	if res.State != action.Failed || !strings.Contains(res.Message, "certificate") {
		t.Fatalf("%+v", res)
	}
	if len(m.Requests) != 0 {
		t.Fatal("a server with an unknown certificate was asked")
	}
}

func TestStopDuringWrite(t *testing.T) {
	t.Parallel()
	image := disktest.TestImage()
	m := &disktest.Mirror{Data: image, Etag: `"v1"`}
	block := make(chan struct{})
	t.Cleanup(func() { close(block) })
	m.Serve = func(w http.ResponseWriter, r *http.Request, _ int) bool {
		w.Header().Set("Content-Length", strconv.Itoa(len(image)))
		_, _ = w.Write(image[:5*blockdev.MiB])
		w.(http.Flusher).Flush()
		select {
		case <-block:
		case <-r.Context().Done():
		}
		return true
	}
	web := httptest.NewServer(m)
	t.Cleanup(web.Close)
	s := newWorker(t)
	files, disk, file := disktest.OldDisk(t, disktest.ImageDiskSize)
	disks := &disktest.WatchedDisks{Inner: files}
	written := make(chan struct{})
	var once sync.Once
	disks.OnWrite = func(off int64) {
		if off >= blockdev.MiB && off < disktest.ImageDiskSize-blockdev.MiB {
			once.Do(func() { close(written) })
		}
	}
	s.done = func() {
		if open, opened := disks.Counts(); open != 0 || opened == 0 {
			t.Errorf("at the end %d of %d descriptors are open", open, opened)
		}
	}
	cfg := s.config()
	cfg.Disks = disks
	s.start(cfg)
	key := s.give(
		0,
		action.Image2Disk,
		disk,
		map[string]string{"IMG_URL": web.URL, "DEST_DISK": "/dev/alias", "IMG_SHA256": disktest.SHA256(image)},
	)
	<-written
	s.stop(key)
	if res := s.result(key); res.State != action.Stopped {
		t.Fatalf("%+v", res)
	}
	content := disktest.MapFile(t, file)
	if !blockdev.AllZero(content[:blockdev.MiB]) || !blockdev.AllZero(content[disktest.ImageDiskSize-blockdev.MiB:]) {
		t.Fatal("an end of the disk is not zero")
	}
	if !bytes.Equal(content[blockdev.MiB:4*blockdev.MiB], image[blockdev.MiB:4*blockdev.MiB]) {
		t.Fatal("nothing was written: the test is meaningless")
	}
}

// forgetful is a disk that corrupts one write and reports success.
type forgetful struct {
	blockdev.Device
	at int64
}

func (f forgetful) WriteAt(p []byte, off int64) (int, error) {
	if off <= f.at && f.at < off+int64(len(p)) {
		q := bytes.Clone(p)
		q[f.at-off] ^= 1
		n, err := f.Device.WriteAt(q, off)
		return n, err
	}
	return f.Device.WriteAt(p, off)
}

type forgetfulDisks struct {
	inner disk.FileDisks
	at    int64
}

func (f forgetfulDisks) Disks(ctx context.Context) ([]action.Disk, error) { return f.inner.Disks(ctx) }

func (f forgetfulDisks) Open(path string) (blockdev.Device, error) {
	d, err := f.inner.Open(path)
	return forgetful{d, f.at}, err
}

// S18: what the disk did not keep is not booted.
func TestCorruptedWriteIsDetected(t *testing.T) {
	t.Parallel()
	image := disktest.TestImage()
	m := &disktest.Mirror{Data: image}
	web := httptest.NewServer(m)
	t.Cleanup(web.Close)
	for _, at := range []int64{5, blockdev.MiB + 1, 5 * blockdev.MiB} {
		s := newWorker(t)
		files, disk, file := disktest.OldDisk(t, disktest.ImageDiskSize)
		cfg := s.config()
		cfg.Disks = forgetfulDisks{files, at}
		s.start(cfg)
		res := s.result(s.give(0, action.Image2Disk, disk, map[string]string{"IMG_URL": web.URL, "DEST_DISK": "/dev/alias"}))
		content := disktest.MapFile(t, file)
		if res.State != action.Failed {
			t.Fatalf("a bit lost at %d: %+v", at, res)
		}
		// The disk keeps zeros: even a corrupted boot sector is removed.
		if at > blockdev.MiB && !blockdev.AllZero(content[:blockdev.MiB]) {
			t.Fatalf("a bit lost at %d: there is a boot sector", at)
		}
	}
}

// swappedDisks exchange their names between the look-up and opening one.
type swappedDisks struct {
	disk.FileDisks
	swapped atomic.Bool
}

func (s *swappedDisks) Disks(ctx context.Context) ([]action.Disk, error) {
	disks, err := s.FileDisks.Disks(ctx)
	if s.swapped.Load() {
		disks[0].Path, disks[1].Path = disks[1].Path, disks[0].Path
	}
	return disks, err
}

func (s *swappedDisks) Open(path string) (blockdev.Device, error) {
	s.swapped.Store(true)
	for i, d := range s.FileDisks {
		if d.Path != path {
			return s.FileDisks.Open(s.FileDisks[i].Path)
		}
	}
	return nil, os.ErrNotExist
}

func TestDiskWithSwappedNameIsNotWritten(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(&disktest.Mirror{Data: disktest.TestImage()})
	t.Cleanup(web.Close)
	bound, disk, _ := disktest.OldDisk(t, disktest.ImageDiskSize)
	other, _, file := disktest.OldDisk(t, disktest.ImageDiskSize)
	other[0].Path, other[0].Serial = "/dev/sdb", "S2"
	for _, native := range []string{action.Image2Disk, action.Wipe} {
		s := newWorker(t)
		cfg := s.config()
		cfg.Disks = &swappedDisks{FileDisks: append(bound, other...)}
		s.start(cfg)
		res := s.result(s.give(0, native, disk, map[string]string{"IMG_URL": web.URL, "DEST_DISK": "/dev/alias"}))
		content := disktest.MapFile(t, file)
		if res.State != action.Failed || !bytes.Equal(content, disktest.OldData(disktest.ImageDiskSize)) {
			t.Fatalf("%s: %+v", native, res)
		}
	}
}

// brokenDisks fail every write from some byte on.
type brokenDisks struct {
	inner disk.FileDisks
	from  int64
}

func (b brokenDisks) Disks(ctx context.Context) ([]action.Disk, error) { return b.inner.Disks(ctx) }

func (b brokenDisks) Open(path string) (blockdev.Device, error) {
	d, err := b.inner.Open(path)
	return broken{d, b.from}, err
}

type broken struct {
	blockdev.Device
	from int64
}

func (b broken) WriteAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > b.from {
		return 0, errors.New("critical medium error")
	}
	return b.Device.WriteAt(p, off)
}

func TestBrokenDiskIsNamed(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"raw", "gz", "zst"} {
		// Eight packed parts, which every format allows to be joined into one image.
		web := httptest.NewServer(&disktest.Mirror{Data: bytes.Repeat(disktest.PackedImage(t, format), 8)})
		t.Cleanup(web.Close)
		s := newWorker(t)
		files, disk, _ := disktest.OldDisk(t, 64*blockdev.MiB)
		cfg := s.config()
		cfg.Disks = brokenDisks{files, 3 * blockdev.MiB}
		s.start(cfg)
		res := s.result(s.give(0, action.Image2Disk, disk, map[string]string{"IMG_URL": web.URL, "DEST_DISK": "/dev/alias"}))
		if res.State != action.Failed || !strings.Contains(res.Message, "critical medium error") {
			t.Errorf("%s: %s %q", format, res.State, res.Message)
		}
	}
}

func TestPartitionNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		alias, path string
		n           int
		bad         bool
	}{
		{"/dev/sda", "/dev/sda", 0, false},
		{"/dev/sda", "/dev/sda3", 3, false},
		{"/dev/sda", "", 0, false},
		{"/dev/nvme0n1", "/dev/nvme0n1p12", 12, false},
		{"/dev/disk/by-id/x-1", "/dev/disk/by-id/x-1-part2", 2, false},
		{"/dev/sda", "/dev/sdaa", 0, true},
		{"/dev/sda", "/dev/sdb", 0, true},
		{"/dev/nvme0n1", "/dev/nvme0n10", 0, true},
		{"/dev/nvme0n1", "/dev/nvme0n12p1", 0, true},
		{"/dev/sda", "/dev/sda0", 0, true},
		{"/dev/sda", "/dev/sda1x", 0, true},
	} {
		x := newTask(Machine{}, action.Assignment{DiskAlias: c.alias, Disk: &action.Disk{Path: "/dev/sdz", Serial: "s"}})
		n, err := x.partitionOf(c.path)
		if n != c.n || (err != nil) != c.bad {
			t.Errorf("%q on %q: %d, %v", c.path, c.alias, n, err)
		}
	}
}
