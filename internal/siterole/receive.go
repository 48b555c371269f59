package siterole

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/host/diskreserve"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
)

// receiver implements TargetSteps.
type receiver struct{ *Host }

// preparedKeys returns the file of received keys. It is next to the key file, never in
// the data directory.
func (h *Host) preparedKeys() string { return h.cfg.KeyFile + ".prepared" }

// Check returns the free space in bytes, and what prevents this host from becoming
// the site.
func (h receiver) Check(context.Context) (free int64, problems []string) {
	free, err := diskreserve.Free(h.cfg.DataDir)
	if err != nil {
		problems = append(problems, err.Error())
	}

	files := []string{h.cfg.KeyFile, backup.InventoryFile(h.cfg), filepath.Dir(backup.TemporalFile(h.cfg))}
	for _, file := range files {
		there, err := durablefile.Exists(file)
		switch {
		case err != nil:
			problems = append(problems, err.Error())
		case there:
			problems = append(problems, file+" exists already, where the site's file belongs")
		}
	}

	return free, append(problems, h.portProblems()...)
}

// portProblems returns the ports of the site that cannot be bound.
func (h receiver) portProblems() (problems []string) {
	sockets, err := hostnet.Sockets(h.cfg)
	if err != nil {
		return []string{err.Error()}
	}

	for _, s := range sockets {
		if s.Key == "listen" {
			continue // this server has bound it
		}
		err := s.Try()
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			problems = append(problems, fmt.Sprintf("%s %s (%s) is in use by another program", s.Network, s.Addr, s.Key))
		case err != nil:
			problems = append(problems, fmt.Sprintf("%s %s (%s): %v", s.Network, s.Addr, s.Key, err))
		}
	}

	return problems
}

// Receive unpacks and verifies a site, and gives it the site epoch. It first removes a
// site that was received before.
func (h receiver) Receive(ctx context.Context, id string, epoch int64, r io.Reader) (map[string]string, error) {
	if err := h.unpack(ctx, id, epoch, r); err != nil {
		return nil, err
	}

	files := map[string]string{}
	for _, p := range h.parts() {
		there, err := durablefile.Exists(p.from)
		if err == nil && there {
			files[p.name], err = durablefile.Digest(ctx, p.from)
		}
		if err != nil {
			return nil, err
		}
	}

	return files, nil
}

func (h receiver) unpack(ctx context.Context, id string, epoch int64, r io.Reader) error {
	if err := h.Discard(id); err != nil {
		return err
	}
	if err := os.Mkdir(h.stagingDir(), 0o700); err != nil {
		return err
	}

	u, err := backup.Unpack(ctx, r, h.stagingDir(), false)
	if err != nil {
		return err
	}

	// Read the rest: the digest of the hand-over covers all bytes.
	if _, err := io.Copy(io.Discard, r); err != nil {
		return err
	}
	if err := h.checkManifest(u.Manifest, id); err != nil {
		return err
	}

	ring, err := h.unpackKeys(&u)
	if err != nil {
		return err
	}
	if err := u.Authenticate(ring, "the keys of the hand-over"); err != nil {
		return err
	}
	if err := u.CheckDatabases(ctx); err != nil {
		return err
	}
	if err := claimEpoch(ctx, &u, ring, epoch); err != nil {
		return err
	}

	return durablefile.SyncDir(h.stagingDir())
}

func (h receiver) checkManifest(m backup.Manifest, id string) error {
	switch {
	case m.ID != id:
		return fmt.Errorf("the archive is of hand-over %q: %w", m.ID, inventory.ErrInvalid)
	case m.Version != h.version:
		return fmt.Errorf("the archive is from version %s, and this is %s: %w", m.Version, h.version, inventory.ErrConflict)
	case m.Key == nil:
		return fmt.Errorf("the archive does not contain the keys: %w", inventory.ErrInvalid)
	case m.External != h.cfg.Temporal.Address:
		return fmt.Errorf("the runs of the site are in %s, and the configuration of this host differs (temporal.address): %w",
			cmp.Or(m.External, "an embedded Temporal"), inventory.ErrConflict)
	}

	return nil
}

