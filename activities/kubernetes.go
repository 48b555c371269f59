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

// kubeconfig returns the kubeconfig that TalosBootstrap stored.
func (a *Activities) kubeconfig(ctx context.Context, q LabRequest) (inventory.Secret, error) {
	k, err := a.Genesis.Fact(ctx, q.operation(), factKubeconfig)
	if err != nil {
		return k, fmt.Errorf("the platform's kubeconfig: %w", err)
	}
	return k, nil
}

// KubernetesReady waits until the platform's API server answers and it has at least one
// node, all of them ready.
func (a *Activities) KubernetesReady(ctx context.Context, q LabRequest) error {
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
