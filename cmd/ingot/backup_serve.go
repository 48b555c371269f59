package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/keyring"
	"github.com/ingotmetal/ingot/internal/reserve"
	"github.com/ingotmetal/ingot/internal/temporalchild"
	"github.com/ingotmetal/ingot/internal/temporalserver"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// backupDir is where a backup is put together, below the data directory: there
// is one at a time, and what a crash leaves is removed at the next start.
const backupDir = "backup.tmp"

// archive is a backup that lies ready.
type archive struct {
	m     backup.Manifest
	paths map[string]string
	key   []byte // authenticates m; nil: the site has no key file
	done  func() error
}

func (a *archive) ID() string   { return a.m.ID }
func (a *archive) Close() error { return a.done() }

func (a *archive) WriteTo(w io.Writer) (int64, error) {
	c := &tally{w: w}
	err := backup.Write(c, a.m, a.paths, a.key)
	return c.n, err
}

type tally struct {
	w io.Writer
	n int64
}

func (c *tally) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// backup copies a server while everything goes on. The inventory is copied last, so it
// is never older than Temporal's copy.
func (s *server) backup(ctx context.Context, q api.BackupRequest) (_ api.Archive, err error) {
	if !s.backingUp.TryLock() {
		return nil, fmt.Errorf("a backup is being made already: %w", inventory.ErrConflict)
	}
	dir := filepath.Join(s.cfg.DataDir, backupDir)
	done := func() error {
		defer s.backingUp.Unlock()
		return os.RemoveAll(dir)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, done())
		}
	}()
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	if err := s.roomForBackup(dir); err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "" // a name for people
	}
	now := time.Now().UTC()
	a := &archive{paths: map[string]string{}, done: done, m: backup.Manifest{
		Format: backup.Format, ID: now.Format("20060102T150405Z") + "-" + strings.ToLower(rand.Text()[:8]),
		Created: now.Truncate(time.Second), Version: build(), Host: host, Images: []backup.Image{},
	}}
	if err := s.backUpTemporal(ctx, a, filepath.Join(dir, backup.TemporalName)); err != nil {
		return nil, err
	}
	// Keys and what they seal belong together.
	s.rotating.Lock()
	defer s.rotating.Unlock()
	if err := s.backUpInventory(ctx, a, filepath.Join(dir, backup.InventoryName)); err != nil {
		return nil, err
	}
	if err := s.backUpKeys(ctx, a, q, filepath.Join(dir, backup.KeysName)); err != nil {
		return nil, err
	}
	if err := s.backUpConfig(a, filepath.Join(dir, backup.ConfigName)); err != nil {
		return nil, err
	}
	return a, s.backUpImages(ctx, a, q.Images)
}

// roomForBackup refuses a backup whose copies would take the room that runs
// under way need.
func (s *server) roomForBackup(dir string) error {
	need, err := s.databases()
	if err != nil {
		return err
	}
	free, err := reserve.Free(dir)
	if err == nil && free < need+s.cfg.MinFree<<20 {
		err = fmt.Errorf("a backup needs %s in %s for as long as it takes, and %s are free: %w", size(need+s.cfg.MinFree<<20), s.cfg.DataDir, size(free), inventory.ErrFull)
	}
	return err
}

// databases is how many bytes both databases take.
func (s *server) databases() (need int64, err error) {
	db := filepath.Join(s.cfg.DataDir, "ingot.db")
	temporal := temporalchild.DefaultConfig(filepath.Join(s.cfg.DataDir, "temporal")).File
	for _, file := range []string{db, db + "-wal", temporal, temporal + "-wal"} {
		st, err := os.Stat(file)
		if err == nil {
			need += st.Size()
		} else if !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
	}
	return need, nil
}

// add makes the file at path a part of the archive.
func (a *archive) add(name, path string) error {
	p, err := backup.Describe(name, path)
	if err != nil {
		return err
	}
	a.m.Parts = append(a.m.Parts, p)
	a.paths[name] = path
	return nil
}

func (s *server) backUpTemporal(ctx context.Context, a *archive, file string) error {
	if s.temporal.child == nil {
		a.m.External = s.cfg.Temporal.Address
		return nil
	}
	if st := s.temporal.child.State(); !st.Up {
		return fmt.Errorf("a backup needs Temporal, which is not ready: %w", inventory.ErrUnreachable)
	}
	if err := s.temporal.child.Backup(ctx, file, a.m.ID); err != nil {
		return err
	}
	c, err := temporalserver.ReadCopy(ctx, file)
	if err != nil {
		return err
	}
	a.m.Temporal = &backup.Database{Schema: c.Schema, Cluster: c.ClusterID, Tables: c.Content}
	return a.add(backup.TemporalName, file)
}

