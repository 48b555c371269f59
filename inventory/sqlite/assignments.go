package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// maxLog is how much of an attempt's log is kept, from its end, in bytes.
const maxLog = 64 << 10

// keyed finds an assignment: parameters 1 to 3 are its owner, 4 and 5 action
// and attempt.
const keyed = "machine = ?1 AND run = ?2 AND epoch = ?3 AND action = ?4 AND attempt = ?5"

func runBinding(run string) string { return "run=" + run }

// PutPlan stores the plan of a run, sealed. A run that has one keeps it: another
// one is ErrConflict, for the run has to go by what is carried out.
func (s *Store) PutPlan(ctx context.Context, p inventory.Plan) error {
	what := fmt.Sprintf("storing the plan of run %q", p.Run)
	doc, err := toJSON(p)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return s.write(ctx, what, func(tx *sqlx.Tx) error {
		// Within the transaction: see Reseal.
		sealed, err := s.seal(sealPlan, runBinding(p.Run), []byte(doc))
		if err != nil {
			return err
		}
		if _, err = exec(ctx, tx, "INSERT OR IGNORE INTO plan (run, digest, sealed) VALUES (?, ?, ?)", p.Run, p.Digest, sealed); err != nil {
			return err
		}
		var stands string
		if err := get(ctx, tx, &stands, "SELECT digest FROM plan WHERE run = ?", p.Run); err != nil {
			return err
		}
		if stands != p.Digest {
			return fmt.Errorf("its template, its image or its machine was changed while it was planned; start it again: %w", inventory.ErrConflict)
		}
		return nil
	})
}

// Plan returns the plan of a run.
func (s *Store) Plan(ctx context.Context, run string) (inventory.Plan, error) {
	var p inventory.Plan
	var sealed []byte
	err := get(ctx, s.ro, &sealed, "SELECT sealed FROM plan WHERE run = ?", run)
	if err == nil {
		err = s.unseal(run, sealed, &p)
	}
	if err != nil {
		return inventory.Plan{}, fmt.Errorf("reading the plan of run %q: %w", run, err)
	}
	return p, nil
}

// forgetOtherPlans deletes the plans of all other runs of o's machine: from the
// moment o may write to its disks, the rest of an earlier run must not be carried
// out there any more.
func forgetOtherPlans(ctx context.Context, tx *sqlx.Tx, o inventory.Owner) error {
	_, err := exec(ctx, tx, "DELETE FROM plan WHERE run <> ?2 AND run IN (SELECT run FROM workflow WHERE machine = ?1)", o.Machine, o.Run)
	return err
}

// Resumable returns nil while another run may carry out what is left of the plan
// of a run ("retry --from failed-step"). inventory.ErrConflict: the plan is not
// stored, or another run has written to the machine since.
func (s *Store) Resumable(ctx context.Context, run string) error {
	const again = "it can only be retried from the start"
	what := fmt.Sprintf("resuming run %q", run)
	var found struct {
		Machine string `db:"machine"`
		Planned bool   `db:"planned"`
		Writer  string `db:"writer"`
	}
	// A later run's disk is recorded before its first write is assigned, which is
	// what deletes this run's plan.
	err := get(ctx, s.ro, &found, `SELECT machine, EXISTS (SELECT 1 FROM plan WHERE plan.run = w.run) AS planned,
		coalesce((SELECT d.run FROM disk_written d JOIN workflow later ON later.run = d.run
			WHERE d.machine = w.machine AND later.rowid > w.rowid ORDER BY later.rowid DESC LIMIT 1), '') AS writer
		FROM workflow w WHERE w.run = ?`, run)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", what, err)
	case found.Writer != "":
		return fmt.Errorf("%s: run %q has written to machine %q since, so %s: %w", what, found.Writer, found.Machine, again, inventory.ErrConflict)
	case !found.Planned:
		return fmt.Errorf("%s: its plan is not stored (it ended before it had one or was reset from outside, a later run has written to machine %q, or the server was restored from a backup), so %s: %w",
			what, found.Machine, again, inventory.ErrConflict)
	}
	return nil
}

// unseal reads what belongs to a run into v.
func (s *Store) unseal(run string, sealed []byte, v any) error {
	plain, err := s.open(sealPlan, runBinding(run), sealed)
	if err != nil {
		return err
	}
	return json.Unmarshal(plain, v)
}

