package activities

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/inventory"
)

// quietSite is a site with one run and without undelivered events.
type quietSite struct {
	unused
	owner inventory.Owner
}

func (q *quietSite) Grant(context.Context, string) (inventory.Grant, error) {
	return inventory.Grant{Owner: q.owner}, nil
}

func (q *quietSite) Agent(context.Context, inventory.Owner) (inventory.Agent, error) {
	return inventory.Agent{Owner: q.owner, Boot: 1}, nil
}

func (q *quietSite) PendingSignals(context.Context, inventory.Owner) (int, error) { return 0, nil }

// TestSilenceNeedsAListener: a server that was frozen for ten minutes, or began
// to listen late, waits until it would have received the agent's heartbeat.
func TestSilenceNeedsAListener(t *testing.T) {
	for name, lives := range map[string]bool{Alive: true, Silent: false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				var frozen, received atomic.Int64
				elapsed := func() time.Duration { return time.Since(begun) + time.Duration(frozen.Load()) }
				c := clock.Of(func() time.Time { return begun.Add(elapsed()) }, elapsed)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- c.Run(ctx, func(context.Context, clock.Step) {}) }()
				q := &quietSite{owner: inventory.Owner{Machine: "m1", Run: "r1", Epoch: 1}}
				a := New(Config{
					Store: storeOf(q),
					Clocks: Clocks{
						Clock: c,
						Silence: func(inventory.Owner, int) (time.Duration, bool) {
							return elapsed() - time.Duration(received.Load()), true
						},
					},
				})
				ask := func() (EvidenceFound, time.Duration) {
					asked := time.Now()
					found, err := a.Evidence(t.Context(), EvidenceRequest{
						Owner: q.owner, Wait: Wait{Began: begun.Add(elapsed() - 8*time.Minute), For: 8 * time.Minute, Served: true},
					})
					require.NoError(t, err)
					return found, time.Since(asked)
				}
				for _, broken := range []func(){
					func() { frozen.Add(int64(10 * time.Minute)) },
					func() { received.Store(int64(elapsed() - time.Minute)); c.Listening() },
				} {
					time.Sleep(20 * time.Minute)
					broken()
					if lives {
						time.AfterFunc(Heartbeat, func() { received.Store(int64(elapsed())) })
					}
					found, took := ask()
					require.Equal(t, name, found.Kind)
					require.Equal(t, 8*time.Minute, found.Left, "nothing of it was listened to")
					if !lives {
						require.Equal(t, quiet, took)
					}
				}
				cancel()
				require.NoError(t, <-done)
			})
		})
	}
}
