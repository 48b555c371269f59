package activities

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// sessions is a cluster that counts its sessions and sometimes forgets one.
type sessions struct {
	Clusters
	begun, ended int
	asked        int
	open         string
}

func (s *sessions) LogIn(_ context.Context, _ inventory.Endpoint, user string, password inventory.Secret) (inventory.Secret, error) {
	if user != "admin" || password.Reveal() != "admin" {
		return inventory.Secret{}, inventory.ErrRefused
	}
	s.begun++
	s.open = fmt.Sprint("token-", s.begun)
	return inventory.NewSecret(s.open), nil
}

func (s *sessions) LogOut(ctx context.Context, _ inventory.Endpoint, token inventory.Secret) error {
	if ctx.Err() != nil || token.Reveal() != s.open {
		return inventory.ErrRefused
	}
	s.ended++
	s.open = ""
	return nil
}

func (s *sessions) Nodes(_ context.Context, _ inventory.Endpoint, token inventory.Secret) ([]inventory.ClusterNode, error) {
	if s.asked++; s.asked == 5 {
		s.open = "" // it was restarted
	}
	if token.IsZero() || token.Reveal() != s.open {
		return nil, inventory.ErrRefused
	}
	if s.asked < 10 {
		return nil, inventory.ErrUnreachable
	}
	return []inventory.ClusterNode{{Name: "ms-02-a", Ready: true}, {Name: "ms-02-b", Ready: true}, {Name: "ms-02-c", Ready: true}}, nil
}

// However often a cluster is asked, one token is created for it, another one when the
// cluster has forgotten the first, and none remains.
func TestSessionsWithAClusterAreEnded(t *testing.T) {
	var said strings.Builder
	start := func() (*Activities, *sessions) {
		s := &sessions{}
		log := slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug}))
		return New(Config{
			Store:   Store{Genesis: newLabShelf(t)},
			Systems: Systems{Clusters: s},
			Log:     log,
			Clocks:  Clocks{ProbeEvery: time.Microsecond},
		}), s
	}
	t.Run("until it agrees", func(t *testing.T) {
		a, s := start()
		require.NoError(t, a.ClusterHas(t.Context(), LabRequest{Name: "home"}))
		require.Equal(t, 10, s.asked)
		require.Equal(t, 2, s.begun)
		require.Equal(t, 1, s.ended)
		require.Empty(t, s.open)
	})
	t.Run("until no one waits any more", func(t *testing.T) {
		a, s := start()
		ctx, stop := context.WithCancel(t.Context())
		s.asked = 6 // it forgets no session
		a.Clusters = stopping{s, stop}
		require.Error(t, a.ClusterHas(ctx, LabRequest{Name: "home"}))
		require.Equal(t, []int{1, 1}, []int{s.begun, s.ended})
	})
	require.NotContains(t, said.String(), "token-")
}

// The texts are those that docs/genesis.md explains.
func TestCheckNodes(t *testing.T) {
	a, b, c := inventory.ClusterNode{Name: "a", Ready: true}, inventory.ClusterNode{Name: "b", Ready: true}, inventory.ClusterNode{Name: "c"}
	for want, err := range map[string]error{
		"the cluster lists 2 of 3 nodes: unreachable":               checkNodes([]inventory.ClusterNode{a, b}, 3, false),
		"the cluster lists 2 of 3 nodes; not ready: c: unreachable": checkNodes([]inventory.ClusterNode{a, c}, 3, false),
		"2 of 3 nodes are ready; not ready: c: unreachable":         checkNodes([]inventory.ClusterNode{a, b, c}, 3, true),
		"2 of 3 nodes are ready: unreachable":                       checkNodes([]inventory.ClusterNode{a, b}, 3, true),
	} {
		require.EqualError(t, err, want)
		require.ErrorIs(t, err, inventory.ErrUnreachable)
	}
	require.NoError(t, checkNodes([]inventory.ClusterNode{a, b, c}, 3, false))
	require.NoError(t, checkNodes([]inventory.ClusterNode{a, b}, 2, true))
}

// stopping ends the wait with its first answer.
type stopping struct {
	*sessions
	stop func()
}

func (s stopping) Nodes(ctx context.Context, e inventory.Endpoint, token inventory.Secret) ([]inventory.ClusterNode, error) {
	defer s.stop()
	return s.sessions.Nodes(ctx, e, token)
}
