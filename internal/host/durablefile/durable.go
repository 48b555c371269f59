// Package durablefile writes files atomically and syncs them to the disk.
package durablefile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// Exists reports whether there is something at path.
func Exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Size returns the size of a file in bytes, 0 when there is none.
func Size(path string) (int64, error) {
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// maxPrivate limits what ReadPrivate reads, in bytes.
const maxPrivate = 1 << 20

// ReadPrivate reads a file that holds secrets, of at most 1 MiB. A file that group or others may use is refused, except for one
// that root lets a group of this process read, as Kubernetes does with the files of a Secret (fsGroup), or this user by an access
// control list, as systemd does with credentials. The mode of a pipe or a terminal does not matter. A pipe that no process writes
// to is empty.
func ReadPrivate(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // to open a pipe would wait for its writer
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := st.Mode().Perm(); st.Mode().IsRegular() && mode&0o077 != 0 && !isGivenByRoot(st, os.Geteuid(), processGroups()) {
		return nil, fmt.Errorf("group or others may use it (mode %04o); run: chmod 600 %s; a mounted secret gets mode 0400 where it is mounted",
			mode, path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxPrivate+1))
	if len(text) > maxPrivate {
		return nil, fmt.Errorf("%s holds more than %d KiB: give a file that holds the secret alone", path, maxPrivate>>10)
	}
	return text, err
}

// isGivenByRoot reports whether root has given a file to one of these groups, to read alone. Root needs no group to
// read a file, so for root such a file stays a mistake. With an access control list, the mode's group bits are the list's mask
// (acl(5)), and the group is root's own.
func isGivenByRoot(st fs.FileInfo, euid int, groups []int) bool {
	owner, ok := st.Sys().(*syscall.Stat_t)
	return ok && euid != 0 && owner.Uid == 0 && st.Mode().Perm()&0o037 == 0 &&
		(owner.Gid == 0 || slices.Contains(groups, int(owner.Gid)))
}

func processGroups() []int {
	groups, err := os.Getgroups()
	if err != nil {
		groups = nil // then the main group alone counts
	}
	return append(groups, os.Getegid())
}

// ReplaceJSON is [Replace] with v as indented JSON.
func ReplaceJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return Replace(path, append(text, '\n'))
}

// Replace atomically replaces the content of a file and syncs it to the disk. Only
// the file's owner may read it.
func Replace(path string, text []byte) error { return place(path, text, os.Rename) }

// Create writes a new file as Replace does. It never writes over an existing one: that is fs.ErrExist.
func Create(path string, text []byte) error {
	return place(path, text, os.Link) // unlike a rename, a link refuses to replace what is there
}

// place writes text to a temporary file in the directory of path, and moves it to path once it is on the disk.
func place(path string, text []byte, move func(from, to string) error) (err error) {
	dir := filepath.Dir(path)
	tmp, err := os.CreateTemp(dir, temporaryName(path)) // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if e := os.Remove(tmp.Name()); !errors.Is(e, fs.ErrNotExist) { // a rename has moved it
			err = errors.Join(err, e)
		}
	}()

	_, err = tmp.Write(text)
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = move(tmp.Name(), path)
	}
	if err != nil {
		return err
	}

	return SyncDir(dir)
}

func temporaryName(path string) string { return "." + filepath.Base(path) + "-*" }

// Leftovers returns the temporary files that crashes during Replace and Create have left of a file.
func Leftovers(path string) ([]string, error) {
	return filepath.Glob(filepath.Join(filepath.Dir(path), temporaryName(path)))
}

// SyncDir syncs the directory entries of dir to the disk.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Digest returns the SHA-256 of a file, hex. It ends with ctx.
func Digest(ctx context.Context, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // only read

	sum := sha256.New()
	if _, err := io.Copy(sum, reader{ctx, f}); err != nil {
		return "", err
	}

	return hex.EncodeToString(sum.Sum(nil)), nil
}

// reader reads until ctx ends.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
