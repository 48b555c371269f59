package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// SpendBoot records that the last payload of o's installer boot was delivered completely: from now
// on, PXE requests are answered with a boot from disk. It appends the event "payload". A boot that
// is already spent is not an error. If boot is not o's current installer boot, the error is
// inventory.ErrFenced.
func (s Plans) SpendBoot(ctx context.Context, o inventory.Owner, boot int, payload string) error {
	return s.write(ctx, fmt.Sprintf("spending boot %d of machine %q", boot, o.Machine), func(tx *transaction) error {
		if _, err := spendInstallerBoot(ctx, tx, o, boot); err != nil {
			return err
		}
		return addEvent(ctx, tx, o.Event(boot, inventory.EventPayload, "payload", payload+" was delivered whole"))
	})
}

// InstallerReported stores the installer's report on the end of o's current boot:
// inventory.EventInstalled or EventInstallFailed with its message. Only the first report of a boot
// is stored; fresh reports whether it was this one. An installer that reports has booted, so the
// boot is marked as spent even if SpendBoot was not called. Otherwise the restart that follows
// would boot the installer again before the run has read the report.
func (s Plans) InstallerReported(ctx context.Context, o inventory.Owner, failed bool, message string) (fresh bool,
	err error,
) {
	err = s.write(ctx, fmt.Sprintf("recording what the installer of machine %q says", o.Machine), func(tx *transaction) error {
		boot, err := spendInstallerBoot(ctx, tx, o, presentBoot)
		if err != nil {
			return err
		}
		n, err := scalar[int](ctx, tx, `SELECT count(*) FROM event
			WHERE machine = ?1 AND run = ?2 AND epoch = ?3 AND boot = ?4 AND kind IN (?5, ?6)`,
			o.Machine, o.Run, o.Epoch, boot, inventory.EventInstalled, inventory.EventInstallFailed)
		if err != nil || n > 0 {
			return err
		}

		fresh = true
		kind := inventory.EventInstalled
		if failed {
			kind = inventory.EventInstallFailed
		}
		return addEvent(ctx, tx, o.Event(boot, kind, "webhook", message))
	})
	return fresh && err == nil, err
}

// presentBoot means the current boot of a grant.
const presentBoot = -1

// spendInstallerBoot marks an installer boot of o as spent and returns its number. If o has no such
// boot, the error is inventory.ErrFenced.
func spendInstallerBoot(ctx context.Context, tx *transaction, o inventory.Owner, boot int) (int, error) {
	n, err := scalar[int](ctx, tx, "UPDATE grant_ SET spent = 1 WHERE "+owns+` AND boot > 0 AND ?4 IN (boot, -1)
		AND installer = 1 RETURNING boot`, o.Machine, o.Run, o.Epoch, boot)
	if errors.Is(err, inventory.ErrNotFound) {
		err = fmt.Errorf("run %q at epoch %d: %w", o.Run, o.Epoch, inventory.ErrFenced)
	}
	return n, err
}
