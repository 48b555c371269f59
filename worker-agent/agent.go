// Package agent runs on the machine that is being provisioned: it redeems its
// boot's claim, asks for one action after another, carries each out, and
// reports how that went, until the machine leaves or the run is over.
//
// What touches the machine stands behind the small interfaces Finder, Disks,
// Filesystems and Host, so that the same agent runs as PID 1 of the in-memory
// system (cmd/worker-agent) and, on files instead of disks, as an ordinary
// process.
package agent

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/action"
)

// Finder says what the machine is made of.
type Finder interface {
	Facts(ctx context.Context) (action.Facts, error)
}

// Disks lists and opens the machine's disks.
type Disks interface {
	Disks(ctx context.Context) ([]action.Disk, error)
	// Open opens the disk at path, one of Disks, for reading and writing and
	// for nobody else at the same time.
	Open(path string) (Device, error)
}

// Filesystems reaches what is inside a disk's partitions.
type Filesystems interface {
	// Partitions lists the partitions of the disk at path.
	Partitions(ctx context.Context, path string) ([]Partition, error)
	// Mount mounts the file system of type fstype at device and returns the
	// directory. unmount writes everything out; its error is a failed write.
	Mount(ctx context.Context, device, fstype string, readOnly bool) (dir string, unmount func() error, err error)
}

// Host is the machine as a whole.
type Host interface {
	SetClock(t time.Time) error
	// Reboot and PowerOff do not return on a real machine.
	Reboot() error
	PowerOff() error
}

// Kexecer is what a Host may also be: able to start a kernel without its
// firmware.
type Kexecer interface {
	// LoadKernel makes kernel what Kexec starts; initrd is nil for none. The
	// files need not stay open.
	LoadKernel(kernel, initrd *os.File, commandLine string) error
	// Kexec starts it, and does not return on a real machine.
	Kexec() error
}

// Config says whom the agent serves and what it may touch.
type Config struct {
	Server  string // base URL, https://192.0.2.1:7443
	Pin     string // sha256:<hex> of the server certificate's SubjectPublicKeyInfo
	Machine string // the machine's name in the inventory
	Claim   string // hex, from the boot script
	PlanKey string // ed25519:<base64url>, the key that signs orders; without it every action is refused
	MAC     string // of the interface that booted
	Rescue  bool   // a person's boot: the agent is present and carries nothing out

	Finder Finder       // nil: nothing is known of the machine
	Disks  Disks        // nil: no disks; every action that writes fails
	Files  Filesystems  // nil: none; writefile and inject fail
	EFI    EFIVariables // nil: the machine has none (BIOS)
	Host   Host         // nil: Run returns instead of rebooting
	Logger *slog.Logger // nil: silent

	// Backoff is the longest pause between two tries; 0 means 5 s.
	Backoff time.Duration
	// Linger is how long the reason of a farewell stays on the screen before
	// the machine goes.
	Linger time.Duration
}

// Agent is one boot's agent.
type Agent struct {
	cfg   Config
	log   *slog.Logger
	api   *client
	nonce string
	key   ed25519.PublicKey // of orders; nil = the boot script names none

	mu       sync.Mutex
	welcome  action.Welcome
	plan     string // digest of the run's plan, from the first order
	running  *attempt
	finished map[action.Key]action.Result
	outbox   []action.Result // not yet acknowledged, oldest first
	wrote    bool
	hold     bool
	loaded   bool // a kernel, by kexec

	delivered chan struct{} // closed and replaced when outbox gets empty
	posted    chan struct{} // has an element when outbox got a result
	beat      chan struct{} // asks for a heartbeat now
}

// New returns an agent for one boot. Its nonce is made here: two agents never
// redeem the same claim.
func New(cfg Config) (*Agent, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Backoff <= 0 {
		cfg.Backoff = 5 * time.Second
	}
	if cfg.Host == nil {
		cfg.Host = process{}
	}
	if cfg.Disks == nil {
		cfg.Disks = FileDisks{}
	}
	if cfg.Machine == "" || cfg.Claim == "" {
		return nil, errors.New("reading the configuration: machine and claim are needed")
	}
	api, err := newClient(cfg.Server, cfg.Pin)
	if err != nil {
		return nil, err
	}
	var key ed25519.PublicKey
	if cfg.PlanKey != "" {
		if key, err = action.ParsePlanKey(cfg.PlanKey); err != nil {
			return nil, err
		}
	}
	var nonce [32]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return nil, fmt.Errorf("making a nonce: %w", err)
	}
	return &Agent{
		cfg: cfg, log: cfg.Logger, api: api, nonce: hex.EncodeToString(nonce[:]), key: key,
		finished:  map[action.Key]action.Result{},
		delivered: make(chan struct{}),
		posted:    make(chan struct{}, 1),
		beat:      make(chan struct{}, 1),
	}, nil
}

