package sqlite

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// Views are queries that combine machines with their grants, runs, agents and installed systems.
type Views struct{ *db }

// MachineStates returns the machines in names, or all machines if names is nil, sorted by name. Each has its grant, its shown run and the
// last contact of its agent. MachineStates runs a single query.
func (s Views) MachineStates(ctx context.Context, names []string) ([]inventory.MachineState, error) {
	q := selection{query: "SELECT " + machineColumns + ", " + joinedGrantColumns + `, coalesce(w.doc, '') AS run_doc,
		coalesce(w.started, 0) AS run_started,
		coalesce((SELECT last_seen FROM agent a WHERE a.machine = m.name ORDER BY a.epoch DESC, a.boot DESC LIMIT 1), 0) AS last_seen
		FROM machine m LEFT JOIN grant_ g ON g.machine = m.name ` + joinShownRun + " WHERE true"}
	list, err := toJSON(names)
	if err != nil {
		return nil, fmt.Errorf("reading machines: %w", err)
	}
	q.where(names != nil, "m.name IN (SELECT value FROM json_each(?))", list)

	var rows []struct {
		machineRow
		Grant                grantRow `db:"g"`
		RunDoc               string
		RunStarted, LastSeen int64
	}
	if err := s.ro.SelectContext(ctx, &rows, q.query+" ORDER BY m.name", q.args...); err != nil {
		return nil, fmt.Errorf("reading machines: %w", err)
	}

	out := make([]inventory.MachineState, len(rows))
	for i, r := range rows {
		m, err := r.value()
		if err != nil {
			return nil, err
		}
		out[i] = inventory.MachineState{Machine: m, Grant: r.Grant.grant(), LastSeen: moment(r.LastSeen)}
		if r.RunDoc == "" {
			continue
		}
		w, err := workflowRow{docRow[inventory.Workflow]{r.RunDoc}, r.RunStarted}.value()
		if err != nil {
			return nil, fmt.Errorf("reading the run of machine %q: %w", r.Name, err)
		}
		out[i].Workflow = &w
	}

	return out, nil
}

// isOrder is the SQL condition that a run is one that installs or wipes its machine. SQLite uses the index workflow_order only if the index
// has exactly this text.
const isOrder = "json_extract(doc, '$.type') IN ('Provision', 'Reprovision', 'Decommission')"

// shownRun returns an SQL expression for the rowid of a machine's shown run: the run whose state is shown as the state of the machine.
// machine is an SQL expression for the name of the machine.
//
// If runs are open, the shown run is one of them: the latest that installs or wipes the machine or, if there is none, the latest of the
// others. If no run is open, the shown run is the latest run that installed or wiped the machine; runs of other types, such as BMC jobs and
// inspections, do not change what is on the disks. The expression is NULL if there is no such run, or if the record of a later one was
// deleted. The order of the records decides which run is the latest, because clocks can be set.
func shownRun(machine string) string {
	return `coalesce(
		(SELECT rowid FROM workflow WHERE machine = ` + machine + ` AND final = 0
			ORDER BY ` + isOrder + ` DESC, rowid DESC LIMIT 1),
		(SELECT iif(json_extract(doc, '$.supersededBy') IS NULL, rowid, NULL) FROM workflow
			WHERE machine = ` + machine + ` AND ` + isOrder + ` ORDER BY rowid DESC LIMIT 1))`
}

// joinShownRun is an SQL join that adds the shown run of machine m to a query. w is its row of the table workflow.
var joinShownRun = "LEFT JOIN workflow w ON w.rowid = " + shownRun("m.name")

// MachineNames returns the names of the machines that f selects, sorted.
func (s Views) MachineNames(ctx context.Context, f inventory.MachineFilter) ([]string, error) {
	q := selection{query: "SELECT m.name FROM machine m " + joinShownRun + " WHERE true"}
	q.whereState("w", f.State)
	q.whereLabels(f.Selector)
	order, after := "m.name", ">"
	if f.Descending {
		order, after = "m.name DESC", "<"
	}
	q.where(f.After != "", "m.name "+after+" ?", f.After)
	q.page(order, cmp.Or(max(f.Limit, 0), -1)) // -1: all

	names := []string{}
	err := s.ro.SelectContext(ctx, &names, q.query, q.args...)
	return names, wrap(err, "listing the names of machines")
}

// MachineCount returns how many machines there are.
func (s Views) MachineCount(ctx context.Context) (n int, err error) {
	err = s.ro.GetContext(ctx, &n, "SELECT count(*) FROM machine")
	return n, wrap(err, "counting machines")
}

// OpenRuns returns the runs that have not ended, sorted by machine.
func (s Views) OpenRuns(ctx context.Context) (runs []inventory.OpenRun, err error) {
	err = s.ro.SelectContext(ctx, &runs, "SELECT run, machine FROM workflow WHERE final = 0 ORDER BY machine, run")
	return runs, wrap(err, "listing open runs")
}

// Installed says which system is installed on each machine, or only on the given machine if machine is not "". The keys of the map are
// names of machines. The values come from the run that last wrote to a disk of the machine. If no written disk is recorded, because another
// installer wrote to it, they come from the last run that installed a system and succeeded. If a machine was decommissioned and no run has
// written to it since, the map does not contain it.
func (s Views) Installed(ctx context.Context, machine string) (map[string]inventory.Installed, error) {
	var rows []struct {
		Machine, Run string
		At           int64
		Doc          *string
	}

	where := ""
	if machine != "" {
		where = " WHERE name = ?1"
	}

	// In SQLite, the other columns of a query with max() come from the row that has the maximum.
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
			// Decode only those fields of the record that Installed has, too. Decoding all fields would take longer, because some are large.
			if err := json.Unmarshal([]byte(*r.Doc), &x); err != nil {
				return nil, fmt.Errorf("reading the record of run %q: %w", r.Run, err)
			}
		}

		out[r.Machine] = x
	}

	return out, nil
}