func (s *server) backUpInventory(ctx context.Context, a *archive, file string) error {
	if err := s.store.Copy(ctx, file, a.m.ID); err != nil {
		return err
	}
	c, err := sqlite.ReadCopy(ctx, file)
	if err != nil {
		return err
	}
	a.m.Inventory = backup.Database{Schema: c.Schema, Cluster: c.Cluster, Tables: c.Content}
	return a.add(backup.InventoryName, file)
}

// secretFiles are the files that a site cannot be itself without, by their
// name in the archive.
func secretFiles(keyFile, tokenFile string) map[string]string {
	beside := filepath.Dir(keyFile)
	return map[string]string{
		"keys.json": keyFile, "token": tokenFile,
		"agent.pem": filepath.Join(beside, "agent.pem"), "operator.pem": filepath.Join(beside, "operator.pem"),
	}
}

// authenticate makes the archive one that the keys in the file vouch for, which
// are those that a restore has.
func (a *archive) authenticate(keyFile string) error {
	ring, err := keyring.Load(keyFile)
	if err != nil {
		return err
	}
	if keys := ring.BackupKeys(); len(keys) > 0 {
		a.key = keys[0]
	}
	return nil
}

func (s *server) backUpKeys(ctx context.Context, a *archive, q api.BackupRequest, file string) error {
	err := a.authenticate(s.cfg.KeyFile)
	if err != nil && (!q.Passphrase.IsZero() || !errors.Is(err, fs.ErrNotExist)) {
		return fmt.Errorf("reading the keys, which a backup without them would leave out: %w", err)
	}
	if q.Passphrase.IsZero() {
		a.m.Lost, err = s.store.Sealed(ctx)
		return err
	}
	files := map[string][]byte{}
	for name, path := range secretFiles(s.cfg.KeyFile, s.cfg.TokenFile) {
		b, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && name != "keys.json":
			continue // not every site has one
		case err != nil:
			return fmt.Errorf("reading the keys, which a backup without them would leave out: %w", err)
		}
		files[name] = b
	}
	w, sealed, err := backup.Wrapped(q.Passphrase, a.m.ID, files)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, sealed, 0o600); err != nil {
		return err
	}
	a.m.Key = &w
	return a.add(backup.KeysName, file)
}

// backUpConfig takes the configuration along, for whoever sets up the next
// host; one that is not there was never needed.
func (s *server) backUpConfig(a *archive, file string) error {
	if s.configFile == "" {
		return nil
	}
	b, err := os.ReadFile(s.configFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	text, ok := withoutCredential(string(b), s.cfg.Notify.URL)
	if !ok {
		s.log.Warn("the configuration is not in the backup: notify.url cannot be found in it, and may hold a credential", "file", s.configFile)
		return nil
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	return a.add(backup.ConfigName, file)
}

// withoutCredential cuts a webhook's address down to its host wherever it
// stands in text: whoever knows the rest may post there. It is false where there
// is a rest that cannot be found.
func withoutCredential(text, webhook string) (string, bool) {
	u, err := url.Parse(webhook)
	if err != nil {
		return "", false
	}
	host := u.Scheme + "://" + u.Host
	if webhook == "" || webhook == host {
		return text, true
	}
	if !strings.Contains(text, webhook) {
		return "", false
	}
	return strings.ReplaceAll(text, webhook, host+"/LEFT-OUT"), true
}

func (s *server) backUpImages(ctx context.Context, a *archive, include bool) error {
	images, err := s.store.Images(ctx)
	if err != nil {
		return err
	}
	for _, i := range images {
		x := backup.Image{Name: i.Name, File: i.File, Size: i.Size, SHA256: i.SHA256, URL: i.URL}
		if include && i.File != "" {
			name, path := backup.ImagePrefix+i.File, filepath.Join(s.cfg.ImageDir(), i.File)
			p, err := backup.Describe(name, path)
			switch {
			case err != nil:
				return fmt.Errorf("image %q: %w", i.Name, err)
			case p.SHA256 != i.SHA256:
				return fmt.Errorf("image %q: its file has the digest %.12s and not %.12s: ingot image verify %s: %w", i.Name, p.SHA256, i.SHA256, i.Name, inventory.ErrConflict)
			}
			// Two images may be one file.
			if !slices.ContainsFunc(a.m.Parts, func(q backup.Part) bool { return q.Name == name }) {
				a.m.Parts = append(a.m.Parts, p)
				a.paths[name] = path
			}
			x.Included = true
		}
		a.m.Images = append(a.m.Images, x)
	}
	return ctx.Err()
}
