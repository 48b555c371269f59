// Package bmc switches machines on and off and chooses what they boot, through
// their management controllers and bmclib.
//
// No operation succeeds because a call returned without an error: it succeeds
// when a separate read shows the state. One driver is registered per machine,
// never all that bmclib has: trying them opens sessions everywhere at once.
// There is one client per operation and one operation at a time per BMC,
// because small firmware runs out of sessions.
package bmc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bmc-toolbox/bmclib/v2"
	bmclibbmc "github.com/bmc-toolbox/bmclib/v2/bmc"
	"github.com/jacobweinstock/registrar"

	"github.com/ingotmetal/ingot/inventory"
)

// Power states, as State returns them.
const (
	On           = "on"
	Off          = "off"
	Transitional = "transitional" // neither yet
	Unknown      = "unknown"      // the BMC said something else
)

// Config is what a Driver may be told; zero fields are defaults.
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
	// operationTime is what bmclib gives one call. It is out of the way: each
	// provider limits its own commands, and what they wait for does not count.
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
	if cfg.Step <= 0 {
		cfg.Step = 3 * time.Second
	}
	if cfg.Hard <= 0 {
		cfg.Hard = 60 * time.Second
	}
	if cfg.Soft <= 0 {
		cfg.Soft = 180 * time.Second
	}
	if cfg.Settle <= 0 {
		cfg.Settle = 30 * time.Second
	}
	if cfg.Back <= 0 {
		cfg.Back = 5 * time.Minute
	}
	if cfg.Networks == nil {
		cfg.Networks = DefaultNetworks()
	}
	if cfg.Resolver == nil {
		cfg.Resolver = net.DefaultResolver
	}
	if cfg.PerMinute <= 0 {
		cfg.PerMinute = perMinute
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

// Close ends the Driver: no command starts after it. It lets go of LockFile,
// which commands that still run keep locked until they end.
func (d *Driver) Close() error { return d.processes.close() }

// State reads the power state: on, off, transitional or unknown.
func (d *Driver) State(ctx context.Context, b inventory.BMC, password inventory.Secret) (string, error) {
	state := Unknown
	err := d.with(ctx, b, password, "reading power state", func(s *session) (err error) {
		state, err = s.state(ctx)
		return err
	})
	return state, err
}

// Set does what power says: on, off, soft (the system shuts itself down),
// cycle (off, then on) or reset (of a machine that is on). It returns when a
// read shows the state. What is so already is no error and writes nothing.
// Wake-on-LAN alone has no such read: its on is done when the packets are sent,
// and what the machine asks for over the network shows the rest.
//
// fence, if not nil, is asked immediately before each write, while no other
// operation of this Driver on the same BMC can run; its error stops the write
// and is returned.
func (d *Driver) Set(ctx context.Context, b inventory.BMC, password inventory.Secret, power string, fence func(context.Context) error) error {
	switch power {
	case "on", "off", "soft", "cycle", "reset":
	default:
		return fmt.Errorf("power %q: known are on, off, soft, cycle, reset: %w", power, inventory.ErrInvalid)
	}
	if b.Wakes() {
		return d.wake(ctx, b, power, fence)
	}
	return d.with(ctx, b, password, "power "+power, func(s *session) error {
		s.fence = fence
		switch power {
		case "cycle":
			if err := s.turn(ctx, "off", Off, d.cfg.Hard); err != nil {
				return err
			}
			return s.turn(ctx, "on", On, d.cfg.Hard)
		case "reset":
			return s.reset(ctx)
		case "soft":
			return s.turn(ctx, "soft", Off, d.cfg.Soft)
		}
		return s.turn(ctx, power, power, d.cfg.Hard)
	})
}

// SetBootDevice chooses what the machine boots next: pxe, disk, cdrom, bios or
// none (its own order). The device that is read back decides; what the BMC
// shows otherwise of the flags (once or persistent, EFI or not, valid) is told
// as a warning, because some BMCs obey flags that they do not show. A one-time
// device that reads back as persistent is an error: the machine would boot it
// for ever. fence is as in Set.
//
// A BMC forgets the device 60 s after it was set: switch on directly
// afterwards.
func (d *Driver) SetBootDevice(ctx context.Context, b inventory.BMC, password inventory.Secret, want inventory.BootDevice, fence func(context.Context) error) (warning string, err error) {
	switch want.Device {
	case "pxe", "disk", "cdrom", "bios", "none":
	default:
		return "", fmt.Errorf("boot device %q: known are pxe, disk, cdrom, bios, none: %w", want.Device, inventory.ErrInvalid)
	}
	err = d.with(ctx, b, password, "boot device "+want.Device, func(s *session) (err error) {
		s.fence = fence
		warning, err = s.boot(ctx, want)
		return err
	})
	return warning, err
}

// Report is what Check found.
type Report struct {
	Power string        `json:"power"`
	Boot  string        `json:"boot"` // what boots next, as read
	Took  time.Duration `json:"took"` // nanoseconds in JSON
}

// Check logs in and reads the power state, whether the controller's orders
// have an effect (AMT) and the boot device; it writes nothing.
func (d *Driver) Check(ctx context.Context, b inventory.BMC, password inventory.Secret) (Report, error) {
	var r Report
	began := time.Now()
	err := d.with(ctx, b, password, "checking", func(s *session) (err error) {
		if r.Power, err = s.state(ctx); err != nil {
			return err
		}
		if p, ok := s.provider.(selfTester); ok {
			if err := p.ready(ctx); err != nil {
				return err
			}
		}
		over, err := s.override(ctx)
		if blind := (blindError{}); errors.As(err, &blind) {
			r.Boot = Unknown
			return nil
		}
		if err != nil {
			return err
		}
		r.Boot = describe(over)
		return nil
	})
	r.Took = time.Since(began)
	return r, err
}

// with runs one operation: alone on its BMC, with a client of its own that is
// always closed.
func (d *Driver) with(ctx context.Context, b inventory.BMC, password inventory.Secret, what string, do func(*session) error) error {
	if err := check(b); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	dialled := b
	if b.Host != "" {
		var err error
		if dialled.Host, err = d.resolve(ctx, b.Host); err != nil {
			return fmt.Errorf("%s: BMC %s: %w", what, b.Host, err)
		}
	}
	// By address: two names of one BMC must not open two sessions.
	key, name := net.JoinHostPort(dialled.Host, strconv.Itoa(port(dialled))), "BMC "+b.Host
	if b.Driver == inventory.DriverExec {
		key, name = "exec/"+b.Machine, fmt.Sprintf("power command %q", b.Command)
	}
	t, err := d.lock(ctx, key)
	if err != nil {
		return fmt.Errorf("%s: waiting for %s, which is in use: %w", what, name, err)
	}
	defer func() { <-t.token }()
	began := time.Now()
	who := credentials(b, password)
	l := link{admit: func(ctx context.Context) error { return d.admit(ctx, t, who) }}
	if !password.IsZero() { // without one nothing is sent
		l.settle = func(err error) { d.settle(t, err) }
	}
	p, err := d.provider(l, b, dialled, password)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", what, name, err)
	}
	// The password stays out of bmclib's client: the provider has it.
	registry := registrar.NewRegistry()
	registry.Register(p.Name(), b.Driver, features, nil, p)
	client := bmclib.NewClient(b.Host, b.User, "", bmclib.WithRegistry(registry), bmclib.WithPerProviderTimeout(operationTime))
	if err := client.Open(ctx); err != nil {
		return fmt.Errorf("%s: %s: %w", what, name, p.cause(err))
	}
	defer func() {
		if err := client.Close(context.WithoutCancel(ctx)); err != nil {
			d.cfg.Log.Warn("closing a BMC session", "host", b.Host, "error", err)
		}
	}()
	err = do(&session{d: d, client: client, provider: p})
	d.cfg.Log.Debug("bmc", "host", b.Host, "what", what, "took", time.Since(began), "error", err)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", what, name, err)
	}
	return nil
}

