package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// DiskWritten records that o's run writes to disk d of its machine. A disk without serial number
// and WWN is inventory.ErrInvalid, because it could not be identified later.
func (s *Store) DiskWritten(ctx context.Context, o inventory.Owner, d action.Disk) error {
	var ids []string
	if d.Serial != "" {
		ids = append(ids, "serial:"+d.Serial)
	}
	if d.WWN != "" {
		ids = append(ids, "wwn:"+d.WWN)
	}

	what := fmt.Sprintf("recording the written disk %q of machine %q", d.Path, o.Machine)
	if len(ids) == 0 {
		return fmt.Errorf("%s: it has neither serial nor WWN: %w", what, inventory.ErrInvalid)
	}
	return s.write(ctx, what, func(tx *sqlx.Tx) error {
		for _, id := range ids {
			n, err := exec(ctx, tx, `INSERT INTO disk_written (machine, identity, run, at) SELECT ?1, ?4, ?2, ?5 WHERE `+held+`
				ON CONFLICT (machine, identity) DO UPDATE SET run = excluded.run, at = excluded.at`,
				o.Machine, o.Run, o.Epoch, id, nanos(s.now()))
			if err != nil {
				return err
			}
			if n == 0 {
				return fencedOr(ctx, tx, o, errors.New("nothing was recorded"))
			}
		}

		// A machine is in service again when a run writes to it.
		s.show(tx, o.Machine)
		return do(ctx, tx, "DELETE FROM standing WHERE machine = ? AND state = ?", o.Machine, inventory.StandingAvailable)
	})
}

// DisksWritten returns the run that last wrote each disk of a machine, by the disk's identity:
// "serial:X" or "wwn:Y".
func (s *Store) DisksWritten(ctx context.Context, machine string) (map[string]string, error) {
	var rows []struct{ Identity, Run string }
	if err := s.ro.SelectContext(ctx, &rows, "SELECT identity, run FROM disk_written WHERE machine = ?",
		machine); err != nil {
		return nil, fmt.Errorf("listing written disks of machine %q: %w", machine, err)
	}
	out := make(map[string]string, len(rows))
	for _, r := range rows {
		out[r.Identity] = r.Run
	}
	return out, nil
}

// Installed returns, by machine, the result of the run that last wrote to its disk. If no disk is
// recorded because another installer wrote it, it is the last run that succeeded. machine "" means
// all. A decommissioned machine has no entry.
func (s *Store) Installed(ctx context.Context, machine string) (map[string]inventory.Installed, error) {
	var rows []struct {
		Machine, Run string
		At           int64
		Doc          *string
	}

	where := ""
	if machine != "" {
		where = " WHERE name = ?1"
	}

	// With max(), the other columns come from the row with the maximum.
	err := s.ro.SelectContext(ctx, &rows, `SELECT d.machine, d.run, max(d.at) AS at, w.doc
		FROM disk_written d LEFT JOIN workflow w ON w.run = d.run
			WHERE d.machine IN (SELECT name FROM machine`+where+`) GROUP BY d.machine
		UNION ALL
		SELECT w.machine, w.run, max(w.ended) AS at, w.doc FROM workflow w
			WHERE w.machine IN (SELECT name FROM machine`+where+` EXCEPT SELECT machine FROM standing)
			AND NOT EXISTS (SELECT 1 FROM disk_written d WHERE d.machine = w.machine)
			AND w.state = ?2 AND `+isOrder+` AND coalesce(w.doc ->> '$.noSystem', 0) = 0 GROUP BY w.machine`,
		machine, inventory.StateSuccess)
	if err != nil {
		return nil, fmt.Errorf("reading what is installed: %w", err)
	}

	out := make(map[string]inventory.Installed, len(rows))
	for _, r := range rows {
		x := inventory.Installed{Run: r.Run, At: moment(r.At)}
		if r.Doc != nil {
			// The record has these fields under the same names; its other fields are large.
			if err := json.Unmarshal([]byte(*r.Doc), &x); err != nil {
				return nil, fmt.Errorf("reading the record of run %q: %w", r.Run, err)
			}
		}

		out[r.Machine] = x
	}

	return out, nil
}
