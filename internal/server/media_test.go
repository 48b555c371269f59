package server

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
	"github.com/ingotmetal/ingot/lab"
)

// ejectBench is a server whose machine m1 has two virtual CD drives, and a record of a medium of run-1.
type ejectBench struct {
	*rotationBench
	ejector *ejector
	store   *sqlite.Store
	medium  inventory.Media
	clock   time.Time
}

const mediumURL = "http://10.0.0.1/ipxe.iso"

func newEjectBench(t *testing.T) *ejectBench {
	t.Helper()
	b := &ejectBench{rotationBench: newRotationBench(t, lab.RedfishSupermicro), clock: time.Now()}
	b.ejector, b.store = newEjector(b.server), b.records.store
	b.ejector.now = func() time.Time { return b.clock }
	m := b.machine(t)
	b.medium = inventory.Media{Machine: "m1", Run: "run-1", URL: mediumURL, BMC: m.BMC.KeyAddress()}
	require.NoError(t, b.store.Media.PutMedia(t.Context(), b.medium))
	b.service.Insert(1, mediumURL)
	return b
}

// try makes the attempts that are due, and returns the records that are left.
func (b *ejectBench) try(t *testing.T) []inventory.Media {
	t.Helper()
	b.ejector.start(t.Context())
	require.NoError(t, b.ejector.group.Wait())
	all, err := b.store.Media.Media(t.Context())
	require.NoError(t, err)
	return all
}

// events returns the messages of m1's events about power.
func (b *ejectBench) events(t *testing.T) (out []string) {
	t.Helper()
	all, err := b.store.Events.Events(t.Context(), inventory.EventFilter{Machine: "m1", Limit: 1000})
	require.NoError(t, err)
	for _, e := range all {
		if e.Kind == inventory.EventPower {
			out = append(out, e.Message)
		}
	}
	return out
}

// change changes m1's BMC.
func (b *ejectBench) change(t *testing.T, change func(*inventory.BMC)) {
	t.Helper()
	m := b.machine(t)
	m.BMC.Password = inventory.NewSecret(firstPassword)
	change(m.BMC)
	require.NoError(t, b.store.Machines.PutMachines(t.Context(), []inventory.Machine{m}, true, "test"))
}

// TestEject: a run's medium is ejected when no run holds the machine, and nothing else is.
func TestEject(t *testing.T) {
	const theirs = "http://10.0.0.9/theirs.iso"
	b := newEjectBench(t)
	require.Len(t, b.try(t), 1, "the run holds the machine")
	require.Equal(t, mediumURL, b.service.Media())
	require.NoError(t, b.store.Grants.EndGrant(t.Context(), b.owner))
	b.service.Insert(0, theirs)
	require.Empty(t, b.try(t))
	require.Equal(t, theirs, b.service.Media())

	require.NoError(t, b.store.Media.PutMedia(t.Context(), b.medium))
	require.Empty(t, b.try(t), "the drive no longer holds the run's medium")
	require.Equal(t, theirs, b.service.Media())
	require.Empty(t, b.events(t))
}

// TestEjectFromAnotherBMC: what is in a BMC that the machine no longer has is left to the operator.
func TestEjectFromAnotherBMC(t *testing.T) {
	for name, change := range map[string]func(*inventory.BMC){
		"another host": func(b *inventory.BMC) { b.Host = "localhost" },
		"another driver": func(b *inventory.BMC) {
			*b = inventory.BMC{Driver: inventory.DriverIPMI, Host: b.Host, User: "ingot", Password: inventory.NewSecret(firstPassword)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newEjectBench(t)
			require.NoError(t, b.store.Grants.EndGrant(t.Context(), b.owner))
			b.change(t, change)
			require.Empty(t, b.try(t))
			require.Empty(t, b.service.Calls(), "nothing was sent")
			require.Equal(t, mediumURL, b.service.Media())
			require.Len(t, b.events(t), 1)
			require.Contains(t, b.events(t)[0], mediumURL)
			require.Contains(t, b.events(t)[0], b.medium.BMC)
		})
	}
}

// TestEjectRefused: refused credentials are not tried again for an hour, others are, and there is one event.
func TestEjectRefused(t *testing.T) {
	b := newEjectBench(t)
	require.NoError(t, b.store.Grants.EndGrant(t.Context(), b.owner))
	refuse := func() {
		b.service.Pretend(lab.RedfishFault{Method: http.MethodPost, Path: "/redfish/v1/SessionService/Sessions", Count: 1, Status: 401})
	}
	refuse()
	require.Len(t, b.try(t), 1)
	b.clock = b.clock.Add(ejectRefused - time.Second)
	require.Len(t, b.try(t), 1, "the BMC would accept them now")
	require.Len(t, b.events(t), 1)
	require.Contains(t, b.events(t)[0], mediumURL)
	refuse()
	b.clock = b.clock.Add(time.Second)
	require.Len(t, b.try(t), 1, "after an hour")
	require.Len(t, b.events(t), 1)

	b.change(t, func(x *inventory.BMC) { x.Fingerprint = "sha256:" + strings.Repeat("0", 64) })
	require.Len(t, b.try(t), 1, "another key than the BMC's")
	b.change(t, func(x *inventory.BMC) { x.Fingerprint = ""; x.InsecureTLS = true })
	require.Empty(t, b.try(t))
	require.Empty(t, b.service.Media())
}

