package bootsvc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// phases of a machine in TestS1NoLookupReopensAWindow, in their order.
const (
	closed = iota // the write that closed it has returned
	arming
	open // the write that armed it has returned
	closing
	phases
)

// subject is a machine whose phase only one goroutine changes.
type subject struct {
	machine inventory.Machine
	phase   atomic.Int64 // counts up; the phase is the remainder
}

// TestS1NoLookupReopensAWindow: while many machines are armed and closed in all ways, in random order,
// no lookup that begins after the closing write has returned decides that the machine is armed, and
// none that begins after the arming write has returned decides that it is not.
func TestS1NoLookupReopensAWindow(t *testing.T) {
	const machines, readers, rounds = 8, 4, 12
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "ingot.db"), noKeys{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	subjects := make([]*subject, machines)
	for n := range subjects {
		subjects[n] = &subject{machine: inventory.Machine{Name: fmt.Sprintf("m%d", n), Interfaces: []inventory.Interface{{
			MAC: benchMAC(n).String(), Address: benchAddress(benchNet, n), Netmask: "255.252.0.0",
		}}}}
		if err := store.PutMachines(t.Context(), []inventory.Machine{subjects[n].machine}, false, "test"); err != nil {
			t.Fatal(err)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	var keep, read, write errgroup.Group
	keep.Go(func() error { return store.KeepIndex(ctx) })
	for range readers {
		read.Go(func() error {
			for ctx.Err() == nil {
				if err := subjects[rand.IntN(machines)].look(store); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for _, s := range subjects {
		write.Go(func() error {
			for round := range rounds {
				if err := s.armAndClose(t.Context(), store, fmt.Sprintf("%s-%d", s.machine.Name, round)); err != nil {
					return fmt.Errorf("%s, round %d: %w", s.machine.Name, round, err)
				}
			}
			return nil
		})
	}
	err = write.Wait()
	cancel()
	if err := errors.Join(err, read.Wait(), keep.Wait()); err != nil {
		t.Fatal(err)
	}
}

// look looks the machine up and decides. If its phase was the same before and after, the decision must be that of the
// phase.
func (s *subject) look(store *sqlite.Store) error {
	i := s.machine.Interfaces[0]
	r := Request{Class: ClassIPXE, Arch: ArchUnknown}
	before := s.phase.Load()
	var m inventory.Machine
	var g inventory.Grant
	var err error
	if rand.IntN(2) == 0 {
		r.MAC = i.MAC
		m, g, err = store.MachineByMAC(context.Background(), i.MAC)
	} else {
		r.Address = i.Address
		m, g, err = store.MachineByAddress(context.Background(), i.Address)
	}
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		return err
	}
	d := Decide(m, g, r, time.Now())
	if before != s.phase.Load() {
		return nil
	}
	if p := before % phases; p == closed && d.Armed() || p == open && !d.Armed() {
		return fmt.Errorf("%s in phase %d is decided as %s: %v", s.machine.Name, p, d.Verdict, d.Reasons)
	}
	return nil
}

// armAndClose arms the machine for a run or an operator and closes it in a random way.
func (s *subject) armAndClose(ctx context.Context, store *sqlite.Store, run string) error {
	name, until := s.machine.Name, time.Now().Add(time.Hour)
	way := rand.IntN(6)
	s.phase.Add(1)
	if way == 5 {
		_, err := store.ArmByHand(ctx, name, "admin", until)
		s.phase.Add(2)
		if err == nil {
			err = store.DisarmByHand(ctx, name, "admin", false)
		}
		s.phase.Add(1)
		return err
	}
	g, err := store.TakeGrant(ctx, name, run, "", true)
	if err != nil {
		return err
	}
	if way == 2 {
		_, err = store.AllowInstaller(ctx, g.Owner, 1, until)
	} else {
		_, err = store.AllowBoot(ctx, g.Owner, 1, until)
	}
	if err != nil {
		return err
	}
	s.phase.Add(1)
	if err := s.look(store); err != nil {
		return err
	}
	s.phase.Add(1)
	switch way {
	case 0:
		err = store.CloseNetboot(ctx, g.Owner)
	case 1:
		err = store.EndGrant(ctx, g.Owner)
	case 2:
		err = store.SpendBoot(ctx, g.Owner, 1, "kernel")
	case 3: // fenced
		g, err = store.TakeGrant(ctx, name, run+"-again", "", true)
	case 4:
		if err = store.EndGrant(ctx, g.Owner); err == nil {
			err = store.DeleteMachine(ctx, name, "test")
		}
	}
	s.phase.Add(1)
	return errors.Join(err, s.look(store), store.EndGrant(ctx, g.Owner), s.replace(ctx, store))
}

// replace stores the machine again, with other facts.
func (s *subject) replace(ctx context.Context, store *sqlite.Store) error {
	m := s.machine
	m.Labels = map[string]string{"round": fmt.Sprint(rand.Int())}
	return store.PutMachines(ctx, []inventory.Machine{m}, true, "test")
}
