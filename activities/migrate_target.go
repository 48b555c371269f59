package activities

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/inventory"
)

// labWithMigration returns the lab file called name, or an error if the file has no migration.
func (a *moves) labWithMigration(ctx context.Context, name string) (genesis.Lab, error) {
	lab, _, err := a.lab(ctx, name)
	if err == nil {
		_, err = section(lab.Migrate, "migration")
	}
	return lab, err
}

// DeployTarget starts the standby server to which this server will move: it applies the lab's manifest to the lab's
// platform, and waits until the standby answers. If the lab has no manifest, the standby must be known already.
// DeployTarget may be repeated. It does nothing if this server has moved to the target already, or if a migration
// to it is open.
func (a *moves) DeployTarget(ctx context.Context, q LabRequest) error {
	defer heartbeat(ctx)()
	lab, err := a.labWithMigration(ctx, q.Name)
	if err != nil {
		return err
	}

	if a.Peers == nil {
		return fmt.Errorf("this server has no peers to move to: %w", inventory.ErrUnsupported)
	}

	// Do not deploy twice. If the server has moved to the target, a new identity would lock out every client. If a
	// migration is open, the standby has an identity already.
	last, moved, err := a.findMove(ctx, lab.Migrate.Target)
	switch {
	case err != nil:
		return err
	case last.State == inventory.StateSuccess && !last.Started.Before(q.Since):
		return nil
	case moved || last.Run != "" && !inventory.Final(last.State):
		return nil
	}

	known, err := a.Peers.Known(ctx, lab.Migrate.Target)
	if err != nil || known && lab.Migrate.Manifest == "" {
		return err
	}

	if lab.Migrate.Manifest == "" {
		return fmt.Errorf("no standby %q is known: start one on the platform (ingot standby), or name its manifest "+
			"in migrate.manifestFile: %w", lab.Migrate.Target, inventory.ErrInvalid)
	}

	k, err := a.kubeconfig(ctx, q)
	if err != nil {
		return err
	}

	secret, err := a.Peers.Standby(ctx, lab.Migrate.Target, lab.Migrate.Address.String())
	if err != nil {
		return err
	}

	// The manifest comes before the Secret, because the manifest creates the Secret's namespace. The pod in the
	// manifest waits for the Secret.
	names, err := a.Kubernetes.Apply(ctx, k, inventory.NewSecret(lab.Migrate.Manifest+"\n---\n"+secret.Reveal()))
	if err != nil {
		return err
	}

	a.Log.Info("standby deployed", "peer", lab.Migrate.Target, "objects", names)
	if a.Mover == nil {
		return nil
	}

	// Wait here until the pod has pulled its image and answers, because the migration's check of the target does
	// not wait. Errors other than ErrUnreachable are left to the migration's check.
	return a.until(ctx, func(ctx context.Context) error {
		err := a.Mover.CheckTarget(ctx, lab.Migrate.Target)
		if errors.Is(err, inventory.ErrUnreachable) {
			return err
		}
		return nil
	})
}

// MovedTo returns the run of the latest migration to the lab's target if this run has succeeded and began after
// q.Since; otherwise the zero OwnRun.
func (a *moves) MovedTo(ctx context.Context, q LabRequest) (OwnRun, error) {
	lab, err := a.labWithMigration(ctx, q.Name)
	if err != nil {
		return OwnRun{}, err
	}
	last, _, err := a.findMove(ctx, lab.Migrate.Target)
	if err != nil || last.State != inventory.StateSuccess || last.Started.Before(q.Since) {
		return OwnRun{}, err
	}
	return OwnRun{Run: last.Run, Mine: true}, nil
}

// RemoveTarget undoes DeployTarget. If this server has moved to the target, or if a migration to it is open, the
// error has the type Conflict.
func (a *moves) RemoveTarget(ctx context.Context, q LabRequest) error {
	defer heartbeat(ctx)()
	lab, _, err := a.lab(ctx, q.Name)
	if err != nil {
		return err
	}

	if lab.Migrate == nil || lab.Migrate.Manifest == "" {
		return nil
	}

	last, moved, err := a.findMove(ctx, lab.Migrate.Target)
	switch {
	case err != nil:
		return err
	case last.Run != "" && !inventory.Final(last.State):
		return fmt.Errorf("%s is under way: cancel it first (ingot operation cancel %s): %w", last.ID, last.ID,
			inventory.ErrConflict)
	case moved:
		return fmt.Errorf(
			"the site has already moved to %q, and the move cannot be undone: migrate the site back instead: %w",
			lab.Migrate.Target,
			inventory.ErrConflict,
		)
	}

	k, err := a.kubeconfig(ctx, q)
	if err != nil {
		return err
	}

	if _, err := a.Kubernetes.Delete(ctx, k, inventory.NewSecret(lab.Migrate.Manifest)); err != nil {
		return err
	}
	return a.Peers.Forget(ctx, lab.Migrate.Target)
}

// findMove returns the latest migration to the target, or the zero Operation. moved means that this migration has
// made the target the active server. If the record of the migration does not show success, the role of this server
// decides.
func (a *moves) findMove(ctx context.Context, target string) (last inventory.Operation, moved bool, err error) {
	all, err := a.Operations.Operations(ctx, inventory.OperationFilter{ID: "migrate/" + target, Limit: 1})
	if err != nil || len(all) == 0 {
		return last, false, err
	}
	last = all[0]
	moved = last.State == inventory.StateSuccess
	if !moved && a.Peers != nil {
		moved, err = a.Peers.Moved(ctx, last.Run)
	}
	return last, moved, err
}

// Migrated waits until two conditions are met: the record of the latest migration to the lab's target shows
// success, and the router's DHCP relay lists only the target. The target has this record, too, because records move
// with the server.
func (a *moves) Migrated(ctx context.Context, q LabRequest) error {
	lab, err := a.labWithMigration(ctx, q.Name)
	if err != nil {
		return err
	}

	return a.until(ctx, func(ctx context.Context) error {
		last, err := a.Operations.Operations(ctx, inventory.OperationFilter{ID: "migrate/" + lab.Migrate.Target, Limit: 1})
		if err != nil {
			return err
		}
		if len(last) == 0 || last[0].State != inventory.StateSuccess {
			return fmt.Errorf("the site has not moved to %q: %w", lab.Migrate.Target, inventory.ErrInvalid)
		}
		if lab.Router == nil {
			return nil
		}
		list, err := a.relayServers(ctx, lab.Router)
		if err != nil {
			return err
		}
		if want := []string{lab.Migrate.Address.String()}; !slices.Equal(list, want) {
			return fmt.Errorf("the router's DHCP relay lists %v, but must list only %v: %w", list, want, inventory.ErrUnreachable)
		}
		return nil
	})
}

// NodeAnswers waits until a host answers at the address of q.Machine.
func (a *moves) NodeAnswers(ctx context.Context, q LabRequest) error {
	lab, _, err := a.lab(ctx, q.Name)
	if err != nil {
		return err
	}

	m, ok := lab.Machine(q.Machine)
	if !ok || !m.Address().IsValid() {
		return fmt.Errorf("machine %q has no address in the lab file: %w", q.Machine, inventory.ErrInvalid)
	}

	return a.until(ctx, func(ctx context.Context) error {
		found, _, err := a.Presence.Answers(ctx, m.Address())
		if err == nil && !found {
			err = errors.New("no host answers")
		}
		if err != nil {
			return fmt.Errorf("checking whether %q answers at %s: %w: %w", m.Name, m.Address(), err, inventory.ErrUnreachable)
		}
		return nil
	})
}
