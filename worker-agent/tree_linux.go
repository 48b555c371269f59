package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// tree is the root of a mounted file system; paths in it are resolved as if it were /.
type tree struct{ fd int }

func openTree(dir string) (tree, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return tree{fd}, err
}

func (r tree) close() { _ = unix.Close(r.fd) } // an O_PATH descriptor: nothing is written through it

// open opens name, an absolute path. Symbolic links are resolved as if the file system were /; none
// can lead out of it or to another file system.
func (r tree) open(name string, flags int) (int, error) {
	return unix.Openat2(r.fd, name, &unix.OpenHow{
		Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// maxSmall is the size limit for text files of the installed system, in bytes.
const maxSmall = 4 * mib

// read returns the contents of name, a regular file of at most maxSmall bytes.
func (r tree) read(name string) ([]byte, error) {
	f, err := r.file(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened only for reading
	b, err := io.ReadAll(io.LimitReader(f, maxSmall+1))
	if err == nil && len(b) > maxSmall {
		err = fmt.Errorf("%s is longer than %d bytes", name, maxSmall)
	}
	return b, err
}

// file opens the regular file at name for reading.
func (r tree) file(name string) (*os.File, error) {
	// O_PATH would not allow reading; O_NONBLOCK keeps a fifo from blocking.
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

// account returns the number of name in a file in the format of /etc/passwd or /etc/group.
func (r tree) account(file, name string) (int, error) {
	b, err := r.read(file)
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
			return 0, fmt.Errorf("its number is %q", f[2])
		}
		return int(n), nil
	}

	return 0, errors.New("it is not there")
}