// The causes that end a run of the agent, and those that end an action.
var (
	errStopped  = errors.New("stopped on the server's order")
	errTimedOut = errors.New("the action's time is up")
)

// overError says that the agent's run is over: 410, or a claim that is not
// honoured.
type overError struct{ reason string }

func (e *overError) Error() string { return "the run is over: " + e.reason }

// leaveError says that an action took the machine away and was acknowledged.
type leaveError struct{ native string }

func (e *leaveError) Error() string { return "leaving: " + e.native }

// Run serves until the run is over or an action takes the machine away; then
// it calls Host and returns nil. It returns ctx's error when ctx ends first;
// by then nothing runs any more and every descriptor is closed.
func (a *Agent) Run(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	cause := a.claim(ctx)
	if cause == nil {
		var tasks sync.WaitGroup
		for _, task := range []func(context.Context) error{a.work, a.deliver, a.heartbeats} {
			tasks.Go(func() {
				if err := task(ctx); err != nil {
					end(err)
				}
			})
		}
		stopped := make(chan struct{})
		go func() { tasks.Wait(); close(stopped) }()
		<-ctx.Done()
		cause = context.Cause(ctx)
		select {
		case <-stopped:
		case <-time.After(30 * time.Second):
			// A write that hangs in the kernel ends with the machine only.
			a.log.Error("what runs does not end")
		}
	}
	var over *overError
	var leave *leaveError
	switch {
	case errors.As(cause, &leave):
		a.log.Info("leaving", "action", leave.native)
		return a.leave(leave.native)
	case errors.As(cause, &over):
		a.mu.Lock()
		wrote := a.wrote
		a.mu.Unlock()
		a.log.Warn("the server says farewell", "reason", over.reason, "wrote", wrote)
		// The machine goes in any case: only the pause may be cut short.
		_ = sleep(context.WithoutCancel(ctx), a.cfg.Linger)
		if wrote {
			// What this boot wrote may be half of something: a person looks first.
			return a.cfg.Host.PowerOff()
		}
		return a.cfg.Host.Reboot()
	}
	return cause
}

// leave takes the machine away.
func (a *Agent) leave(native string) error {
	a.mu.Lock()
	loaded := a.loaded
	a.mu.Unlock()
	switch kexecer, ok := a.cfg.Host.(Kexecer); {
	case native == action.PowerOff:
		return a.cfg.Host.PowerOff()
	case native == action.Kexec && loaded && ok:
		err := kexecer.Kexec()
		if err == nil {
			return nil
		}
		// It was acknowledged that this machine leaves.
		a.log.Error("starting the loaded kernel: rebooting instead", "error", err)
	}
	return a.cfg.Host.Reboot()
}

// claim says hello until the server welcomes this boot.
func (a *Agent) claim(ctx context.Context) error {
	hello := action.Hello{Protocol: action.Protocol, Machine: a.cfg.Machine, Claim: a.cfg.Claim, Nonce: a.nonce, MAC: a.cfg.MAC}
	if a.cfg.Finder != nil {
		facts, err := a.cfg.Finder.Facts(ctx)
		if err != nil {
			a.log.Warn("looking at the machine", "error", err)
		}
		hello.Facts = facts
	}
	hello.Facts = fit(hello.Facts, func(f action.Facts) int { hello.Facts = f; return jsonSize(hello) }, action.MaxHello)
	if hello.Facts.Truncated != "" {
		a.log.Warn("the machine's facts are too long for a hello", "left out", hello.Facts.Truncated)
	}
	for try := (backoff{max: a.cfg.Backoff}); ; {
		var w action.Welcome
		err := a.api.claim(ctx, hello, &w)
		if err == nil && w.Protocol != action.Protocol {
			// The token stays unused, so that the claim can be redeemed again.
			err = fmt.Errorf("the server answers in protocol %d, this agent speaks %d: boot the agent OS that belongs to the server", w.Protocol, action.Protocol)
		}
		if err == nil {
			a.api.setToken(w.Token)
			a.mu.Lock()
			a.welcome = w
			a.mu.Unlock()
			if !w.Time.IsZero() {
				if err := a.cfg.Host.SetClock(w.Time); err != nil {
					a.log.Warn("setting the clock", "error", err)
				}
			}
			a.log.Info("welcome", "run", w.Run, "epoch", w.Epoch, "boot", w.Boot)
			return nil
		}
		var over *overError
		if errors.As(err, &over) || ctx.Err() != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		a.log.Warn("claiming the boot", "server", a.cfg.Server, "error", err)
		if err := try.pause(ctx); err != nil {
			return err
		}
	}
}