type assignmentRow struct {
	Machine   string  `db:"machine"`
	Run       string  `db:"run"`
	Epoch     int64   `db:"epoch"`
	Action    int     `db:"action"`
	Attempt   int     `db:"attempt"`
	Boot      int     `db:"boot"`
	Sealed    []byte  `db:"sealed"`
	State     string  `db:"state"`
	StopAt    int64   `db:"stop_at"`
	Delivered int64   `db:"delivered"`
	Result    *string `db:"result"`
}

const assignmentColumns = "machine, run, epoch, action, attempt, boot, sealed, state, stop_at, delivered, result"

func (s *Store) assignment(r assignmentRow) (inventory.Assignment, error) {
	a := inventory.Assignment{
		Owner: inventory.Owner{Machine: r.Machine, Run: r.Run, Epoch: r.Epoch}, Boot: r.Boot,
		Key:   action.Key{Epoch: r.Epoch, Action: r.Action, Attempt: r.Attempt},
		State: action.State(r.State), StopAt: moment(r.StopAt), Delivered: moment(r.Delivered),
	}
	return a, s.unseal(r.Run, r.Sealed, &a.Payload)
}

// naming says in errors which attempt of which machine is meant.
func naming(what string, o inventory.Owner, k action.Key) string {
	return fmt.Sprintf("%s attempt %s of machine %q", what, k, o.Machine)
}

// Assign stores an attempt for the agent of a.Boot to fetch; boot 0 means the
// present one. An attempt that exists stays as it is, without error, unless it
// was assigned to another boot: that is inventory.ErrConflict, because its
// agent could have begun; count the attempt. So is a boot whose claim nobody
// has redeemed: a machine that was not armed and did not answer for itself is
// given nothing to do (security S8). A person's grant gives no work at all:
// inventory.ErrInvalid.
func (s *Store) Assign(ctx context.Context, a inventory.Assignment) error {
	what := naming("assigning", a.Owner, a.Key)
	if a.Key.Epoch != a.Epoch || a.Key.Action < 0 || a.Key.Attempt < 1 || strings.HasPrefix(a.Run, personPrefix) {
		return fmt.Errorf("%s at epoch %d: %w", what, a.Epoch, inventory.ErrInvalid)
	}
	doc, err := toJSON(a.Payload)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return s.write(ctx, what, func(tx *sqlx.Tx) error {
		// Within the transaction: see Reseal.
		sealed, err := s.seal(sealPlan, runBinding(a.Run), []byte(doc))
		if err != nil {
			return err
		}
		var boot int
		err = get(ctx, tx, &boot, `INSERT INTO assignment (machine, run, epoch, action, attempt, boot, sealed, state, next_until)
			SELECT ?1, ?2, ?3, ?4, ?5, boot, ?7, ?8, ?9 FROM grant_ WHERE `+owns+` AND boot > 0 AND spent = 1 AND (?6 = 0 OR boot = ?6) ON CONFLICT DO NOTHING RETURNING boot`,
			a.Machine, a.Run, a.Epoch, a.Key.Action, a.Key.Attempt, a.Boot, sealed, action.Pending, nanos(a.NextUntil))
		if errors.Is(err, inventory.ErrNotFound) {
			return fencedOr(ctx, tx, a.Owner, assignedBefore(ctx, tx, a))
		}
		if err == nil {
			err = recordActing(ctx, tx, a, boot)
		}
		if err != nil {
			return err
		}
		x := a.Payload.Action
		if native, _ := action.Native(x.Image); action.WritesAny(native) {
			if err := forgetOtherPlans(ctx, tx, a.Owner); err != nil {
				return err
			}
		}
		return s.event(ctx, tx, inventory.Event{
			Machine: a.Machine, Run: a.Run, Epoch: a.Epoch, Boot: boot, Kind: inventory.EventAssigned, Key: a.Key.String(), Message: x.Name,
		})
	})
}

// recordActing stores what holds as soon as the agent of a boot may carry a out:
// the run is in its actions until the one that leaves the agent, and the disks, once
// written to, are this boot's.
func recordActing(ctx context.Context, tx *sqlx.Tx, a inventory.Assignment, boot int) error {
	if _, err := exec(ctx, tx, "UPDATE grant_ SET acting = ?4 WHERE "+owns, a.Machine, a.Run, a.Epoch, !a.Payload.Leaving); err != nil || !a.Writes {
		return err
	}
	_, err := exec(ctx, tx, `INSERT INTO installation (machine, run, epoch, boot) VALUES (?,?,?,?)
		ON CONFLICT (machine) DO UPDATE SET run = excluded.run, epoch = excluded.epoch, boot = excluded.boot`, a.Machine, a.Run, a.Epoch, boot)
	return err
}

