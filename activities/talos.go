package activities

import (
	"context"
	"errors"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/inventory"
)

// TalosNodes is the API of a Talos node, with the client certificate of the
// talosconfig. Errors are inventory.ErrUnreachable, ErrRefused or ErrInvalid,
// wrapped.
type TalosNodes interface {
	Version(ctx context.Context, address string, talosconfig inventory.Secret) (string, error)
	// Bootstrap creates a cluster. already means that it was created before.
	Bootstrap(ctx context.Context, address string, talosconfig inventory.Secret) (already bool, err error)
	// Kubeconfig returns a kubeconfig with the given API server URL, or with Talos's own.
	Kubeconfig(ctx context.Context, address string, talosconfig inventory.Secret, server string) (inventory.Secret, error)
}

func (a *Activities) platform(ctx context.Context, name string) (genesis.Platform, error) {
	lab, _, err := a.lab(ctx, name)
	if err != nil {
		return genesis.Platform{}, err
	}
	return section(lab.Platform, "platform")
}

// TalosReady waits until the platform's Talos API answers with a certificate of the
// authority in its talosconfig. It rejects another cluster's.
func (a *Activities) TalosReady(ctx context.Context, q LabRequest) error {
	p, err := a.platform(ctx, q.Name)
	if err != nil {
		return err
	}
	return a.until(ctx, func(ctx context.Context) error {
		_, err := a.Talos.Version(ctx, p.Talos, p.Talosconfig)
		return err
	})
}

// TalosBootstrap creates the cluster on the platform's node, once per installation, and
// stores the kubeconfig. If the bootstrap was not recorded, it asks again, and Talos answers
// that the cluster exists.
func (a *Activities) TalosBootstrap(ctx context.Context, q LabRequest) error {
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
