// Package agent runs on the machine that is being provisioned. It redeems the claim of its boot. Then it requests actions from the
// server, one at a time, runs each and reports its result, until the run has ended or an action ends the agent (as reboot does).
//
// All access to the machine goes through the small interfaces Finder, Disks, Filesystems and Host. The agent can therefore run as
// PID 1 of the in-memory system (cmd/worker-agent) and, with files instead of disks, as an ordinary process.
package agent

import (
	"cmp"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/container"
	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/efi"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
	"github.com/ingotmetal/ingot/worker-agent/facts"
)

// Host controls the machine as a whole.
type Host interface {
	SetClock(t time.Time) error
	// Reboot and PowerOff do not return on a real machine.
	Reboot() error
	PowerOff() error
}

// Config holds the server's address, the boot's parameters, and the parts of the machine that the agent may use.
type Config struct {
	Server  string // base URL, https://192.0.2.1:7443
	Pin     string // "sha256:" and the hex digest of the SubjectPublicKeyInfo in the server's certificate
	Machine string // the machine's name in the inventory
	Claim   string // hex, from the boot script
	PlanKey string // ed25519:<base64url>, the key that verifies orders; without it, every action is refused
	MAC     string // MAC address of the interface from which the machine has booted
	Rescue  bool   // true: an operator uses this boot; the agent connects to the server but runs no action
	// Discover means that the machine is not in the inventory. The agent then only reports the hardware, and needs neither Machine
	// nor Claim.
	Discover bool

	Finder facts.Finder        // nil = no facts are reported
	Disks  disk.Disks          // nil = no disks: every action that writes fails
	Files  filesys.Filesystems // nil = writefile and inject fail
	EFI    efi.Variables       // nil = the machine was booted by BIOS
	// Containers runs actions that are container images; nil = they fail.
	Containers *container.Runner
	Host       Host         // nil = Run returns instead of rebooting
	Logger     *slog.Logger // nil = no log

	// Backoff is the longest pause before a failed request is repeated; 0 = 5 s.
	Backoff time.Duration
	// Linger is how long the screen shows why the run has ended, before the machine reboots or powers off.
	Linger time.Duration
}

// Agent is the agent of one boot of one machine.
type Agent struct {
	cfg   Config
	log   *slog.Logger
	api   *client
	nonce string
	key   ed25519.PublicKey // verifies orders; nil if the boot script has no key

	mu       sync.Mutex
	welcome  action.Welcome
	plan     string // digest of the run's plan, from the first order
	running  *attempt
	finished map[action.Key]action.Result
	outbox   []action.Result // results that are not acknowledged yet, oldest first
	wrote    bool
	hold     bool
	loaded   bool // a kernel is loaded for kexec

	delivered chan struct{} // closed, and replaced by a new channel, when outbox becomes empty
	posted    chan struct{} // gets an element when a result is added to outbox
	beat      chan struct{} // gets an element when a heartbeat is to be sent at once
}

// New returns an agent for one boot. Its new random nonce ensures that no other agent redeems the same claim with the same nonce.
func New(cfg Config) (*Agent, error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Backoff <= 0 {
		cfg.Backoff = 5 * time.Second
	}
	cfg.Host = cmp.Or[Host](cfg.Host, process{})
	if cfg.Disks == nil {
		cfg.Disks = disk.FileDisks{}
	}
	if !cfg.Discover && (cfg.Machine == "" || cfg.Claim == "") {
		return nil, errors.New("reading the configuration: the name of the machine or the claim is missing")
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

// errStopped is the cause with which the running action is cancelled by an order to stop.
var errStopped = errors.New("stopped by an order of the server")

// endedError means that the run has ended: the server has responded with 410 or has refused the claim.
type endedError struct{ reason string }

func (e *endedError) Error() string { return "the run has ended: " + e.reason }

// leaveError means that the server has acknowledged the success of an action that ends the agent, such as reboot.
type leaveError struct{ native string }

func (e *leaveError) Error() string { return "leaving: " + e.native }

// process is the Host of an ordinary process, which must not set its host's clock or reboot its host.
type process struct{}

func (process) SetClock(time.Time) error { return nil }
func (process) Reboot() error            { return nil }
func (process) PowerOff() error          { return nil }

// markWrote records that this boot has written to a disk. Actions call it before their first write.
func (a *Agent) markWrote() {
	a.mu.Lock()
	a.wrote = true
	a.mu.Unlock()
}
