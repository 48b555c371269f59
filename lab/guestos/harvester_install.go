package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	"github.com/diskfs/go-diskfs/partition/gpt"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

// liveRoot fetches the root file system and switches to it, with a tmpfs above it. A simulated machine only fetches it.
func (h *host) liveRoot(ctx context.Context, url string) error {
	h.stage("initrd", "fetching the live system")
	dir := "/run"
	if !h.real {
		dir = os.TempDir()
	}
	f, err := os.CreateTemp(dir, "rootfs-*.squashfs")
	if err != nil {
		return err
	}
	path := f.Name()
	n, err := fetchTo(ctx, url, 1<<40, f)
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("fetching the live system: %w", err), os.Remove(path))
	}
	head := make([]byte, 4)
	f, err = os.Open(path)
	if err == nil {
		_, err = io.ReadFull(f, head)
		err = errors.Join(err, f.Close())
	}
	if err != nil || string(head) != "hsqs" {
		return fmt.Errorf("reading the live system: invalid squashfs (%w)", err)
	}
	h.say("live system of %d bytes", n)
	if !h.real {
		return os.Remove(path)
	}
	if err := mountSquash(path, "/run/live"); err != nil {
		return err
	}
	return switchRoot("/run/live", "/run/rw/upper", "/run/rw/work")
}

// mountSquash mounts a squashfs file through a loop device.
func mountSquash(path, at string) error {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer control.Close() // nothing was written
	n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return fmt.Errorf("asking for a loop device: %w", err)
	}
	loop, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer loop.Close() // the mount holds it
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() // the loop device holds it
	if err := unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_FD, int(f.Fd())); err != nil {
		return fmt.Errorf("setting up a loop device: %w", err)
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(loop.Name(), at, "squashfs", unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mounting %q: %w", path, err)
	}
	return nil
}

// switchRoot runs /sbin/init of an overlay of lower and upper. It returns only on error.
func switchRoot(lower, upper, work string) error {
	const at = "/mnt" // not below /run, which moves
	if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755), os.MkdirAll(at, 0o755)); err != nil {
		return err
	}
	if err := unix.Mount("overlay", at, "overlay", 0, "lowerdir="+lower+",upperdir="+upper+",workdir="+work); err != nil {
		return fmt.Errorf("mounting the root: %w", err)
	}
	for _, d := range []string{"/proc", "/sys", "/dev", "/run", "/tmp"} {
		if err := os.MkdirAll(filepath.Join(at, d), 0o755); err != nil {
			return err
		}
		if err := unix.Mount(d, filepath.Join(at, d), "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("moving %q: %w", d, err)
		}
	}
	if err := errors.Join(unix.Chdir(at), unix.Mount(".", "/", "", unix.MS_MOVE, ""), unix.Chroot("."), unix.Chdir("/")); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	err := unix.Exec("/sbin/init", []string{"/sbin/init"}, os.Environ())
	return fmt.Errorf("starting /sbin/init: %w", err)
}

// harvesterInstall runs the live system: it installs, calls the webhooks and reboots.
func (h *host) harvesterInstall(ctx context.Context) error {
	c, err := h.harvesterDocument(ctx)
	if err != nil {
		return err
	}
	h.detail("mode", c.Install.Mode)
	h.webhook(ctx, c, "STARTED")
	if err := h.harvesterWrite(ctx, c); err != nil {
		h.webhook(ctx, c, "FAILED")
		return err
	}
	h.stage("installed", c.Install.Device)
	h.webhook(ctx, c, "SUCCEEDED")
	if c.Install.PowerOff {
		h.powerOff()
	}
	h.reboot()
	return nil
}

// webhook calls the webhooks of an event and prints their answers on the console.
func (h *host) webhook(ctx context.Context, c *harvesterConfig, event string) {
	if h.fails("webhook") {
		h.say("no webhook %s: told to fail", event)
		return
	}
	values := map[string]string{"Hostname": c.OS.Hostname}
	if all, err := cards(); err == nil && len(all) > 0 {
		values["MACAddr"] = all[0].HardwareAddr.String()
	}
	if all := addresses(); len(all) > 0 {
		values["IPAddrV4"], _, _ = strings.Cut(all[0], "/")
	}
	render := func(s string) (string, error) {
		t, err := template.New("webhook").Parse(s)
		if err != nil {
			return "", err
		}
		var b strings.Builder
		err = t.Execute(&b, values)
		return b.String(), err
	}
	for _, w := range c.Install.Webhooks {
		if w.Event != event {
			continue
		}
		url, err := render(w.URL)
		var payload string
		if err == nil {
			payload, err = render(w.Payload)
		}
		for try := 1; err == nil && try <= 5; try++ {
			var code int
			if code, err = post(ctx, w, url, payload); err == nil {
				h.say("webhook %s: %d", event, code)
				break
			}
			h.say("webhook %s: try %d: %v", event, try, err)
			if try < 5 && pause(ctx, 2*time.Second) {
				err = nil
			}
		}
		if err != nil {
			h.say("webhook %s: %v", event, err)
		}
	}
}

