package workflows_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
	"github.com/ingotmetal/ingot/lab/fakesite"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

const (
	machine = "um760"
	mac     = "52:54:00:00:00:01"
)

// world is one machine with its BMC, its agent and a real inventory. The agent acts in delayed
// callbacks of the test environment, whose clock skips.
type world struct {
	fakesite.Inventory               // with what this test replaces
	Store              *sqlite.Store // without
	t                  *testing.T
	suite              testsuite.WorkflowTestSuite
	env                *workflows.Environment
	tape               *workflows.Tape // nil unless the run has its own id; see runID
	// replayed is the grant that was taken according to the history of a run that was reset.
	replayed *inventory.Grant
	keys     *keyring.Ring

	// down means that Temporal does not answer or that its timers are early: events are stored in
	// the database, and reach the run only when Evidence asks for waiting events.
	down    bool
	onWire  func(kind string) // called before a packet is recorded
	waiters []func()
	drained bool // a waiting event was delivered
	looked  bool
	// holdFrom is the kind of event that is delayed by held, with all events after it.
	holdFrom string
	// stray reports whether the machine boots from its disk instead of the network.
	stray func(g inventory.Grant) bool
	// installs is the behavior of a machine that boots an installer.
	installs func(g inventory.Grant)
	held     time.Duration

	messages   []string      // messages of the record, in order
	bootDelay  time.Duration // from power-on to the first packet; 0 means a minute
	noPXEUntil int           // up to this boot, the firmware sends no request
	full       func() error  // called before the record is written
	fast       func()        // called after a reset of the machine, before the next boot can be allowed
	atFence    func()        // called before the grant is checked for each write to the BMC

	clock    *clock.Clock
	begun    time.Time
	started  time.Duration         // when the server started
	hops     []hop                 // steps of the wall clock
	received map[int]time.Duration // by boot

	mu       sync.Mutex
	on       bool
	resets   int   // of the BMC
	warm     int   // resets of the machine
	noReset  error // of the machine
	noMC     error // of the BMC
	boot     []inventory.BootDevice
	media    []string // URLs that were inserted
	offs     int
	cycles   int
	signals  int
	calls    int
	failAt   int  // the call that takes effect and then fails permanently; 0: none
	failing  bool // failAt was reached
	bmcDown  error
	noPXE    error  // error of setting the boot device
	waiting  func() // called when Evidence asks for waiting events
	parent   func() // called before a run reads its operation; nil unless it waits for other machines
	do       *activities.Activities
	noAgent  func(boot int) bool
	agentFor func(a inventory.Assignment) *action.Result // nil: never reports
	noHome   bool
	disks    []action.Disk
	asked    []inventory.Question
	answer   func(q inventory.Question) *contract.Decision
	assigned []action.Key
	last     inventory.Workflow
	decided  bool // the question of last is answered
}

func newWorld(t *testing.T, edit func(m *inventory.Machine)) *world {
	t.Helper()
	keys := keyring.New()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "ingot.db"), keys)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	m := inventory.Machine{
		Name: machine, Image: "debian-12",
		Interfaces: []inventory.Interface{{MAC: mac, Address: netip.MustParseAddr("10.0.0.9"), Netmask: "255.255.255.0"}},
		BMC:        &inventory.BMC{Driver: inventory.DriverIPMI, Host: "10.0.1.9", User: "admin", Password: inventory.NewSecret("s3cret")},
	}
	if edit != nil {
		edit(&m)
	}
	require.NoError(t, store.Machines.PutMachines(t.Context(), []inventory.Machine{m}, false, "test"))
	require.NoError(t, store.Images.PutImage(t.Context(), inventory.Image{
		Name: "debian-12", File: "debian-12", Size: 1, SHA256: fmt.Sprintf("%064d", 7), Format: "raw",
	}, "test"))

	w := &world{
		Inventory: fakesite.InventoryOf(store), Store: store, t: t, keys: keys, noAgent: func(int) bool { return false },
		disks:    []action.Disk{{Path: "/dev/vda", Serial: "D1", Size: 1 << 30, Blank: true}},
		agentFor: func(a inventory.Assignment) *action.Result { return &action.Result{Key: a.Key, State: action.Success} },
		answer:   func(inventory.Question) *contract.Decision { return nil },
	}
	w.received, w.bootDelay = map[int]time.Duration{}, time.Minute
	w.suite.SetLogger(slog.New(slog.DiscardHandler))
	w.env = workflows.NewEnvironment(&w.suite)
	w.env.SetStartTime(time.Now())
	require.NoError(t, w.env.SetTypedSearchAttributesOnStart(temporal.NewSearchAttributes()))
	w.do = activities.New(activities.Config{
		Store: fakesite.ActivityStore(w),
		BMC:   w,
		Site: activities.Site{
			ClaimKey:    keys.Key(keyring.Claim),
			ImageURL:    func() string { return "http://10.0.0.1/images" },
			MetadataURL: "http://10.0.0.1:7172",
			MediaURL:    func() (string, error) { return "http://10.0.0.1/media/ipxe.iso", nil },
		},
		Log:    slog.New(slog.DiscardHandler),
		Clocks: activities.Clocks{Now: w.env.Now, Silence: w.hears},
	})
	w.begun = w.env.Now()
	w.clock = clock.Of(w.env.Now, w.elapsed)
	w.started = -time.Hour
	w.do.Clock = up{w.clock, w}
	w.env.RegisterActivity(w.do)
	return w
}

