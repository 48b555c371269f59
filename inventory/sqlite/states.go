package sqlite

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/ingotmetal/ingot/inventory"
)

// MachineStates returns machines with their grants, shown runs and agents, by name: those in
// names, or all if names is nil. It always uses a single statement.
func (s *Store) MachineStates(ctx context.Context, names []string) ([]inventory.MachineState, error) {
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

// isOrder selects the records of runs that install or wipe a machine. Its text is that of the index workflow_order.
const isOrder = "json_extract(doc, '$.type') IN ('Provision', 'Reprovision', 'Decommission')"

// shownRun is the row of the run that makes the state of a machine, whose name is the SQL expression: an open run, one that
// installs or wipes it before any other, or else the latest that installed or wiped it. NULL if there is none, because a job
// of its BMC or an inspection says nothing about what is on its disks, or if the record of the latest was deleted. The order
// of the records decides, not a clock, which may be set.
func shownRun(machine string) string {
	return `coalesce(
		(SELECT rowid FROM workflow WHERE machine = ` + machine + ` AND final = 0
			ORDER BY ` + isOrder + ` DESC, rowid DESC LIMIT 1),
		(SELECT iif(json_extract(doc, '$.supersededBy') IS NULL, rowid, NULL) FROM workflow
			WHERE machine = ` + machine + ` AND ` + isOrder + ` ORDER BY rowid DESC LIMIT 1))`
}

// joinShownRun joins the shown run of machine m as w.
var joinShownRun = "LEFT JOIN workflow w ON w.rowid = " + shownRun("m.name")

// hasLabel requires that machine m carries a label.
const hasLabel = "EXISTS (SELECT 1 FROM json_each(m.doc, '$.labels') WHERE json_each.key = ? AND json_each.value = ?)"

// MachineNames returns the names of the machines that f selects, by name.
func (s *Store) MachineNames(ctx context.Context, f inventory.MachineFilter) ([]string, error) {
	q := selection{query: "SELECT m.name FROM machine m " + joinShownRun + " WHERE true"}
	q.whereState("w", f.State)
	for k, v := range f.Labels {
		q.where(true, hasLabel, k, v)
	}
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
func (s *Store) MachineCount(ctx context.Context) (n int, err error) {
	err = s.ro.GetContext(ctx, &n, "SELECT count(*) FROM machine")
	return n, wrap(err, "counting machines")
}

// OpenRuns returns the runs that are not over, by machine.
func (s *Store) OpenRuns(ctx context.Context) (runs []inventory.OpenRun, err error) {
	err = s.ro.SelectContext(ctx, &runs, "SELECT run, machine FROM workflow WHERE final = 0 ORDER BY machine, run")
	return runs, wrap(err, "listing open runs")
}

// touchedOperations is the entry in touched for records of operations; no machine can have this
// name.
const touchedOperations = "operations/"

// A follower collects the touched machines until they are fetched.
type follower struct{ touched map[string]bool }

// Follow returns a function that returns the machines that this process has changed since its last
// call, and whether it has written the record of an operation. Call cancel when done.
func (s *Store) Follow() (take func() (machines []string, operations bool), cancel func()) {
	f := &follower{touched: map[string]bool{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followers[f] = true

	take = func() ([]string, bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		operations := f.touched[touchedOperations]
		delete(f.touched, touchedOperations)
		machines := slices.Sorted(maps.Keys(f.touched))
		clear(f.touched)
		return machines, operations
	}
	return take, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.followers, f)
	}
}
