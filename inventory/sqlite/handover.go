package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

// RequestHandOver writes the wish to move this site; its site epoch is the one
// after that of this site. Written again, it is the same.
func (s *Store) RequestHandOver(ctx context.Context, h inventory.HandOver) error {
	if h.ID == "" || h.Target == "" {
		return fmt.Errorf("requesting a hand-over: id or target is missing: %w", inventory.ErrInvalid)
	}
	return s.write(ctx, fmt.Sprintf("requesting hand-over %q", h.ID), func(tx *sqlx.Tx) error {
		_, err := exec(ctx, tx, `INSERT OR IGNORE INTO handover (id, target, site_epoch, force, requested)
			SELECT ?, ?, value + 1, ?, ? FROM meta WHERE name = 'site_epoch'`, h.ID, h.Target, h.Force, nanos(s.now()))
		return err
	})
}

// LastHandOver returns the wish that was written last; inventory.ErrNotFound.
func (s *Store) LastHandOver(ctx context.Context) (inventory.HandOver, error) {
	var r struct {
		ID        string `db:"id"`
		Target    string `db:"target"`
		SiteEpoch int64  `db:"site_epoch"`
		Force     bool   `db:"force"`
		Requested int64  `db:"requested"`
	}
	err := get(ctx, s.ro, &r, "SELECT id, target, site_epoch, force, requested FROM handover ORDER BY rowid DESC LIMIT 1")
	if err != nil {
		if !errors.Is(err, inventory.ErrNotFound) {
			err = fmt.Errorf("reading the last hand-over: %w", err)
		}
		return inventory.HandOver{}, err
	}
	return inventory.HandOver{ID: r.ID, Target: r.Target, SiteEpoch: r.SiteEpoch, Force: r.Force, Requested: moment(r.Requested)}, nil
}

// CloseIntake has new runs refused until OpenIntake, by the word why.
func (s *Store) CloseIntake(ctx context.Context, why string) error {
	return s.write(ctx, "closing the intake", func(tx *sqlx.Tx) error {
		_, err := exec(ctx, tx, "INSERT OR REPLACE INTO meta (name, value) VALUES ('intake_closed', ?)", why)
		return err
	})
}

// OpenIntake takes new runs again.
func (s *Store) OpenIntake(ctx context.Context) error {
	return s.write(ctx, "opening the intake", func(tx *sqlx.Tx) error {
		_, err := exec(ctx, tx, "DELETE FROM meta WHERE name = 'intake_closed'")
		return err
	})
}

// Intake returns why new runs are refused; "" when they are taken.
func (s *Store) Intake(ctx context.Context) (why string, err error) {
	err = get(ctx, s.ro, &why, "SELECT value FROM meta WHERE name = 'intake_closed'")
	if errors.Is(err, inventory.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("asking whether new runs are taken: %w", err)
	}
	return why, nil
}

// Owned makes the database that of a site epoch, to which it goes up alone, and
// stamps every grant with it: the runs go on as who they are. New runs are taken.
func (s *Store) Owned(ctx context.Context, epoch int64) error {
	return s.write(ctx, fmt.Sprintf("beginning site epoch %d", epoch), func(tx *sqlx.Tx) error {
		n, err := exec(ctx, tx, "UPDATE meta SET value = ? WHERE name = 'site_epoch' AND value < ?", epoch, epoch)
		if err != nil || n == 0 {
			return err
		}
		for _, q := range []string{
			"UPDATE grant_ SET site_epoch = (SELECT value FROM meta WHERE name = 'site_epoch')",
			"DELETE FROM meta WHERE name IN ('backup', 'intake_closed')",
		} {
			if _, err := exec(ctx, tx, q); err != nil {
				return err
			}
		}
		return nil
	})
}
