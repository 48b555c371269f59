// Package bmc switches machines on and off and sets their boot device, through
// their management controllers (BMCs) and bmclib.
//
// An operation succeeds only when a separate read shows the new state. Each client
// registers the one driver that the machine needs: with all of bmclib's drivers,
// bmclib would open a session with each. Every operation has its own client, and
// each BMC runs one operation at a time, because small firmware runs out of sessions.
//
// A driver consists of a row of capabilities in package inventory, a provider in a
// file of this package, and its constructor in the table providers.
package bmc

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/internal/host/clock"
)

// Power states, as State returns them.
const (
	On           = "on"
	Off          = "off"
	Transitional = "transitional" // changing, paused or sleeping
	Unknown      = "unknown"      // the BMC reported another state
)

// Config is the configuration of a Driver. A zero field means its default.
type Config struct {
	Log *slog.Logger
	// Ipmitool is the path of ipmitool; "" = found in PATH.
	Ipmitool string
	// Home is the HOME directory of ipmitool, created as needed. It makes ipmitool
	// start six times as fast. "" = none.
	Home string
	// Step is the pause between two reads while waiting for a power state (3 s).
	// Hard is how long to wait (60 s), and Soft how long to wait after soft (180 s).
	Step, Hard, Soft time.Duration
	// Settle is how long a BMC must go on answering after its reset to count as
	// restarted (30 s). Back is how long it may be unreachable (5 min).
	Settle, Back time.Duration
	// Networks are the networks that BMCs may be in; nil = DefaultNetworks. No
	// address outside of them is dialed.
	Networks []netip.Prefix
	// Resolver looks up the names of BMCs; nil = the system's resolver.
	Resolver Resolver
	// Authorities are the certificate authorities that may sign the certificates of BMCs; nil =
	// the system's. Keys remembers the keys of certificates that they did not sign; nil = such
	// certificates are refused.
	Authorities *x509.CertPool
	Keys        KeyStore
	// Refusals remembers refused log-ins across restarts; nil = they are forgotten with the Driver. DigestKey is the
	// key of the digests of their credentials, 32 bytes; nil = a random one.
	Refusals  RefusalStore
	DigestKey []byte
	// PerMinute is the limit of sessions per minute with one BMC; 0 = 120.
	PerMinute int
	// Commands are the commands of driver exec, by name.
	Commands map[string]Command
	// LockFile is a file that this server's commands lock while they run, so that
	// the next server can wait for them to end; "" = none.
	LockFile string
	// WakeFrom is the source address of magic packets. If it is the zero address,
	// the routing table chooses one.
	WakeFrom netip.Addr
	// Observe is called after each operation with its context; nil = not.
	Observe func(context.Context, Operation)

	now   func() time.Time
	sleep func(context.Context, time.Duration) error
	// request limits one request of Redfish, logout the deletion of its session, and busy how long a command waits
	// for a busy service.
	request, logout, busy time.Duration
}

const (
	// lookupTime is how long a name may take to resolve.
	lookupTime = 10 * time.Second
	// operationTime is bmclib's limit for one call. It is never reached: each provider
	// limits its own commands, and does not count the time that they wait to start.
	operationTime = time.Hour
)

// Driver talks to BMCs. Its methods return errors that wrap
// inventory.ErrUnreachable (retry later), inventory.ErrRefused (wrong
// credentials: a retry may lock the user), inventory.ErrResting (they were refused
// before, and were not sent), inventory.ErrUnsupported (the BMC or this version of
// Ingot cannot do it) or inventory.ErrInvalid.
type Driver struct {
	cfg       Config
	processes *processes

	mu      sync.Mutex
	targets map[string]*target // by address
}

// New returns a Driver.
func New(cfg Config) *Driver {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Step = cmp.Or(cfg.Step, 3*time.Second)
	cfg.Hard = cmp.Or(cfg.Hard, 60*time.Second)
	cfg.Soft = cmp.Or(cfg.Soft, 180*time.Second)
	cfg.Settle = cmp.Or(cfg.Settle, 30*time.Second)
	cfg.Back = cmp.Or(cfg.Back, 5*time.Minute)
	cfg.PerMinute = cmp.Or(cfg.PerMinute, perMinute)
	if cfg.Networks == nil {
		cfg.Networks = DefaultNetworks()
	}
	if cfg.Resolver == nil {
		cfg.Resolver = net.DefaultResolver
	}

	if cfg.DigestKey == nil {
		cfg.DigestKey = make([]byte, sha256.Size)
		_, _ = rand.Read(cfg.DigestKey) // never returns an error, according to its documentation
	}

	cfg.now, cfg.sleep, cfg.request, cfg.logout, cfg.busy = time.Now, clock.Sleep, redfishRequestTime, logoutTime, redfishBusyTime
	if cfg.Home != "" {
		if err := makeHome(cfg.Home); err != nil { // ipmitool is slower without it
			cfg.Log.Warn("making a home for ipmitool", "directory", cfg.Home, "error", err)
			cfg.Home = ""
		}
	}

	p := &processes{log: cfg.Log, slots: make(chan struct{}, maxProcesses), file: cfg.LockFile, patience: commandTime}
	for _, c := range cfg.Commands {
		p.patience = max(p.patience, c.Timeout)
	}
	return &Driver{cfg: cfg, processes: p, targets: map[string]*target{}}
}

// Close ends the Driver: no command starts afterwards. It closes LockFile, but
// commands that are still running keep the file locked until they end.
func (d *Driver) Close() error { return d.processes.close() }