// TestEjectAfterForgetKey: a medium is ejected at once after an operator had the BMC's key forgotten.
func TestEjectAfterForgetKey(t *testing.T) {
	b := newEjectBench(t)
	require.NoError(t, b.store.Grants.EndGrant(t.Context(), b.owner))
	address := b.machine(t).BMC.KeyAddress()
	_, err := b.store.BMCKeys.KnownBMCKey(t.Context(), address, "sha256:"+strings.Repeat("0", 64))
	require.NoError(t, err)
	require.Len(t, b.try(t), 1, "another key is known")
	b.clock = b.clock.Add(ejectPause)
	require.NoError(t, b.controllers.forgetKey(t.Context(), "192.0.2.1:443"))
	require.Len(t, b.try(t), 1, "another BMC's key was forgotten")
	require.NoError(t, b.controllers.forgetKey(t.Context(), address))
	require.Empty(t, b.try(t))
	require.Empty(t, b.service.Media())
}

// TestEjectHeld: the medium of a run that is held since a restore stays until its record is final.
func TestEjectHeld(t *testing.T) {
	b := newEjectBench(t)
	require.NoError(t, b.store.Grants.EndGrant(t.Context(), b.owner))
	w := inventory.Workflow{Run: "run-1", ID: "machine/m1", Machine: "m1", State: inventory.StateRunning, Started: time.Now()}
	require.NoError(t, b.store.Workflows.PutWorkflow(t.Context(), w))
	b.records.restored.now.Store(&inventory.Restore{AwaitsCluster: true})
	require.Len(t, b.try(t), 1, "the cluster may have a run of the machine")
	b.clock = b.clock.Add(ejectPause)
	b.records.restored.now.Store(&inventory.Restore{Held: []inventory.HeldRun{{Run: "run-2", Machine: "m1", Later: true}}})
	require.Len(t, b.try(t), 1, "a later run has not recorded its end")
	b.clock = b.clock.Add(ejectPause)
	b.records.restored.now.Store(&inventory.Restore{Held: []inventory.HeldRun{{Run: "run-1", Machine: "m1"}}})
	require.Len(t, b.try(t), 1)
	require.Equal(t, mediumURL, b.service.Media())
	w.State, w.Ended = inventory.StateCancelled, time.Now()
	require.NoError(t, b.store.Workflows.PutWorkflow(t.Context(), w))
	require.Empty(t, b.try(t))
	require.Empty(t, b.service.Media())
}

// TestEjectWhileAnotherBMCIsSilent: a BMC that does not answer delays no other one.
func TestEjectWhileAnotherBMCIsSilent(t *testing.T) {
	b := newEjectBench(t)
	ctx := t.Context()
	require.NoError(t, b.store.Grants.EndGrant(ctx, b.owner))
	silent := make(chan struct{})
	b.service.Pretend(lab.RedfishFault{Wait: silent})
	b.ejector.start(ctx)

	other := lab.NewRedfish(idle{}, lab.RedfishHPE, "ingot", firstPassword)
	ejected, once := make(chan struct{}), sync.Once{}
	web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		other.ServeHTTP(w, q)
		if strings.HasSuffix(q.URL.Path, "EjectMedia") {
			once.Do(func() { close(ejected) })
		}
	}))
	t.Cleanup(web.Close)
	u, err := url.Parse(web.URL)
	require.NoError(t, err)
	port, err := strconv.Atoi(u.Port())
	require.NoError(t, err)
	m := inventory.Machine{Name: "m2", Interfaces: []inventory.Interface{{MAC: "52:54:00:00:00:02"}}, BMC: &inventory.BMC{
		Driver: inventory.DriverRedfish, Host: u.Hostname(), Port: port, User: "ingot", Password: inventory.NewSecret(firstPassword),
	}}
	require.NoError(t, b.store.Machines.PutMachines(ctx, []inventory.Machine{m}, true, "test"))
	other.Insert(0, mediumURL)
	require.NoError(t, b.store.Media.PutMedia(ctx, inventory.Media{Machine: "m2", Run: "run-2", URL: mediumURL, BMC: m.BMC.KeyAddress()}))
	b.ejector.start(ctx)
	<-ejected
	close(silent)
	require.Empty(t, b.try(t))
}
