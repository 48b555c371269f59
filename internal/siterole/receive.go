package siterole

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"

	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/diskreserve"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
)

// stagingDir is the name of the directory, below the data directory, with a site that will be sent or was received.
const stagingDir = "handover.tmp"

func stagingDirOf(cfg config.Config) string { return filepath.Join(cfg.DataDir, stagingDir) }

// keysFile is the name of the key file in the archive of a hand-over.
const keysFile = "keys.json"

// receiver implements TargetSteps, and installs the site that Receive has staged.
type receiver struct {
	cfg     config.Config
	version string // version of this program
	log     *slog.Logger
	file    *File
}

// preparedKeys returns the path of the received keys. It is next to the key file, never in the data directory.
func (r receiver) preparedKeys() string { return r.cfg.KeyFile + ".prepared" }

// Check returns the free space in bytes, and the problems that prevent this host from becoming the active server.
func (r receiver) Check(context.Context) (free int64, problems []string) {
	free, err := diskreserve.Free(r.cfg.DataDir)
	if err != nil {
		problems = append(problems, err.Error())
	}

	files := []string{r.cfg.KeyFile, backup.InventoryFile(r.cfg), filepath.Dir(backup.TemporalFile(r.cfg))}
	for _, file := range files {
		there, err := durablefile.Exists(file)
		switch {
		case err != nil:
			problems = append(problems, err.Error())
		case there:
			problems = append(problems, file+" exists already: move it away, so that the site's file can be put there")
		}
	}

	return free, append(problems, r.portProblems()...)
}

// portProblems returns one problem for each port that the active server needs and that cannot be bound.
func (r receiver) portProblems() (problems []string) {
	sockets, err := hostnet.Sockets(r.cfg)
	if err != nil {
		return []string{err.Error()}
	}

	for _, s := range sockets {
		if s.Key == "listen" {
			continue // this process itself has bound that port
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

// Receive unpacks and verifies the archive, sets the site epoch in its inventory, and returns the SHA-256 digests of its parts
// by name. It first removes a site that was received earlier.
func (r receiver) Receive(ctx context.Context, id string, epoch int64, archive io.Reader) (map[string]string, error) {
	if err := r.unpack(ctx, id, epoch, archive); err != nil {
		return nil, err
	}

	files := map[string]string{}
	for _, p := range r.parts() {
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

func (r receiver) unpack(ctx context.Context, id string, epoch int64, archive io.Reader) error {
	if err := r.Discard(id); err != nil {
		return err
	}
	if err := os.Mkdir(stagingDirOf(r.cfg), 0o700); err != nil {
		return err
	}

	u, err := backup.Unpack(ctx, archive, stagingDirOf(r.cfg), false)
	if err != nil {
		return err
	}

	// Read the archive to its end: the caller compares the digest of all bytes.
	if _, err := io.Copy(io.Discard, archive); err != nil {
		return err
	}
	if err := r.checkManifest(u.Manifest, id); err != nil {
		return err
	}

	ring, err := r.unpackKeys(&u)
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

	return durablefile.SyncDir(stagingDirOf(r.cfg))
}

func (r receiver) checkManifest(m backup.Manifest, id string) error {
	switch {
	case m.ID != id:
		return fmt.Errorf("the archive belongs to hand-over %q: %w", m.ID, inventory.ErrInvalid)
	case m.Version != r.version:
		return fmt.Errorf("the archive is from version %s, but this server has version %s: %w", m.Version, r.version, inventory.ErrConflict)
	case m.Key == nil:
		return fmt.Errorf("the archive does not contain the keys: %w", inventory.ErrInvalid)
	case m.External != r.cfg.Temporal.Address:
		return fmt.Errorf("the runs of the site are in %s, but this host's temporal.address differs: %w",
			cmp.Or(m.External, "an embedded Temporal"), inventory.ErrConflict)
	}

	return nil
}

func (r receiver) unpackKeys(u *backup.Unpacked) (*keyring.Ring, error) {
	files, err := u.UnwrapKeys(inventory.NewSecret(r.file.Site().Source.TokenSHA256))
	if err != nil {
		return nil, err
	}
	if err := durablefile.Replace(r.preparedKeys(), files[keysFile]); err != nil {
		return nil, err
	}
	return keyring.Load(r.preparedKeys())
}

// claimEpoch stores the site epoch in the unpacked inventory.
func claimEpoch(ctx context.Context, u *backup.Unpacked, ring *keyring.Ring, epoch int64) (err error) {
	s, err := u.OpenInventory(ctx, ring)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return s.HandOvers.Owned(ctx, epoch)
}

// Discard removes the files that Receive has written.
func (r receiver) Discard(string) error {
	left, err := durablefile.Leftovers(r.preparedKeys())
	for _, file := range append(left, r.preparedKeys()) {
		err = errors.Join(err, os.RemoveAll(file))
	}
	return errors.Join(err, os.RemoveAll(stagingDirOf(r.cfg)))
}

// part is a file of a prepared site. install moves it from the path from to the path to.
type part struct{ name, from, to string }

// parts returns the parts of a site in the order in which install moves them. The inventory is last: no server
// starts without it.
func (r receiver) parts() []part {
	dir := stagingDirOf(r.cfg)
	return []part{
		{keysFile, r.preparedKeys(), r.cfg.KeyFile},
		{backup.TemporalName, filepath.Join(dir, backup.TemporalName), backup.TemporalFile(r.cfg)},
		{backup.InventoryName, filepath.Join(dir, backup.InventoryName), backup.InventoryFile(r.cfg)},
	}
}

// install moves the parts of an activated site to their places. After a crash it can be repeated: it recognizes by their digests the
// parts that are already in place. If a part is missing or different, it returns an error and moves no part, because a server must not
// start on an incomplete site.
func (r receiver) install(ctx context.Context, p Prepared) error {
	var left []part
	for _, x := range r.parts() {
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
			return fmt.Errorf("moving a received file of the site to its path: %w", err)
		}
		if err := durablefile.SyncDir(filepath.Dir(x.to)); err != nil {
			return err
		}
	}
	if err := durablefile.SyncDir(r.cfg.DataDir); err != nil {
		return err
	}

	_, err := r.file.Change(func(s *Site) error { s.Prepared = nil; return nil })
	if err == nil {
		r.log.Info("the received site is installed", "handover", p.ID, "epoch", p.Epoch)
		err = os.RemoveAll(stagingDirOf(r.cfg))
	}

	return err
}

// inPlace returns true if the part is at x.to, and false if it is still at x.from. want is the digest of the verified part. If the part
// has another digest, the error is inventory.ErrConflict; if it is missing, the error is inventory.ErrNotFound.
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
			return false, fmt.Errorf("%s has changed since it was verified (SHA-256 %.12s instead of %.12s): %w", at, sum, want,
				inventory.ErrConflict)
		}
		return at == x.to, nil
	}

	return false, fmt.Errorf("%s is missing: it is neither at %s nor at %s: %w", x.name, x.from, x.to, inventory.ErrNotFound)
}
