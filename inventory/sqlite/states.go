package sqlite

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/ingotmetal/ingot/inventory"
)

// MachineStates returns machines with their grants, latest runs and agents, by name: those of names, or all when names
// is nil. However many they are, it is one statement.
func (s *Store) MachineStates(ctx context.Context, names []string) ([]inventory.MachineState, error) {
	query, args := "SELECT "+machineColumns+", "+grantColumns("g.")+`, coalesce(w.doc, '') AS run_doc, coalesce(w.started, 0) AS run_started,
		coalesce((SELECT last_seen FROM agent a WHERE a.machine = m.name ORDER BY a.epoch DESC, a.boot DESC LIMIT 1), 0) AS last_seen
		FROM machine m LEFT JOIN grant_ g ON g.machine = m.name
		`+latestRun, []any(nil)
	if names != nil {
		list, err := toJSON(names)
		if err != nil {
			return nil, fmt.Errorf("looking at machines: %w", err)
		}
		query, args = query+" WHERE m.name IN (SELECT value FROM json_each(?))", []any{list}
	}

	var rows []struct {
		machineRow
		Grant    grantRow `db:"g"`
		Doc      string   `db:"run_doc"`
		Started  int64    `db:"run_started"`
		LastSeen int64    `db:"last_seen"`
	}
	if err := s.ro.SelectContext(ctx, &rows, query+" ORDER BY m.name", args...); err != nil {
		return nil, fmt.Errorf("looking at machines: %w", err)
	}

	out := make([]inventory.MachineState, len(rows))
	for i, r := range rows {
		m, err := r.value()
		if err != nil {
			return nil, err
		}
		out[i] = inventory.MachineState{Machine: m, Grant: r.Grant.grant(), LastSeen: moment(r.LastSeen)}
		if r.Doc == "" {
			continue
		}
		w, err := workflowRow{docRow[inventory.Workflow]{r.Doc}, r.Started}.value()
		if err != nil {
			return nil, fmt.Errorf("reading the latest run of machine %q: %w", r.Name, err)
		}
		out[i].Workflow = &w
	}

	return out, nil
}

// latestRun joins the latest run of machine m as w.
const latestRun = `LEFT JOIN workflow w ON w.rowid = (SELECT l.rowid FROM workflow l WHERE l.machine = m.name
	ORDER BY l.started DESC, l.rowid DESC LIMIT 1)`

// hasLabel demands that machine m carries a label.
const hasLabel = "EXISTS (SELECT 1 FROM json_each(m.doc, '$.labels') WHERE json_each.key = ? AND json_each.value = ?)"

// MachineNames returns the names of the machines that f selects, by name.
func (s *Store) MachineNames(ctx context.Context, f inventory.MachineFilter) ([]string, error) {
	query, args := "SELECT m.name FROM machine m "+latestRun+" WHERE true", []any{}
	if f.State != "" {
		query, args = query+" AND w.state = ?", append(args, f.State)
	}
	for k, v := range f.Labels {
		query, args = query+" AND "+hasLabel, append(args, k, v)
	}
	order, after := "m.name", ">"
	if f.Descending {
		order, after = "m.name DESC", "<"
	}
	if f.After != "" {
		query, args = query+" AND m.name "+after+" ?", append(args, f.After)
	}
	limit := f.Limit
	if limit <= 0 {
		limit = -1 // all
	}
	names := []string{}
	err := s.ro.SelectContext(ctx, &names, query+" ORDER BY "+order+" LIMIT ?", append(args, limit)...)

	return names, wrap(err, "listing the names of machines")
}

// MachineCount returns how many machines there are.
func (s *Store) MachineCount(ctx context.Context) (n int, err error) {
	if err := s.ro.GetContext(ctx, &n, "SELECT count(*) FROM machine"); err != nil {
		return 0, fmt.Errorf("counting machines: %w", err)
	}
	return n, nil
}

// OpenRuns returns the runs that are not over, by machine.
func (s *Store) OpenRuns(ctx context.Context) ([]inventory.OpenRun, error) {
	var runs []inventory.OpenRun
	if err := s.ro.SelectContext(ctx, &runs,
		"SELECT run, machine FROM workflow WHERE final = 0 ORDER BY machine, run"); err != nil {
		return nil, fmt.Errorf("listing open runs: %w", err)
	}
	return runs, nil
}

// touchedOperations is what a write of an operation's record touches; no machine has such a name.
const touchedOperations = "operations/"

// A follower gathers what writes have touched until it is asked.
type follower struct{ touched map[string]bool }

// Follow returns a function that names the machines that writes of this process have touched since it was called last,
// and says whether the record of an operation was written. Call cancel when done.
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
