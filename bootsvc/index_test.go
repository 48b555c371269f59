package bootsvc

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
	"github.com/ingotmetal/ingot/lab/fakesite"
	"github.com/ingotmetal/ingot/metadatasvc"
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
	owner   atomic.Pointer[inventory.Owner]
}

// view answers from a store, as a process does. Only one of them writes.
type view struct {
	*sqlite.Store
	writes   bool
	metadata http.Handler
}

func newView(t *testing.T, path string, writes bool) *view {
	t.Helper()
	store, err := sqlite.Open(t.Context(), path, noKeys{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	m, err := metadatasvc.New(
		metadatasvc.Config{Address: testSelf, Key: testKey, Log: slog.New(slog.DiscardHandler)},
		fakesite.InventoryOf(store),
		&fakeJournal{},
	)
	if err != nil {
		t.Fatal(err)
	}
	return &view{store, writes, m.Handler()}
}

// TestS1NoLookupReopensAWindow: while many machines are armed and closed in all ways, in random order,
// no lookup that begins after the closing write has returned decides that the machine is armed, or gets
// its secret documents, in the process that writes and in another one. In the one that writes, none that
// begins after the arming write has returned decides that it is not armed.
func TestS1NoLookupReopensAWindow(t *testing.T) {
	const machines, readers, rounds = 8, 2, 8
	path := filepath.Join(t.TempDir(), "ingot.db")
	views := []*view{newView(t, path, true), newView(t, path, false)}
	store := views[0]
	subjects := make([]*subject, machines)
	for n := range subjects {
		m := inventory.Machine{Name: fmt.Sprintf("m%d", n), UserData: inventory.NewSecret(secretText), UserDataByAddress: true}
		m.Interfaces = []inventory.Interface{{
			MAC: benchMAC(n).String(), Address: benchAddress(benchNet, n), Netmask: "255.252.0.0",
		}}
		subjects[n] = &subject{machine: m}
		if err := store.Machines.PutMachines(t.Context(), []inventory.Machine{subjects[n].machine}, false, "test"); err != nil {
			t.Fatal(err)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	var keep, read, write errgroup.Group
	keep.Go(func() error { return store.Machines.KeepIndex(ctx) })
	keep.Go(func() error {
		for ctx.Err() == nil { // each start looks for writes of others, for which KeepIndex waits a second
			soon, stop := context.WithTimeout(ctx, 10*time.Millisecond)
			err := views[1].Machines.KeepIndex(soon)
			stop()
			if err != nil {
				return err
			}
		}
		return nil
	})
	for range readers {
		read.Go(func() error {
			for ctx.Err() == nil {
				if err := subjects[rand.IntN(machines)].look(views[rand.IntN(len(views))]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for _, s := range subjects {
		write.Go(func() error {
			for round := range rounds {
				if err := s.armAndClose(t.Context(), views, fmt.Sprintf("%s-%d", s.machine.Name, round)); err != nil {
					return fmt.Errorf("%s, round %d: %w", s.machine.Name, round, err)
				}
			}
			return nil
		})
	}
	err := write.Wait()
	cancel()
	if err := errors.Join(err, read.Wait(), keep.Wait()); err != nil {
		t.Fatal(err)
	}
}

// look looks the machine up, decides, and asks for its secret documents. If its phase was the same before and after, the
// answers must be those of the phase.
func (s *subject) look(v *view) error {
	i := s.machine.Interfaces[0]
	r := Request{Class: wire.ClassIPXE, Arch: wire.ArchUnknown}
	before := s.phase.Load()
	var m inventory.Machine
	var g inventory.Grant
	var err error
	if rand.IntN(2) == 0 {
		r.MAC = i.MAC
		m, g, err = v.Machines.MachineByMAC(context.Background(), i.MAC)
	} else {
		r.Address = i.Address
		m, g, err = v.Machines.MachineByAddress(context.Background(), i.Address)
	}
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		return err
	}
	d := Decide(m, g, r, time.Now())
	secret := s.readsSecret(v)
	if before != s.phase.Load() {
		return nil
	}
	if p := before % phases; p == closed && (d.Armed() || secret) || p == open && v.writes && !d.Armed() {
		return fmt.Errorf("%s in phase %d is decided as %s, secret %t, where writes is %t: %v",
			s.machine.Name, p, d.Verdict, secret, v.writes, d.Reasons)
	}
	return nil
}

// secretText is the user data of the machines.
const secretText = "#cloud-config\npassword: canary-7f3a\n"

// readsSecret reports whether the metadata service serves the user data: by the machine's address, or at the path of
// its last run.
func (s *subject) readsSecret(v *view) bool {
	path := "/latest/user-data"
	if o := s.owner.Load(); o != nil && rand.IntN(2) == 0 {
		path = cloudinit.URL("", testKey, *o) + "user-data"
	}
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.RemoteAddr = netip.AddrPortFrom(s.machine.Interfaces[0].Address, 40000).String()
	w := httptest.NewRecorder()
	v.metadata.ServeHTTP(w, r)
	body := w.Body.String() // multipart by the address
	return strings.Contains(body, secretText) || strings.Contains(body, base64.StdEncoding.EncodeToString([]byte(secretText)))
}

// lookAll looks the machine up in all views.
func (s *subject) lookAll(views []*view) error {
	for _, v := range views {
		if err := s.look(v); err != nil {
			return err
		}
	}
	return nil
}

// armAndClose arms the machine for a run or an operator and closes it in a random way.
func (s *subject) armAndClose(ctx context.Context, views []*view, run string) error {
	store := views[0]
	name, until := s.machine.Name, time.Now().Add(time.Hour)
	way := rand.IntN(6)
	s.phase.Add(1)
	if way == 5 {
		_, err := store.Grants.ArmByHand(ctx, name, "admin", until)
		s.phase.Add(2)
		if err == nil {
			err = store.Grants.DisarmByHand(ctx, name, "admin", false)
		}
		s.phase.Add(1)
		return err
	}
	g, err := store.Grants.TakeGrant(ctx, name, run, "", true)
	if err != nil {
		return err
	}
	if way == 2 {
		_, err = store.Grants.AllowInstaller(ctx, g.Owner, 1, until)
	} else {
		_, err = store.Grants.AllowBoot(ctx, g.Owner, 1, until)
	}
	if err != nil {
		return err
	}
	if err := store.Grants.OpenSecrets(ctx, g.Owner, until); err != nil {
		return err
	}
	owner := g.Owner // readers keep it while g changes
	s.owner.Store(&owner)
	s.phase.Add(1)
	if err := s.lookAll(views); err != nil {
		return err
	}
	if !s.readsSecret(store) {
		return errors.New("the open window serves no secret")
	}
	s.phase.Add(1)
	switch way {
	case 0:
		err = errors.Join(store.Grants.CloseNetboot(ctx, g.Owner), store.Grants.CloseSecrets(ctx, g.Owner))
	case 1:
		err = store.Grants.EndGrant(ctx, g.Owner)
	case 2:
		err = errors.Join(store.Plans.SpendBoot(ctx, g.Owner, 1, "kernel"), store.Grants.CloseSecrets(ctx, g.Owner))
	case 3: // fenced
		g, err = store.Grants.TakeGrant(ctx, name, run+"-again", "", true)
	case 4:
		if err = store.Grants.EndGrant(ctx, g.Owner); err == nil {
			err = store.Machines.DeleteMachine(ctx, name, "test")
		}
	}
	s.phase.Add(1)
	return errors.Join(err, s.lookAll(views), store.Grants.EndGrant(ctx, g.Owner), s.replace(ctx, store))
}

// replace stores the machine again, with other facts.
func (s *subject) replace(ctx context.Context, store *view) error {
	m := s.machine
	m.Labels = map[string]string{"round": fmt.Sprint(rand.Int())}
	return store.Machines.PutMachines(ctx, []inventory.Machine{m}, true, "test")
}
