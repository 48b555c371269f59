package activities

import (
	"context"
	"fmt"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// Kubernetes drives an API server by a kubeconfig. Errors are
// inventory.ErrUnreachable, ErrRefused or ErrInvalid, wrapped.
type Kubernetes interface {
	Ready(ctx context.Context, kubeconfig inventory.Secret) error
	Nodes(ctx context.Context, kubeconfig inventory.Secret) ([]inventory.ClusterNode, error)
	// Apply and Delete may be repeated; they return the names of the objects.
	Apply(ctx context.Context, kubeconfig, manifest inventory.Secret) ([]string, error)
	Delete(ctx context.Context, kubeconfig, manifest inventory.Secret) ([]string, error)
}

// Kubeconfig returns what TalosBootstrap kept of the lab's platform.
func (a *Activities) kubeconfig(ctx context.Context, q LabRequest) (inventory.Secret, error) {
	k, err := a.Labs.Fact(ctx, q.operation(), factKubeconfig)
	if err != nil {
		return k, fmt.Errorf("the platform's kubeconfig: %w", err)
	}
	return k, nil
}

// KubernetesReady waits until the platform's API server is ready and so are
// all its nodes, of which there is one at least.
func (a *Activities) KubernetesReady(ctx context.Context, q LabRequest) error {
	k, err := a.kubeconfig(ctx, q)
	if err != nil {
		return fail(err)
	}
	return a.until(ctx, func(ctx context.Context) error {
		if err := a.Kubernetes.Ready(ctx, k); err != nil {
			return err
		}
		nodes, err := a.Kubernetes.Nodes(ctx, k)
		if err != nil {
			return err
		}
		if ready, not := standing(nodes); ready == 0 || len(not) > 0 {
			return fmt.Errorf("%d nodes are ready, and not: %s: %w", ready, strings.Join(not, ", "), inventory.ErrUnreachable)
		}
		return nil
	})
}

// standing counts the nodes that are ready and names those that are not.
func standing(nodes []inventory.ClusterNode) (ready int, not []string) {
	for _, n := range nodes {
		if n.Ready {
			ready++
		} else {
			not = append(not, n.Name)
		}
	}
	return ready, not
}