// up is the clock of a server that was started an hour before the test, unless it was restarted.
type up struct {
	*clock.Clock
	w *world
}

func (u up) Up() time.Duration { return u.w.elapsed() - u.w.started }

func (u up) Listened(d time.Duration) time.Duration { return min(d, u.Up()) }

// hop is a step of the wall clock: time that passes only on the wall clock, and therefore in the
// test environment.
type hop struct {
	at time.Time
	by time.Duration
}

// jump sets the wall clock forward: Temporal's timers then fire too early by that time.
func (w *world) jump(by time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hops = append(w.hops, hop{w.env.Now(), by})
}

// elapsed is a monotonic clock.
func (w *world) elapsed() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.env.Now()
	e := now.Sub(w.begun)
	for _, h := range w.hops {
		e -= min(max(now.Sub(h.at), 0), h.by)
	}
	return e
}

// hears returns how long ago the agent of a boot was received.
func (w *world) hears(_ inventory.Owner, boot int) (time.Duration, bool) {
	now := w.elapsed()
	w.mu.Lock()
	defer w.mu.Unlock()
	at, ok := w.received[boot]
	return now - at, ok
}

func (w *world) hear(boot int) {
	now := w.elapsed()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.received[boot] = now
}

// run runs Provision with its proper id.
func (w *world) run(in contract.ProvisionInput) error {
	w.env.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: workflows.MachineID(machine), TaskQueue: workflows.TaskQueue})
	w.env.ExecuteWorkflow(workflows.Provision, in)
	require.True(w.t, w.env.IsWorkflowCompleted())
	return w.env.GetWorkflowError()
}

// effect is called after a call has taken effect, which is the worst time for the call to fail.
func (w *world) effect(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	if err == nil && w.failAt > 0 && w.calls == w.failAt {
		w.failing = true
		return temporal.NewNonRetryableApplicationError("broken here", "test", nil)
	}
	return err
}

func (w *world) after(d time.Duration, f func()) { w.env.RegisterDelayedCallback(f, d) }

func (w *world) signal(kind string, epoch int64, boot int, k *action.Key) {
	w.signals++
	w.send(func() {
		w.tell(workflows.SignalEvent, workflows.Event{Kind: kind, Epoch: epoch, Boot: boot, Key: k})
	})
}

// tell sends a signal to the run.
func (w *world) tell(name string, payload any) {
	if w.tape != nil {
		w.tape.Tell(name, payload)
	}
	w.env.SignalWorkflow(name, payload)
}

// send acts as the pump.
func (w *world) send(signal func()) {
	w.mu.Lock()
	down := w.down
	if down {
		w.waiters = append(w.waiters, signal)
	}
	w.mu.Unlock()
	if !down {
		signal()
	}
}

// boots simulates the machine after power-on: its firmware, its loader and its agent.
func (w *world) boots() {
	g, err := w.Store.Grants.Grant(w.t.Context(), machine)
	require.NoError(w.t, err)
	if !g.NetbootOpen(w.env.Now()) || g.Boot <= w.noPXEUntil {
		return
	}
	if w.stray != nil && w.stray(g) {
		return
	}
	if g.Installer {
		w.installs(g)
		return
	}
	delay := time.Duration(0)
	for _, k := range []string{inventory.EventDHCP, inventory.EventScript, inventory.EventKernel, inventory.EventHello} {
		if k == w.holdFrom {
			delay, w.holdFrom = w.held, ""
		}
		if w.onWire != nil {
			w.onWire(k)
		}
		if k == inventory.EventHello && w.noAgent(g.Boot) {
			return
		}
		see := func() {
			if k == inventory.EventHello {
				w.says()
			} else {
				w.signal(k, g.Epoch, g.Boot, nil)
			}
		}
		if delay > 0 {
			w.after(delay, see)
		} else {
			see()
		}
	}
}

// says records the agent's hello for the current boot and signals the run.
func (w *world) says() {
	g := w.claims()
	w.signal(inventory.EventHello, g.Epoch, g.Boot, nil)
}

