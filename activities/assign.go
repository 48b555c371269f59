package activities

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

// AssignRequest asks for an attempt at an action to be handed to the agent.
type AssignRequest struct {
	Owner inventory.Owner `json:"owner"`
	Boot  int             `json:"boot"`
	Key   action.Key      `json:"key"`
	Disk  *action.Disk    `json:"disk,omitempty"`
	// Next: the action takes the machine to the plan's installer, whose boot is
	// allowed for so long when it reports success.
	Next time.Duration `json:"next,omitempty"`
}

// Assign writes the assignment where the agent's long poll finds it. Writing
// the same key again changes nothing: what stands wins. Secret references are
// resolved here, and not before.
func (a *Activities) Assign(ctx context.Context, q AssignRequest) error {
	plan, err := a.Assignments.Plan(ctx, q.Owner.Run)
	if errors.Is(err, inventory.ErrNotFound) {
		// A run that was reset from outside has a new id, and planned nothing
		// under it: what counts is that it does not own the machine.
		if err := a.fence(ctx, q.Owner); err != nil {
			return err
		}
	}

	if err != nil {
		return fmt.Errorf("plan of run %q: %w", q.Owner.Run, err)
	}

	if q.Key.Action < 0 || q.Key.Action >= len(plan.Actions) {
		return fmt.Errorf("action %d of a plan of %d: %w", q.Key.Action, len(plan.Actions), inventory.ErrInvalid)
	}

	m, err := a.Machines.Machine(ctx, q.Owner.Machine)
	if err != nil {
		return err
	}

	if q.Disk != nil && m.Protects(*q.Disk) { // since it was bound
		return fmt.Errorf("disk %s (serial %q, wwn %q) is protected: no run writes to it: %w", q.Disk.Path, q.Disk.Serial,
			q.Disk.WWN, inventory.ErrInvalid)
	}

	writes := slices.ContainsFunc(plan.Actions[:q.Key.Action+1], func(x action.Action) bool {
		native, _ := action.Native(x.Image)
		return action.Writes(native, x.Environment)
	})

	if writes { // the seed of this boot says so before the inventory does
		m.Installation = &inventory.Installation{Owner: q.Owner, Boot: q.Boot}
	}

	x, err := a.secrets(ctx, q.Owner, m, plan.Actions[q.Key.Action])
	if err != nil {
		return err
	}

	x = a.fromHere(x, plan.ImagesURL)
	native, _ := action.Native(x.Image)
	if q.Disk != nil && native == action.Image2Disk {
		// From the first assignment on the disk may hold what this run wrote.
		if err := a.Machines.DiskWritten(ctx, q.Owner, *q.Disk); err != nil {
			return err
		}
	}

	payload := action.Assignment{
		Key: q.Key, Run: q.Owner.Run, Action: x, Disk: q.Disk, DiskAlias: plan.DiskAlias,
		Protected: m.ProtectedDisks, Leaving: action.Leaves(native),
	}
	if payload.Signed, err = a.sign(q, plan, payload); err != nil {
		return err
	}

	row := inventory.Assignment{
		Owner: q.Owner, Boot: q.Boot, Key: q.Key, State: action.Pending, Payload: payload,
		Writes: writes,
	}
	if q.Next > 0 {
		row.NextUntil = a.Now().Add(q.Next)
	}
	return a.Assignments.Assign(ctx, row)
}

// fromHere has an action fetch its images where they lie now: then they lay at
// an address that the site may have left. Plans of servers that did not pin addresses get the file of
// their digest.
func (a *Activities) fromHere(x action.Action, then string) action.Action {
	if a.Site.ImageURL == nil || then == "" {
		return x
	}

	name, ours := strings.CutPrefix(x.Environment["IMG_URL"], then+"/")
	if ours && !strings.Contains(name, "/") && inventory.IsDigest(x.Environment["IMG_SHA256"]) {
		pinned := inventory.Image{Name: name, SHA256: x.Environment["IMG_SHA256"]}
		x.Environment = maps.Clone(x.Environment)
		x.Environment["IMG_URL"] = then + "/" + pinned.PinnedPath()
	}

	now := a.Site.ImageURL()
	if now == then {
		return x
	}
	return rewrite(x, func(s string) string { return inventory.Rebase(s, then, now) })
}

// sign makes the order that the agent checks before it carries payload out. A
// plan whose actions are not those of its digest is not signed.
func (a *Activities) sign(q AssignRequest, plan inventory.Plan, payload action.Assignment) (*action.Signed, error) {
	if a.Site.PlanKey == nil {
		return nil, nil
	}
	switch d, err := digestOf(plan); {
	case err != nil:
		return nil, err
	case d != plan.Digest:
		return nil, fmt.Errorf("plan of run %q: its actions have the digest %s, not %s: %w", q.Owner.Run, d, plan.Digest,
			inventory.ErrInvalid)
	}
	return action.Sign(a.Site.PlanKey, action.Order{
		Machine: q.Owner.Machine, Boot: q.Boot, Plan: plan.Digest,
		Assignment: payload,
	})
}

// StopRequest names the attempt that the agent shall end.
type StopRequest struct {
	Owner inventory.Owner `json:"owner"`
	Key   action.Key      `json:"key"`
}

