// Package bmc switches machines on and off and chooses what they boot, through
// their management controllers and bmclib.
//
// No operation succeeds because a call returned without an error: it succeeds
// when a separate read shows the state. One driver is registered per machine,
// never all that bmclib has: trying them opens sessions everywhere at once.
// There is one client per operation and one operation at a time per BMC,
// because small firmware runs out of sessions.
//
// A driver is a row of capabilities in package inventory, a provider in a file of
// its own here, and its constructor in the table providers.
package bmc

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Power states, as State returns them.
const (
	On           = "on"
	Off          = "off"
	Transitional = "transitional" // neither yet
	Unknown      = "unknown"      // the BMC said something else
)

// Config is the configuration of a Driver; zero fields stand for defaults.
type Config struct {
	Log *slog.Logger
	// Ipmitool is the path of ipmitool; "" = found in PATH.
	Ipmitool string
	// Home is a directory of ipmitool's own, made as needed; with it ipmitool
	// starts in a sixth of the time. "" = none.
	Home string
	// Step is the pause between reads of a state that is awaited (3 s); Hard
	// and Soft are how long it is awaited (60 s, and 180 s for soft).
	Step, Hard, Soft time.Duration
	// Settle is after how long a BMC that was reset and still answers counts
	// as back (30 s); Back how long it may stay away (5 min).
	Settle, Back time.Duration
	// Networks are those in which BMCs may be; nil = DefaultNetworks. Nothing
	// else is dialled, whatever the inventory says.
	Networks []netip.Prefix
	// Resolver looks up names of BMCs; nil = the system's.
	Resolver Resolver
	// PerMinute is how many sessions one BMC is asked for per minute; 0 = 120.
	PerMinute int
	// Commands are those of driver exec, by name.
	Commands map[string]Command
	// LockFile is a file that this server's commands hold locked while they run,
	// so that the next server can wait for their end; "" = none.
	LockFile string
	// WakeFrom is the address from which magic packets are sent; the zero
	// address: the one that the routing table chooses.
	WakeFrom netip.Addr

	now   func() time.Time
	sleep func(context.Context, time.Duration) error
}

const (
	// lookupTime is how long a name may take to resolve.
	lookupTime = 10 * time.Second
	// operationTime limits one call in bmclib. It is longer than any call may take:
	// each provider limits its own commands, without the time for which they wait.
	operationTime = time.Hour
)

// Driver talks to BMCs. Its methods return errors that wrap
// inventory.ErrUnreachable (wait and try again), inventory.ErrRefused (the
// credentials: trying again may lock them), inventory.ErrUnsupported (this BMC
// cannot, or this version has no such driver) or inventory.ErrInvalid.
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

	cfg.now, cfg.sleep = time.Now, sleep
	if cfg.Home != "" {
		if err := makeHome(cfg.Home); err != nil { // it is slower without
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

// Close ends the Driver: no command starts after it. It releases LockFile, which
// commands that still run keep locked until they end.
func (d *Driver) Close() error { return d.processes.close() }
