package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// Overview has the numbers about the whole site that are shown as metrics.
type Overview struct{ *db }

// openWorkRow is a row of a query for open runs or operations. Parts is a JSON array of those fields of the record that an
// inventory.OpenWork is made of. Reading all of them at once makes SQLite parse each record only once.
type openWorkRow struct {
	Count                int
	Kind, Machine, Parts string
	Name                 string // name of the operation; "" for rows about runs
}

func (r openWorkRow) value() (inventory.OpenWork, error) {
	w := inventory.OpenWork{Count: r.Count, Type: r.Kind, Machine: r.Machine, Name: r.Name}
	var typ, phase, question *string
	var since, updated *time.Time
	if err := json.Unmarshal([]byte(r.Parts), &[]any{&typ, &phase, &question, &since, &updated}); err != nil {
		return w, err
	}
	if typ != nil {
		w.Type = *typ
	}
	if phase != nil {
		w.Phase = *phase
	}
	switch {
	case question != nil && since != nil && r.Name != "":
		w.About, w.Since = inventory.AboutStep, *since
	case question != nil && since != nil:
		w.About, w.Since = inventory.AboutOf(*question), *since
	case w.Phase == inventory.PhasePower && r.Machine != "" && updated != nil:
		w.About, w.Since = inventory.AboutButton, *updated
	}
	return w, nil
}

// OpenWork returns the runs and operations that have not ended. It returns one element for each operation and for each run that waits for
// an operator. Of the other runs, it returns only how many there are of each type in each phase.
func (s Overview) OpenWork(ctx context.Context) ([]inventory.OpenWork, error) {
	// An open run waits for an operator if its record has a Next command.
	runs, err := list[openWorkRow](ctx, s.ro, `SELECT count(*) AS count, '' AS kind, '' AS name,
			iif(coalesce(json_extract(doc, '$.next'), '') = '', '', machine) AS machine,
			iif(coalesce(json_extract(doc, '$.next'), '') = '', json_extract(doc, '$.type', '$.phase'),
				json_extract(doc, '$.type', '$.phase', '$.question.id', '$.question.since', '$.updated')) AS parts
		FROM workflow WHERE final = 0 GROUP BY 4, 5`)
	if err != nil {
		return nil, fmt.Errorf("reading open runs: %w", err)
	}
	operations, err := list[openWorkRow](ctx, s.ro, `SELECT 1 AS count, kind, name, '' AS machine,
			json_extract(doc, '$.type', '$.phase', '$.question.id', '$.question.since') AS parts
		FROM operation WHERE final = 0`)
	return append(runs, operations...), wrap(err, "reading open operations")
}

// OpenWindows returns the netboot windows and secrets windows that are open now. Windows of runs that have not ended are only counted. A
// netboot window does not count as open if its boot is spent.
func (s Overview) OpenWindows(ctx context.Context) ([]inventory.OpenWindow, error) {
	var rows []struct {
		Machine, Run               string // "" = this row counts the windows of all open runs
		Netboot, Secrets           int
		NetbootUntil, SecretsUntil int64
	}
	err := s.ro.SelectContext(ctx, &rows, `SELECT iif(live, '', machine) AS machine, iif(live, '', run) AS run,
			sum(netboot_until > ?1 AND NOT spent AND boot > 0) AS netboot, sum(secrets_until > ?1) AS secrets,
			max(netboot_until) AS netboot_until, max(secrets_until) AS secrets_until
		FROM (SELECT *, EXISTS (SELECT 1 FROM workflow w WHERE w.run = grant_.run AND w.final = 0) AS live
			FROM grant_ WHERE run <> '' AND max(netboot_until, secrets_until) > ?1) GROUP BY 1, 2`, nanos(s.now()))
	if err != nil {
		return nil, fmt.Errorf("reading open windows: %w", err)
	}

	var out []inventory.OpenWindow
	for _, r := range rows {
		holder := inventory.HeldByNone
		switch {
		case r.Run == "":
			holder = inventory.HeldByRun
		case inventory.Grant{Owner: inventory.Owner{Run: r.Run}}.ByOperator():
			holder = inventory.HeldByOperator
		}
		for _, w := range []inventory.OpenWindow{
			{Count: r.Netboot, Window: inventory.WindowNetboot, Until: moment(r.NetbootUntil)},
			{Count: r.Secrets, Window: inventory.WindowSecrets, Until: moment(r.SecretsUntil)},
		} {
			if w.Count > 0 {
				w.Machine, w.Holder = r.Machine, holder
				out = append(out, w)
			}
		}
	}
	return out, nil
}

// Standings returns how many machines are out of service, by the state of their standing, such as quarantined. Machines in service have no
// standing and are not counted.
func (s Overview) Standings(ctx context.Context) (map[string]int, error) {
	var rows []struct {
		State string
		Count int
	}
	if err := s.ro.SelectContext(ctx, &rows, "SELECT state, count(*) AS count FROM standing GROUP BY state"); err != nil {
		return nil, fmt.Errorf("counting machines out of service: %w", err)
	}
	out := map[string]int{}
	for _, r := range rows {
		out[r.State] = r.Count
	}
	return out, nil
}

// maxEventsAtOnce is how many events one call of PhaseEnds looks at. The limit makes a call take only milliseconds.
const maxEventsAtOnce = 20_000

type phaseEndRow struct {
	Detail      string
	Type, Class string
	Started     int64
}

func (r phaseEndRow) value() (inventory.PhaseEnd, error) {
	p := inventory.PhaseEnd{Type: r.Type, Class: r.Class, Started: moment(r.Started)}
	return p, json.Unmarshal([]byte(r.Detail), &p.PhaseChange)
}

// PhaseEnds looks at the next maxEventsAtOnce events whose sequence numbers are greater than after, and returns the changes of phases among
// them. It also returns the last sequence number that it has looked at: the next call continues there.
func (s Overview) PhaseEnds(ctx context.Context, after int64) ([]inventory.PhaseEnd, int64, error) {
	last, err := lastSeq(ctx, s.ro)
	if err != nil {
		return nil, after, err
	}
	last = min(last, after+maxEventsAtOnce)
	out, err := list[phaseEndRow](ctx, s.ro, `SELECT e.detail, coalesce(json_extract(w.doc, '$.type'), '') AS type,
			coalesce(w.started, 0) AS started, coalesce(json_extract(m.doc, '$.labels.`+inventory.LabelClass+`'), '') AS class
		FROM event e LEFT JOIN workflow w ON w.run = e.run LEFT JOIN machine m ON m.name = e.machine
		WHERE e.seq > ? AND e.seq <= ? AND e.kind = ? AND e.detail IS NOT NULL ORDER BY e.seq`, after, last, inventory.EventPhase)
	if err != nil {
		return nil, after, fmt.Errorf("reading the changes of phases: %w", err)
	}
	return out, last, nil
}

// Pools returns the statistics of the connections for reading and of the connection for writing.
func (s Overview) Pools() (read, write sql.DBStats) { return s.ro.Stats(), s.rw.Stats() }

// Path returns the path of the database file.
func (s *Store) Path() string { return s.path }
