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

// tree is a mounted file system, as if its root were /.
type tree struct{ fd int }

func openTree(dir string) (tree, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return tree{fd}, err
}

func (r tree) close() { _ = unix.Close(r.fd) } // a path, nothing is written through it

// open opens what is at name, an absolute path. Links in it mean what they
// mean when the file system is /; none leads out of it, or to another one.
func (r tree) open(name string, flags int) (int, error) {
	return unix.Openat2(r.fd, name, &unix.OpenHow{
		Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// maxSmall is how long a text file of the installed system may be that the
// agent reads.
const maxSmall = 4 * mib

// read returns the file at name, which is a regular one of up to maxSmall
// bytes.
func (r tree) read(name string) ([]byte, error) {
	f, err := r.file(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	b, err := io.ReadAll(io.LimitReader(f, maxSmall+1))
	if err == nil && len(b) > maxSmall {
		err = fmt.Errorf("%s is longer than %d bytes", name, maxSmall)
	}
	return b, err
}

// file opens the regular file at name for reading.
func (r tree) file(name string) (*os.File, error) {
	// Not O_PATH: and a fifo must not make the agent wait.
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
		_ = f.Close() // only read from
		return nil, err
	}
	return f, nil
}

// account returns the number of name in a file of the form of /etc/passwd or
// /etc/group.
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
