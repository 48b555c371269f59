package temporalchild

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// UISocket returns the path of the Unix socket on which the child serves the web UI. It is in the directory of the database file.
func (c Config) UISocket() string { return filepath.Join(filepath.Dir(c.File), "ui.sock") }

// ListenUI listens on the Unix socket path, which only its owner can use. It replaces the socket of an earlier process.
func ListenUI(ctx context.Context, path string) (l net.Listener, err error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	err = withShortPath(path, func(short string) error {
		var lc net.ListenConfig
		if l, err = lc.Listen(ctx, "unix", short); err != nil {
			return err
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false) // the short path is not valid then
		return os.Chmod(path, 0o600)
	})
	return l, err
}

// DialUI connects to the Unix socket path.
func DialUI(ctx context.Context, path string) (c net.Conn, err error) {
	err = withShortPath(path, func(short string) error {
		var d net.Dialer
		c, err = d.DialContext(ctx, "unix", short)
		return err
	})
	return c, err
}

// withShortPath calls use with another path of the same file that fits into the 108 bytes of a socket's address (unix(7)).
func withShortPath(path string, use func(short string) error) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close() // nothing was written
	return use(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
}
