package sqlite

import (
	"context"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

// maxSeen is how many unknown MACs are kept: any host on the network can invent them.
const maxSeen = 1000

// SeenUnknown returns the unknown MACs that requested an address, the newest first.
func (s *Store) SeenUnknown(ctx context.Context) ([]inventory.Seen, error) {
	out, err := list[seenRow](ctx, s.ro, "SELECT mac, first, last, count, giaddr, class FROM seen ORDER BY last DESC, mac")
	return out, wrap(err, "listing unknown MACs")
}

type seenRow struct {
	inventory.Seen
	First, Last int64
}

func (r seenRow) value() (inventory.Seen, error) {
	r.Seen.First, r.Seen.Last = moment(r.First), moment(r.Last)
	return r.Seen, nil
}

// PutSeen adds unknown MACs and sums up their counts. It keeps 1000, the newest of each relay
// first, and none that belongs to a machine.
func (s *Store) PutSeen(ctx context.Context, seen []inventory.Seen) error {
	if len(seen) == 0 {
		return nil
	}
	return s.write(ctx, "recording unknown MACs", func(tx *sqlx.Tx) error {
		for _, x := range seen {
			err := do(ctx, tx, `INSERT INTO seen (mac, first, last, count, giaddr, class)
				SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE NOT EXISTS (SELECT 1 FROM interface WHERE interface.mac = ?1)
				ON CONFLICT (mac) DO UPDATE SET last = max(last, excluded.last), count = count + excluded.count,
				giaddr = excluded.giaddr, class = excluded.class`,
				clip(x.MAC, 64), nanos(x.First), nanos(x.Last), x.Count, clip(x.Giaddr, 64), clip(x.Class, 256))
			if err != nil {
				return err
			}
		}

		return do(ctx, tx, `DELETE FROM seen WHERE mac IN (SELECT mac FROM
			(SELECT mac, last, row_number() OVER (PARTITION BY giaddr ORDER BY last DESC) AS place FROM seen)
			ORDER BY place, last DESC LIMIT -1 OFFSET ?)`, maxSeen)
	})
}
