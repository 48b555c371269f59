package activities

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/internal/systems"
	"github.com/ingotmetal/ingot/inventory"
)

// labShelf holds the example lab, and facts.
type labShelf struct {
	unused
	bundle inventory.GenesisBundle
	facts  map[string]string
}

func newLabShelf(t *testing.T) *labShelf {
	t.Helper()
	dir := filepath.Join("..", "deploy", "genesis")
	b, _, err := genesis.Bundle("lab.yaml", func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, name)) }, systems.All{})
	require.NoError(t, err)
	return &labShelf{bundle: b, facts: map[string]string{}}
}

func (s *labShelf) Genesis(context.Context, string) (inventory.GenesisBundle, error) {
	return s.bundle, nil
}

func (s *labShelf) PutFact(_ context.Context, operation, name string, v inventory.Secret) error {
	s.facts[operation+"#"+name] = v.Reveal()
	return nil
}

func (s *labShelf) Fact(_ context.Context, operation, name string) (inventory.Secret, error) {
	v, ok := s.facts[operation+"#"+name]
	if !ok {
		return inventory.Secret{}, inventory.ErrNotFound
	}
	return inventory.NewSecret(v), nil
}

// relayRouter is a VyOS with a list of servers.
type relayRouter struct {
	servers []string
	changes int
	err     error // of a change
	effect  bool  // a change that fails has its effect
}

func (r *relayRouter) RelayServers(_ context.Context, e inventory.Endpoint, key inventory.Secret) ([]string, error) {
	if e.URL != "https://192.168.1.2" || key.IsZero() {
		return nil, fmt.Errorf("asked %s: %w", e.URL, inventory.ErrInvalid)
	}
	return slices.Clone(r.servers), nil
}

func (r *relayRouter) SetRelayServer(
	_ context.Context, _ inventory.Endpoint, _ inventory.Secret, server string, listed bool,
) error {
	r.changes++
	if r.err == nil || r.effect {
		r.servers = slices.DeleteFunc(r.servers, func(x string) bool { return x == server })
		if listed {
			r.servers = append(r.servers, server)
		}
	}
	return r.err
}

func typeOf(t *testing.T, err error) string {
	t.Helper()
	var a *temporal.ApplicationError
	require.ErrorAs(t, fail(err), &a)
	return a.Type()
}

func TestRelay(t *testing.T) {
	r := &relayRouter{servers: []string{"192.168.1.10"}}
	a := New(Config{
		Store:   Store{Genesis: newLabShelf(t)},
		Systems: Systems{Routers: r},
		Log:     slog.New(slog.DiscardHandler),
		Clocks:  Clocks{ProbeEvery: time.Microsecond},
	})
	ctx := t.Context()
	seed, target := netip.MustParseAddr("192.168.1.10"), netip.MustParseAddr("10.10.20.11")
	require.NoError(t, a.RouterReady(ctx, LabRequest{Name: "home"}))

	require.Equal(t, TypeConflict, typeOf(t, a.relayTo(ctx, RelayRequest{"home", seed}, false)), "no one would be answered")
	require.NoError(t, a.relayTo(ctx, RelayRequest{"home", target}, true))
	require.NoError(t, a.relayTo(ctx, RelayRequest{"home", target}, true))
	require.Equal(t, 1, r.changes, "what is so is not done again")
	require.Equal(t, []string{"192.168.1.10", "10.10.20.11"}, r.servers)
	require.NoError(t, a.relayTo(ctx, RelayRequest{"home", seed}, false))
	require.NoError(t, a.relayTo(ctx, RelayRequest{"home", seed}, false))
	require.Equal(t, 2, r.changes)

	r.err, r.effect = inventory.ErrUnreachable, true
	require.Equal(t, TypeUnreachable, typeOf(t, a.relayTo(ctx, RelayRequest{"home", seed}, true)))
	require.NoError(t, a.relayTo(ctx, RelayRequest{"home", seed}, true), "it had its effect, though its answer was lost")
	r.err, r.effect = inventory.ErrInvalid, false
	require.Equal(t, TypeInvalid, typeOf(t, a.relayTo(ctx, RelayRequest{"home", seed}, false)))

	r.servers = []string{"10.0.0.9"}
	err := a.RouterReady(ctx, LabRequest{Name: "home"})
	require.Equal(t, TypeInvalid, typeOf(t, err), "a wrong config.boot is not a reason to wait for the whole budget")
	require.ErrorContains(t, err, "the router's DHCP relay lists [10.0.0.9], but not 192.168.1.10")
}

