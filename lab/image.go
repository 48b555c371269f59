package lab

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

//go:embed images/*.sh
var recipes embed.FS

// Image is a bootable disk image for BIOS and UEFI, in the cache. Its files must not be changed.
type Image struct {
	Name   string // "mini" or "debian"
	Raw    string // path of the raw image
	Zst    string // path of the same, compressed with zstd
	SHA256 string // of Raw, in hex
	Size   int64  // of Raw, in bytes
}

// MiniImage is a small operating system that boots in a few seconds; see images/mini.sh for its
// output on the serial console. It is built if the cache does not have it (10 s). The output of the
// build goes to log, which may be nil.
func MiniImage(ctx context.Context, log io.Writer) (Image, error) {
	// The unpacked packages are part of the recipe.
	key, err := packageKey("kernel", "busybox", "secureboot")
	if err != nil {
		return Image{}, err
	}
	return buildImage(ctx, "mini", key, log)
}

// DebianImage is a real Debian 12 with cloud-init; see images/debian.sh. It is built if the cache
// does not have it (one to two minutes, from Debian's mirror). The output of the build goes to log,
// which may be nil.
func DebianImage(ctx context.Context, log io.Writer) (Image, error) {
	key, err := packageKey("secureboot")
	if err != nil {
		return Image{}, err
	}
	return buildImage(ctx, "debian", key, log)
}

// NetplanImage is the Debian of DebianImage with netplan and systemd-networkd; see images/netplan.sh.
func NetplanImage(ctx context.Context, log io.Writer) (Image, error) {
	recipe, err := recipes.ReadFile("images/debian.sh") // part of this one
	if err != nil {
		return Image{}, err
	}
	key, err := packageKey("secureboot")
	if err != nil {
		return Image{}, err
	}
	return buildImage(ctx, "netplan", string(recipe)+key, log)
}

// DebianSystem is the root file system of a Debian 12 for BIOS, with md and GRUB, as a tar archive
// compressed with zstd; see images/system.sh. It is built like DebianImage. The output of the build
// goes to log, which may be nil.
func DebianSystem(ctx context.Context, log io.Writer) (path string, err error) {
	img, err := buildImage(ctx, "system", "", log)
	return img.Zst, err
}

func packageKey(names ...string) (string, error) {
	var key strings.Builder
	for _, n := range names {
		b, err := os.ReadFile(filepath.Join(PackageDir(n), ".packages"))
		if err != nil {
			return "", fmt.Errorf("reading package %q of the lab's cache: %w; %s", n, err, remedy)
		}
		key.Write(b)
	}
	return key.String(), nil
}

// buildImage returns the image of recipe name from the cache, and builds it first if necessary. If
// two builds run at the same time, even in two programs, the second waits and uses the result of
// the first.
func buildImage(ctx context.Context, name, key string, log io.Writer) (Image, error) {
	if log == nil {
		log = io.Discard
	}
	h := sha256.New()
	for _, f := range []string{"mkimage.sh", "bootstrap.sh", name + ".sh"} {
		b, err := recipes.ReadFile("images/" + f)
		if err != nil {
			return Image{}, err
		}
		h.Write(b)
	}
	h.Write([]byte(key))
	dir := filepath.Join(CacheDir(), "images", name+"-"+hex.EncodeToString(h.Sum(nil))[:16])
	var img Image
	err := inCache(ctx, name, dir, func() (err error) {
		img, err = openImage(name, dir)
		return err
	}, func(work, out string) error { return makeImage(ctx, name, work, out, log) })
	return img, err
}

// inCache ensures that the cache has folder dir. If open cannot read it, build fills the folder
// out, using the temporary folder work; out becomes dir when everything is complete. Two builds at
// the same time, even in two programs, do not conflict.
func inCache(ctx context.Context, name, dir string, open func() error, build func(work, out string) error) error {
	if open() == nil {
		return nil
	}
	root := filepath.Dir(dir)
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(root, name+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close() // releases the lock; nothing was written
	err = poll(ctx, func() (bool, error) {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("waiting for another builder of image %q: %w", name, err)
	}
	if open() == nil {
		return nil
	}
	if err := buildInto(name, dir, build); err != nil {
		return fmt.Errorf("building image %q: %w", name, err)
	}
	return open()
}

// buildInto runs build in a new folder with the recipes. The caller holds the lock.
func buildInto(name, dir string, build func(work, out string) error) error {
	root := filepath.Dir(dir)
	left, err := filepath.Glob(filepath.Join(root, ".build-"+name+"-*"))
	if err != nil {
		return err
	}
	for _, d := range left { // from a build that was killed: a running one would hold the lock
		if err := os.RemoveAll(d); err != nil {
			return err
		}
	}
	work, err := os.MkdirTemp(root, ".build-"+name+"-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work) // on an error, the next build removes it
	out := filepath.Join(work, "out")
	if err := errors.Join(os.Chmod(work, 0o755), os.Mkdir(out, 0o755), os.CopyFS(work, recipes)); err != nil {
		return err
	}
	scripts, err := filepath.Glob(filepath.Join(work, "images", "*.sh"))
	if err != nil {
		return err
	}
	for _, s := range scripts {
		if err := os.Chmod(s, 0o755); err != nil {
			return err
		}
	}
	if err := build(work, out); err != nil {
		return err
	}
	return os.Rename(out, dir)
}

// openImage reads the result of makeImage.
func openImage(name, dir string) (Image, error) {
	img := Image{Name: name, Raw: filepath.Join(dir, name+".raw"), Zst: filepath.Join(dir, name+".raw.zst")}
	sum, err := os.ReadFile(filepath.Join(dir, "sha256"))
	if err != nil {
		return img, err
	}
	st, err := os.Stat(img.Raw)
	if err != nil {
		return img, err
	}
	img.SHA256, img.Size = strings.TrimSpace(string(sum)), st.Size()
	return img, nil
}

// makeImage runs the recipe of an image.
func makeImage(ctx context.Context, name, work, out string, log io.Writer) error {
	raw := filepath.Join(out, name+".raw")
	if err := runBuild(ctx, log, filepath.Join(work, "images", name+".sh"), raw, filepath.Join(CacheDir(), "pkg")); err != nil {
		return err
	}
	return finishImage(ctx, raw, log)
}

// finishImage compresses an image and writes its digest next to it.
func finishImage(ctx context.Context, raw string, log io.Writer) error {
	if err := runBuild(ctx, log, "zstd", "-q", "-3", "-f", raw, "-o", raw+".zst"); err != nil {
		return err
	}
	f, err := os.Open(raw)
	if err != nil {
		return err
	}
	h := sha256.New()
	_, err = io.Copy(h, f)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(filepath.Dir(raw), "sha256"), []byte(hex.EncodeToString(h.Sum(nil))+"\n"), 0o644)
}

// runBuild runs a program that ends with ctx and with this program.
func runBuild(ctx context.Context, log io.Writer, name string, args ...string) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // the parent-death signal comes when the thread ends
		last := &tailWriter{w: log}
		c := exec.CommandContext(ctx, name, args...)
		c.Stdout, c.Stderr = last, last
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
		c.WaitDelay = 5 * time.Second
		err := c.Run()
		if err != nil {
			err = fmt.Errorf("running %s: %w: %s", filepath.Base(name), err, last.text())
		}
		result <- err
	}()
	return <-result
}