// claims redeems the claim of the current boot.
func (w *world) claims() inventory.Grant {
	ctx := context.Background()
	g, err := w.Store.Grants.Grant(ctx, machine)
	require.NoError(w.t, err)
	h := action.Hello{Machine: machine, Nonce: fmt.Sprintf("nonce-%d-%d", g.Epoch, g.Boot), MAC: mac, Facts: action.Facts{Disks: w.disks}}
	_, err = w.Store.Agents.Redeem(
		ctx,
		inventory.Redemption{
			Owner:        g.Owner,
			Boot:         g.Boot,
			Hello:        h,
			TokenFor:     func(n string) string { return "token-" + n },
			SecretsUntil: w.env.Now().Add(time.Hour),
		},
	)
	require.NoError(w.t, err)
	w.hear(g.Boot)
	return g
}

func (w *world) Assign(ctx context.Context, a inventory.Assignment) error {
	if err := w.Store.Assignments.Assign(ctx, a); err != nil {
		return err
	}
	w.mu.Lock()
	w.assigned = append(w.assigned, a.Key)
	w.mu.Unlock()
	r := w.agentFor(a)
	if r != nil {
		w.after(time.Second, func() { w.reports(a, *r) })
	}
	return w.effect(nil)
}

func (w *world) reports(a inventory.Assignment, r action.Result) {
	r.ID = "r-" + a.Key.String()
	if _, err := w.Store.Assignments.Report(w.t.Context(), a.Owner, a.Boot, r); err != nil {
		require.ErrorIs(w.t, err, inventory.ErrFenced)
		return
	}
	w.send(func() {
		w.tell(workflows.SignalActionCompleted, workflows.ActionCompleted{Key: r.Key, State: r.State, Message: r.Message})
	})
	if a.Payload.Leaving && r.State == action.Success && !w.noHome {
		w.after(time.Minute, func() { w.signal(inventory.EventPhoneHome, a.Epoch, a.Boot, nil) })
	}
}

func (w *world) PutWorkflow(ctx context.Context, rec inventory.Workflow) error {
	if w.full != nil {
		if err := w.full(); err != nil {
			return err
		}
	}
	// A message that tells of packets may be written while the agent that sent them says hello.
	asksForPower := strings.HasPrefix(rec.Message, "power the machine on now") && !strings.Contains(rec.Message, "seen so far")
	if asksForPower && rec.Message != w.record().Message {
		g, err := w.Store.Grants.Grant(ctx, rec.Machine)
		require.NoError(w.t, err)
		require.True(w.t, g.NetbootOpen(w.env.Now()), "a machine that is switched on at %q would boot its disk", rec.Message)
	}
	w.mu.Lock()
	lossy := w.decided && rec.Question == nil && activity.GetInfo(ctx).IsLocalActivity
	w.decided = w.decided && rec.Question != nil
	w.last = rec
	w.messages = append(w.messages, rec.Phase+": "+rec.Message)
	w.mu.Unlock()
	require.False(w.t, lossy, "a decision is lost with the task that took it; the record of it is not: %s", rec.Message)
	if q := rec.Question; q != nil && (len(w.asked) == 0 || w.asked[len(w.asked)-1].ID != q.ID) {
		w.asked = append(w.asked, *q)
		d := w.answer(*q)
		if d == nil { // no one is at the machine for a long time
			d = &contract.Decision{Choice: q.Choices[len(q.Choices)-1]}
		}
		d.Question = q.ID
		w.after(time.Hour, func() {
			w.mu.Lock()
			now := w.last.Question
			w.decided = now != nil && now.ID == d.Question
			w.mu.Unlock()
			w.tell(workflows.SignalDecide, *d)
		})
	}
	return w.effect(w.Store.Workflows.PutWorkflow(ctx, rec))
}

func (w *world) TakeGrant(ctx context.Context, m, run, id string, force bool) (inventory.Grant, error) {
	if w.replayed != nil {
		return *w.replayed, nil
	}
	g, err := w.Store.Grants.TakeGrant(ctx, m, run, id, force)
	return g, w.effect(err)
}

func (w *world) AllowBoot(ctx context.Context, o inventory.Owner, boot int, until time.Time) (inventory.Grant, error) {
	g, err := w.Store.Grants.AllowBoot(ctx, o, boot, until)
	return g, w.effect(err)
}

func (w *world) AllowInstaller(ctx context.Context, o inventory.Owner, boot int, until time.Time) (inventory.Grant, error) {
	g, err := w.Store.Grants.AllowInstaller(ctx, o, boot, until)
	return g, w.effect(err)
}

