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

// clusters holds the activities that wait for the clusters that a lab file installs.
type clusters struct{ *shared }

// clusterUser is the user that logs in to list the cluster's nodes.
const clusterUser = "admin"

func (a *clusters) cluster(ctx context.Context, name string) (genesis.Cluster, inventory.Endpoint, error) {
	lab, _, err := a.lab(ctx, name)
	if err != nil {
		return genesis.Cluster{}, inventory.Endpoint{}, err
	}
	c, err := section(lab.Cluster, "cluster")
	return c, newEndpoint(c.API, c.Fingerprint), err
}

// ClusterReady waits until the cluster answers at its virtual address. From then on, other nodes can join.
func (a *clusters) ClusterReady(ctx context.Context, q LabRequest) error {
	_, e, err := a.cluster(ctx, q.Name)
	if err != nil {
		return err
	}
	return a.until(ctx, func(ctx context.Context) error { return a.Clusters.Ready(ctx, e) })
}

// ClusterHas waits until the cluster lists as many nodes as there are when q.Machine has joined. It only counts
// them, because the name of a node comes from the node's own configuration. If q.Machine is "", ClusterHas waits
// until all nodes of the lab file are ready.
func (a *clusters) ClusterHas(ctx context.Context, q LabRequest) error {
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
			a.Log.Warn("cannot log out of the cluster; the session ends when it expires", "cluster", e.URL, "error", err)
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

// checkNodes returns nil if there are at least want nodes. If mustBeReady is set, it counts only ready nodes.
// Otherwise it returns inventory.ErrUnreachable with the names of the nodes that are not ready.
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

// logOutTime limits the duration of the logout.
const logOutTime = 10 * time.Second

// clusterSession logs in once for all requests, because a cluster keeps the token of each login for hours. The
// token is not stored.
type clusterSession struct {
	clusters Clusters
	at       inventory.Endpoint
	password inventory.Secret
	token    inventory.Secret // zero while not logged in
}

// nodes returns the cluster's nodes. If the cluster refuses the token, nodes returns the error, and its next call
// logs in again.
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

// kubeconfig returns the kubeconfig that TalosBootstrap stored.
func (a *shared) kubeconfig(ctx context.Context, q LabRequest) (inventory.Secret, error) {
	k, err := a.Genesis.Fact(ctx, q.operation(), factKubeconfig)
	if err != nil {
		return k, fmt.Errorf("reading the platform's kubeconfig: %w", err)
	}
	return k, nil
}

// KubernetesReady waits until the platform's API server answers, the cluster has at least one node, and all nodes
// are ready.
func (a *clusters) KubernetesReady(ctx context.Context, q LabRequest) error {
	k, err := a.kubeconfig(ctx, q)
	if err != nil {
		return err
	}
	return a.until(ctx, func(ctx context.Context) error {
		if err := a.Kubernetes.Ready(ctx, k); err != nil {
			return err
		}
		nodes, err := a.Kubernetes.Nodes(ctx, k)
		if err != nil {
			return err
		}
		if ready, notReady := countReady(nodes); ready == 0 || len(notReady) > 0 {
			return fmt.Errorf("%d nodes are ready; not ready: [%s]: %w",
				ready, strings.Join(notReady, ", "), inventory.ErrUnreachable)
		}
		return nil
	})
}

// countReady returns the number of ready nodes and the names of the others.
func countReady(nodes []inventory.ClusterNode) (ready int, notReady []string) {
	for _, n := range nodes {
		if n.Ready {
			ready++
		} else {
			notReady = append(notReady, n.Name)
		}
	}
	return ready, notReady
}

func (a *clusters) platform(ctx context.Context, name string) (genesis.Platform, error) {
	lab, _, err := a.lab(ctx, name)
	if err != nil {
		return genesis.Platform{}, err
	}
	return section(lab.Platform, "platform")
}

// TalosReady waits until the platform's Talos API answers with a certificate that is signed by the authority in the
// lab's talosconfig. A certificate of another cluster is not accepted.
func (a *clusters) TalosReady(ctx context.Context, q LabRequest) error {
	p, err := a.platform(ctx, q.Name)
	if err != nil {
		return err
	}
	return a.until(ctx, func(ctx context.Context) error {
		_, err := a.Talos.Version(ctx, p.Talos, p.Talosconfig)
		return err
	})
}

// TalosBootstrap bootstraps the cluster on the platform's node, once per installation, and stores the kubeconfig.
// If a worker has died after the bootstrap and before recording it, the next attempt calls Bootstrap again, and
// Talos answers that the cluster exists.
func (a *clusters) TalosBootstrap(ctx context.Context, q LabRequest) error {
	p, err := a.platform(ctx, q.Name)
	if err != nil {
		return err
	}
	run, err := a.latestInstallation(ctx, p.Machine)
	if err != nil {
		return err
	}

	done, err := a.Genesis.Fact(ctx, q.operation(), factBootstrapped)
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		return err
	}
	if done.Reveal() != run.Run {
		err := a.until(ctx, func(ctx context.Context) error {
			already, err := a.Talos.Bootstrap(ctx, p.Talos, p.Talosconfig)
			if err == nil {
				a.Log.With(inventory.Owner{Machine: p.Machine, Run: run.Run}.LogKeys(0)...).Info("etcd bootstrapped", "already", already)
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := a.Genesis.PutFact(ctx, q.operation(), factBootstrapped, inventory.NewSecret(run.Run)); err != nil {
			return err
		}
	}

	var kubeconfig inventory.Secret
	err = a.until(ctx, func(ctx context.Context) (err error) {
		kubeconfig, err = a.Talos.Kubeconfig(ctx, p.Talos, p.Talosconfig, p.Kubernetes)
		return err
	})
	if err != nil {
		return err
	}
	return a.Genesis.PutFact(ctx, q.operation(), factKubeconfig, kubeconfig)
}