// assignedBefore returns nil when the attempt stands as a wants it, or is over.
func assignedBefore(ctx context.Context, tx *sqlx.Tx, a inventory.Assignment) error {
	g, err := grantOf(ctx, tx, a.Machine)
	if err != nil {
		return err
	}
	want := a.Boot
	if want == 0 {
		want = g.Boot
	}
	var have struct {
		Boot int  `db:"boot"`
		Done bool `db:"done"`
	}
	err = get(ctx, tx, &have, "SELECT boot, result IS NOT NULL AS done FROM assignment WHERE "+keyed, a.Machine, a.Run, a.Epoch, a.Key.Action, a.Key.Attempt)
	switch {
	case errors.Is(err, inventory.ErrNotFound) && (g.Boot == 0 || g.Boot == want && !g.Spent):
		return fmt.Errorf("no agent has claimed boot %d: %w", g.Boot, inventory.ErrConflict)
	case errors.Is(err, inventory.ErrNotFound):
		return fmt.Errorf("boot %d is the present one, not %d: %w", g.Boot, want, inventory.ErrConflict)
	case err != nil:
		return err
	case !have.Done && have.Boot != want:
		return fmt.Errorf("it was assigned to boot %d already: %w", have.Boot, inventory.ErrConflict)
	}
	return nil
}

// NextAssignment returns the oldest attempt of o's present boot that has no
// result and was not told to stop; inventory.ErrNotFound when there is none.
func (s *Store) NextAssignment(ctx context.Context, o inventory.Owner) (inventory.Assignment, error) {
	return s.readAssignment(ctx, "finding the next assignment", o, `SELECT `+assignmentColumns+` FROM assignment
		WHERE machine = ?1 AND run = ?2 AND epoch = ?3 AND result IS NULL AND stop_at = 0
		AND boot = (SELECT boot FROM grant_ WHERE `+owns+`) ORDER BY rowid LIMIT 1`, o.Machine, o.Run, o.Epoch)
}

// Assignment returns one attempt.
func (s *Store) Assignment(ctx context.Context, o inventory.Owner, k action.Key) (inventory.Assignment, error) {
	return s.readAssignment(ctx, naming("reading", o, k), o, `SELECT `+assignmentColumns+` FROM assignment WHERE `+keyed+` AND epoch = ?6 AND `+held,
		o.Machine, o.Run, o.Epoch, k.Action, k.Attempt, k.Epoch)
}

func (s *Store) readAssignment(ctx context.Context, what string, o inventory.Owner, query string, args ...any) (inventory.Assignment, error) {
	var r assignmentRow
	err := get(ctx, s.ro, &r, query, args...)
	if errors.Is(err, inventory.ErrNotFound) {
		err = fencedOr(ctx, s.ro, o, err)
	}
	var a inventory.Assignment
	if err == nil {
		a, err = s.assignment(r)
	}
	if err != nil {
		return inventory.Assignment{}, fmt.Errorf("%s: %w", what, err)
	}
	return a, nil
}

// Delivered records that the agent has fetched an attempt, which is running
// from the first time on.
func (s *Store) Delivered(ctx context.Context, o inventory.Owner, k action.Key) error {
	return s.assigned(ctx, naming("delivering", o, k), o, k, "state = ?6, delivered = ?7", "delivered = 0 AND result IS NULL", inventory.EventActionStarted,
		string(action.Running), nanos(s.now()))
}

// assigned changes an attempt for o under a condition, and appends an event
// when it held. When it did not, that is no error: it had happened before.
func (s *Store) assigned(ctx context.Context, what string, o inventory.Owner, k action.Key, set, condition, kind string, args ...any) error {
	return s.write(ctx, what, func(tx *sqlx.Tx) error {
		if k.Epoch != o.Epoch {
			return inventory.ErrFenced
		}
		var boot int
		err := get(ctx, tx, &boot, "UPDATE assignment SET "+set+" WHERE "+keyed+" AND "+held+" AND "+condition+" RETURNING boot",
			append([]any{o.Machine, o.Run, o.Epoch, k.Action, k.Attempt}, args...)...)
		if errors.Is(err, inventory.ErrNotFound) {
			err = get(ctx, tx, &boot, "SELECT boot FROM assignment WHERE "+keyed, o.Machine, o.Run, o.Epoch, k.Action, k.Attempt)
			return fencedOr(ctx, tx, o, err)
		}
		if err != nil {
			return err
		}
		return s.event(ctx, tx, inventory.Event{Machine: o.Machine, Run: o.Run, Epoch: o.Epoch, Boot: boot, Kind: kind, Key: k.String()})
	})
}

