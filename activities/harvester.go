package activities

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/inventory"
)

// Clusters asks a Harvester cluster at its virtual address. Errors are
// inventory.ErrUnreachable, ErrRefused or ErrInvalid, wrapped.
type Clusters interface {
	// Ready returns nil once other nodes can join.
	Ready(ctx context.Context, e inventory.Endpoint) error
	// LogIn starts a session and LogOut ends it. The token of an ended session gets
	// ErrRefused.
	LogIn(
		ctx context.Context, e inventory.Endpoint, user string, password inventory.Secret,
	) (token inventory.Secret, err error)
	LogOut(ctx context.Context, e inventory.Endpoint, token inventory.Secret) error
	Nodes(ctx context.Context, e inventory.Endpoint, token inventory.Secret) ([]inventory.ClusterNode, error)
}

// clusterUser is the user whose account lists the cluster's nodes.
const clusterUser = "admin"

func (a *Activities) cluster(ctx context.Context, name string) (genesis.Cluster, inventory.Endpoint, error) {
	lab, _, err := a.lab(ctx, name)
	if err != nil {
		return genesis.Cluster{}, inventory.Endpoint{}, err
	}
	c, err := section(lab.Cluster, "cluster")
	return c, pinned(c.API, c.Fingerprint), err
}

// ClusterReady waits until the cluster answers at its virtual address, so that
// other nodes can join.
func (a *Activities) ClusterReady(ctx context.Context, q LabRequest) error {
	_, e, err := a.cluster(ctx, q.Name)
	if err != nil {
		return err
	}
	return a.until(ctx, func(ctx context.Context) error { return a.Clusters.Ready(ctx, e) })
}

// ClusterHas waits until the cluster lists the number of nodes that it has once the machine
// joined. It counts nodes, because a node's name comes from its own configuration. Without a
// machine, all nodes must be ready.
func (a *Activities) ClusterHas(ctx context.Context, q LabRequest) error {
	c, e, err := a.cluster(ctx, q.Name)
	if err != nil {
		return err
	}
	want := 1 + len(c.Join)
	if q.Machine != "" {
		want = 2 + slices.Index(c.Join, q.Machine)
	}
	s := &clusterSession{clusters: a.Clusters, at: e, password: c.Password}
	defer func() {
		if err := s.end(ctx); err != nil {
			a.Log.Warn("logging out of the cluster; the session will expire", "cluster", e.URL, "error", err)
		}
	}()
	return a.until(ctx, func(ctx context.Context) error {
		nodes, err := s.nodes(ctx)
		if err != nil {
			return err
		}
		return checkNodes(nodes, want, q.Machine == "")
	})
}

// checkNodes requires that many nodes, ready ones if mustBeReady. The error is
// inventory.ErrUnreachable and names those that are not ready.
func checkNodes(nodes []inventory.ClusterNode, want int, mustBeReady bool) error {
	ready, notReady := countReady(nodes)
	count, text := len(nodes), fmt.Sprintf("the cluster lists %d of %d nodes", len(nodes), want)
	if mustBeReady {
		count, text = ready, fmt.Sprintf("%d of %d nodes are ready", ready, want)
	}
	if count >= want {
		return nil
	}

	if len(notReady) > 0 {
		text += "; not ready: " + strings.Join(notReady, ", ")
	}
	return fmt.Errorf("%s: %w", text, inventory.ErrUnreachable)
}

// logOutTime limits the logout, because the activity waits for it.
const logOutTime = 10 * time.Second

// clusterSession logs in once for all requests, because clusters keep each token for hours.
// The token is stored nowhere else.
type clusterSession struct {
	clusters Clusters
	at       inventory.Endpoint
	password inventory.Secret
	token    inventory.Secret // zero: not logged in
}

// nodes lists the cluster's nodes. After a refusal the next call logs in again.
func (s *clusterSession) nodes(ctx context.Context) ([]inventory.ClusterNode, error) {
	if s.token.IsZero() {
		token, err := s.clusters.LogIn(ctx, s.at, clusterUser, s.password)
		if err != nil {
			return nil, err
		}
		s.token = token
	}
	nodes, err := s.clusters.Nodes(ctx, s.at, s.token)
	if errors.Is(err, inventory.ErrRefused) {
		s.token = inventory.Secret{}
	}
	return nodes, err
}

// end logs out, even if ctx has ended.
func (s *clusterSession) end(ctx context.Context) error {
	if s.token.IsZero() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), logOutTime)
	defer cancel()
	return s.clusters.LogOut(ctx, s.at, s.token)
}