// work asks for actions and carries them out, one at a time.
func (a *Agent) work(ctx context.Context) error {
	try := backoff{max: a.cfg.Backoff}
	for {
		// What was reported comes before what is next.
		if err := a.awaitDelivery(ctx); err != nil {
			return err
		}
		if a.resting() {
			if err := sleep(ctx, min(time.Second, a.cfg.Backoff)); err != nil {
				return err
			}
			continue
		}
		as, err := a.api.next(ctx)
		var over *overError
		switch {
		case errors.As(err, &over):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			a.refused(err)
			a.log.Warn("asking for the next action", "error", err)
			if err := try.pause(ctx); err != nil {
				return err
			}
			continue
		}
		try = backoff{max: a.cfg.Backoff}
		if as == nil {
			continue
		}
		if !a.accept(as) {
			// The server still offers what it will not get: do not spin.
			if err := sleep(ctx, min(time.Second, a.cfg.Backoff)); err != nil {
				return err
			}
			continue
		}
		native, known := action.Native(as.Action.Image)
		res := a.execute(ctx, *as)
		if over := context.Cause(ctx); over != nil {
			return over
		}
		a.post(res)
		if known && action.Leaves(native) && res.State == action.Success {
			if err := a.awaitDelivery(ctx); err != nil {
				return err
			}
			return &leaveError{native}
		}
	}
}

// accept tells whether as is to be carried out: it belongs to this run and
// was not carried out before. A key that was gets its stored result again.
func (a *Agent) accept(as *action.Assignment) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if as.Key.Epoch != a.welcome.Epoch || as.Run != "" && as.Run != a.welcome.Run {
		a.log.Warn("dropping an assignment of another run", "key", as.Key.String(), "run", as.Run)
		return false
	}
	if a.hold {
		return false
	}
	if res, ok := a.finished[as.Key]; ok {
		a.postLocked(res)
		return false
	}
	return true
}

func (a *Agent) resting() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.hold || a.cfg.Rescue
}

// post puts res into the outbox and remembers it as its key's answer.
func (a *Agent) post(res action.Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.finished[res.Key] = res
	a.postLocked(res)
}

func (a *Agent) postLocked(res action.Result) {
	for _, r := range a.outbox {
		if r.Key == res.Key {
			return
		}
	}
	a.outbox = append(a.outbox, res)
	select {
	case a.posted <- struct{}{}:
	default:
	}
}