// StopAssignment orders an attempt to stop; the first order counts, and one
// that has its result needs none.
func (s *Store) StopAssignment(ctx context.Context, o inventory.Owner, k action.Key, at time.Time) error {
	return s.assigned(ctx, naming("stopping", o, k), o, k, "stop_at = ?6", "stop_at = 0 AND result IS NULL", inventory.EventStop, nanos(at))
}

// Stops returns the attempts that were told to stop and have no result yet.
func (s *Store) Stops(ctx context.Context, o inventory.Owner) ([]action.Key, error) {
	var rows []struct {
		Epoch   int64 `db:"epoch"`
		Action  int   `db:"action"`
		Attempt int   `db:"attempt"`
	}
	err := s.ro.SelectContext(ctx, &rows, `SELECT epoch, action, attempt FROM assignment
		WHERE machine = ? AND run = ? AND epoch = ? AND stop_at <> 0 AND result IS NULL ORDER BY rowid`, o.Machine, o.Run, o.Epoch)
	if err != nil {
		return nil, fmt.Errorf("listing stops of machine %q: %w", o.Machine, err)
	}
	out := make([]action.Key, len(rows))
	for i, r := range rows {
		out[i] = action.Key{Epoch: r.Epoch, Action: r.Action, Attempt: r.Attempt}
	}
	return out, nil
}

// Report stores the result of an attempt by the agent of o's boot: the first
// one wins, and fresh tells whether this was it. Its log goes to the log, the
// rest into the event "action-completed". A state that is not final is
// inventory.ErrInvalid; an unknown attempt inventory.ErrNotFound; an agent
// that was revoked inventory.ErrConflict.
func (s *Store) Report(ctx context.Context, o inventory.Owner, boot int, r action.Result) (fresh bool, err error) {
	what := naming("reporting", o, r.Key)
	switch r.State {
	case action.Success, action.Failed, action.Timeout, action.Stopped:
	default:
		return false, fmt.Errorf("%s: state %q is not final: %w", what, r.State, inventory.ErrInvalid)
	}
	text := r.Log
	r.Log, r.Message = "", clip(r.Message, maxMessage)
	doc, err := toJSON(r)
	if err != nil {
		return false, fmt.Errorf("%s: %w", what, err)
	}
	if len(doc) > maxDetail {
		return false, fmt.Errorf("%s: the result has %d bytes: %w", what, len(doc), inventory.ErrInvalid)
	}
	err = s.write(ctx, what, func(tx *sqlx.Tx) error {
		if r.Key.Epoch != o.Epoch {
			return inventory.ErrFenced
		}
		n, err := exec(ctx, tx, "UPDATE assignment SET state = ?6, result = ?7 WHERE "+keyed+" AND result IS NULL AND "+held+`
			AND NOT EXISTS (SELECT 1 FROM agent WHERE agent.machine = ?1 AND agent.run = ?2 AND agent.epoch = ?3 AND agent.boot = ?8 AND agent.revoked = 1)`,
			o.Machine, o.Run, o.Epoch, r.Key.Action, r.Key.Attempt, r.State, doc, boot)
		if err != nil {
			return err
		}
		if n == 0 {
			var done bool
			err := get(ctx, tx, &done, "SELECT result IS NOT NULL FROM assignment WHERE "+keyed, o.Machine, o.Run, o.Epoch, r.Key.Action, r.Key.Attempt)
			if err == nil && !done {
				err = fmt.Errorf("the agent of boot %d was revoked: %w", boot, inventory.ErrConflict)
			}
			return fencedOr(ctx, tx, o, err)
		}
		fresh = true
		if err := mergeLog(ctx, tx, o.Run, r.Key, text); err != nil {
			return err
		}
		if r.State == action.Success {
			if err := s.next(ctx, tx, o, r.Key); err != nil {
				return err
			}
		}
		return s.event(ctx, tx, inventory.Event{
			Machine: o.Machine, Run: o.Run, Epoch: o.Epoch, Boot: boot, Kind: inventory.EventActionDone, Key: r.Key.String() + " " + clip(r.ID, 128),
			Message: string(r.State), Detail: json.RawMessage(doc),
		})
	})
	return fresh && err == nil, err
}

