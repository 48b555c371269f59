// Package bmc switches machines on and off and sets their boot device, through their management controllers (BMCs).
//
// An operation succeeds only if a separate read shows the new state. Each operation creates its own provider. Each BMC
// runs one operation at a time, because small firmware has few sessions.
//
// To add a driver, add its capabilities to package inventory, write a provider in a file of this package, and add the
// provider's constructor to the table providers.
package bmc

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/internal/host/clock"
)

// Power states, as State returns them.
const (
	On           = "on"
	Off          = "off"
	Transitional = "transitional" // changing, paused or sleeping
	Unknown      = "unknown"      // the BMC reports any other state
)

// Driver runs operations on BMCs. Each error of its methods wraps one of these: inventory.ErrUnreachable (retry later),
// inventory.ErrRefused (wrong credentials: a retry may lock the user), inventory.ErrResting (the credentials were
// refused before, so Ingot did not send them again), inventory.ErrUnsupported (the BMC or this version of Ingot does
// not support the operation) or inventory.ErrInvalid.
type Driver struct {
	cfg       Config
	processes *processes

	mu      sync.Mutex
	targets map[string]*target // by address
}

// New returns a Driver. It replaces zero fields of cfg by their defaults.
func New(cfg Config) *Driver {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
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
		_, _ = rand.Read(cfg.DigestKey) // Read never returns an error, see crypto/rand
	}

	cfg.now, cfg.sleep, cfg.request, cfg.logout, cfg.busy = time.Now, clock.Sleep, redfishRequestTime, redfishLogoutTime, redfishBusyTime
	if cfg.Home != "" {
		if err := makeHome(cfg.Home); err != nil { // without this directory, ipmitool works but is slower
			cfg.Log.Warn("making a home directory for ipmitool", "directory", cfg.Home, "error", err)
			cfg.Home = ""
		}
	}

	p := &processes{log: cfg.Log, slots: make(chan struct{}, maxProcesses), file: cfg.LockFile, patience: ipmitoolTime}
	for _, c := range cfg.Commands {
		p.patience = max(p.patience, c.Timeout)
	}
	return &Driver{cfg: cfg, processes: p, targets: map[string]*target{}}
}

// Close prevents further commands from starting, and closes LockFile. Commands that are still running keep the file
// locked until they end.
func (d *Driver) Close() error { return d.processes.close() }
