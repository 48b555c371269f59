// Package fakesite is an inventory in a file of the test and a Temporal that keeps
// its runs in memory, for the tests of the packages that connect the two.
package fakesite

import (
	"maps"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
	"github.com/ingotmetal/ingot/workflows"
)

// MAC is the address of most tests' machine.
const MAC = "52:54:00:00:00:0a"

// Nonces of two agents.
const (
	NonceA = "00112233445566778899aabbccddeeff"
	NonceB = "ffeeddccbbaa99887766554433221100"
)

// Clock is a time that tests move.
type Clock struct {
	mu sync.Mutex
	t  time.Time
}

// NewClock returns a Clock that shows t.
func NewClock(t time.Time) *Clock { return &Clock{t: t} }

// Now returns the time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

// Move moves the time by d.
func (c *Clock) Move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// plainKeys seals nothing: these tests do not depend on sealing.
type plainKeys struct{}

func (plainKeys) Seal(_, _ string, plain []byte) ([]byte, error)  { return plain, nil }
func (plainKeys) Open(_, _ string, sealed []byte) ([]byte, error) { return sealed, nil }

// Site is an inventory and a Temporal.
type Site struct {
	T        *testing.T
	Store    *sqlite.Store
	Temporal *Temporal
	Clock    *Clock
}

// New returns a Site without machines.
func New(t *testing.T) *Site {
	t.Helper()
	c := NewClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "ingot.db"), plainKeys{}, sqlite.WithClock(c.Now))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })

	return &Site{T: t, Store: store, Temporal: NewTemporal(), Clock: c}
}

// AddMachine makes a machine with a BMC.
func (s *Site) AddMachine(name, mac string) {
	s.T.Helper()
	m := inventory.Machine{Name: name, Interfaces: []inventory.Interface{{MAC: mac}}}
	m.BMC = &inventory.BMC{
		Driver: inventory.DriverIPMI, Host: "192.0.2." + mac[len(mac)-1:] + "0", User: "admin", Password: inventory.NewSecret("hunter2"),
	}
	if strings.HasSuffix(mac, "a") {
		m.BMC.Host = "192.0.2.10"
	}
	require.NoError(s.T, s.Store.Machines.PutMachines(s.T.Context(), []inventory.Machine{m}, false, "test"))
}

// Arm makes the machine's run, with its grant, its record and one boot allowed.
func (s *Site) Arm(name, run string) inventory.Owner {
	s.T.Helper()
	ctx := s.T.Context()
	s.Temporal.Open(workflows.MachineID(name), run)
	g, err := s.Store.Grants.TakeGrant(ctx, name, run, workflows.MachineID(name), false)
	require.NoError(s.T, err)
	_, err = s.Store.Grants.AllowBoot(ctx, g.Owner, 1, s.Clock.Now().Add(time.Hour))
	require.NoError(s.T, err)
	require.NoError(s.T, s.Store.Workflows.PutWorkflow(ctx, inventory.Workflow{
		Run: run, ID: workflows.MachineID(name), Type: inventory.TypeProvision, Machine: name, Epoch: g.Epoch,
		Template: "image", Image: "debian-12", State: inventory.StateRunning, Phase: inventory.PhaseAgent,
		Started: s.Clock.Now(), Updated: s.Clock.Now(),
		Actions: []inventory.ActionRecord{{Name: "write", State: action.Running, Attempt: 1, Timeout: 600}},
	}))

	return g.Owner
}

// Hello returns the agent's request that redeems the claim of o's boot.
func Hello(claimKey []byte, o inventory.Owner, boot int, nonce string) action.Hello {
	return action.Hello{
		Protocol: action.Protocol, Machine: o.Machine, Claim: inventory.Claim(claimKey, o, boot), Nonce: nonce, MAC: MAC,
		Facts: action.Facts{Disks: []action.Disk{{Path: "/dev/sda", Serial: "S1", Size: 1 << 30}}},
	}
}

// Assign gives o's agent an action.
func (s *Site) Assign(o inventory.Owner) action.Key {
	s.T.Helper()
	k := action.Key{Epoch: o.Epoch, Attempt: 1}
	require.NoError(s.T, s.Store.Assignments.Assign(s.T.Context(), inventory.Assignment{
		Owner: o, Boot: 1, Key: k,
		Payload: action.Assignment{Key: k, Run: o.Run, Action: action.Action{Name: "write", Image: "noop", Timeout: 600}},
	}))

	return k
}

// Events counts the events that f selects, by kind.
func (s *Site) Events(f inventory.EventFilter) map[string]int {
	s.T.Helper()
	es, err := s.Store.Events.Events(s.T.Context(), f)
	require.NoError(s.T, err)
	kinds := map[string]int{}
	for _, e := range es {
		kinds[e.Kind]++
	}

	return maps.Clone(kinds)
}