func (h receiver) unpackKeys(u *backup.Unpacked) (*keyring.Ring, error) {
	files, err := u.UnwrapKeys(inventory.NewSecret(h.file.Site().Source.TokenSHA256))
	if err != nil {
		return nil, err
	}
	if err := durablefile.Replace(h.preparedKeys(), files[keysFile]); err != nil {
		return nil, err
	}
	return keyring.Load(h.preparedKeys())
}

// claimEpoch sets the site epoch in the unpacked inventory.
func claimEpoch(ctx context.Context, u *backup.Unpacked, ring *keyring.Ring, epoch int64) (err error) {
	s, err := u.OpenInventory(ctx, ring)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return s.HandOvers.Owned(ctx, epoch)
}

// Discard removes the files of Receive.
func (h receiver) Discard(string) error {
	return errors.Join(os.RemoveAll(h.preparedKeys()), os.RemoveAll(h.stagingDir()))
}

// part is a file of a prepared site, which install moves from from to to.
type part struct{ name, from, to string }

// parts returns the parts of a site in the order of their installation. The inventory
// is last: no server starts without it.
func (h *Host) parts() []part {
	dir := h.stagingDir()
	return []part{
		{keysFile, h.preparedKeys(), h.cfg.KeyFile},
		{backup.TemporalName, filepath.Join(dir, backup.TemporalName), backup.TemporalFile(h.cfg)},
		{backup.InventoryName, filepath.Join(dir, backup.InventoryName), backup.InventoryFile(h.cfg)},
	}
}

// install moves the parts of an activated site to their places. It can be repeated
// after a crash: a part in its place is recognized by its digest. If a part is missing
// or different, install returns an error and moves no file: a server must not start on
// an incomplete site.
func (h *Host) install(ctx context.Context, p Prepared) error {
	var left []part
	for _, x := range h.parts() {
		want, received := p.Files[x.name]
		switch {
		case !received && x.name == backup.TemporalName:
			continue // the site's Temporal is external
		case !received:
			return fmt.Errorf("%s was not received: %w", x.name, inventory.ErrNotFound)
		}
		placed, err := inPlace(ctx, x, want)
		if err != nil {
			return err
		}
		if !placed {
			left = append(left, x)
		}
	}

	for _, x := range left {
		if err := os.MkdirAll(filepath.Dir(x.to), 0o700); err != nil {
			return err
		}
		if err := os.Rename(x.from, x.to); err != nil {
			return fmt.Errorf("putting the site in its place: %w", err)
		}
		if err := durablefile.SyncDir(filepath.Dir(x.to)); err != nil {
			return err
		}
	}
	if err := durablefile.SyncDir(h.cfg.DataDir); err != nil {
		return err
	}

	_, err := h.file.Change(func(s *Site) error { s.Prepared = nil; return nil })
	if err == nil {
		h.log.Info("the site is in its place", "handover", p.ID, "epoch", p.Epoch)
		err = os.RemoveAll(h.stagingDir())
	}

	return err
}

// inPlace reports whether a part is in its place; false means that it is still staged.
// want is the SHA-256 of the part when it was verified.
func inPlace(ctx context.Context, x part, want string) (bool, error) {
	for _, at := range []string{x.from, x.to} {
		there, err := durablefile.Exists(at)
		if err != nil {
			return false, err
		}
		if !there {
			continue
		}
		sum, err := durablefile.Digest(ctx, at)
		if err != nil {
			return false, err
		}
		if sum != want {
			return false, fmt.Errorf("%s has the digest %.12s; the verified file had %.12s: %w", at, sum, want, inventory.ErrConflict)
		}
		return at == x.to, nil
	}

	return false, fmt.Errorf("%s is missing: it is neither at %s nor at %s: %w", x.name, x.from, x.to, inventory.ErrNotFound)
}
