package filesys

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"golang.org/x/sys/unix"
)

// Tree is the root directory of a mounted file system. Paths are resolved as if that directory were /.
type Tree struct{ fd int }

// OpenTree returns the tree whose root is dir. The caller must close it.
func OpenTree(dir string) (Tree, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return Tree{fd}, err
}

// Close closes the tree.
func (r Tree) Close() { _ = unix.Close(r.fd) } // an O_PATH descriptor, through which no data is written

// Path returns the path on which the file system is mounted.
func (r Tree) Path() (string, error) { return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", r.fd)) }

// open opens a file by its absolute path. Symbolic links are resolved as if the file system were /, and cannot lead out of it or to
// another file system.
func (r Tree) open(name string, flags int) (int, error) {
	return unix.Openat2(r.fd, name, &unix.OpenHow{
		Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// MaxText is the size limit of ReadFile, in bytes.
const MaxText = 4 * blockdev.MiB

// ReadFile returns the contents of a regular file, which must have at most MaxText bytes.
func (r Tree) ReadFile(name string) ([]byte, error) {
	f, err := r.OpenFile(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened only for reading
	b, err := io.ReadAll(io.LimitReader(f, MaxText+1))
	if err == nil && len(b) > MaxText {
		err = fmt.Errorf("%s is longer than %d bytes", name, MaxText)
	}
	return b, err
}

// OpenFile opens a regular file for reading.
func (r Tree) OpenFile(name string) (*os.File, error) {
	// O_NONBLOCK: opening a fifo must not block.
	fd, err := r.open(name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}

	f := os.NewFile(uintptr(fd), name)
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}

	if err != nil {
		_ = f.Close() // opened only for reading
		return nil, err
	}
	return f, nil
}

// account returns the id of a user or group. It looks up the name in a file that has the format of /etc/passwd or /etc/group.
func (r Tree) account(file, name string) (int, error) {
	b, err := r.ReadFile(file)
	if err != nil {
		return 0, err
	}

	for _, line := range strings.Split(string(b), "\n") {
		f := strings.Split(line, ":")
		if len(f) < 3 || f[0] != name {
			continue
		}
		n, err := strconv.ParseUint(f[2], 10, 31)
		if err != nil {
			return 0, fmt.Errorf("invalid numeric id %q", f[2])
		}
		return int(n), nil
	}

	return 0, errors.New("not found")
}

// List returns the names in the directory dir, sorted, or nil if it cannot be read.
func (r Tree) List(dir string) []string {
	fd, err := r.open(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil
	}
	d := os.NewFile(uintptr(fd), dir)
	defer func() { _ = d.Close() }() // opened only for reading
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil
	}
	slices.Sort(names)
	return names
}