// provider makes what speaks to b, which is dialled as dialled says.
func (d *Driver) provider(l link, b, dialled inventory.BMC, password inventory.Secret) (provider, error) {
	switch b.Driver {
	case inventory.DriverAMT:
		return newAMT(l, b.Host, dialled, password)
	case inventory.DriverExec:
		return d.newCommand(l, dialled, password)
	}
	return newIPMI(l, d.processes, d.cfg.Ipmitool, d.cfg.Home, dialled, password), nil
}

// lock waits until nobody else uses the BMC at address. Who has it takes the
// token back when he is done.
func (d *Driver) lock(ctx context.Context, address string) (*target, error) {
	address = strings.ToLower(address)
	d.mu.Lock()
	t, ok := d.targets[address]
	if !ok {
		t = &target{token: make(chan struct{}, 1)}
		d.targets[address] = t
	}
	d.mu.Unlock()
	select {
	case t.token <- struct{}{}:
		return t, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// check refuses what cannot or must not be tried.
func check(b inventory.BMC) error {
	switch b.Driver {
	case inventory.DriverIPMI, inventory.DriverAMT:
	case inventory.DriverExec:
		if b.Host == "" {
			return nil
		}
	case inventory.DriverWOL:
		return fmt.Errorf("wake-on-LAN switches on and can do nothing else: a person switches off and looks: %w", inventory.ErrUnsupported)
	case inventory.DriverManual, "":
		return fmt.Errorf("the machine has no BMC, a person presses its button: %w", inventory.ErrUnsupported)
	case inventory.DriverRedfish:
		return fmt.Errorf("this version has no Redfish driver; use another, or manual: %w", inventory.ErrUnsupported)
	default:
		return fmt.Errorf("BMC driver %q is unknown: %w", b.Driver, inventory.ErrUnsupported)
	}
	if b.Host == "" || strings.HasPrefix(b.Host, "-") || strings.ContainsFunc(b.Host, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return fmt.Errorf("BMC host %q is neither an address nor a name: %w", b.Host, inventory.ErrInvalid)
	}
	if b.Port < 0 || b.Port > 65535 {
		return fmt.Errorf("BMC port %d: %w", b.Port, inventory.ErrInvalid)
	}
	if b.Driver != inventory.DriverIPMI {
		return nil
	}
	// Suites 1, 2, 6, 7, 11, 15 and 16 do not encrypt, 0 does not even
	// authenticate (IPMI v2.0, table 22-20).
	switch n, err := strconv.Atoi(cipher(b)); {
	case err != nil || n < 0 || n > 255:
		return fmt.Errorf("cipher suite %q is no number: %w", b.CipherSuite, inventory.ErrInvalid)
	case n == 0:
		return fmt.Errorf("cipher suite 0 lets anybody in without a password, and is not used; choose 17 or 3, and disable it in the BMC: %w", inventory.ErrUnsupported)
	}
	return nil
}

// session is one operation on one BMC.
type session struct {
	d        *Driver
	client   *bmclib.Client
	provider provider
	fence    func(context.Context) error
}

func (s *session) state(ctx context.Context) (string, error) {
	text, err := s.client.GetPowerState(ctx)
	if err != nil {
		return Unknown, s.provider.cause(err)
	}
	return normalise(text), nil
}

// normalise makes one word of what providers say: "Chassis Power is on", "On",
// "PoweringOff".
func normalise(text string) string {
	text = strings.ToLower(strings.TrimSpace(text))
	text = strings.TrimSpace(strings.TrimPrefix(text, "chassis power is"))
	switch text {
	case "on":
		return On
	case "off":
		return Off
	case "poweringon", "poweringoff", "paused", "sleeping":
		return Transitional
	}
	return Unknown
}

// write asks the fence, and writes.
func (s *session) write(ctx context.Context, do func() (bool, error)) error {
	if s.fence != nil {
		if err := s.fence(ctx); err != nil {
			return fenceError{err}
		}
	}
	ok, err := do()
	if err != nil {
		return s.provider.cause(err)
	}
	if !ok {
		return errors.New("the BMC did not do it")
	}
	return nil
}

// fenceError keeps apart what the fence said from what the BMC said.
type fenceError struct{ error }

func (e fenceError) Unwrap() error { return e.error }

// final tells whether an error of a write ends the operation: reading back
// could not make good of it.
func final(err error) bool {
	var fenced fenceError
	return errors.As(err, &fenced) || errors.Is(err, inventory.ErrRefused) || errors.Is(err, inventory.ErrUnsupported) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// turn brings the machine into a state and sees it there.
func (s *session) turn(ctx context.Context, power, want string, within time.Duration) error {
	// A read that fails must stop the write: soft to a machine of which
	// nothing is known would be reported as done.
	now, err := s.state(ctx)
	if err != nil {
		return err
	}
	if now == want {
		return nil
	}
	wrote := s.write(ctx, func() (bool, error) { return s.client.SetPowerState(ctx, power) })
	if wrote != nil && final(wrote) {
		return wrote
	}
	// The answer to a write can get lost on the way (UDP): the state decides.
	if err := s.await(ctx, want, within); err != nil {
		return errors.Join(wrote, err)
	}
	return nil
}

// reset restarts a machine that is on. It is on before and after, so that
// only the BMC's word says that it happened.
func (s *session) reset(ctx context.Context) error {
	now, err := s.state(ctx)
	if err != nil {
		return err
	}
	if now != On {
		return fmt.Errorf("the machine is %s, and only one that is on can be reset (use: on): %w", now, inventory.ErrUnsupported)
	}
	if err := s.write(ctx, func() (bool, error) { return s.client.SetPowerState(ctx, "reset") }); err != nil {
		return err
	}
	return s.await(ctx, On, s.d.cfg.Hard)
}

// await reads the state until it is as wanted.
func (s *session) await(ctx context.Context, want string, within time.Duration) error {
	began := time.Now()
	tick := time.NewTicker(s.d.cfg.Step)
	defer tick.Stop()
	for {
		now, err := s.state(ctx)
		switch {
		case err == nil && now == want:
			return nil
		case err != nil && !errors.Is(err, inventory.ErrUnreachable):
			return err
		case time.Since(began) >= within:
			if err != nil {
				return err
			}
			return fmt.Errorf("power is %s and not %s after %s: %w", now, want, within, inventory.ErrUnreachable)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *session) override(ctx context.Context) (bmclibbmc.BootDeviceOverride, error) {
	o, err := s.client.GetBootDeviceOverride(ctx)
	return o, s.provider.cause(err)
}

func (s *session) boot(ctx context.Context, want inventory.BootDevice) (string, error) {
	// Otherwise the BMC clears the device 60 s after it was set, or when the
	// machine is switched on. Some refuse this; what was set is read anyway.
	if k, ok := s.provider.(flagKeeper); ok {
		err := s.write(ctx, func() (bool, error) { return true, k.keepBootFlags(ctx) })
		if err != nil && final(err) && !errors.Is(err, inventory.ErrUnsupported) {
			return "", err
		}
	}
	wrote := s.write(ctx, func() (bool, error) {
		return s.client.SetBootDevice(ctx, want.Device, want.Persistent, want.EFI)
	})
	if wrote != nil && final(wrote) {
		return "", wrote
	}
	got, err := s.override(ctx)
	if blind := (blindError{}); errors.As(err, &blind) && wrote == nil {
		if want.Device == "none" {
			return "", nil
		}
		return fmt.Sprintf("boot device %s: %s", want.Device, blind.why), nil
	}
	if err != nil {
		return "", errors.Join(wrote, err)
	}
	if string(got.Device) != want.Device {
		return "", errors.Join(wrote, fmt.Errorf("boot device was set to %s but reads back as %s: %w", want.Device, got.Device, inventory.ErrUnsupported))
	}
	if want.Device == "none" {
		return "", nil
	}
	if got.IsPersistent && !want.Persistent {
		return "", fmt.Errorf("boot device %s was set for once but reads back as persistent: %w", want.Device, inventory.ErrUnsupported)
	}
	dropped := s.provider.dropped(want, got)
	if len(dropped) > 0 {
		return fmt.Sprintf("boot device %s was read back, but not these flags: %s", want.Device, strings.Join(dropped, ", ")), nil
	}
	return "", nil
}

func describe(o bmclibbmc.BootDeviceOverride) string {
	if o.Device == bmclibbmc.BootDeviceTypeNone {
		return "none"
	}
	words := []string{string(o.Device), "once"}
	if o.IsPersistent {
		words[1] = "persistent"
	}
	if o.IsEFIBoot {
		words = append(words, "efi")
	}
	return strings.Join(words, " ")
}
