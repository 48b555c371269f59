package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// lostBoots finds network boots that failed because this server was down. Firmware and boot loaders give up after
// seconds; without lostBoots, the run would wait as long as for a machine with a slow self-test.
//
// A boot counts as lost if its last recorded request came before the server began to listen, and since then the machine
// has neither sent a request nor received a file. The run gets one event and starts the machine again. Two kinds of
// boots are left alone: a boot without any request, because the machine may still be in its self-test, and a boot whose
// initramfs was delivered, because its agent repeats its hello.
type lostBoots struct {
	stores Stores
	now    func() time.Time
	up     func() time.Duration // how long the server has listened without a break
	// isBooting is Config.IsBooting.
	isBooting func(ctx context.Context, machine string, since time.Time) (bool, error)

	mu      sync.Mutex
	checked bool // the boots were checked since the server began to listen
}

// bootSilence is how long this server listens before it checks the boots. Firmware repeats its DHCP request within 32 s
// (PXE 2.1 §2.4.2); TFTP clients and iPXE repeat theirs sooner.
const bootSilence = 35 * time.Second

// check does nothing until the server has listened for bootSilence. It then judges all boots once, and again only after an error.
func (b *lostBoots) check(ctx context.Context) error {
	up := b.up()
	b.mu.Lock()
	b.checked = b.checked && up >= bootSilence
	done := b.checked || up < bootSilence
	b.mu.Unlock()
	if done {
		return nil
	}

	grants, err := b.stores.Grants.Grants(ctx)
	if err != nil {
		return fmt.Errorf("reading grants: %w", err)
	}
	since := b.now().Add(-up)
	var errs []error
	for _, g := range grants {
		if !g.ByOperator() && g.NetbootOpen(b.now()) {
			errs = append(errs, b.judge(ctx, g, since))
		}
	}
	err = errors.Join(errs...)
	b.mu.Lock()
	b.checked = err == nil
	b.mu.Unlock()

	return err
}

// judge appends an event for the run of g if the boot of g was lost. since is when the server began to listen.
func (b *lostBoots) judge(ctx context.Context, g inventory.Grant, since time.Time) error {
	last, err := b.lastRequest(ctx, g)
	if err != nil || !last.At.Before(since) {
		return err
	}
	switch last.Kind {
	case inventory.EventDHCP, inventory.EventLoader, inventory.EventScript, inventory.EventKernel:
	default:
		return nil
	}
	boots, err := b.isBooting(ctx, g.Machine, since)
	if err != nil || boots {
		return err
	}

	e := inventory.Event{
		Machine: g.Machine, Run: g.Run, Epoch: g.Epoch, Boot: g.Boot, Kind: inventory.EventBootLost, At: b.now(), Count: 1,
		Key: "restart", // the same key each time: one event per boot
		Message: fmt.Sprintf("this boot was lost: the machine sent its last request (%s) at %s, before this server was started, "+
			"and has sent none since", last.Kind, last.At.UTC().Format(time.RFC3339)),
	}
	if err := b.stores.Events.AppendEvents(ctx, []inventory.Event{e}); err != nil {
		return fmt.Errorf("appending event %s of machine %q: %w", e.Kind, g.Machine, err)
	}

	return nil
}

// lastRequest returns the event of the newest request that the machine has sent in the boot of g. It returns the zero
// Event if there is none.
func (b *lostBoots) lastRequest(ctx context.Context, g inventory.Grant) (last inventory.Event, err error) {
	events, err := b.stores.Events.Events(ctx, inventory.EventFilter{Run: g.Run, Descending: true})
	if err != nil {
		return last, fmt.Errorf("reading the events of run %q: %w", g.Run, err)
	}
	for _, e := range events {
		switch e.Kind {
		case inventory.EventDHCP, inventory.EventLoader, inventory.EventScript, inventory.EventKernel, inventory.EventInitrd,
			inventory.EventRebooted, inventory.EventOS:
			if e.Epoch == g.Epoch && e.Boot == g.Boot && e.At.After(last.At) {
				last = e
			}
		}
	}
	return last, nil
}
