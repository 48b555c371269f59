package siterole

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/netserve/keptsocket"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/freeport"
	"github.com/ingotmetal/ingot/lab/manager"
)

func ownDirs(t *testing.T) config.Config {
	t.Helper()
	cfg := config.Default()
	dir := t.TempDir()
	cfg.DataDir, cfg.KeyFile, cfg.TokenFile = filepath.Join(dir, "state"), filepath.Join(dir, "etc/keys.json"), filepath.Join(dir, "etc/token")
	require.NoError(t, os.MkdirAll(cfg.DataDir, 0o750))
	require.NoError(t, os.MkdirAll(filepath.Dir(cfg.KeyFile), 0o750))
	return cfg
}

// serviceManager returns the service manager of this process.
func serviceManager(t *testing.T) *manager.Manager {
	t.Helper()
	m, err := manager.New(filepath.Join(t.TempDir(), "notify"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close() })
	_, env, _, err := m.Service()
	require.NoError(t, err)
	name, path, _ := strings.Cut(env[0], "=")
	t.Setenv(name, path)
	return m
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := freeport.Find(1)
	require.NoError(t, err)
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// peerState is a peer that only shows its state.
type peerState struct {
	TargetAPI
	state State
	err   error
}

func (p peerState) State(context.Context, string) (State, error) { return p.state, p.err }

// While a site asks its peers, it is about to open its databases and to bind the port again: it is not ready. It is if an operator
// must decide.
func TestReadyOfASiteWithPeers(t *testing.T) {
	m := serviceManager(t)
	cfg := ownDirs(t)
	cfg.Listen = freeAddress(t)
	o := testOptions(cfg)
	started := errors.New("started")
	o.Start = func(ctx context.Context, _ *Host) (Instance, error) {
		// The manager reads messages in order, and has the operators' socket at most before these two.
		for _, addr := range []string{"127.0.0.1:0", "127.0.0.2:0"} {
			l, err := keptsocket.Listen(ctx, "tcp4", addr)
			require.NoError(t, err)
			defer l.Close()
		}
		require.Eventually(t, func() bool { return m.Kept() == 2 }, 10*time.Second, time.Millisecond)
		return nil, started
	}
	h, err := NewHost(o)
	require.NoError(t, err)
	_, err = h.file.Change(func(s *Site) error {
		s.Peers = []inventory.Peer{{Name: "um760"}}
		return nil
	})
	require.NoError(t, err)

	h.source.Dial = func(inventory.Peer) (TargetAPI, error) { return peerState{state: State{Role: Standby}}, nil }
	require.ErrorIs(t, h.Run(t.Context()), started)
	require.False(t, m.Ready(), "ready before the site is")

	h.source.Dial = func(inventory.Peer) (TargetAPI, error) { return peerState{err: inventory.ErrUnreachable}, nil }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	require.Eventually(t, m.Ready, 10*time.Second, time.Millisecond, "an operator must decide, and systemctl start still waits")
	cancel()
	require.NoError(t, <-done)

	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "absent"))
	h.source.question.close()
	require.ErrorContains(t, h.Run(t.Context()), "telling the service manager")
}

// systemd is told that a standby has started as soon as operators reach it.
func TestStandbyIsReady(t *testing.T) {
	m := serviceManager(t)
	cfg := ownDirs(t)
	cfg.Listen = "127.0.0.1:1" // no server answers there
	require.NoError(t, made(MakeStandby(t.Context(), cfg, "um760")))
	cfg.Listen = freeAddress(t)
	h, err := NewHost(testOptions(cfg))
	require.NoError(t, err)
	require.False(t, m.Ready())

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- h.serveQuietly(ctx, "", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	}()
	require.Eventually(t, m.Ready, 10*time.Second, time.Millisecond)
	c, err := net.Dial("tcp", cfg.Listen)
	require.NoError(t, err, "ready, and connections are refused")
	require.NoError(t, c.Close())
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

func TestStandby(t *testing.T) {
	cfg := ownDirs(t)
	cfg.Listen = "127.0.0.1:1" // no server answers there
	ctx := t.Context()
	for _, file := range []string{filepath.Join(cfg.DataDir, "ingot.db"), cfg.KeyFile} {
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		_, err := MakeStandby(ctx, cfg, "")
		require.ErrorIs(t, err, inventory.ErrConflict)
		require.NoError(t, os.Remove(file))
		require.NoFileExists(t, filepath.Join(cfg.DataDir, FileName))
	}
	made, err := MakeStandby(ctx, cfg, "um760")
	require.NoError(t, err)
	require.Equal(t, StandbyMade, made.Outcome)
	require.Equal(t, "um760", made.Name)
	require.NoFileExists(t, cfg.KeyFile, "the keys come with the site")
	token, err := os.ReadFile(made.TokenFile)
	require.NoError(t, err)
	text := strings.TrimSpace(string(token))
	require.NotContains(t, fmt.Sprint(made), text)
	f, err := Open(cfg.DataDir)
	require.NoError(t, err)
	sum := sha256.Sum256([]byte(text))
	require.Equal(t, hex.EncodeToString(sum[:]), f.Site().Source.TokenSHA256)
	b, err := os.ReadFile(filepath.Join(cfg.DataDir, FileName))
	require.NoError(t, err)
	require.NotContains(t, string(b), text, "the token is not in the data directory")

	made, err = MakeStandby(ctx, cfg, "another")
	require.NoError(t, err)
	require.Equal(t, StandbyUnchanged, made.Outcome)
	again, err := Open(cfg.DataDir)
	require.NoError(t, err)
	require.Equal(t, f.Site(), again.Site())

	// Made again with the earlier data directory: it accepts only the new source, unless
	// it has a prepared site of the old one.
	require.NoError(t, os.WriteFile(made.TokenFile, []byte(strings.Repeat("7", 64)+"\n"), 0o600))
	held, err := again.Change(func(s *Site) error {
		s.Source.Fingerprint, s.Source.Name, s.Prepared = "sha256:00", "nas", &Prepared{ID: "1"}
		return nil
	})
	require.NoError(t, err)
	_, err = MakeStandby(ctx, cfg, "")
	require.ErrorIs(t, err, inventory.ErrConflict)
	_, err = again.Change(func(s *Site) error {
		s.Prepared = nil
		return nil
	})
	require.NoError(t, err)
	// A running server would overwrite the change.
	running, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer running.Close()
	cfg.Listen = running.Addr().String()
	_, err = MakeStandby(ctx, cfg, "")
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.ErrorContains(t, err, "stop ingot serve first")
	require.NoError(t, running.Close())
	made, err = MakeStandby(ctx, cfg, "")
	require.NoError(t, err)
	require.Equal(t, StandbyReassigned, made.Outcome)
	if again, err = Open(cfg.DataDir); err != nil {
		t.Fatal(err)
	}
	require.Equal(t, &Giver{TokenSHA256: identity.Digest(strings.Repeat("7", 64))}, again.Site().Source)
	require.Equal(t, held.Name, again.Site().Name)
}

// S64: the Secret of a standby is not made of files that others may use.
func TestS64StandbyFilesArePrivate(t *testing.T) {
	t.Parallel()
	f := standbyFiles{filepath.Join(t.TempDir(), "standby"), "um760"}
	_, token, _, err := MakeStandbyFiles(f.dir)
	require.NoError(t, err)
	_, err = identity.LoadToken(filepath.Join(f.dir, adminFileName))
	require.NoError(t, err)
	_, err = f.secret()
	require.NoError(t, err)
	require.NoError(t, os.Chmod(token, 0o640))
	_, err = f.secret()
	require.ErrorContains(t, err, "chmod 600")
}
