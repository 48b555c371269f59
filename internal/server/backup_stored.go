package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// Backups that the server stores in backup.dir, with the passphrase of backup.passphrase_file.

// lookEvery is the pause between two looks into backup.dir.
const lookEvery = time.Minute

// storeInDir makes a backup in backup.dir, and deletes those that backup.keep_days does not keep. The keys in it are encrypted with
// the server's passphrase: the client chooses nothing and gets nothing of it.
func (b *backups) storeInDir(ctx context.Context) (apitypes.StoredBackup, error) {
	if b.cfg.Backup.Dir == "" {
		return apitypes.StoredBackup{}, fmt.Errorf("this server stores no backups: "+
			"set backup.dir and backup.passphrase_file in its configuration: %w", inventory.ErrUnsupported)
	}
	s, err := b.tryStore(ctx)
	if err != nil {
		err = inventory.Hint{Err: fmt.Errorf("storing a backup in %s: %w", b.cfg.Backup.Dir, err), Next: "ingot doctor"}
		b.log.Error("a backup could not be stored", "error", err)
	}
	b.mu.Lock()
	b.failed = ""
	if err != nil {
		b.failed = inventory.TextOf(err)
	}
	b.mu.Unlock()
	b.look(ctx)

	return s, err
}

func (b *backups) tryStore(ctx context.Context) (out apitypes.StoredBackup, err error) {
	dir, err := b.directory(ctx)
	if err != nil {
		return out, err
	}
	passphrase, err := StoragePassphrase(b.cfg.Backup)
	if err != nil {
		return out, err
	}
	draft, err := b.assemble(ctx, api.BackupRequest{Passphrase: passphrase})
	if err != nil {
		return out, err
	}
	defer func() {
		if e := draft.Close(); e != nil {
			b.log.Error("removing the files of a backup", "backup", draft.ID(), "error", e)
		}
	}()

	s, err := dir.Save(ctx, draft.Draft, filepath.Join(b.cfg.DataDir, backupDir), b.cfg.MinFree<<20)
	if err != nil {
		return out, err
	}
	out = apitypes.StoredBackup{ID: draft.ID(), File: s.Path, Created: s.Created, SizeBytes: s.Size}
	if out.Deleted, err = dir.Prune(time.Now(), b.cfg.Backup.KeepDays); err != nil {
		return out, fmt.Errorf("%s is complete, but deleting old backups failed: %w", s.Path, err)
	}

	return out, nil
}

// directory returns the directory of the stored backups.
func (b *backups) directory(ctx context.Context) (backup.Directory, error) {
	site, err := b.store.Restores.SiteID(ctx)
	return backup.Directory{Path: b.cfg.Backup.Dir, Site: site}, err
}

// StoragePassphrase returns the passphrase of the backups that the server stores, or inventory.ErrUnavailable if it cannot
// store any: the file of the passphrase or the directory cannot be used.
func StoragePassphrase(c config.Backup) (inventory.Secret, error) {
	p, err := backup.ReadPassphrase(c.PassphraseFile)
	if err != nil {
		// Without the kind of err, which would blame the request.
		return p, human.WithKind(errors.New("backup.passphrase_file "+c.PassphraseFile+": "+err.Error()), inventory.ErrUnavailable)
	}
	if err := unix.Access(c.Dir, unix.W_OK|unix.X_OK); err != nil {
		return p, human.WithKind(fmt.Errorf("backup.dir %s: %w; it must exist, and the user of ingot serve must be able to write it",
			c.Dir, err), inventory.ErrUnavailable)
	}
	return p, nil
}

// watch looks into backup.dir at intervals, until ctx ends.
func (b *backups) watch(ctx context.Context) error {
	for b.look(ctx); clock.Sleep(ctx, lookEvery) == nil; {
		b.look(ctx)
	}
	return nil
}

// look finds the newest stored backup, for the status and the metrics. These wait for no share that does not answer.
func (b *backups) look(ctx context.Context) {
	c := b.cfg.Backup
	st := apitypes.BackupStatus{Dir: c.Dir}
	var all []backup.Stored
	dir, err := b.directory(ctx)
	if err == nil {
		all, err = dir.List(time.Now())
	}
	if _, e := StoragePassphrase(c); e != nil {
		err = e // it says more than an error of List
	}
	if n := len(all); n > 0 {
		st.Verified, st.File = all[n-1].Created, all[n-1].Path
	}
	if ctx.Err() != nil {
		return
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		st.Error = inventory.TextOf(err)
	}
	st.Error = cmp.Or(st.Error, b.failed)
	if st.Error != "" && st.Error != b.found.Error && st.Error != b.failed {
		b.log.Warn("no backup can be stored", "error", st.Error)
	}
	b.found = st
}

// status returns what the last look has found, or nil if the server stores no backups.
func (b *backups) status() *apitypes.BackupStatus {
	if b.cfg.Backup.Dir == "" {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	st := b.found
	return &st
}
