package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// GuestHealthPort is where every stand-in guest (VyOS, Talos, Harvester) says what it does: GET / answers with JSON, POST
// /fail?what=WORD,WORD makes it fail from then on, also after a reboot, POST /reboot boots it again. See lab/guestos.
const GuestHealthPort = 8099

// Talos are the files of the stand-in for Talos, in the cache.
type Talos struct {
	Kernel    string // boots with Initramfs and talos.platform=metal talos.config=URL: path A
	Initramfs string
	Image     Image // raw image of path B: reads the volume CIDATA
}

// TalosFiles builds the stand-in for Talos when the cache does not have it (half a minute); what the build prints goes to log,
// which may be nil.
func TalosFiles(ctx context.Context, log io.Writer) (Talos, error) {
	dir, err := standin(ctx, "talos", log, func(out string) error {
		return finishImage(ctx, filepath.Join(out, "talos.raw"), discard(log))
	})
	if err != nil {
		return Talos{}, err
	}
	img, err := openImage("talos", dir)
	return Talos{Kernel: filepath.Join(dir, "vmlinuz"), Initramfs: filepath.Join(dir, "initramfs"), Image: img}, err
}

func discard(log io.Writer) io.Writer {
	if log == nil {
		return io.Discard
	}
	return log
}

// GuestProgram builds lab/guestos into a folder and returns its path. It needs the go command, in the module's folder.
func GuestProgram(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "guestos")
	// The environment's own settings stand, except cgo: the guest has no libraries.
	err := runBuild(ctx, io.Discard, "env", "CGO_ENABLED=0", "go", "build", "-buildvcs=false", "-ldflags", "-s -w", "-o", path, "github.com/ingotmetal/ingot/lab/guestos")
	return path, err
}

// standin builds the files of a product; more is called with their folder before they count as built.
func standin(ctx context.Context, product string, log io.Writer, more func(out string) error) (string, error) {
	tmp, err := os.MkdirTemp("", "ingot-lab-guestos-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp) // a later program's system cleans up what is left
	program, err := GuestProgram(ctx, tmp)
	if err != nil {
		return "", err
	}
	key, err := packageKey("kernel", "busybox", "relay")
	if err != nil {
		return "", err
	}
	h := sha256.New()
	f, err := os.Open(program)
	if err != nil {
		return "", err
	}
	defer f.Close() // only read from
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	for _, name := range []string{"standin.sh", "vyos-root.sh"} {
		b, err := recipes.ReadFile("images/" + name)
		if err != nil {
			return "", err
		}
		h.Write(b)
	}
	fmt.Fprint(h, key, standinRecipe) //nolint:errcheck // a hash takes all
	dir := filepath.Join(CacheDir(), "images", product+"-"+hex.EncodeToString(h.Sum(nil))[:16])
	err = inCache(ctx, product, dir, func() error {
		_, err := os.Stat(dir)
		return err
	}, func(work, out string) error {
		err := runBuild(ctx, discard(log), filepath.Join(work, "images", "standin.sh"), out, filepath.Join(CacheDir(), "pkg"), program, product)
		if err != nil {
			return err
		}
		return more(out)
	})
	return dir, err
}

// standinRecipe counts changes of what is built here in Go.
const standinRecipe = 1
