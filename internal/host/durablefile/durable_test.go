package durablefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// file is an owner, a group and a mode.
type file struct {
	uid, gid uint32
	mode     fs.FileMode
}

func (file) Name() string        { return "key" }
func (file) Size() int64         { return 0 }
func (f file) Mode() fs.FileMode { return f.mode }
func (file) ModTime() time.Time  { return time.Time{} }
func (file) IsDir() bool         { return false }
func (f file) Sys() any          { return &syscall.Stat_t{Uid: f.uid, Gid: f.gid} }

// TestGivenByRoot (S64): a Secret of Kubernetes may be read by the group of the pod, a credential of systemd by the user of the unit,
// and no more than that.
func TestGivenByRoot(t *testing.T) {
	groups := []int{65532}
	require.True(t, isGivenByRoot(file{0, 65532, 0o440}, 65532, groups), "a Secret with fsGroup")
	require.True(t, isGivenByRoot(file{0, 65532, 0o640}, 65532, groups))
	require.True(t, isGivenByRoot(file{0, 0, 0o440}, 65532, groups), "a credential of systemd, which an ACL lets this user read")
	for why, f := range map[string]file{
		"another owner": {1000, 65532, 0o440}, "the service itself": {65532, 65532, 0o440}, "another group": {0, 100, 0o440},
		"others read": {0, 65532, 0o444}, "others read root's": {0, 0, 0o444}, "another user's": {1000, 0, 0o440}, "the group writes": {0, 65532, 0o660}, "the group executes": {0, 65532, 0o450},
	} {
		require.False(t, isGivenByRoot(f, 65532, groups), why)
	}
	require.False(t, isGivenByRoot(file{0, 0, 0o440}, 0, []int{0}), "root")
}

// TestReadPrivate: a file of this process that its group may read is refused.
// S64: a file with secrets that group or others may use is refused.
func TestReadPrivate(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte("secret"), 0o600))
	text, err := ReadPrivate(key)
	require.NoError(t, err)
	require.Equal(t, "secret", string(text))
	require.NoError(t, os.Chmod(key, 0o640))
	_, err = ReadPrivate(key)
	require.ErrorContains(t, err, "chmod 600")
}

// TestReadPrivateIsBounded (S64): neither a device that never ends nor a pipe without a writer stops the server.
func TestReadPrivateIsBounded(t *testing.T) {
	_, err := ReadPrivate("/dev/zero")
	require.ErrorContains(t, err, "larger than 1024 KiB")

	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o666))
	text, err := ReadPrivate(pipe)
	require.NoError(t, err)
	require.Empty(t, text)

	r, w, err := os.Pipe() // as of --bmc-password-file <(pass show bmc)
	require.NoError(t, err)
	go func() {
		_, err := w.WriteString("secret")
		assert.NoError(t, errors.Join(err, w.Close()))
	}()
	text, err = ReadPrivate(fmt.Sprintf("/proc/self/fd/%d", r.Fd()))
	require.NoError(t, err)
	require.Equal(t, "secret", string(text))
	require.NoError(t, r.Close())
}
