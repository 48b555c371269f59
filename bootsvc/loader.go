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

// openLoader opens a loader that may be served. os.Root keeps the name, and symbolic links, inside the
// loader directory.
func (s *Server) openLoader(name string) (*os.File, os.FileInfo, error) {
	if !fileName(name) || s.cfg.LoaderDir == "" {
		return nil, nil, fmt.Errorf("loader %q: %w", name, inventory.ErrNotFound)
	}
	root, err := os.OpenRoot(s.cfg.LoaderDir)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the loader directory: %w", err)
	}
	defer root.Close() // the open file outlives it
	f, err := root.Open(name)
	if err != nil {
		return nil, nil, fmt.Errorf("opening loader %q: %w", name, err)
	}
	f, info, err := regular(f)
	if err == nil {
		if err = s.checkSBAT(name, f); err != nil {
			return nil, nil, errors.Join(err, f.Close())
		}
	}
	return f, info, err
}

// regular returns f if it is a regular file, and closes it otherwise.
func regular(f *os.File) (*os.File, os.FileInfo, error) {
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file: %w", f.Name(), inventory.ErrNotFound)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// errOldLoader means that a loader is below the least generation that the operator has set.
var errOldLoader = errors.New("netboot.minimum_sbat")

// checkSBAT returns errOldLoader if the loader r is below cfg.MinimumSBAT, or cannot be compared with it. Loaders
// that are no UEFI programs have no generations.
func (s *Server) checkSBAT(name string, r io.ReaderAt) error {
	if len(s.cfg.MinimumSBAT) == 0 {
		return nil
	}
	p, err := sbat.Read(r)
	if err != nil && !errors.Is(err, sbat.ErrNotUEFI) {
		return fmt.Errorf("%s: %w (%w)", name, err, errOldLoader)
	}
	if below := s.cfg.MinimumSBAT.Below(name, p); len(below) > 0 {
		return fmt.Errorf("%s: %s (%w)", name, below[0], errOldLoader)
	}
	return nil
}

// unserved returns why a loader cannot be handed out, or "". It names each file of the loader's chain that is missing
// or refused.
func (s *Server) unserved(name string) string {
	var reasons []string
	for _, x := range sbat.Chain(name) {
		f, _, err := s.openLoader(x)
		switch {
		case err == nil:
			_ = f.Close() // nothing was written
		case errors.Is(err, errOldLoader):
			reasons = append(reasons, err.Error())
		default:
			reasons = append(reasons, fmt.Sprintf("%s is missing in %s", x, s.cfg.LoaderDir))
		}
	}
	if len(reasons) == 0 {
		return ""
	}
	return fmt.Sprintf("loader %s is not served: %s", name, strings.Join(reasons, "; "))
}
