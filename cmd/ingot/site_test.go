package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/handover"
	"github.com/ingotmetal/ingot/internal/keyring"
	"github.com/ingotmetal/ingot/inventory"
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

// A copy of a data directory that is older than every peer finds the mark where
// its keys were, and is no site.
func TestMarkCountsForEveryCopy(t *testing.T) {
	cfg := ownDirs(t)
	log := slog.New(slog.DiscardHandler)
	h, err := newHost(cfg, "", log, nil)
	require.NoError(t, err)
	require.Equal(t, handover.Active, h.file.Site().Role)
	require.NoFileExists(t, filepath.Join(cfg.DataDir, handover.FileName), "a server without peers has no file")

	_, err = keyring.Create(cfg.KeyFile)
	require.NoError(t, err)
	var m handover.Mark
	m.Retired.To, m.Retired.URL, m.Retired.ID = "um760", "https://10.0.0.2:7444", "h1"
	require.NoError(t, h.Retire(m))
	_, err = keyring.Load(cfg.KeyFile)
	require.ErrorContains(t, err, "not a key file of Ingot")
	h, err = newHost(cfg, "", log, nil)
	require.NoError(t, err)
	s := h.file.Site()
	require.Equal(t, handover.Retired, s.Role)
	require.Equal(t, "um760", s.Successor.Name)
	st, err := h.SiteStatus(t.Context())
	require.NoError(t, err)
	require.Contains(t, st.Why, "the mark in "+cfg.KeyFile)
}

func TestStandby(t *testing.T) {
	cfg := ownDirs(t)
	var out bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	for _, file := range []string{filepath.Join(cfg.DataDir, "ingot.db"), cfg.KeyFile} {
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		require.ErrorIs(t, makeStandby(cmd, cfg, ""), inventory.ErrConflict)
		require.NoError(t, os.Remove(file))
		require.NoFileExists(t, filepath.Join(cfg.DataDir, handover.FileName))
	}
	require.NoError(t, makeStandby(cmd, cfg, "um760"))
	require.NoFileExists(t, cfg.KeyFile, "the keys come with the site")
	token, err := os.ReadFile(standbyToken(cfg))
	require.NoError(t, err)
	text := strings.TrimSpace(string(token))
	require.NotContains(t, out.String(), text)
	f, err := handover.Open(cfg.DataDir)
	require.NoError(t, err)
	sum := sha256.Sum256([]byte(text))
	require.Equal(t, hex.EncodeToString(sum[:]), f.Site().Source.TokenSHA256)
	b, err := os.ReadFile(filepath.Join(cfg.DataDir, handover.FileName))
	require.NoError(t, err)
	require.NotContains(t, string(b), text, "who copies the data does not take the token along")

	out.Reset()
	require.NoError(t, makeStandby(cmd, cfg, "another"))
	require.Contains(t, out.String(), "nothing was changed")
	again, err := handover.Open(cfg.DataDir)
	require.NoError(t, err)
	require.Equal(t, f.Site(), again.Site())
	require.Error(t, restoringInto(cfg).empty(), "a backup is not restored over it")
}

func restoringInto(cfg config.Config) *restoring { return &restoring{cfg: cfg} }

// What a standby is made of that Genesis deploys is made once.
func TestIdentityOfAStandby(t *testing.T) {
	cfg := ownDirs(t)
	h, err := newHost(cfg, "", slog.New(slog.DiscardHandler), nil)
	require.NoError(t, err)
	ctx := context.Background()
	known, err := h.Known(ctx, "um760")
	require.NoError(t, err)
	require.False(t, known)
	first, err := h.Standby(ctx, "um760", "10.10.20.5")
	require.NoError(t, err)
	again, err := h.Standby(ctx, "um760", "10.10.20.5")
	require.NoError(t, err)
	require.Equal(t, first.Reveal(), again.Reveal())
	for _, want := range []string{"kind: Secret", "namespace: ingot", "site.pem: ", "standby.token: ", "  token: "} {
		require.Contains(t, first.Reveal(), want)
	}
	known, err = h.Known(ctx, "um760")
	require.NoError(t, err)
	require.True(t, known)
	p, _, err := h.identity("um760").peer()
	require.NoError(t, err)
	require.Equal(t, "https://10.10.20.5:7444", p.URL)
	require.Empty(t, h.file.Site().Peers, "it is asked when it was paired with, and not before")
	require.NoError(t, h.Forget(ctx, "um760"))
	known, err = h.Known(ctx, "um760")
	require.NoError(t, err)
	require.False(t, known)
}

// Image files arrive in pieces, are proven, and are there only then.
func TestImagesOfAPeer(t *testing.T) {
	cfg := ownDirs(t)
	cfg.MinFree = 1
	h, err := newHost(cfg, "", slog.New(slog.DiscardHandler), nil)
	require.NoError(t, err)
	r, ctx := receiver{h}, t.Context()
	text := "all of the image"
	sum := sha256.Sum256([]byte(text))
	digest := hex.EncodeToString(sum[:])
	size := int64(len(text))
	st, err := r.Image(ctx, "debian.zst", digest)
	require.NoError(t, err)
	require.Equal(t, handover.ImageState{}, st)
	st, err = r.SendImage(ctx, "debian.zst", digest, 0, size, strings.NewReader(text[:6]))
	require.NoError(t, err)
	require.False(t, st.Done)
	require.NoFileExists(t, filepath.Join(cfg.ImageDir(), "debian.zst"))
	st, err = r.Image(ctx, "debian.zst", digest)
	require.NoError(t, err)
	require.Equal(t, int64(6), st.Size)
	_, err = r.SendImage(ctx, "debian.zst", digest, 0, size, strings.NewReader(text))
	require.ErrorIs(t, err, inventory.ErrConflict, "it does not begin anew")
	st, err = r.SendImage(ctx, "debian.zst", digest, 6, size, strings.NewReader(text[6:]))
	require.NoError(t, err)
	require.True(t, st.Done)
	st, err = r.Image(ctx, "debian.zst", digest)
	require.NoError(t, err)
	require.Equal(t, handover.ImageState{Size: size, Done: true}, st)
	_, err = r.Image(ctx, "debian.zst", strings.Repeat("0", 64))
	require.ErrorIs(t, err, inventory.ErrConflict)
	_, err = r.SendImage(ctx, "other.zst", digest, 0, size, strings.NewReader("all of the imagE"))
	require.ErrorIs(t, err, inventory.ErrConflict)
	st, err = r.Image(ctx, "other.zst", digest)
	require.NoError(t, err)
	require.Zero(t, st.Size, "what was wrong is not kept")
}
