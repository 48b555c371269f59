package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// SpendBoot records that the last payload of the installer was delivered completely in this boot of o's run: it marks the boot as spent and
// appends the event "payload". A machine whose boot is spent does not boot from the network again: PXE requests are answered with a boot
// from disk. If the boot is already spent, that is not an error. If boot is not the current boot of o's grant, or not a boot of an
// installer, the error is inventory.ErrFenced.
func (s Plans) SpendBoot(ctx context.Context, o inventory.Owner, boot int, payload string) error {
	return s.write(ctx, fmt.Sprintf("marking boot %d of machine %q as used", boot, o.Machine), func(tx *transaction) error {
		if _, err := spendInstallerBoot(ctx, tx, o, boot); err != nil {
			return err
		}
		return addEvent(ctx, tx, o.Event(boot, inventory.EventPayload, "payload", payload+" was delivered whole"))
	})
}

// InstallerReported stores the final report of the installer that runs in o's current boot. It appends the event inventory.EventInstalled
// or, if failed is true, EventInstallFailed, with the message. Only the first report in a boot is stored; fresh is true if this is the
// first.
//
// The boot is also marked as spent, in case SpendBoot was not called: otherwise the machine, which restarts after the report,
// would boot the installer again before the run has read the report.
func (s Plans) InstallerReported(ctx context.Context, o inventory.Owner, failed bool, message string) (fresh bool,
	err error,
) {
	err = s.write(ctx, fmt.Sprintf("recording the report of the installer of machine %q", o.Machine), func(tx *transaction) error {
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

// presentBoot is given to spendInstallerBoot in place of a number, and means the current boot of the grant.
const presentBoot = -1

// spendInstallerBoot marks the current boot of o's grant as spent and returns its number. boot is this number or presentBoot. If the
// current boot has another number, or is not a boot of an installer, the error is inventory.ErrFenced.
func spendInstallerBoot(ctx context.Context, tx *transaction, o inventory.Owner, boot int) (int, error) {
	n, err := scalar[int](ctx, tx, "UPDATE grant_ SET spent = 1 WHERE "+owns+` AND boot > 0 AND ?4 IN (boot, -1)
		AND installer = 1 RETURNING boot`, o.Machine, o.Run, o.Epoch, boot)
	if errors.Is(err, inventory.ErrNotFound) {
		err = fmt.Errorf("run %q at epoch %d: %w", o.Run, o.Epoch, inventory.ErrFenced)
	}
	return n, err
}
