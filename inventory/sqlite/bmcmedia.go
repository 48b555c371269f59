package sqlite

import (
	"context"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

// PutMedia records what a run is about to insert into the virtual CD drive of its machine.
func (s *Store) PutMedia(ctx context.Context, m inventory.Media) error {
	return s.write(ctx, "recording virtual media", func(tx *sqlx.Tx) error {
		return do(ctx, tx, `INSERT INTO bmc_media (machine, run, url) VALUES (?, ?, ?)
			ON CONFLICT (machine) DO UPDATE SET run = excluded.run, url = excluded.url`, m.Machine, m.Run, m.URL)
	})
}

// Media returns what runs have inserted and nobody has ejected.
func (s *Store) Media(ctx context.Context) (out []inventory.Media, err error) {
	err = s.ro.SelectContext(ctx, &out, "SELECT machine, run, url FROM bmc_media")
	return out, wrap(err, "listing virtual media")
}

// DeleteMedia records that a run's medium was ejected. The record of another run stays.
func (s *Store) DeleteMedia(ctx context.Context, m inventory.Media) error {
	return s.write(ctx, "recording ejected media", func(tx *sqlx.Tx) error {
		return do(ctx, tx, "DELETE FROM bmc_media WHERE machine = ? AND run = ?", m.Machine, m.Run)
	})
}
