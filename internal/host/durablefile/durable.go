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
	"syscall"
)

// Exists reports whether a file, a directory or a link exists at path.
func Exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Size returns the size of a file in bytes, or 0 if it does not exist.
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

// maxPrivate is the size limit of ReadPrivate, in bytes.
const maxPrivate = 1 << 20

// ReadPrivate returns the content of a file with secrets, of at most 1 MiB. It refuses a regular file that group
// or others may use. There are two exceptions, both for files of root: a file that a group of this process may
// read, as Kubernetes mounts Secrets (fsGroup), and a file that an access control list lets this user read, as
// systemd passes credentials. The modes of pipes and terminals are not checked. A pipe without a writer is empty.
// On Windows no file is refused, because a mode does not show there who may use a file.
func ReadPrivate(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // O_NONBLOCK: opening a pipe would wait for a writer
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Mode().IsRegular() && !isPrivate(st) {
		return nil, fmt.Errorf("group or others can access the file (mode %04o); run: chmod 600 %s; a mounted secret needs mode 0400",
			st.Mode().Perm(), path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxPrivate+1))
	if len(text) > maxPrivate {
		return nil, fmt.Errorf("%s is larger than %d KiB: name a file that contains only the secret", path, maxPrivate>>10)
	}
	return text, err
}

// ReplaceJSON calls [Replace] with v as indented JSON.
func ReplaceJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return Replace(path, append(text, '\n'))
}

// Replace atomically replaces the content of a file and syncs it to the disk. The file has mode 0600.
func Replace(path string, text []byte) error { return place(path, text, os.Rename) }

// Create writes a new file as Replace does. If the file exists, Create returns fs.ErrExist and leaves the file unchanged.
func Create(path string, text []byte) error {
	return place(path, text, os.Link) // unlike a rename, a link fails if the target exists
}

// place writes text to a temporary file in the directory of path, syncs it, and then moves it to path.
func place(path string, text []byte, move func(from, to string) error) (err error) {
	dir := filepath.Dir(path)
	tmp, err := os.CreateTemp(dir, temporaryName(path)) // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if e := os.Remove(tmp.Name()); !errors.Is(e, fs.ErrNotExist) { // the file is missing if os.Rename has moved it
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

// Leftovers returns the paths of the temporary files that remain if Replace or Create of path crashes.
func Leftovers(path string) ([]string, error) {
	return filepath.Glob(filepath.Join(filepath.Dir(path), temporaryName(path)))
}

// Digest returns the SHA-256 of a file in hex. It returns ctx's error if ctx ends first.
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

// reader fails once ctx has ended.
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