func post(ctx context.Context, w harvesterWebhook, url, payload string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, strings.ToUpper(w.Method), url, strings.NewReader(payload))
	if err != nil {
		return 0, errors.New("the webhook's URL is none")
	}
	for k, v := range w.Headers {
		req.Header[http.CanonicalHeaderKey(k)] = v
	}
	if w.BasicAuth.User != "" {
		req.SetBasicAuth(w.BasicAuth.User, w.BasicAuth.Password)
	}
	res, err := client().Do(req)
	if err != nil {
		return 0, plain(err)
	}
	return res.StatusCode, res.Body.Close()
}

// Harvester's partitions, in small. The names are in the GPT; the file systems have the labels COS_OEM and so on.
var harvesterParts = []part{
	{label: "efi", kind: gpt.EFISystemPartition, size: 64 * mib, attributes: 1 << 2}, // "legacy BIOS bootable"
	{label: "oem", kind: gpt.LinuxFilesystem, size: 16 * mib},
	{label: "recovery", kind: gpt.LinuxFilesystem, size: 4 * mib},
	{label: "state", kind: gpt.LinuxFilesystem, size: 4 * mib},
	{label: "persistent", kind: gpt.LinuxFilesystem},
}

// harvesterWrite installs the content of the ISO onto the disk.
func (h *host) harvesterWrite(ctx context.Context, c *harvesterConfig) error {
	d, err := h.disk(c.Install.Device)
	if err != nil {
		return err
	}
	if c.Install.WipeAll {
		for _, other := range h.disks {
			if err := other.clear(part{start: 0, size: other.size}); err != nil {
				return err
			}
		}
		h.say("wiped all disks")
	}
	iso := ""
	if c.Install.ISO != "" {
		h.stage("installing", "fetching the ISO")
		dir := "/run"
		if !h.real {
			dir = os.TempDir()
		}
		iso = filepath.Join(dir, fmt.Sprintf("harvester-%d.iso", os.Getpid()))
		defer os.Remove(iso) // the machine boots again
		n, err := fetchFile(ctx, c.Install.ISO, iso)
		if err != nil {
			return fmt.Errorf("fetching the ISO: %w", err)
		}
		h.say("ISO of %d bytes", n)
	}
	h.stage("installing", "onto "+d.name)
	parts := slices.Clone(harvesterParts)
	if !h.real {
		parts[0].size = 4 * mib
	}
	var mbr []byte
	if iso != "" {
		if mbr, err = isoFile(iso, "payload/mbr.bin"); err != nil {
			return err
		}
	}
	if parts, err = d.partition(parts, mbr); err != nil {
		return err
	}
	for _, p := range parts[1:] {
		if err := d.clear(p); err != nil {
			return err
		}
	}
	if h.fails("install") {
		return errors.New("installing: told to fail")
	}
	if iso != "" {
		esp, err := isoFile(iso, "payload/esp.zst")
		if err != nil {
			return err
		}
		if h.real {
			if _, err := d.write(parts[0], bytes.NewReader(esp)); err != nil {
				return err
			}
		}
	}
	text, err := yaml.Marshal(c)
	if err != nil {
		return err
	}
	if err := d.putFiles(part{label: "COS_OEM", start: parts[1].start, size: parts[1].size},
		map[string][]byte{"harvester.config": text}); err != nil {
		return err
	}
	// Without the ISO's images the installed node never comes up: harvester#1439.
	return (&store{d: d, p: parts[4]}).save(harvesterState{Images: iso != "", Failures: h.health.Failures})
}

// isoFile reads a file of an ISO 9660 image.
func isoFile(iso, name string) ([]byte, error) {
	f, err := os.Open(iso)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read from
	fs, err := iso9660.Read(file.New(f, true), 0, 0, 2048)
	if err != nil {
		return nil, fmt.Errorf("reading the ISO: %w", err)
	}
	b, err := fs.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("reading %q of the ISO: %w", name, err)
	}
	return b, nil
}