// awaitDelivery returns when the outbox is empty.
func (a *Agent) awaitDelivery(ctx context.Context) error {
	for {
		a.mu.Lock()
		empty, delivered := len(a.outbox) == 0, a.delivered
		a.mu.Unlock()
		if empty {
			return nil
		}
		select {
		case <-delivered:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// deliver sends results until each is acknowledged: for ever, however long the
// server is away or unable to store them. One that the server understands and
// refuses is sent again in a shorter form, twice.
func (a *Agent) deliver(ctx context.Context) error {
	try, cuts := backoff{max: a.cfg.Backoff}, 0
	for {
		a.mu.Lock()
		var res *action.Result
		if len(a.outbox) > 0 {
			first := a.outbox[0]
			res = &first
		}
		a.mu.Unlock()
		if res == nil {
			select {
			case <-a.posted:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			continue
		}
		err := a.api.report(ctx, *res)
		var over *overError
		switch {
		case errors.As(err, &over):
			return err
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case final(err):
			a.log.Error("the server refuses a report", "key", res.Key.String(), "state", res.State, "error", err)
			if cuts++; cuts <= 2 {
				a.replace(shortened(*res, cuts, err))
				break
			}
			// Should the server miss it after all, it offers the attempt again,
			// and gets the result as it was.
			a.log.Error("no form of the report is taken: giving it up", "key", res.Key.String())
			err = nil
		case err != nil:
			a.refused(err)
			a.log.Warn("reporting", "key", res.Key.String(), "error", err)
		}
		if err != nil {
			if err := try.pause(ctx); err != nil {
				return err
			}
			continue
		}
		try, cuts = backoff{max: a.cfg.Backoff}, 0
		a.mu.Lock()
		a.outbox = a.outbox[1:]
		if len(a.outbox) == 0 {
			close(a.delivered)
			a.delivered = make(chan struct{})
		}
		a.mu.Unlock()
	}
}

// final tells whether the server has understood a request and will never grant
// it. What passes with time, and what a person or a later server may put right
// (a token that nobody knows, a full disk), is not final.
func final(err error) bool {
	var status *statusError
	if !errors.As(err, &status) || status.code < 400 || status.code > 499 {
		return false
	}
	switch status.code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return true
}

// shortened returns res in the form in which it is sent after the server has
// refused it n times: first without its log, then without all that is not
// needed, and no longer as a success, because what it measured is lost.
func shortened(res action.Result, n int, refusal error) action.Result {
	if n == 1 && res.Log != "" {
		res.Log = ""
		return res
	}
	said := res.Message
	if len(said) > 500 {
		said = strings.ToValidUTF8(said[:500], "") + "…"
	}
	short := action.Result{Key: res.Key, ID: res.ID, State: res.State, ExitCode: res.ExitCode, Started: res.Started, Ended: res.Ended}
	short.Message = strings.TrimSpace(fmt.Sprintf("the whole report (%s) was refused: %v %s", res.State, refusal, said))
	if res.State == action.Success {
		short.State, short.ExitCode = action.Failed, 1
	}
	return short
}

// replace puts res in the place of the outbox's first result, which is of the
// same attempt. What finished keeps is the whole one.
func (a *Agent) replace(res action.Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.outbox[0] = res
}

// heartbeats calls the server at its pace, with or without work, and does
// what the answer orders.
func (a *Agent) heartbeats(ctx context.Context) error {
	a.mu.Lock()
	pace := a.welcome.Heartbeat.Duration()
	a.mu.Unlock()
	if pace <= 0 {
		pace = 5 * time.Second
	}
	tick := time.NewTicker(pace)
	defer tick.Stop()
	a.askBeat() // the server may have orders already
	for {
		select {
		case <-tick.C:
		case <-a.beat:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		a.mu.Lock()
		running := a.running
		hb := action.Heartbeat{Idle: running == nil && len(a.outbox) == 0, Wrote: a.wrote}
		a.mu.Unlock()
		sent := 0
		if running != nil {
			hb.Running, sent = running.progressNow()
		}
		var orders action.Orders
		if err := a.api.heartbeat(ctx, hb, &orders); err != nil {
			var over *overError
			if errors.As(err, &over) {
				return err
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			a.refused(err)
			a.log.Warn("sending a heartbeat", "error", err)
			continue
		}
		if running != nil {
			running.sentLog(sent)
		}
		a.obey(orders)
	}
}

// obey carries out what a heartbeat's answer orders.
func (a *Agent) obey(o action.Orders) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if o.Hold != a.hold {
		a.log.Info("hold", "on", o.Hold)
		a.hold = o.Hold
	}
	for _, key := range o.Stop {
		if a.running != nil && a.running.key == key {
			a.running.cancel(errStopped)
			continue
		}
		res, ok := a.finished[key]
		if !ok {
			// Ordered to stop before the assignment came: it must not start when
			// it does come.
			now := time.Now()
			res = action.Result{Key: key, ID: newID(), State: action.Stopped, Message: "stopped before it began", Started: now, Ended: now}
			a.finished[key] = res
		}
		a.postLocked(res)
	}
}

// refused looks at an error of the server. One that does not know this agent's
// token may have lost its data (401); one that has revoked it asks a person,
// because two agents came for one boot, or has welcomed a later boot (403).
// Either way nothing may go on writing, and the agent stays and keeps asking:
// only 410 says that its run is over.
func (a *Agent) refused(err error) {
	var status *statusError
	if !errors.As(err, &status) || status.code != http.StatusUnauthorized && status.code != http.StatusForbidden {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running != nil {
		a.running.cancel(errStopped)
	}
}

// markWrote records that this boot has written to a disk; called before the
// first byte.
func (a *Agent) markWrote() {
	a.mu.Lock()
	a.wrote = true
	a.mu.Unlock()
}

// backoff is the growing pause between tries.
type backoff struct{ next, max time.Duration }

// pause waits: 100 ms, then twice as long each time, up to max.
func (b *backoff) pause(ctx context.Context) error { return sleep(ctx, b.step()) }

// step returns how long to wait now: of the pause a random part between a half
// and all, because a server that comes back has many agents.
func (b *backoff) step() time.Duration {
	if b.next == 0 {
		b.next = 100 * time.Millisecond
	}
	d := min(b.next, b.max)
	b.next = min(2*b.next, b.max)
	return d/2 + mathrand.N(d/2+1)
}

// sleep waits for d and returns ctx's cause when that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// process is the Host of an ordinary process: its clock and its machine are
// not the agent's to change.
type process struct{}

func (process) SetClock(time.Time) error { return nil }
func (process) Reboot() error            { return nil }
func (process) PowerOff() error          { return nil }
