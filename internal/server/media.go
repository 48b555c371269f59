package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

const (
	ejectEvery = 5 * time.Second
	// ejectTime limits one attempt. ejectPause is the pause after a failed attempt, ejectRefused the pause after an attempt
	// that the BMC has refused.
	ejectTime, ejectPause, ejectRefused = 2 * time.Minute, time.Minute, time.Hour
	// ejectAtOnce is the limit for concurrent attempts.
	ejectAtOnce = 8
)

// ejector ejects virtual media. Each run writes a record before it inserts a medium. The ejector works from these records, so it does not
// matter how a run ended.
type ejector struct {
	controllers *controllers
	store       *sqlite.Store
	restored    *restored
	guard       *guard.Guard
	log         *slog.Logger
	now         func() time.Time

	group errgroup.Group

	mu       sync.Mutex
	attempts map[inventory.Media]ejectAttempt
}

// ejectAttempt is the last attempt to eject a medium.
type ejectAttempt struct {
	running bool
	next    time.Time // time of the next attempt
	// refused is the hash of the credentials that the BMC has refused; zero = none. Other credentials are tried at once.
	refused [sha256.Size]byte
}

func newEjector(s *server) *ejector {
	e := &ejector{
		controllers: s.controllers, store: s.records.store, restored: s.records.restored, guard: s.host.Guard(), log: s.log,
		now: time.Now, attempts: map[inventory.Media]ejectAttempt{},
	}
	e.group.SetLimit(ejectAtOnce)
	return e
}

// run ejects each medium that a run has inserted as soon as the run has ended. It returns when ctx ends.
func (e *ejector) run(ctx context.Context) error {
	defer e.group.Wait() //nolint:errcheck // its functions return no error
	for {
		e.start(ctx)
		if clock.Sleep(ctx, ejectEvery) != nil {
			return nil
		}
	}
}

// start starts the attempts that are due.
func (e *ejector) start(ctx context.Context) {
	all, err := e.store.Media.Media(ctx)
	if err != nil && ctx.Err() == nil {
		e.log.Error("ejecting virtual media", "error", err)
	}
	for _, m := range all {
		e.mu.Lock()
		last := e.attempts[m]
		e.mu.Unlock()
		if last.running || e.now().Before(last.next) && (last.refused == [sha256.Size]byte{} || last.refused == e.credentials(ctx, m)) {
			continue
		}
		e.note(m, ejectAttempt{running: true})
		if !e.group.TryGo(func() error { e.attempt(ctx, m); return nil }) {
			e.note(m, last)
		}
	}
}

// note stores a as the last attempt for m. If a is the zero value, note deletes the stored attempt.
func (e *ejector) note(m inventory.Media, a ejectAttempt) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.attempts[m] = a
	if a == (ejectAttempt{}) {
		delete(e.attempts, m)
	}
}

// attempt tries to eject a medium, and decides when to try again.
func (e *ejector) attempt(ctx context.Context, m inventory.Media) {
	next := ejectAttempt{next: e.now().Add(ejectPause)} // this value remains if the attempt panics
	defer func() { e.note(m, next) }()
	defer e.guard.Recover("the answer of a BMC")
	used := e.credentials(ctx, m)
	err := e.eject(ctx, m)
	switch {
	case err == nil, errors.Is(err, errInUse), ctx.Err() != nil:
		next = ejectAttempt{}
	case errors.Is(err, inventory.ErrRefused):
		next = ejectAttempt{next: e.now().Add(ejectRefused), refused: used}
		e.log.Warn("cannot eject virtual media; trying again when the BMC or its password has changed", "machine", m.Machine,
			"in", ejectRefused, "error", err)
		e.recordEvent(ctx, m, "eject-refused", fmt.Sprintf("virtual media %s cannot be ejected: %v; Ingot tries again every hour, and when the "+
			"BMC or its password has changed", m.URL, err))
	default:
		e.log.Warn("cannot eject virtual media; trying again", "machine", m.Machine, "in", ejectPause, "error", err)
	}
}