func TestUntil(t *testing.T) {
	a := New(Config{Clocks: Clocks{ProbeEvery: time.Microsecond}})
	n := 0
	require.NoError(t, a.until(t.Context(), func(context.Context) error {
		if n++; n < 100 {
			return inventory.ErrUnreachable
		}
		return nil
	}))
	n = 0
	err := a.until(t.Context(), func(context.Context) error {
		if n++; n == 5 {
			return inventory.ErrUnreachable // the count starts again
		}
		return inventory.ErrRefused
	})
	require.Equal(t, TypeRefused, typeOf(t, err))
	require.Equal(t, 5+stubborn, n)

	synctest.Test(t, func(t *testing.T) {
		a := New(Config{Clocks: Clocks{ProbeEvery: time.Second}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := a.until(ctx, func(context.Context) error { return fmt.Errorf("it starts: %w", inventory.ErrUnreachable) })
		require.Equal(t, TypeUnreachable, typeOf(t, err), "before the time is up it says why")
		require.ErrorContains(t, err, "it starts")
	})
	stopped, stop := context.WithCancel(t.Context())
	stop()
	require.ErrorIs(t, a.until(stopped, func(context.Context) error { return errors.New("x") }), context.Canceled)
}

// S25: what preflight says is kept in the history of its workflow, and an
// image's address may be signed.
func TestS25PreflightRepeatsNoSignature(t *testing.T) {
	s := newLabShelf(t)
	lab, err := genesis.Load(s.bundle.File, s.bundle.Read, systems.All{})
	require.NoError(t, err)
	lab.Images = []genesis.Image{{Name: "vyos", URL: "https://canary:canary@example.org/vyos.zst?X-Signature=canary#canary", SHA256: "aa"}}
	var asked string
	a := New(Config{
		Store: Store{Images: noImages{}},
		Site:  Site{ProbeImage: func(_ context.Context, address string) error { asked = address; return inventory.ErrUnreachable }},
	})
	var ps inventory.Problems
	require.NoError(t, a.checkImages(t.Context(), lab, &ps))
	require.Equal(t, lab.Images[0].URL, asked)
	require.Len(t, ps, 2)
	require.ErrorContains(t, lab.Locate(ps).Err(), "ingot image add vyos https://example.org/vyos.zst")
	require.NotContains(t, lab.Locate(ps).Err().Error(), "canary")
}

type noImages struct{ unused }

func (noImages) Images(context.Context) ([]inventory.Image, error) { return nil, nil }

func TestAddressesThatAreTaken(t *testing.T) {
	s := newLabShelf(t)
	lab, err := genesis.Load(s.bundle.File, s.bundle.Read, systems.All{})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		taken     string
		mac       string
		written   bool
		given     string // kind of an event of its DHCP
		installed []string
		ours      []string
		want      string
	}{
		"no one":              {},
		"someone":             {taken: "10.10.20.11", want: "another host already answers at 10.10.20.11"},
		"a device":            {taken: "10.10.20.11", mac: "02:00:00:00:00:99", want: "02:00:00:00:00:99 already answers"},
		"the machine itself":  {taken: "10.10.20.11", mac: "02:00:00:00:07:60"},
		"installed before":    {taken: "10.10.20.11", written: true},
		"given by us":         {taken: "10.10.20.11", given: inventory.EventOS},
		"not given by us":     {taken: "10.10.20.11", given: inventory.EventOperator, want: "another host already answers"},
		"installed by us":     {taken: "10.10.20.11", ours: []string{"um760"}},
		"a bond of one done":  {taken: "10.10.20.11", mac: "02:00:00:00:00:99", installed: []string{"um760"}},
		"the cluster's":       {taken: "10.10.20.30", want: "the address for the cluster"},
		"of our own cluster":  {taken: "10.10.20.30", ours: []string{"ms-02-a"}},
		"of a cluster made":   {taken: "10.10.20.30", installed: []string{"ms-02-a"}},
		"a VIP, node seen":    {taken: "10.10.20.30", given: inventory.EventDHCP, want: "the address for the cluster"},
		"of the BMC, its AMT": {taken: "10.10.20.21"},
		"a stranger's, of ours": {
			taken: "10.10.20.11", mac: "02:00:00:00:00:99", ours: []string{"um760"}, want: "02:00:00:00:00:99 already answers at 10.10.20.11, the address for machine um760",
		},
		"a stranger's, of one installed before": {taken: "10.10.20.11", mac: "02:00:00:00:00:99", written: true, want: "02:00:00:00:00:99 already answers"},
	} {
		t.Run(name, func(t *testing.T) {
			a := New(Config{
				Store:   Store{Disks: anyDisks(c.written), Events: given{kind: c.given}},
				Systems: Systems{Presence: taken{c.taken, c.mac}},
			})
			var ps inventory.Problems
			require.NoError(t, a.checkFree(t.Context(), lab, c.installed, c.ours, &ps))
			if c.want == "" {
				require.Empty(t, ps)
			} else {
				require.Len(t, ps, 1)
				require.Contains(t, ps[0].String(), c.want)
			}
		})
	}
}

// given has seen one event of each machine.
type given struct {
	unused
	kind string
}

func (g given) Events(context.Context, inventory.EventFilter) ([]inventory.Event, error) {
	return []inventory.Event{{Kind: g.kind}}, nil
}

type taken struct{ addr, mac string }

func (x taken) Answers(_ context.Context, a netip.Addr) (bool, string, error) {
	if a.String() != x.addr {
		return false, "", nil
	}
	return true, x.mac, nil
}

type someDisks struct {
	unused
	written bool
}

func anyDisks(written bool) Disks { return someDisks{written: written} }

func (d someDisks) DisksWritten(context.Context, string) (map[string]string, error) {
	if d.written {
		return map[string]string{"serial": "run"}, nil
	}
	return nil, inventory.ErrNotFound
}

// logbook is what the inventory has of runs and operations.
type logbook struct{ *records }

func (l logbook) Operations(_ context.Context, f inventory.OperationFilter) ([]inventory.Operation, error) {
	if f.Open {
		return nil, nil
	}
	return l.operations, nil
}

func (l logbook) Workflows(_ context.Context, f inventory.WorkflowFilter) (out []inventory.Workflow, err error) {
	for _, w := range l.runs {
		if w.Machine == f.Machine {
			out = append(out, w)
		}
	}
	return out, nil
}

// A resumed Genesis accepts answers of machines that it has started to install. A first
// Genesis knows of no such machines.
func TestWhoMayAnswerWhenAGenesisIsResumed(t *testing.T) {
	mine, other := []byte(`{"parent":"genesis/home"}`), []byte(`{"machine":"x"}`)
	run := func(machine, state string, input []byte) inventory.Workflow {
		return inventory.Workflow{Run: "r-" + machine, Type: inventory.TypeProvision, Machine: machine, State: state, Input: input}
	}
	a := New(Config{Store: storeOf(logbook{&records{
		storeGenesis: newLabShelf(t),
		operations: []inventory.Operation{{Run: "first", Steps: []inventory.OperationStep{
			{
				Name:  "router",
				State: inventory.StepDone,
			},
			{Name: "platform", State: inventory.StepFailed},
			{Name: "create", State: inventory.StepFailed},
		}}},
		runs: []inventory.Workflow{
			run("vp6630", inventory.StateSuccess, mine), run("um760", inventory.StateRunning, mine), // it goes on
			run("ms-02-a", inventory.StateSuccess, other), // an operator has done it
			run("ms-02-b", inventory.StateFailed, other),
		},
	}})})
	table, err := a.ReadLab(t.Context(), LabRequest{Name: "home", Run: "second", Resume: true})
	require.NoError(t, err)
	require.Equal(t, []string{"vp6630"}, table.Installed)
	require.Equal(t, []string{"um760", "ms-02-a"}, table.Ours)
	a.Operations = &records{}
	a.Workflows = &records{}
	table, err = a.ReadLab(t.Context(), LabRequest{Name: "home", Run: "first"})
	require.NoError(t, err)
	require.Empty(t, table.Ours)
	require.Empty(t, table.Installed)
}