// next allows the boot that the success of an attempt leads to, if it does. A
// run that has no boot left is told when it asks for one.
func (s *Store) next(ctx context.Context, tx *sqlx.Tx, o inventory.Owner, k action.Key) error {
	var row struct {
		Boot  int   `db:"boot"`
		Until int64 `db:"next_until"`
	}
	if err := get(ctx, tx, &row, "SELECT boot, next_until FROM assignment WHERE "+keyed, o.Machine, o.Run, o.Epoch, k.Action, k.Attempt); err != nil || row.Until == 0 {
		return err
	}
	_, err := s.allowIn(ctx, tx, o, row.Boot+1, true, moment(row.Until))
	if errors.Is(err, inventory.ErrConflict) {
		return nil
	}
	return err
}

// Result returns what an attempt of a run ended with, without its log;
// inventory.ErrNotFound while there is none.
func (s *Store) Result(ctx context.Context, run string, k action.Key) (action.Result, error) {
	var r action.Result
	var doc string
	err := get(ctx, s.ro, &doc, "SELECT result FROM assignment WHERE run = ? AND epoch = ? AND action = ? AND attempt = ? AND result IS NOT NULL",
		run, k.Epoch, k.Action, k.Attempt)
	if err == nil {
		err = json.Unmarshal([]byte(doc), &r)
	}
	if err != nil {
		return action.Result{}, fmt.Errorf("reading the result of attempt %s of run %q: %w", k, run, err)
	}
	return r, nil
}

// AppendLog adds text to the log of an attempt, of which the last 64 KiB are
// kept.
func (s *Store) AppendLog(ctx context.Context, o inventory.Owner, k action.Key, text string) error {
	if text == "" {
		return nil
	}
	what := naming("appending to the log of", o, k)
	return s.write(ctx, what, func(tx *sqlx.Tx) error {
		if k.Epoch != o.Epoch {
			return inventory.ErrFenced
		}
		var one int
		err := get(ctx, tx, &one, "SELECT 1 FROM assignment WHERE "+keyed+" AND "+held, o.Machine, o.Run, o.Epoch, k.Action, k.Attempt)
		if errors.Is(err, inventory.ErrNotFound) {
			return fencedOr(ctx, tx, o, err)
		}
		if err != nil {
			return err
		}
		have, err := logOf(ctx, tx, o.Run, k)
		if err != nil {
			return err
		}
		return putLog(ctx, tx, o.Run, k, have+text)
	})
}

func logOf(ctx context.Context, tx *sqlx.Tx, run string, k action.Key) (string, error) {
	var have string
	err := get(ctx, tx, &have, "SELECT text FROM log WHERE run = ? AND epoch = ? AND action = ? AND attempt = ?", run, k.Epoch, k.Action, k.Attempt)
	if errors.Is(err, inventory.ErrNotFound) {
		err = nil
	}
	return have, err
}

func putLog(ctx context.Context, tx *sqlx.Tx, run string, k action.Key, text string) error {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", "")
	if over := len(text) - maxLog; over > 0 {
		for over < len(text) && !utf8.RuneStart(text[over]) {
			over++
		}
		text = text[over:]
	}
	_, err := exec(ctx, tx, "INSERT OR REPLACE INTO log (run, epoch, action, attempt, text) VALUES (?,?,?,?,?)", run, k.Epoch, k.Action, k.Attempt, text)
	return err
}

// mergeLog adds the tail that a result carries, less what heartbeats have
// brought already.
func mergeLog(ctx context.Context, tx *sqlx.Tx, run string, k action.Key, tail string) error {
	if tail == "" {
		return nil
	}
	have, err := logOf(ctx, tx, run, k)
	if err != nil {
		return err
	}
	return putLog(ctx, tx, run, k, have+tail[overlap(have, tail):])
}

// overlap returns how many bytes of tail's beginning end have; all of them if
// have holds tail anywhere.
func overlap(have, tail string) int {
	if strings.Contains(have, tail) {
		return len(tail)
	}
	for from := 0; ; from++ {
		// The overlap begins with the tail's first byte.
		i := strings.IndexByte(have[from:], tail[0])
		if i < 0 {
			return 0
		}
		from += i
		if rest := have[from:]; strings.HasPrefix(tail, rest) {
			return len(rest)
		}
	}
}

// Log returns the log of an attempt at an action of a run, attempt 0 being the
// newest; inventory.ErrNotFound when there is none.
func (s *Store) Log(ctx context.Context, run string, actionIndex, attempt int) (string, error) {
	var text string
	err := get(ctx, s.ro, &text, "SELECT text FROM log WHERE run = ?1 AND action = ?2 AND (?3 = 0 OR attempt = ?3) ORDER BY epoch DESC, attempt DESC LIMIT 1",
		run, actionIndex, attempt)
	if err != nil {
		return "", fmt.Errorf("reading the log of action %d of run %q: %w", actionIndex, run, err)
	}
	return text, nil
}
