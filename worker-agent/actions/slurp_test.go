package actions

import (
	"bytes"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/klauspost/compress/gzip"
	"github.com/stretchr/testify/require"
)

// uploads is a server that takes forms.
type uploads struct {
	*httptest.Server
	file, name string
	length     int64
	err        error
	answer     func(w http.ResponseWriter, r *http.Request) bool // answers in place of the server
}

func newUploads(t *testing.T) *uploads {
	t.Helper()
	u := &uploads{}
	u.Server = httptest.NewServer(u)
	t.Cleanup(u.Close)
	return u
}

func (u *uploads) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if u.answer != nil && u.answer(w, r) {
		return
	}
	u.length = r.ContentLength
	_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if u.err = err; err != nil {
		return
	}
	form := multipart.NewReader(r.Body, params["boundary"])
	part, err := form.NextPart()
	if u.err = err; err != nil {
		return
	}
	u.name = part.FormName() + " " + part.FileName()
	var b bytes.Buffer
	_, u.err = io.Copy(&b, part)
	u.file = b.String()
	if u.err == nil {
		if _, err := form.NextPart(); err != io.EOF {
			u.err = fmt.Errorf("a second part, or no end: %w", err)
		}
	}
	w.WriteHeader(http.StatusCreated)
}

// slurpTo starts slurp of a disk with old data; env is added to its environment.
func slurpTo(t *testing.T, address string, env map[string]string) (s *worker, key action.Key, file string) {
	t.Helper()
	s = newWorker(t)
	files, disk, file := disktest.OldDisk(t, disktest.ImageDiskSize+512)
	disks := &disktest.WatchedDisks{Inner: files}
	s.done = func() {
		if open, _ := disks.Counts(); open != 0 {
			t.Errorf("ended while %d disks are open", open)
		}
	}
	disks.OnWrite = func(int64) { t.Error("slurp writes to the disk") }
	cfg := s.config()
	cfg.Disks = disks
	s.start(cfg)
	full := map[string]string{
		action.SourceDiskVariable: "/dev/alias", action.UploadNameVariable: "node-1.img",
		action.UploadURLVariable: strings.Replace(address, "http://", "http://user:geheim@", 1) + "/put?key=geheim",
	}
	for k, v := range env {
		full[k] = v
	}
	return s, s.give(0, action.Slurp, disk, full), file
}

func TestSlurp(t *testing.T) {
	t.Parallel()
	disk := string(disktest.OldData(disktest.ImageDiskSize + 512))
	for _, packed := range []string{"", "false", "true"} {
		t.Run("COMPRESSED="+packed, func(t *testing.T) {
			t.Parallel()
			u := newUploads(t)
			s, key, file := slurpTo(t, u.URL, map[string]string{action.CompressedVariable: packed})
			res := s.result(key)
			require.Equal(t, action.Success, res.State, res.Message)
			require.NoError(t, u.err)
			require.Equal(t, "BootyImage node-1.img", u.name)
			if packed == "true" {
				z, err := gzip.NewReader(strings.NewReader(u.file))
				require.NoError(t, err)
				b, err := io.ReadAll(z)
				require.NoError(t, err)
				u.file = string(b)
			} else {
				require.Equal(t, res.Output["sent"], fmt.Sprint(u.length))
			}
			require.True(t, u.file == disk, "the server has the disk")
			require.Equal(t, disktest.SHA256([]byte(disk)), res.Output["sha256"])
			require.Equal(t, fmt.Sprint(len(disk)), res.Output["bytes"])
			require.True(t, string(disktest.MapFile(t, file)) == disk, "the disk is as it was")
			require.NotContains(t, res.Log, "geheim")
		})
	}
}

// TestS59SlurpFails: only a status of success after the whole disk is a success, and no redirect
// is followed (security S59). No error repeats what may be secret in the address (S22).
func TestS59SlurpFails(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	t.Cleanup(elsewhere.Close)
	status := func(code int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			_, _ = io.Copy(io.Discard, r.Body) // the status counts
			w.Header().Set("Location", elsewhere.URL)
			w.WriteHeader(code)
			return true
		}
	}
	for name, c := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request) bool
		env    map[string]string
		says   string
	}{
		"404": {status(404), nil, "404"},
		"500": {status(500), nil, "500"},
		"300": {status(300), nil, "does not follow redirects"},
		"301": {status(301), nil, "does not follow redirects"},
		"302": {status(302), nil, "does not follow redirects"},
		"303": {status(303), nil, "does not follow redirects"},
		"307": {status(307), nil, "does not follow redirects"},
		"308": {status(308), nil, "does not follow redirects"},
		"an answer before the end": {
			func(w http.ResponseWriter, r *http.Request) bool {
				_, _ = r.Body.Read(make([]byte, 1))
				w.WriteHeader(http.StatusOK)
				return true
			}, nil, "sending /dev/sda to http://127.0.0.1:",
		},
		"a cut": {
			func(w http.ResponseWriter, r *http.Request) bool {
				_, _ = io.CopyN(io.Discard, r.Body, blockdev.MiB)
				panic(http.ErrAbortHandler)
			}, nil, "sending /dev/sda to http://127.0.0.1:",
		},
		"a partition":      {nil, map[string]string{action.SourceDiskVariable: "/dev/alias1"}, "takes a whole disk"},
		"another disk":     {nil, map[string]string{action.SourceDiskVariable: "/dev/sdb"}, "not the disk bound to this run"},
		"no address":       {nil, map[string]string{action.UploadURLVariable: ""}, "reading DEST_URL"},
		"a file":           {nil, map[string]string{action.UploadURLVariable: "file:///geheim"}, "reading DEST_URL"},
		"a name of a path": {nil, map[string]string{action.UploadNameVariable: "../x"}, "invalid IMG_NAME"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUploads(t)
			u.answer = c.answer
			if c.answer == nil {
				u.answer = func(http.ResponseWriter, *http.Request) bool { t.Error("something was sent"); return true }
			}
			s, key, _ := slurpTo(t, u.URL, c.env)
			res := s.result(key)
			require.Equal(t, action.Failed, res.State)
			require.Contains(t, res.Message, c.says)
			require.NotContains(t, res.Message+res.Log, "geheim")
		})
	}
}

// TestSlurpStops: an order to stop does not wait for a server that receives nothing more, and the
// server sees an incomplete request.
func TestSlurpStops(t *testing.T) {
	t.Parallel()
	u := newUploads(t)
	began, goOn, end := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	u.answer = func(_ http.ResponseWriter, r *http.Request) bool {
		_, _ = io.CopyN(io.Discard, r.Body, 1000) // the rest is more than a connection buffers
		close(began)
		<-goOn
		_, err := io.Copy(io.Discard, r.Body)
		end <- err
		return true
	}
	s, key, _ := slurpTo(t, u.URL, nil)
	<-began
	s.stop(key)
	res := s.result(key)
	close(goOn)
	require.Equal(t, action.Stopped, res.State, res.Message)
	require.Error(t, <-end)
}
