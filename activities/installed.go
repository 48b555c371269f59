package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// InstalledRequest asks whether an operation has installed a machine or is installing the machine now.
type InstalledRequest struct {
	Machine string    `json:"machine"`
	Parent  string    `json:"parent"` // workflow id of the operation
	Since   time.Time `json:"since,omitzero"`
}

// Installed returns the machine's latest installation if the operation has started it after q.Since and has not
// undone it, and if the installation is open or has succeeded. Otherwise it returns the zero OwnRun. If another run
// has installed the machine after the operation did, the error has the type Conflict. BMC jobs and inspections do
// not count as installations. One query reads all runs, so that a run cannot end unnoticed between two queries.
func (a *operations) Installed(ctx context.Context, q InstalledRequest) (OwnRun, error) {
	list, err := a.installations(ctx, q.Machine)
	if err != nil {
		return OwnRun{}, err
	}

	gone, err := a.Genesis.Fact(ctx, q.Parent, factTakenBack+q.Machine)
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		return OwnRun{}, err
	}

	foreign := ""
	for _, w := range list {
		if w.Run == gone.Reveal() {
			return OwnRun{}, nil
		}
		if inventory.Final(w.State) && w.State != inventory.StateSuccess || w.Started.Before(q.Since) {
			return OwnRun{}, nil
		}
		switch mine, err := startedBy(w, q.Parent); {
		case err != nil:
			return OwnRun{}, err
		case !mine:
			foreign = w.Run
			continue
		case foreign != "":
			return OwnRun{}, fmt.Errorf("machine %q was installed by %s, and later by run %s, which the operation "+
				"did not start: if the later installation is intended, skip the step; if not, install the machine by hand: %w",
				q.Machine, q.Parent, foreign, inventory.ErrConflict)
		}
		return OwnRun{Run: w.Run, Mine: true}, nil
	}
	return OwnRun{}, nil
}

// OwnRun is a run of a machine. The zero OwnRun means that there is no such run.
type OwnRun struct {
	Run string `json:"run,omitempty"` // "" if there is none
	// Mine means that the operation that asks has started the run.
	Mine bool `json:"mine,omitempty"`
}

// OpenRunRequest is the request of an operation for the open run of a machine.
type OpenRunRequest struct {
	Machine string `json:"machine"`
	Parent  string `json:"parent"` // workflow id of the operation that asks
	// Since, unless it is zero, is when the operation began: a run that began earlier belongs to an earlier operation of the same name.
	Since time.Time `json:"since,omitzero"`
	// TakeBack: the operation undoes its installation of the machine. From then on, Installed ignores the machine's
	// latest installation.
	TakeBack bool `json:"takeBack,omitempty"`
}

// OpenRun returns the open run of a machine and whether the operation q.Parent started it.
func (a *operations) OpenRun(ctx context.Context, q OpenRunRequest) (OwnRun, error) {
	if q.TakeBack {
		if err := a.takeBack(ctx, q); err != nil {
			return OwnRun{}, err
		}
	}

	w, err := a.Workflows.LatestWorkflow(ctx, q.Machine)
	if errors.Is(err, inventory.ErrNotFound) || err == nil && inventory.Final(w.State) {
		return OwnRun{}, nil
	}

	if err != nil {
		return OwnRun{}, err
	}

	mine, err := startedBy(w, q.Parent)
	return OwnRun{Run: w.Run, Mine: mine && !w.Started.Before(q.Since)}, err
}

// takeBack records that the machine's latest installation was undone, if the operation has started this
// installation. The record stays valid if the operation is resumed. It does not affect a later installation.
func (a *operations) takeBack(ctx context.Context, q OpenRunRequest) error {
	last, err := a.latestInstallation(ctx, q.Machine)
	if errors.Is(err, inventory.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if mine, err := startedBy(last, q.Parent); err != nil || !mine {
		return err
	}
	return a.Genesis.PutFact(ctx, q.Parent, factTakenBack+q.Machine, inventory.NewSecret(last.Run))
}

// startedBy reports whether the run was started by the operation with the workflow id parent.
func startedBy(w inventory.Workflow, parent string) (bool, error) {
	var in struct {
		Parent string `json:"parent"`
	}
	if err := json.Unmarshal(w.Input, &in); err != nil {
		return false, fmt.Errorf("reading the input of run %q: %w: %w", w.Run, err, inventory.ErrInvalid)
	}
	return in.Parent != "" && in.Parent == parent, nil
}
