package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// Installed returns by machine what the run has left that wrote to its disk
// last, or, where no disk is recorded because another installer wrote it, the
// last run that succeeded. machine "" = all. A decommissioned machine has
// nothing.
func (s *Store) Installed(ctx context.Context, machine string) (map[string]inventory.Installed, error) {
	var rows []struct {
		Machine string         `db:"machine"`
		Run     string         `db:"run"`
		At      int64          `db:"at"`
		Doc     sql.NullString `db:"doc"`
	}
	where := ""
	if machine != "" {
		where = " WHERE name = ?1"
	}
	// With max(), the other columns are those of the row that has the greatest.
	err := s.ro.SelectContext(ctx, &rows, `SELECT d.machine, d.run, max(d.at) AS at, w.doc FROM disk_written d LEFT JOIN workflow w ON w.run = d.run
			WHERE d.machine IN (SELECT name FROM machine`+where+`) GROUP BY d.machine
		UNION ALL
		SELECT w.machine, w.run, max(w.ended) AS at, w.doc FROM workflow w
			WHERE w.machine IN (SELECT name FROM machine`+where+` EXCEPT SELECT machine FROM standing)
			AND NOT EXISTS (SELECT 1 FROM disk_written d WHERE d.machine = w.machine)
			AND w.state = ?2 AND json_extract(w.doc, '$.type') IN (?3, ?4, ?5) GROUP BY w.machine`,
		machine, inventory.StateSuccess, inventory.TypeProvision, inventory.TypeReprovision, inventory.TypeDecommission)
	if err != nil {
		return nil, fmt.Errorf("reading what is installed: %w", err)
	}
	out := make(map[string]inventory.Installed, len(rows))
	for _, r := range rows {
		x := inventory.Installed{Run: r.Run, At: moment(r.At)}
		if r.Doc.Valid {
			// The record has these under the same names; the rest of it is large.
			if err := json.Unmarshal([]byte(r.Doc.String), &x); err != nil {
				return nil, fmt.Errorf("reading the record of run %q: %w", r.Run, err)
			}
		}
		out[r.Machine] = x
	}
	return out, nil
}