func (w *world) AllowBootAfterReset(ctx context.Context, o inventory.Owner, boot int, until time.Time, installer bool) error {
	return w.effect(w.Store.Grants.AllowBootAfterReset(ctx, o, boot, until, installer))
}

func (w *world) CloseNetboot(ctx context.Context, o inventory.Owner) error {
	return w.effect(w.Store.Grants.CloseNetboot(ctx, o))
}

func (w *world) OpenSecrets(ctx context.Context, o inventory.Owner, until time.Time) error {
	return w.effect(w.Store.Grants.OpenSecrets(ctx, o, until))
}

func (w *world) CloseSecrets(ctx context.Context, o inventory.Owner) error {
	return w.effect(w.Store.Grants.CloseSecrets(ctx, o))
}

func (w *world) EndGrant(ctx context.Context, o inventory.Owner) error {
	// If Temporal refuses a task, its local activities run again; the effects before this one would
	// then be fenced.
	if activity.IsActivity(ctx) && activity.GetInfo(ctx).IsLocalActivity {
		w.t.Error("the grant is given back by a local activity")
	}
	return w.effect(w.Store.Grants.EndGrant(ctx, o))
}

func (w *world) PutPlan(ctx context.Context, p inventory.Plan) error {
	return w.effect(w.Store.Plans.PutPlan(ctx, p))
}

func (w *world) State(context.Context, inventory.BMC, inventory.Secret) (string, error) {
	if w.on {
		return "on", nil
	}
	return "off", nil
}

func (w *world) Set(ctx context.Context, _ inventory.BMC, password inventory.Secret, power string, fence activities.Fence) error {
	if password.Reveal() != "s3cret" {
		return inventory.ErrRefused
	}
	if w.atFence != nil {
		w.atFence()
	}
	if err := errors.Join(fence(ctx), w.bmcDown); err != nil {
		return err
	}
	switch power {
	case "on", "cycle":
		w.on = true
		w.cycles++
		w.after(w.bootDelay, w.boots)
	case "reset":
		if w.noReset != nil {
			return w.noReset
		}
		w.warm++
		if w.fast != nil {
			w.fast()
		}
		w.after(w.bootDelay, w.boots)
	default:
		w.offs++
		w.on = false
	}
	return w.effect(nil)
}

func (w *world) ResetBMC(ctx context.Context, _ inventory.BMC, _ inventory.Secret, fence activities.Fence) error {
	if err := errors.Join(fence(ctx), w.noMC); err != nil {
		return err
	}
	w.resets++
	return nil
}

func (w *world) SetMedia(ctx context.Context, _ inventory.BMC, _ inventory.Secret, url string, fence activities.Fence) error {
	if err := fence(ctx); err != nil {
		return err
	}
	w.media = append(w.media, url)
	return nil
}

func (w *world) SetBootDevice(
	ctx context.Context,
	_ inventory.BMC,
	_ inventory.Secret,
	d inventory.BootDevice,
	fence activities.Fence,
) (string, error) {
	if err := errors.Join(fence(ctx), w.noPXE); err != nil {
		return "", err
	}
	w.boot = append(w.boot, d)
	return "", w.effect(nil)
}

// closed checks the state that is required after every run, however it ended.
func (w *world) closed() {
	w.t.Helper()
	g, err := w.Store.Grants.Grant(context.Background(), machine)
	require.NoError(w.t, err)
	require.Empty(w.t, g.Run, "the run has ended and still owns the machine")
	require.False(w.t, g.NetbootOpen(w.env.Now()), "network boot is still allowed")
	require.False(w.t, g.SecretsOpen(w.env.Now()), "secrets are still served")
}

func (w *world) record() inventory.Workflow {
	w.t.Helper()
	ws, err := w.Store.Workflows.Workflows(context.Background(), inventory.WorkflowFilter{Machine: machine})
	require.NoError(w.t, err)
	require.NotEmpty(w.t, ws)
	return ws[0]
}

func (w *world) Operations(ctx context.Context, f inventory.OperationFilter) ([]inventory.Operation, error) {
	if w.parent != nil {
		w.parent()
	}
	return w.Store.Operations.Operations(ctx, f)
}

// PendingSignals counts the waiting events; the pump sends them before the second call.
func (w *world) PendingSignals(context.Context, inventory.Owner) (int, error) {
	if w.waiting != nil {
		w.waiting()
	}
	w.mu.Lock()
	now := w.waiters
	if len(now) > 0 && !w.looked {
		w.looked = true
		w.mu.Unlock()
		return len(now), nil
	}
	w.waiters, w.looked = nil, false
	if len(now) > 0 {
		w.down, w.drained = false, true // Temporal answers again
	}
	w.mu.Unlock()
	for _, signal := range now {
		signal()
	}
	return 0, nil
}