// credentials returns a hash of everything that determines whether the BMC of m's machine accepts a log-in and whether its
// certificate is trusted. It is zero if they cannot be read.
func (e *ejector) credentials(ctx context.Context, m inventory.Media) (sum [sha256.Size]byte) {
	machine, err := e.store.Machines.Machine(ctx, m.Machine)
	if err != nil || machine.BMC == nil {
		return sum
	}
	password, err := e.store.BMCPasswords.BMCPassword(ctx, m.Machine)
	if err != nil {
		return sum
	}
	b := machine.BMC
	forgotten, _ := e.controllers.forgotten.Load(b.KeyAddress()) // nil = the key was not deleted since this server started
	return sha256.Sum256(fmt.Appendf(nil, "%q %q %q %t %q %v", b.KeyAddress(), b.User, b.Fingerprint, b.InsecureTLS,
		password.Reveal(), forgotten))
}

// recordEvent records an event of the run that inserted m, at most once for each key.
func (e *ejector) recordEvent(ctx context.Context, m inventory.Media, key, message string) {
	err := e.store.Events.AppendEvents(ctx, []inventory.Event{
		{Machine: m.Machine, Run: m.Run, Kind: inventory.EventPower, Key: key, Message: message},
	})
	if err != nil {
		e.log.Error("recording an event about virtual media", "machine", m.Machine, "error", err)
	}
}

// errInUse means that a run holds the machine and may need the medium.
var errInUse = errors.New("the medium is in use")

// requireIdle returns nil if no run holds the machine of m, and otherwise errInUse.
func (e *ejector) requireIdle(ctx context.Context, m inventory.Media) error {
	g, err := e.store.Grants.Grant(ctx, m.Machine)
	if err == nil && g.Run != "" {
		err = errInUse
	}
	return err
}

// requireReleased returns errInUse if a run of the machine is held since a restore from a backup: another system may have begun to use
// the machine's drive after that backup.
func (e *ejector) requireReleased(ctx context.Context, m inventory.Media) error {
	last := e.restored.get()
	if last.AwaitsCluster {
		return errInUse // the cluster may contain a run of this machine
	}
	for _, h := range last.Held {
		if h.Machine != m.Machine {
			continue
		}
		w, err := e.store.Workflows.Workflow(ctx, h.Run)
		if err == nil && !inventory.Final(w.State) || h.Later && errors.Is(err, inventory.ErrNotFound) {
			err = errInUse
		}
		if err != nil && !errors.Is(err, inventory.ErrNotFound) {
			return err
		}
	}
	return nil
}

// eject ejects a medium and deletes its record, unless a run holds the machine (errInUse). If the medium is in a BMC that the machine no
// longer has, or in another drive, the medium stays inserted.
func (e *ejector) eject(ctx context.Context, m inventory.Media) error {
	if err := errors.Join(e.requireIdle(ctx, m), e.requireReleased(ctx, m)); err != nil {
		return err
	}
	machine, err := e.store.Machines.Machine(ctx, m.Machine)
	if err != nil {
		return err
	}
	if !machine.BMC.Capabilities().Media || m.BMC != "" && m.BMC != machine.BMC.KeyAddress() {
		e.log.Warn("virtual media is still inserted in a BMC that the machine no longer has", "machine", m.Machine, "bmc", m.BMC, "url", m.URL)
		e.recordEvent(ctx, m, "eject-left", fmt.Sprintf("virtual media %s is still inserted in the BMC %s, which the machine no longer "+
			"has: eject it in that BMC", m.URL, m.BMC))
		return e.store.Media.DeleteMedia(ctx, m)
	}

	password, err := e.controllers.rotation().Password(ctx, machine)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, ejectTime)
	defer cancel()
	ejected, err := e.controllers.driver.EjectMedia(limited, machine.Controller(), password, m.URL,
		func(ctx context.Context) error { return e.requireIdle(ctx, m) })
	if err != nil {
		return err
	}
	if ejected {
		e.log.With(inventory.Owner{Machine: m.Machine, Run: m.Run}.LogKeys(0)...).Info("virtual media ejected")
	}
	return e.store.Media.DeleteMedia(ctx, m)
}
