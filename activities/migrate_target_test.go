package activities

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// A platformFake is a cluster, and the server's way to what runs on it.
type platformFake struct {
	Kubernetes
	Mover
	applied string
	deleted bool
	moved   bool
	asked   int
	answers func(asked int) error
}

func (p *platformFake) Apply(_ context.Context, _, manifest inventory.Secret) ([]string, error) {
	p.applied = manifest.Reveal()
	return nil, nil
}

func (p *platformFake) CheckTarget(context.Context, string) error {
	p.asked++
	return p.answers(p.asked)
}

func (*platformFake) Known(context.Context, string) (bool, error) { return false, nil }

func (p *platformFake) Delete(context.Context, inventory.Secret, inventory.Secret) ([]string, error) {
	p.deleted = true
	return nil, nil
}

func (p *platformFake) Moved(context.Context, string) (bool, error) { return p.moved, nil }

func (*platformFake) Forget(context.Context, string) error { return nil }

func (*platformFake) Standby(_ context.Context, name, url string) (inventory.Secret, error) {
	return inventory.NewSecret("secret of " + name + " at " + url), nil
}

// TestDeployTarget waits for a standby that does not answer yet, and leaves what
// else there is to say about it to the migration's own check.
func TestDeployTarget(t *testing.T) {
	unreachable := fmt.Errorf("connection refused: %w", inventory.ErrUnreachable)
	late := func(last error) func(int) error {
		return func(asked int) error {
			if asked < 50 {
				return unreachable
			}
			return last
		}
	}
	for _, c := range []struct {
		name    string
		answers func(int) error
		asked   int
	}{
		{"late", late(nil), 50},
		{"another version", late(inventory.ErrConflict), 50},
	} {
		t.Run(c.name, func(t *testing.T) {
			shelf := newLabShelf(t)
			q := LabRequest{Name: "home"}
			shelf.facts[q.operation()+"#"+factKubeconfig] = "kubeconfig"
			p := &platformFake{answers: c.answers}
			a := New(Config{
				Store:   storeOf(&records{storeGenesis: shelf}),
				Systems: Systems{Kubernetes: p},
				Move:    Move{Mover: p, Peers: p},
				Log:     slog.New(slog.DiscardHandler),
				Clocks:  Clocks{ProbeEvery: time.Microsecond},
			})
			err := a.DeployTarget(t.Context(), q)
			require.NoError(t, err)
			require.Equal(t, c.asked, p.asked)
			require.Contains(t, p.applied, "\n---\nsecret of platform at 10.10.20.11")
		})
	}
	t.Run("never", func(t *testing.T) {
		shelf := newLabShelf(t)
		synctest.Test(t, func(t *testing.T) {
			q := LabRequest{Name: "home"}
			shelf.facts[q.operation()+"#"+factKubeconfig] = "kubeconfig"
			p := &platformFake{answers: func(int) error { return unreachable }}
			a := New(Config{
				Store:   storeOf(&records{storeGenesis: shelf}),
				Systems: Systems{Kubernetes: p},
				Move:    Move{Mover: p, Peers: p},
				Log:     slog.New(slog.DiscardHandler),
				Clocks:  Clocks{ProbeEvery: time.Second},
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := a.DeployTarget(ctx, q)
			require.Equal(t, TypeUnreachable, typeOf(t, err), "one that never answers is the step's failure")
		})
	})
}

// TestRemoveTarget takes a standby back, and never the server that the site has
// moved to, whatever the migration's record says of its end.
func TestRemoveTarget(t *testing.T) {
	for name, c := range map[string]struct {
		state   string // of the migration; "": none
		moved   bool
		removed bool
		applied bool // by another DeployTarget
	}{
		"never begun":                  {"", false, true, true},
		"failed":                       {inventory.StateFailed, false, true, true},
		"succeeded":                    {inventory.StateSuccess, false, false, false},
		"failed after it had moved":    {inventory.StateFailed, true, false, false},
		"cancelled after it had moved": {inventory.StateCancelled, true, false, false},
		"under way":                    {inventory.StateRunning, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			shelf := newLabShelf(t)
			q := LabRequest{Name: "home"}
			shelf.facts[q.operation()+"#"+factKubeconfig] = "kubeconfig"
			p := &platformFake{answers: func(int) error { return nil }, moved: c.moved}
			var last []inventory.Operation
			if c.state != "" {
				last = []inventory.Operation{{ID: "migrate/platform", Run: "r1", State: c.state}}
			}
			a := New(Config{
				Store:   storeOf(&records{operations: last, storeGenesis: shelf}),
				Systems: Systems{Kubernetes: p},
				Move:    Move{Mover: p, Peers: p},
				Log:     slog.New(slog.DiscardHandler),
				Clocks:  Clocks{ProbeEvery: time.Microsecond},
			})
			err := a.RemoveTarget(t.Context(), q)
			require.Equal(t, c.removed, p.deleted)
			if !c.removed {
				require.Equal(t, TypeConflict, typeOf(t, err))
			}
			err = a.DeployTarget(t.Context(), q)
			require.NoError(t, err)
			require.Equal(t, c.applied, p.applied != "")
		})
	}
}
