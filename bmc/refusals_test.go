package bmc

import (
	"context"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	vlab "github.com/ingotmetal/ingot/lab"
)

// refusals is a RefusalStore in memory.
type refusals struct {
	mu    sync.Mutex
	known map[string]inventory.BMCRefusals
}

func (r *refusals) BMCRefusals(_ context.Context, address string) (inventory.BMCRefusals, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[address], nil
}

func (r *refusals) PutBMCRefusals(_ context.Context, address string, x inventory.BMCRefusals) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known[address] = x; x.Count == 0 {
		delete(r.known, address)
	}
	return nil
}

// lockBench is a BMC that counts the log-ins that it refuses.
type lockBench struct {
	*Driver
	bmc     inventory.BMC
	store   *refusals
	now     time.Time
	refused func() int // in all
}

// restart starts another process with the same store and key.
func (b *lockBench) restart() {
	b.Driver = New(Config{
		Step: time.Millisecond, Hard: 10 * time.Millisecond, Soft: 10 * time.Millisecond, Settle: time.Millisecond, PerMinute: 100_000,
		Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Keys: &keys{known: map[string]string{}}, Refusals: b.store,
		DigestKey: make([]byte, 32),
	})
	b.cfg.busy, b.cfg.now = 0, func() time.Time { return b.now }
}

// lockBenches returns a BMC of each kind of log-in.
func lockBenches(t *testing.T) map[string]*lockBench {
	t.Helper()
	out := map[string]*lockBench{}
	add := func(name string, s *httptest.Server, driver string, refused func() int) {
		t.Cleanup(s.Close)
		b := &lockBench{bmc: at(t, s.URL), store: &refusals{known: map[string]inventory.BMCRefusals{}}, now: time.Now(), refused: refused}
		b.bmc.Driver, b.bmc.Machine = driver, "node-1"
		b.restart()
		out[name] = b
	}
	amt, all := vlab.NewAMT(&chassis{power: vlab.Off}, "admin", canary), 0
	add("amt", httptest.NewServer(amt), inventory.DriverAMT, func() int { all += amt.Refused(); return all })
	session := vlab.NewRedfish(&chassis{power: vlab.Off}, vlab.RedfishHPE, "admin", canary)
	add("redfish", httptest.NewTLSServer(session), inventory.DriverRedfish, session.Refused)
	basic := vlab.NewRedfish(&chassis{power: vlab.Off}, vlab.RedfishHPE, "admin", canary)
	basic.Pretend(vlab.RedfishFault{Method: "POST", Path: "/redfish/v1/SessionService/Sessions", Status: 405})
	add("redfish without sessions", httptest.NewTLSServer(basic), inventory.DriverRedfish, basic.Refused)
	return out
}

// TestS29RefusalsAreCountedPerBMC: every operation counts, restarts forget nothing, and after three refusals the
// credentials rest. Others are tried once, and a success ends all rests.
func TestS29RefusalsAreCountedPerBMC(t *testing.T) {
	wrong, other := inventory.NewSecret("wrong-1"), inventory.NewSecret("wrong-2")
	for name, b := range lockBenches(t) {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			operations := []func(inventory.Secret) error{
				func(p inventory.Secret) error { _, err := b.State(ctx, b.bmc, p); return err },
				func(p inventory.Secret) error { return b.Set(ctx, b.bmc, p, "off", nil) },
				func(p inventory.Secret) error { _, err := b.SetBootDevice(ctx, b.bmc, p, pxeOnce, nil); return err },
				func(p inventory.Secret) error { _, err := b.Check(ctx, b.bmc, p); return err },
			}
			for range 3 {
				for _, do := range operations {
					require.ErrorIs(t, do(wrong), inventory.ErrRefused)
					require.LessOrEqual(t, b.refused(), maxRefused)
				}
				b.restart()
			}
			require.Equal(t, maxRefused, b.refused())
			err := operations[0](wrong)
			require.ErrorIs(t, err, inventory.ErrResting)
			require.ErrorContains(t, err, "refused the log-in 3 times in a row")
			require.ErrorContains(t, err, "ingot bmc check node-1 --retry")

			for range 3 { // as between the two passwords of an interrupted rotation
				require.ErrorIs(t, operations[0](other), inventory.ErrRefused)
				require.ErrorIs(t, operations[0](wrong), inventory.ErrResting)
			}
			require.Equal(t, maxRefused+1, b.refused())

			require.NoError(t, b.AllowRetry(ctx, b.bmc))
			require.ErrorIs(t, operations[0](wrong), inventory.ErrRefused)
			require.ErrorIs(t, operations[0](wrong), inventory.ErrResting, "one log-in")
			require.Equal(t, maxRefused+2, b.refused())

			require.NoError(t, operations[0](password()))
			require.Empty(t, b.store.known)
			require.ErrorIs(t, operations[0](wrong), inventory.ErrRefused)
			require.Equal(t, maxRefused+3, b.refused())
			b.now = b.now.Add(-time.Hour)
			require.NoError(t, operations[0](password()))
		})
	}
}
