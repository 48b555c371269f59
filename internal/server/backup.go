package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/netserve/keptsocket"
	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// backupDir is the directory, below the data directory, in which a backup is assembled. There is one backup at a time. If a backup was
// interrupted, Run removes its directory at the next start.
const backupDir = "backup.tmp"

// finishedBackup is an archive that is ready to be sent. Close removes its files.
type finishedBackup struct {
	*backup.Draft
	remove func() error
}

func (b *finishedBackup) ID() string   { return b.Draft.ID }
func (b *finishedBackup) Close() error { return b.remove() }

// backups makes backups, one at a time.
type backups struct {
	cfg        config.Config
	configFile string // "" = none
	version    string // version of this program
	log        *slog.Logger
	store      *sqlite.Store
	secrets    *secrets
	child      *temporalchild.Supervisor // nil = Temporal is an external cluster
	childWait  time.Duration             // how long a backup waits for child
	watchdog   *keptsocket.Watchdog
	busy       sync.Mutex

	mu     sync.Mutex            // guards the fields below
	failed string                // error of the last attempt to store a backup in backup.dir
	found  apitypes.BackupStatus // what the last look into backup.dir has found
}

// create makes a backup for a client.
func (b *backups) create(ctx context.Context, q api.BackupRequest) (api.Archive, error) {
	f, err := b.assemble(ctx, q)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// assemble makes a backup while the server continues to work. It copies Temporal's database before the inventory, so that the copy of the
// inventory is never the older one.
func (b *backups) assemble(ctx context.Context, q api.BackupRequest) (_ *finishedBackup, err error) {
	if !b.busy.TryLock() {
		return nil, fmt.Errorf("another backup is being made: %w", inventory.ErrConflict)
	}

	defer b.watchdog.Pause()() // changes wait while the inventory is copied
	dir := filepath.Join(b.cfg.DataDir, backupDir)
	remove := func() error {
		defer b.busy.Unlock()
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
	if err := backup.RequireRoom(b.cfg); err != nil {
		return nil, err
	}

	id := time.Now().UTC().Format("20060102T150405Z") + "-" + strings.ToLower(rand.Text()[:8])
	d := backup.NewDraft(id, b.version)
	if d.Host, err = os.Hostname(); err != nil {
		d.Host = "" // continue without it: d.Host is only shown to the operator
	}
	if err := b.addTemporal(ctx, d, dir); err != nil {
		return nil, err
	}

	// Prevent a rotation of keys between the copies of the inventory and of the keys: a backup must hold the keys that open its secrets.
	b.secrets.rotating.Lock()
	defer b.secrets.rotating.Unlock()
	if err := b.addInventory(ctx, d, dir); err != nil {
		return nil, err
	}
	if err := b.addKeys(ctx, d, q.Passphrase, filepath.Join(dir, backup.KeysName)); err != nil {
		return nil, err
	}
	if err := b.addConfig(d, filepath.Join(dir, backup.ConfigName)); err != nil {
		return nil, err
	}

	return &finishedBackup{d, remove}, b.addImages(ctx, d, q.Images)
}

func (b *backups) addTemporal(ctx context.Context, d *backup.Draft, dir string) error {
	if b.child == nil {
		d.External = b.cfg.Temporal.Address
		return nil
	}
	for end := time.Now().Add(b.childWait); !b.child.State().Up; {
		if time.Now().After(end) {
			return fmt.Errorf("a backup needs Temporal, which is not ready: %w", inventory.ErrUnreachable)
		}
		if err := clock.Sleep(ctx, time.Second/4); err != nil {
			return err
		}
	}

	file := filepath.Join(dir, backup.TemporalName)
	if err := b.child.Backup(ctx, file, d.ID); err != nil {
		return err
	}

	return d.AddTemporal(ctx, file)
}

func (b *backups) addInventory(ctx context.Context, d *backup.Draft, dir string) error {
	file := filepath.Join(dir, backup.InventoryName)
	if err := b.store.Copy(ctx, file, d.ID); err != nil {
		return err
	}
	return d.AddInventory(ctx, file)
}

func (b *backups) addKeys(ctx context.Context, d *backup.Draft, passphrase inventory.Secret, to string) error {
	incomplete := func(err error) error {
		return fmt.Errorf("reading the keys for the backup: %w", err)
	}

	err := d.Authenticate(b.cfg.KeyFile)
	if err != nil && (!passphrase.IsZero() || !errors.Is(err, fs.ErrNotExist)) {
		return incomplete(err)
	}
	if passphrase.IsZero() {
		d.Lost, err = b.store.Restores.Sealed(ctx)
		return err
	}

	files := map[string][]byte{}
	for name, path := range backup.SecretFiles(b.cfg) {
		text, err := durablefile.ReadPrivate(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && path != b.cfg.KeyFile:
			continue // not every site has this file
		case err != nil:
			return incomplete(err)
		}
		files[name] = text
	}

	return d.AddKeys(passphrase, files, to)
}

// addConfig adds the configuration file, if there is one. It is for the operator who sets up the next host.
func (b *backups) addConfig(d *backup.Draft, to string) error {
	if b.configFile == "" {
		return nil
	}

	raw, err := os.ReadFile(b.configFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}

	text, ok := withoutCredentials(string(raw), b.cfg)
	if !ok {
		b.log.Warn("left the configuration out of the backup: cannot remove notify.url or tracing.endpoint, which may contain a credential",
			"file", b.configFile)
		return nil
	}
	if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
		return err
	}

	return d.Add(backup.ConfigName, to)
}

// withoutCredentials removes from text the credentials in the addresses that c contains; see withoutCredential.
func withoutCredentials(text string, c config.Config) (_ string, ok bool) {
	addresses := []string{c.Notify.URL, c.Tracing.Endpoint}
	// Begin with the longer address, because the shorter one may be its beginning.
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

// withoutCredential cuts address down to its scheme and host wherever it occurs in text, because the rest may be a credential. It
// returns false if address has more than scheme and host but does not occur in text.
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

func (b *backups) addImages(ctx context.Context, d *backup.Draft, include bool) error {
	images, err := b.store.Images.Images(ctx)
	if err != nil {
		return err
	}

	for _, i := range images {
		if err := d.AddImage(i, b.cfg.ImageDir(), include); err != nil {
			return err
		}
	}

	return ctx.Err()
}
