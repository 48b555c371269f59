package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

// SpendBoot records that the last payload of o's installer boot was delivered
// whole: PXE is answered with disk from here on. It appends the event
// "payload". A boot that is spent already stays so, without error; one that is
// not o's present boot of an installer is inventory.ErrFenced.
func (s *Store) SpendBoot(ctx context.Context, o inventory.Owner, boot int, payload string) error {
	return s.write(ctx, fmt.Sprintf("spending boot %d of machine %q", boot, o.Machine), func(tx *sqlx.Tx) error {
		var r grantRow
		err := get(ctx, tx, &r, "UPDATE grant_ SET spent = 1 WHERE "+owns+" AND boot = ?4 AND installer = 1 RETURNING "+grantColumns(""),
			o.Machine, o.Run, o.Epoch, boot)
		if errors.Is(err, inventory.ErrNotFound) {
			return fmt.Errorf("run %q at epoch %d: %w", o.Run, o.Epoch, inventory.ErrFenced)
		}
		if err != nil {
			return err
		}
		return s.event(ctx, tx, inventory.Event{
			Machine: o.Machine, Run: o.Run, Epoch: o.Epoch, Boot: boot, Kind: inventory.EventPayload, Key: "payload",
			Message: payload + " was delivered whole",
		})
	})
}

// InstallerReported stores what the installer of o's present boot says of its
// end: inventory.EventInstalled or EventInstallFailed with its message. The
// first report of a boot counts, whatever another one says; fresh tells
// whether this was it. Who reports has booted: its boot is spent, also where
// SpendBoot never was, or the restart that follows would boot the installer
// again before the run has taken the report in.
func (s *Store) InstallerReported(ctx context.Context, o inventory.Owner, failed bool, message string) (fresh bool,
	err error,
) {
	err = s.write(ctx, fmt.Sprintf("recording what the installer of machine %q says", o.Machine), func(tx *sqlx.Tx) error {
		var boot int
		err := get(ctx, tx, &boot, `UPDATE grant_ SET spent = 1 WHERE `+owns+` AND boot > 0 AND installer = 1 RETURNING boot`,
			o.Machine, o.Run, o.Epoch)
		if errors.Is(err, inventory.ErrNotFound) {
			return fmt.Errorf("run %q at epoch %d: %w", o.Run, o.Epoch, inventory.ErrFenced)
		}
		if err != nil {
			return err
		}
		var n int
		if err := get(ctx, tx, &n, "SELECT count(*) FROM event WHERE machine = ?1 AND run = ?2 AND epoch = ?3 AND boot = ?4 AND kind IN (?5, ?6)",
			o.Machine, o.Run, o.Epoch, boot, inventory.EventInstalled, inventory.EventInstallFailed); err != nil || n > 0 {
			return err
		}
		fresh = true
		e := inventory.Event{
			Machine: o.Machine, Run: o.Run, Epoch: o.Epoch, Boot: boot, Kind: inventory.EventInstalled,
			Key: "webhook", Message: message,
		}
		if failed {
			e.Kind = inventory.EventInstallFailed
		}
		return s.event(ctx, tx, e)
	})
	return fresh && err == nil, err
}
