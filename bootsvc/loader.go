package bootsvc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/ingotmetal/ingot/internal/images/sbat"
	"github.com/ingotmetal/ingot/inventory"
)

// loaders opens the files that machines fetch to boot: loaders, and the files of the agent OS.
type loaders struct {
	cfg *Config
}

// open opens a loader, if it may be served. os.Root ensures that neither the name nor a symbolic link leads out of the
// loader directory.
func (l *loaders) open(name string) (*os.File, os.FileInfo, error) {
	if !isFileName(name) || l.cfg.LoaderDir == "" {
		return nil, nil, fmt.Errorf("loader %q: %w", name, inventory.ErrNotFound)
	}
	root, err := os.OpenRoot(l.cfg.LoaderDir)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the loader directory: %w", err)
	}
	defer root.Close() // f stays open
	f, err := root.Open(name)
	if err != nil {
		return nil, nil, fmt.Errorf("opening loader %q: %w", name, err)
	}
	f, info, err := requireRegular(f)
	if err == nil {
		if err = l.checkSBAT(name, f); err != nil {
			return nil, nil, errors.Join(err, f.Close())
		}
	}
	return f, info, err
}

// requireRegular returns f if it is a regular file. Otherwise it closes f and returns an error.
func requireRegular(f *os.File) (*os.File, os.FileInfo, error) {
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file: %w", f.Name(), inventory.ErrNotFound)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// errOldLoader means that a loader has a lower SBAT generation than cfg.MinimumSBAT requires, or that its generation
// cannot be determined.
var errOldLoader = errors.New("netboot.minimum_sbat")

// checkSBAT returns errOldLoader if the loader r has a lower SBAT generation than cfg.MinimumSBAT requires, or if its
// generation cannot be determined. A loader that is not a UEFI program has no generations, so it is not checked.
func (l *loaders) checkSBAT(name string, r io.ReaderAt) error {
	if len(l.cfg.MinimumSBAT) == 0 {
		return nil
	}
	p, err := sbat.Read(r)
	if err != nil && !errors.Is(err, sbat.ErrNotUEFI) {
		return fmt.Errorf("%s: %w (%w)", name, err, errOldLoader)
	}
	if below := l.cfg.MinimumSBAT.Below(name, p); len(below) > 0 {
		return fmt.Errorf("%s: %s (%w)", name, below[0], errOldLoader)
	}
	return nil
}

// whyUnserved returns why DHCP must not name a loader, or "" if it may. The text names each file of the loader's chain
// that is missing or refused.
func (l *loaders) whyUnserved(name string) string {
	var reasons []string
	for _, x := range sbat.Chain(name) {
		f, _, err := l.open(x)
		switch {
		case err == nil:
			_ = f.Close() // the file was opened only to check that it can be served
		case errors.Is(err, errOldLoader):
			reasons = append(reasons, err.Error())
		default:
			reasons = append(reasons, fmt.Sprintf("%s is missing in %s", x, l.cfg.LoaderDir))
		}
	}
	if len(reasons) == 0 {
		return ""
	}
	return fmt.Sprintf("loader %s is not served: %s", name, strings.Join(reasons, "; "))
}

// openAgentOS opens "vmlinuz" or "initramfs" of the agent OS. kind says which kind of event to record once the file is
// delivered.
func (l *loaders) openAgentOS(name string) (f *os.File, info os.FileInfo, kind string, err error) {
	path, kind := l.cfg.KernelPath, inventory.EventKernel
	if name == "initramfs" {
		path, kind = l.cfg.InitramfsPath, inventory.EventInitrd
	} else if name != "vmlinuz" {
		return nil, nil, "", inventory.ErrNotFound
	}
	if f, err = os.Open(path); err == nil {
		f, info, err = requireRegular(f)
	}
	if err != nil {
		l.cfg.Log.Error("opening the agent OS", "file", path, "error", err)
	}
	return f, info, kind, err
}
