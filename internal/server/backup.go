package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/inventory"
)

// backupDir is where a backup is put together, below the data directory. There is
// one at a time; what a crash leaves is removed at the next start.
const backupDir = "backup.tmp"

// finishedBackup is an archive that is ready to be sent. Close removes its parts.
type finishedBackup struct {
	*backup.Draft
	remove func() error
}

func (b *finishedBackup) ID() string   { return b.Draft.ID }
func (b *finishedBackup) Close() error { return b.remove() }

// backup copies a server while it goes on working. The inventory is copied last, so
// it is never older than Temporal's copy.
func (s *server) backup(ctx context.Context, q api.BackupRequest) (_ api.Archive, err error) {
	if !s.backingUp.TryLock() {
		return nil, fmt.Errorf("another backup is being made: %w", inventory.ErrConflict)
	}

	dir := filepath.Join(s.cfg.DataDir, backupDir)
	remove := func() error {
		defer s.backingUp.Unlock()
		return os.RemoveAll(dir)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, remove())
		}
	}()

	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		return nil, err
	}
	if err := backup.RequireRoom(s.cfg); err != nil {
		return nil, err
	}

	id := time.Now().UTC().Format("20060102T150405Z") + "-" + strings.ToLower(rand.Text()[:8])
	d := backup.NewDraft(id, s.Version)
	if d.Host, err = os.Hostname(); err != nil {
		d.Host = "" // it only informs the operator
	}
	if err := s.backUpTemporal(ctx, d, dir); err != nil {
		return nil, err
	}

	// The keys and the secrets that they seal belong together.
	s.secrets.rotating.Lock()
	defer s.secrets.rotating.Unlock()
	if err := s.backUpInventory(ctx, d, dir); err != nil {
		return nil, err
	}
	if err := s.backUpKeys(ctx, d, q.Passphrase, filepath.Join(dir, backup.KeysName)); err != nil {
		return nil, err
	}
	if err := s.backUpConfig(d, filepath.Join(dir, backup.ConfigName)); err != nil {
		return nil, err
	}

	return &finishedBackup{d, remove}, s.backUpImages(ctx, d, q.Images)
}

func (s *server) backUpTemporal(ctx context.Context, d *backup.Draft, dir string) error {
	if s.temporal.child == nil {
		d.External = s.cfg.Temporal.Address
		return nil
	}
	if st := s.temporal.child.State(); !st.Up {
		return fmt.Errorf("a backup needs Temporal, which is not ready: %w", inventory.ErrUnreachable)
	}

	file := filepath.Join(dir, backup.TemporalName)
	if err := s.temporal.child.Backup(ctx, file, d.ID); err != nil {
		return err
	}

	return d.AddTemporal(ctx, file)
}

func (s *server) backUpInventory(ctx context.Context, d *backup.Draft, dir string) error {
	file := filepath.Join(dir, backup.InventoryName)
	if err := s.records.store.Copy(ctx, file, d.ID); err != nil {
		return err
	}
	return d.AddInventory(ctx, file)
}

func (s *server) backUpKeys(ctx context.Context, d *backup.Draft, passphrase inventory.Secret, to string) error {
	incomplete := func(err error) error {
		return fmt.Errorf("reading the keys, which would be missing from the backup: %w", err)
	}

	err := d.Authenticate(s.cfg.KeyFile)
	if err != nil && (!passphrase.IsZero() || !errors.Is(err, fs.ErrNotExist)) {
		return incomplete(err)
	}
	if passphrase.IsZero() {
		d.Lost, err = s.records.store.Restores.Sealed(ctx)
		return err
	}

	files := map[string][]byte{}
	for name, path := range backup.SecretFiles(s.cfg) {
		b, err := durablefile.ReadPrivate(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && path != s.cfg.KeyFile:
			continue // not every site has one
		case err != nil:
			return incomplete(err)
		}
		files[name] = b
	}

	return d.AddKeys(passphrase, files, to)
}

// backUpConfig adds the configuration, if there is one: the operator needs it to
// set up the next host.
func (s *server) backUpConfig(d *backup.Draft, to string) error {
	if s.ConfigFile == "" {
		return nil
	}

	b, err := os.ReadFile(s.ConfigFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}

	text, ok := withoutCredentials(string(b), s.cfg)
	if !ok {
		s.log.Warn("the configuration is not in the backup: notify.url or tracing.endpoint is not found in it, and may hold a credential",
			"file", s.ConfigFile)
		return nil
	}
	if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
		return err
	}

	return d.Add(backup.ConfigName, to)
}

// withoutCredentials cuts the addresses that may hold a credential, as withoutCredential does.
func withoutCredentials(text string, c config.Config) (_ string, ok bool) {
	addresses := []string{c.Notify.URL, c.Tracing.Endpoint}
	// The shorter one may be the beginning of the longer one.
	slices.SortFunc(addresses, func(a, b string) int { return len(b) - len(a) })
	if addresses[0] == addresses[1] {
		addresses = addresses[:1]
	}
	for _, a := range addresses {
		if text, ok = withoutCredential(text, a); !ok {
			return "", false
		}
	}
	return text, true
}

// withoutCredential cuts an address down to its host wherever it occurs in text:
// anyone who knows the rest may post there. It is false when the address has more
// than a host and is not found.
func withoutCredential(text, address string) (string, bool) {
	u, err := url.Parse(address)
	if err != nil {
		return "", false
	}

	host := u.Scheme + "://" + u.Host
	if address == "" || address == host {
		return text, true
	}
	if !strings.Contains(text, address) {
		return "", false
	}

	return strings.ReplaceAll(text, address, host+"/LEFT-OUT"), true
}

func (s *server) backUpImages(ctx context.Context, d *backup.Draft, include bool) error {
	images, err := s.records.store.Images.Images(ctx)
	if err != nil {
		return err
	}

	for _, i := range images {
		if err := d.AddImage(i, s.cfg.ImageDir(), include); err != nil {
			return err
		}
	}

	return ctx.Err()
}
