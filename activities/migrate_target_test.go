package activities

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// A platformFake is a cluster, and the server's way to what runs on it.
type platformFake struct {
	Kubernetes
	Mover
	applied string
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

func (*platformFake) Moved(context.Context, string) (bool, error) { return false, nil }

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
			a := &Activities{Labs: shelf, Kubernetes: p, Mover: p, Peers: p, Log: slog.New(slog.DiscardHandler), ProbeEvery: time.Microsecond}
			require.NoError(t, a.DeployTarget(t.Context(), q))
			require.Equal(t, c.asked, p.asked)
			require.Contains(t, p.applied, "\n---\nsecret of platform at 10.10.20.11")
		})
	}
	// One that never answers is the step's failure.
	p := &platformFake{answers: func(int) error { return unreachable }}
	shelf := newLabShelf(t)
	q := LabRequest{Name: "home"}
	shelf.facts[q.operation()+"#"+factKubeconfig] = "kubeconfig"
	a := &Activities{Labs: shelf, Kubernetes: p, Mover: p, Peers: p, Log: slog.New(slog.DiscardHandler), ProbeEvery: time.Microsecond}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.Equal(t, TypeUnreachable, typeOf(t, a.DeployTarget(ctx, q)))
}
