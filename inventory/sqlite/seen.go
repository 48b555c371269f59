package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// Seen stores the unknown MACs: the MACs from which an address was requested, and which no machine of the inventory has.
type Seen struct{ *db }

// maxSeen is how many unknown MACs are stored at most. There is a limit because any host on the network can invent MACs.
const maxSeen = 1000

// SeenUnknown returns the stored unknown MACs. The MAC that was seen last comes first.
func (s Seen) SeenUnknown(ctx context.Context) ([]inventory.Seen, error) {
	out, err := list[seenRow](ctx, s.ro, "SELECT mac, first, last, count, giaddr, class, facts, reported FROM seen ORDER BY last DESC, mac")
	return out, wrap(err, "listing unknown MACs")
}

// SeenMAC returns what is stored about an unknown MAC, or inventory.ErrNotFound.
func (s Seen) SeenMAC(ctx context.Context, mac string) (inventory.Seen, error) {
	x, err := read[seenRow](ctx, s.ro, "SELECT mac, first, last, count, giaddr, class, facts, reported FROM seen WHERE mac = ?", mac)
	return x, wrap(err, "reading the unknown MAC %q", mac)
}

// PutDiscovered stores the facts that an unknown machine with this MAC has reported. If a machine of the inventory has this MAC,
// PutDiscovered returns the name of this machine and stores nothing.
func (s Seen) PutDiscovered(ctx context.Context, mac string, facts action.Facts, at time.Time) (machine string, err error) {
	b, err := json.Marshal(facts)
	if err != nil {
		return "", fmt.Errorf("encoding the facts of %q: %w", mac, err)
	}
	err = s.write(ctx, "recording a discovered machine", func(tx *transaction) error {
		err := tx.GetContext(ctx, &machine, "SELECT machine FROM interface WHERE mac = ?", mac)
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		return do(ctx, tx, `INSERT INTO seen (mac, first, last, count, giaddr, class, facts, reported)
			VALUES (?1, ?2, ?2, 1, '', '', ?3, ?2)
			ON CONFLICT (mac) DO UPDATE SET last = max(last, excluded.last), facts = excluded.facts, reported = excluded.reported`,
			mac, nanos(at), string(b))
	})
	return machine, err
}

type seenRow struct {
	inventory.Seen
	First, Last, Reported int64
	Facts                 sql.NullString
}

func (r seenRow) value() (inventory.Seen, error) {
	r.Seen.First, r.Seen.Last, r.Seen.Reported = moment(r.First), moment(r.Last), moment(r.Reported)
	if r.Facts.Valid {
		if err := json.Unmarshal([]byte(r.Facts.String), &r.Seen.Facts); err != nil {
			return r.Seen, fmt.Errorf("decoding the facts of %q: %w", r.MAC, err)
		}
	}
	return r.Seen, nil
}

// PutSeen stores unknown MACs. If a MAC is stored already, its count is added to the stored count. A MAC that belongs to a machine is
// skipped. If more than maxSeen MACs are stored, PutSeen deletes the oldest, but so that each relay keeps about the same number of MACs.
func (s Seen) PutSeen(ctx context.Context, seen []inventory.Seen) error {
	if len(seen) == 0 {
		return nil
	}
	return s.write(ctx, "recording unknown MACs", func(tx *transaction) error {
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