// Stop orders the agent to end an attempt; the order travels in the answer to
// its next heartbeat.
func (a *Activities) Stop(ctx context.Context, q StopRequest) error {
	return a.Assignments.StopAssignment(ctx, q.Owner, q.Key, a.Now())
}

// AgentFacts returns what the agent of the run found on the machine.
func (a *Activities) AgentFacts(ctx context.Context, o inventory.Owner) (action.Facts, error) {
	agent, err := a.Agents.Agent(ctx, o)
	if err != nil {
		return action.Facts{}, fmt.Errorf("agent of %q: %w", o.Machine, err)
	}
	return agent.Facts, nil
}

// Heartbeat is how often an agent calls, and Backoff the longest pause between
// its attempts to reach a server that does not answer.
const (
	Heartbeat = 5 * time.Second
	Backoff   = 5 * time.Second
	// quiet is how long a silent agent has not been heard, by a process that
	// has listened for as long: a back-off, a heartbeat, and what goes wrong.
	quiet = 30 * time.Second
)

// Kinds of Evidence.
const (
	Report = "report" // the report is there
	Alive  = "alive"  // no report; the agent lives
	Silent = "silent" // no report, and nothing heard of the agent
)

// EvidenceRequest asks what is known of an attempt, or, with an empty key, of
// the agent.
type EvidenceRequest struct {
	Owner inventory.Owner `json:"owner"`
	Key   action.Key      `json:"key"`
	// Wait is the wait that ended.
	Wait Wait `json:"wait,omitzero"`
}

// A Wait is a wait whose time is up by Temporal's clock, which is the wall's.
type Wait struct {
	Began time.Time     `json:"began"`
	For   time.Duration `json:"for"`
	// Served: what is awaited needs this server, and only counts while it was up.
	Served bool `json:"served,omitempty"`
}

// EvidenceFound answers it.
type EvidenceFound struct {
	Kind     string       `json:"kind"`
	State    action.State `json:"state,omitempty"` // of the report
	ExitCode int          `json:"exitCode,omitempty"`
	Message  string       `json:"message,omitempty"`
	Boot     int          `json:"boot,omitempty"` // of the newest agent
	// Left is what of the wait has not really been waited, because the clock
	// was set or this server was away.
	Left time.Duration `json:"left,omitempty"`
}

// Evidence is asked when a deadline has passed, because a deadline never acts
// alone: timers fire all at once after an outage or when the clock was set,
// while the reports that would have satisfied them are still on their way. It
// does not answer Silent before this server has heard agents for long enough,
// and nothing but a report before every event has been passed on; it waits
// until it can tell.
//
// Silence is judged by the monotonic clock: what the database knows of an
// agent was heard before this process began, and proves nothing.
func (a *Activities) Evidence(ctx context.Context, q EvidenceRequest) (EvidenceFound, error) {
	defer heartbeat(ctx)()
	// What the question itself takes does not count as waiting.
	left := a.left(q.Wait)
	for {
		found, sure, err := a.evidence(ctx, q)
		found.Left = left
		if err != nil || sure {
			return found, err
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return EvidenceFound{}, ctx.Err()
		}
	}
}

// left is what has not been waited of w.
func (a *Activities) left(w Wait) time.Duration {
	if w.For <= 0 {
		return 0
	}
	left := a.Clock.Left(w.Began, w.For)
	if w.Served {
		left = max(left, w.For-a.Clock.Up())
	}
	return left
}

func (a *Activities) evidence(ctx context.Context, q EvidenceRequest) (found EvidenceFound, sure bool, err error) {
	if err := a.fence(ctx, q.Owner); err != nil {
		return found, false, err
	}

	if q.Key.Attempt > 0 {
		r, err := a.Assignments.Result(ctx, q.Owner.Run, q.Key)
		if err == nil {
			return EvidenceFound{Kind: Report, State: r.State, ExitCode: r.ExitCode, Message: clip(r.Message)}, true, nil
		}
		if !errors.Is(err, inventory.ErrNotFound) {
			return found, false, err
		}
	}

	agent, err := a.Agents.Agent(ctx, q.Owner)
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		return found, false, err
	}

	found.Boot, found.Kind = agent.Boot, Silent
	if err == nil && !agent.Revoked {
		if ago, ok := a.Heard(q.Owner, agent.Boot); ok && ago < quiet {
			found.Kind = Alive
		}
	}

	pending, err := a.Assignments.PendingSignals(ctx, q.Owner)
	if err != nil {
		return found, false, err
	}
	return found, pending == 0 && (found.Kind == Alive || a.Clock.Up() >= quiet), nil
}

// clip bounds what of an agent's text enters a history.
func clip(s string) string {
	const limit = 2 << 10
	if len(s) > limit {
		return s[:limit] + "…"
	}
	return s
}

// secrets resolves the secret references of x for the owner's run.
func (a *Activities) secrets(ctx context.Context, o inventory.Owner, m inventory.Machine, x action.Action) (action.Action, error) {
	s := seeds{a: a, o: o, m: m}
	if native, _ := action.Native(x.Image); native == action.ConfigDrive {
		var err error
		if x, err = s.configDrive(ctx, x); err != nil {
			return x, err
		}
	}
	return template.Resolve(x, func(ref string) (string, error) { return s.resolve(ctx, ref) })
}
