package sqlite

import (
	"context"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// HandOvers are the requests to move this site to another server. They also contain the site epoch, which each move or restore of the site
// increments.
type HandOvers struct{ *db }

// RequestHandOver stores the request h to move this site to the server h.Target, with the site epoch that the site will have there. If a
// request with the same ID is stored already, it stays unchanged.
func (s HandOvers) RequestHandOver(ctx context.Context, h inventory.HandOver) error {
	if h.ID == "" || h.Target == "" {
		return fmt.Errorf("requesting a hand-over: id or target is missing: %w", inventory.ErrInvalid)
	}
	return s.writeOne(ctx, fmt.Sprintf("requesting hand-over %q", h.ID),
		`INSERT OR IGNORE INTO handover (id, target, site_epoch, force, requested)
			SELECT ?, ?, value + 1, ?, ? FROM meta WHERE name = 'site_epoch'`, h.ID, h.Target, h.Force, nanos(s.now()))
}

// LastHandOver returns the newest request to move the site, or inventory.ErrNotFound if there is none.
func (s HandOvers) LastHandOver(ctx context.Context) (inventory.HandOver, error) {
	h, err := read[handOverRow](ctx, s.ro, "SELECT id, target, site_epoch, force, requested FROM handover ORDER BY rowid DESC LIMIT 1")
	return h, wrap(err, "reading the last hand-over")
}

type handOverRow struct {
	inventory.HandOver
	Requested int64
}

func (r handOverRow) value() (inventory.HandOver, error) {
	r.HandOver.Requested = moment(r.Requested)
	return r.HandOver, nil
}

// CloseIntake makes the server refuse new runs until OpenIntake is called. why is the reason.
func (s HandOvers) CloseIntake(ctx context.Context, why string) error {
	return s.writeOne(ctx, "closing the intake", "INSERT OR REPLACE INTO meta (name, value) VALUES ('intake_closed', ?)",
		why)
}

// OpenIntake makes the server accept new runs again.
func (s HandOvers) OpenIntake(ctx context.Context) error {
	return s.writeOne(ctx, "opening the intake", "DELETE FROM meta WHERE name = 'intake_closed'")
}

// Intake returns the reason why the server refuses new runs, or "" if it accepts them.
func (s HandOvers) Intake(ctx context.Context) (why string, err error) {
	why, err = optional(scalar[string](ctx, s.ro, "SELECT value FROM meta WHERE name = 'intake_closed'"))
	return why, wrap(err, "reading whether new runs are accepted")
}

// Owned makes epoch the site epoch of the database and of every grant, so that open runs continue. It also makes the server accept new runs
// again. If epoch is not higher than the stored site epoch, Owned changes nothing.
func (s HandOvers) Owned(ctx context.Context, epoch int64) error {
	return s.write(ctx, fmt.Sprintf("beginning site epoch %d", epoch), func(tx *transaction) error {
		n, err := exec(ctx, tx, "UPDATE meta SET value = ? WHERE name = 'site_epoch' AND value < ?", epoch, epoch)
		if err != nil || n == 0 {
			return err
		}

		return doAll(ctx, tx,
			stmt("UPDATE grant_ SET site_epoch = (SELECT value FROM meta WHERE name = 'site_epoch')"),
			stmt("DELETE FROM meta WHERE name IN ('backup', 'intake_closed')"),
		)
	})
}

// SiteEpoch returns the site epoch of the database. A restore or a migration of the site increments it.
func (s HandOvers) SiteEpoch(ctx context.Context) (int64, error) {
	n, err := scalar[int64](ctx, s.ro, "SELECT value FROM meta WHERE name = 'site_epoch'")
	return n, wrap(err, "reading site epoch")
}
