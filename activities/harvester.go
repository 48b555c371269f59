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
	Ping(ctx context.Context, e inventory.Endpoint) error
	Cluster(ctx context.Context, e inventory.Endpoint) error
	// LogIn begins a session, and LogOut ends it. The token of one that is over
	// is ErrRefused.
	LogIn(ctx context.Context, e inventory.Endpoint, user string, password inventory.Secret) (token inventory.Secret, err error)
	LogOut(ctx context.Context, e inventory.Endpoint, token inventory.Secret) error
	Nodes(ctx context.Context, e inventory.Endpoint, token inventory.Secret) ([]inventory.ClusterNode, error)
}

// clusterUser is who asks a cluster for its nodes.
const clusterUser = "admin"

func (a *Activities) cluster(ctx context.Context, name string) (genesis.Cluster, inventory.Endpoint, error) {
	lab, _, err := a.lab(ctx, name)
	if err == nil && lab.Cluster == nil {
		err = fmt.Errorf("the lab file has no cluster: %w", inventory.ErrInvalid)
	}
	if err != nil {
		return genesis.Cluster{}, inventory.Endpoint{}, err
	}
	return *lab.Cluster, pinned(lab.Cluster.API, lab.Cluster.Fingerprint), nil
}

// ClusterReady waits until the cluster answers at its virtual address: no node
// can join before.
func (a *Activities) ClusterReady(ctx context.Context, q LabRequest) error {
	_, e, err := a.cluster(ctx, q.Name)
	if err != nil {
		return fail(err)
	}
	return a.until(ctx, func(ctx context.Context) error {
		if err := a.Clusters.Ping(ctx, e); err != nil {
			return err
		}
		return a.Clusters.Cluster(ctx, e)
	})
}

// ClusterHas waits until the cluster lists as many nodes as there are up to the
// machine in the order in which they join: nodes are called by the host names
// of their own configuration. Without a machine all must be there, and ready.
func (a *Activities) ClusterHas(ctx context.Context, q LabRequest) error {
	c, e, err := a.cluster(ctx, q.Name)
	if err != nil {
		return fail(err)
	}
	want := 1 + len(c.Join)
	if q.Machine != "" {
		want = 2 + slices.Index(c.Join, q.Machine)
	}
	s := &clusterSession{clusters: a.Clusters, at: e, password: c.Password}
	defer func() {
		if err := s.end(ctx); err != nil {
			a.Log.Warn("ending a session with the cluster; it ends by itself", "cluster", e.URL, "error", err)
		}
	}()
	return a.until(ctx, func(ctx context.Context) error {
		nodes, err := s.nodes(ctx)
		if err != nil {
			return err
		}
		ready, not := standing(nodes)
		if q.Machine != "" {
			ready += len(not)
		}
		if ready >= want {
			return nil
		}
		text := fmt.Sprintf("the cluster lists %d of %d nodes", ready, want)
		if q.Machine == "" {
			text = fmt.Sprintf("%d of %d nodes are ready", ready, want)
		}
		if len(not) > 0 {
			text += "; not ready: " + strings.Join(not, ", ")
		}
		return fmt.Errorf("%s: %w", text, inventory.ErrUnreachable)
	})
}

// logOutTime bounds the end of a session, which nobody waits for gladly.
const logOutTime = 10 * time.Second

// clusterSession is one log-in for as many questions as there are: clusters
// keep each token for hours. Its token is nowhere but here.
type clusterSession struct {
	clusters Clusters
	at       inventory.Endpoint
	password inventory.Secret
	token    inventory.Secret // zero: not logged in
}

// nodes lists the cluster's nodes. A session that the cluster has ended is
// begun anew with the next question.
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

// end logs out, also when the time of ctx is up.
func (s *clusterSession) end(ctx context.Context) error {
	if s.token.IsZero() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), logOutTime)
	defer cancel()
	return s.clusters.LogOut(ctx, s.at, s.token)
}
