package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// architectures lists the ELF machine types for which an image can be made. name is the name of the architecture in
// OCI, and triplet the directory in which Debian's loader looks for libraries.
var architectures = map[elf.Machine]struct{ name, triplet string }{
	elf.EM_X86_64:  {"amd64", "x86_64-linux-gnu"},
	elf.EM_AARCH64: {"arm64", "aarch64-linux-gnu"},
}

// closure collects, from the root filesystem root, the libraries that programs load and the loader that they name.
type closure struct {
	root  string
	arch  elf.Machine
	found map[string]string // path in the image → file on this host
}

// add adds the loader and the libraries of the executable at the path program. All programs must have the same architecture.
func (c *closure) add(program string) error {
	f, err := elf.Open(program)
	if err != nil {
		return fmt.Errorf("reading program %q: %w", program, err)
	}
	defer f.Close() // ignore the error: the file was only read
	if _, ok := architectures[f.Machine]; !ok {
		return fmt.Errorf("program %q is for %s; must be for amd64 or arm64", program, f.Machine)
	}

	if c.arch == elf.EM_NONE {
		c.arch = f.Machine
	}
	if f.Machine != c.arch {
		return fmt.Errorf("program %q is for %s instead of %s: build the image on a host of its architecture", program, f.Machine, c.arch)
	}

	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		b := make([]byte, p.Filesz)
		if _, err := p.ReadAt(b, 0); err != nil {
			return fmt.Errorf("reading the loader of %q: %w", program, err)
		}
		loader := strings.TrimRight(string(b), "\x00")
		c.found[strings.TrimPrefix(loader, "/")] = filepath.Join(c.root, loader)
	}

	for _, tag := range []elf.DynTag{elf.DT_RUNPATH, elf.DT_RPATH} {
		if v, err := f.DynString(tag); err == nil && len(v) > 0 {
			return fmt.Errorf("program %q searches for libraries in %v; only the system's default directories are supported", program, v)
		}
	}

	libs, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("reading the libraries of %q: %w", program, err)
	}

	for _, name := range libs {
		at, file, err := c.find(name)
		if err != nil {
			return fmt.Errorf("program %q: %w", program, err)
		}
		if _, known := c.found[at]; known {
			continue
		}
		c.found[at] = file
		if err := c.add(file); err != nil {
			return err
		}
	}
	return nil
}

// find looks for a library in the loader's directories, in order. It returns a path for the library in the image,
// always in the first of these directories, and the library's file on this host.
func (c *closure) find(name string) (at, file string, err error) {
	if strings.ContainsRune(name, '/') {
		return "", "", fmt.Errorf("library %q is linked by path; must be linked by name", name)
	}

	triplet := architectures[c.arch].triplet
	dirs := []string{"lib/" + triplet, "usr/lib/" + triplet, "lib64", "usr/lib64", "lib", "usr/lib"}
	for _, dir := range dirs {
		file := filepath.Join(c.root, dir, name)
		if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() {
			return path.Join(dirs[0], name), file, nil
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", "", err
		}
	}

	return "", "", fmt.Errorf("library %s is not in any of %s", name, strings.Join(slices.Compact(dirs), ", "))
}
