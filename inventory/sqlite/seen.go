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

// Seen are the MACs that requested an address and belong to no machine of the inventory.
type Seen struct{ *db }

// maxSeen is how many unknown MACs are kept. It is limited because any host on the network can invent MACs.
const maxSeen = 1000

// SeenUnknown returns the unknown MACs that requested an address, the newest first.
func (s Seen) SeenUnknown(ctx context.Context) ([]inventory.Seen, error) {
	out, err := list[seenRow](ctx, s.ro, "SELECT mac, first, last, count, giaddr, class, facts, reported FROM seen ORDER BY last DESC, mac")
	return out, wrap(err, "listing unknown MACs")
}

// SeenMAC returns what is stored about an unknown MAC, or inventory.ErrNotFound.
func (s Seen) SeenMAC(ctx context.Context, mac string) (inventory.Seen, error) {
	x, err := read[seenRow](ctx, s.ro, "SELECT mac, first, last, count, giaddr, class, facts, reported FROM seen WHERE mac = ?", mac)
	return x, wrap(err, "reading the unknown MAC %q", mac)
}

// PutDiscovered stores the facts that an unknown machine has reported. If the MAC belongs to a machine of the inventory, it
// returns the name of that machine and stores nothing.
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

// PutSeen adds unknown MACs, and adds their counts to the stored counts. It skips MACs that belong to a machine. It keeps maxSeen
// MACs: it takes turns among the relays, and prefers the newest MACs of each.
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
