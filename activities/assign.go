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
	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

// assignments holds the activities that give actions to agents, and those that find out what an agent has done.
type assignments struct{ *shared }

// AssignRequest asks to assign an attempt of an action to the agent.
type AssignRequest struct {
	Owner inventory.Owner `json:"owner"`
	Boot  int             `json:"boot"`
	Key   action.Key      `json:"key"`
	Disk  *action.Disk    `json:"disk,omitempty"`
	// Next is not zero if the machine is to boot the plan's installer after the action. When the action reports
	// success, the boot of the installer is allowed for the time Next.
	Next time.Duration `json:"next,omitempty"`
}

// Assign stores the assignment that the agent's long poll reads. If an assignment with the same key is stored
// already, that one is kept. Only Assign replaces references to secrets by their values.
func (a *assignments) Assign(ctx context.Context, q AssignRequest) error {
	plan, err := a.Plans.Plan(ctx, q.Owner.Run)
	if errors.Is(err, inventory.ErrNotFound) {
		// A run that was reset has a new id, for which no plan is stored. If the run does not own the machine,
		// report this cause instead of the missing plan.
		if err := a.fence(ctx, q.Owner); err != nil {
			return err
		}
	}

	if err != nil {
		return fmt.Errorf("reading the plan of run %q: %w", q.Owner.Run, err)
	}

	if q.Key.Action < 0 || q.Key.Action >= len(plan.Actions) {
		return fmt.Errorf("assigning action %d: the plan has only %d actions: %w", q.Key.Action, len(plan.Actions), inventory.ErrInvalid)
	}

	m, err := a.Machines.Machine(ctx, q.Owner.Machine)
	if err != nil {
		return err
	}

	if q.Disk != nil && m.Protects(*q.Disk) { // the disk was protected after it was bound
		return fmt.Errorf("disk %s (serial %q, wwn %q) is protected, so no run may write to it: %w", q.Disk.Path, q.Disk.Serial,
			q.Disk.WWN, inventory.ErrInvalid)
	}

	writes := slices.ContainsFunc(plan.Actions[:q.Key.Action+1], action.Action.WritesDisk)

	if writes { // the cloud-init seed names this installation, which is not in the inventory yet
		m.Installation = &inventory.Installation{Owner: q.Owner, Boot: q.Boot}
	}

	x, err := a.secrets(ctx, q.Owner, m, plan.Actions[q.Key.Action])
	if err != nil {
		return err
	}

	x = a.fromHere(x, plan.ImagesURL)
	if err := a.Site.mayUpload(x); err != nil {
		return err
	}
	native, _ := x.Native()
	if x, err = a.withRuntime(x, plan.DiskAlias); err != nil {
		return err
	}
	alias := plan.DiskAlias
	if x.Second != nil && q.Disk != nil {
		if q.Disk, err = a.findSecondDisk(ctx, q.Owner, m, *x.Second, *q.Disk); err != nil {
			return err
		}
		alias = x.Second.Device
	}
	if q.Disk != nil && x.WritesWhole(alias) {
		// From the first assignment on, the disk may hold data of this run.
		if err := a.Disks.DiskWritten(ctx, q.Owner, *q.Disk); err != nil {
			return err
		}
	}

	payload := action.Assignment{
		Key: q.Key, Run: q.Owner.Run, Action: x, Disk: q.Disk, DiskAlias: alias,
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

// withRuntime adds to a container the digest of the container runtime, which is the same for the agents of this server.
func (a *assignments) withRuntime(x action.Action, disk string) (action.Action, error) {
	if x.Container == nil {
		return x, nil
	}
	if err := x.CheckContainer(disk); err != nil {
		return x, fmt.Errorf("assigning container %s: %w: %w", x.Image, err, inventory.ErrInvalid)
	}
	if x.Container.Privileged && !slices.Contains(a.Site.PrivilegedContainers, x.Container.Digest) {
		return x, fmt.Errorf("assigning container %s: images.privileged_containers no longer lists its digest %s: %w", x.Image,
			x.Container.Digest, inventory.ErrInvalid)
	}
	sum, err := a.Site.containerRuntime()
	if err != nil {
		return x, fmt.Errorf("assigning container %s: %w", x.Image, err)
	}
	c := *x.Container
	c.Runtime, x.Container = sum, &c
	return x, nil
}

// findSecondDisk returns the disk that an action uses in place of the bound disk. The signed order names it in the place of the bound disk,
// so the agent identifies it in the same way.
func (a *assignments) findSecondDisk(
	ctx context.Context, o inventory.Owner, m inventory.Machine, x action.SecondDisk, bound action.Disk,
) (*action.Disk, error) {
	f, err := a.AgentFacts(ctx, o)
	if err != nil {
		return nil, err
	}
	d, reason := findSecondDisk(m, x, bound, f)
	if d == nil {
		return nil, fmt.Errorf("finding %s: %w", reason, inventory.ErrInvalid)
	}
	return d, nil
}

// fromHere adapts the URLs of images in the action to this server. then is the base URL that was valid when the
// plan was made. fromHere replaces it by the present one, because another server may have become the active one
// since. Plans of older servers have URLs without a digest; fromHere adds the digest to them.
func (a *assignments) fromHere(x action.Action, then string) action.Action {
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
	return x.Rewrite(func(s string) string { return inventory.Rebase(s, then, now) })
}

// sign returns the signed order that the agent verifies before it executes payload. If this server has no key, sign
// returns nil. If the plan's actions do not match the plan's digest, sign returns an error.
func (a *assignments) sign(q AssignRequest, plan inventory.Plan, payload action.Assignment) (*action.Signed, error) {
	if a.Site.PlanKey == nil {
		return nil, nil
	}
	switch d, err := digestPlan(plan); {
	case err != nil:
		return nil, err
	case d != plan.Digest:
		return nil, fmt.Errorf("checking the plan of run %q: the digest of its actions is %s, but must be %s: %w", q.Owner.Run, d, plan.Digest,
			inventory.ErrInvalid)
	}
	return action.Sign(a.Site.PlanKey, action.Order{
		Machine: q.Owner.Machine, Boot: q.Boot, Plan: plan.Digest,
		Assignment: payload,
	})
}

// StopRequest names the attempt that the agent must stop.
type StopRequest struct {
	Owner inventory.Owner `json:"owner"`
	Key   action.Key      `json:"key"`
}

// Stop orders the agent to stop an attempt. The agent gets the order in the answer to its
// next heartbeat.
func (a *assignments) Stop(ctx context.Context, q StopRequest) error {
	return a.Assignments.StopAssignment(ctx, q.Owner, q.Key, a.Now())
}

// AgentFacts returns what the agent of run o found on the machine.
func (a *assignments) AgentFacts(ctx context.Context, o inventory.Owner) (action.Facts, error) {
	agent, err := a.Agents.Agent(ctx, o)
	if err != nil {
		return action.Facts{}, fmt.Errorf("reading the agent of machine %q: %w", o.Machine, err)
	}
	return agent.Facts, nil
}

// Heartbeat is how often an agent contacts the server. Backoff is an agent's longest pause between two attempts to
// reach a server that does not answer.
const (
	Heartbeat = 5 * time.Second
	Backoff   = 5 * time.Second
	// quiet is how long an agent must be silent until it counts as Silent: a back-off, a heartbeat and a margin.
	// The server must also have listened for this long.
	quiet = 30 * time.Second
)

// Values of EvidenceFound.Kind.
const (
	Report = "report" // the report is stored
	Alive  = "alive"  // no report is stored, but the agent is alive
	Silent = "silent" // no report is stored, and the agent is silent
)

// maxAgentText limits a text from an agent or a BMC that enters the workflow history, in bytes.
const maxAgentText = 2 << 10

// EvidenceRequest asks what is known of an attempt and its agent. With a zero key, it asks about the agent only.
type EvidenceRequest struct {
	Owner inventory.Owner `json:"owner"`
	Key   action.Key      `json:"key"`
	// Wait is the wait of the workflow that asks. By the wall clock, its time is up.
	Wait Wait `json:"wait,omitzero"`
}

// A Wait describes a wait of a workflow. Its time is up by the wall clock, which Temporal uses.
type Wait struct {
	Began time.Time     `json:"began"`
	For   time.Duration `json:"for"`
	// Served: the workflow waits for something that needs this server, so only time in which the server was up
	// counts.
	Served bool `json:"served,omitempty"`
}

// EvidenceFound is the result of Evidence.
type EvidenceFound struct {
	Kind     string       `json:"kind"`
	State    action.State `json:"state,omitempty"` // final state in the report
	ExitCode int          `json:"exitCode,omitempty"`
	Message  string       `json:"message,omitempty"`
	Boot     int          `json:"boot,omitempty"` // boot number of the newest agent
	// Left is how much of the wait is not really over, because the clock was changed or this server was down.
	Left time.Duration `json:"left,omitempty"`
}

// Evidence returns what is known of an attempt or agent, for a workflow whose deadline has passed. After an outage
// or a clock change, all timers fire at once, although the reports that the workflows wait for may still be on
// their way. So Evidence waits until it is certain. It returns a stored report at once. It returns Alive or Silent
// only after all events were sent to the workflow, and Silent only after this server has listened for long enough.
//
// Silence is measured by the monotonic clock of this process. A contact that is only in the database is older than
// the process and proves nothing.
func (a *assignments) Evidence(ctx context.Context, q EvidenceRequest) (EvidenceFound, error) {
	defer heartbeat(ctx)()
	// Measure before the loop: the time that this call takes is not part of the wait.
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

// left returns how much of the wait w is not really over.
func (a *assignments) left(w Wait) time.Duration {
	if w.For <= 0 {
		return 0
	}
	left := a.Clock.Left(w.Began, w.For)
	if w.Served {
		left = max(left, w.For-a.Clock.Listened(w.For))
	}
	return left
}

func (a *assignments) evidence(ctx context.Context, q EvidenceRequest) (found EvidenceFound, sure bool, err error) {
	if err := a.fence(ctx, q.Owner); err != nil {
		return found, false, err
	}

	if q.Key.Attempt > 0 {
		r, err := a.Assignments.Result(ctx, q.Owner.Run, q.Key)
		if err == nil {
			return EvidenceFound{Kind: Report, State: r.State, ExitCode: r.ExitCode, Message: plaintext.Clip(r.Message, maxAgentText)}, true, nil
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
		if ago, ok := a.Silence(q.Owner, agent.Boot); ok && ago < quiet {
			found.Kind = Alive
		}
	}

	pending, err := a.Events.PendingSignals(ctx, q.Owner)
	if err != nil {
		return found, false, err
	}
	return found, pending == 0 && (found.Kind == Alive || a.Clock.Up() >= quiet), nil
}

// secrets returns the action x with references to secrets replaced by the secrets' values for the owner's run.
func (a *assignments) secrets(ctx context.Context, o inventory.Owner, m inventory.Machine, x action.Action) (action.Action, error) {
	s := seeds{a: a.shared, o: o, m: m}
	if native, _ := x.Native(); native == action.ConfigDrive {
		var err error
		if x, err = s.configDrive(ctx, x); err != nil {
			return x, err
		}
	}
	return template.Resolve(x, func(ref string) (string, error) { return s.resolve(ctx, ref) })
}
