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
	"os"
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
	// exclusively.
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
	Rescue  bool   // an operator's boot: the agent is present and carries nothing out

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
			// What this boot wrote may be half of something: an operator looks first.
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

// process is the Host of an ordinary process: its clock and its machine are
// not the agent's to change.
type process struct{}

func (process) SetClock(time.Time) error { return nil }
func (process) Reboot() error            { return nil }
func (process) PowerOff() error          { return nil }

// markWrote records that this boot has written to a disk; called before the
// first byte.
func (a *Agent) markWrote() {
	a.mu.Lock()
	a.wrote = true
	a.mu.Unlock()
}
