package activities

import (
	"context"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/inventory"
)

// labs holds the activities that read and check lab files.
type labs struct{ *shared }

// Names of the facts that Genesis stores between its runs.
const (
	factKubeconfig   = "kubeconfig"
	factBootstrapped = "bootstrapped" // value: the run id of the installation on which the cluster was bootstrapped
	factTakenBack    = "taken-back/"  // prefix of the name of a machine; value: the run id of its installation that was undone
)

// LabRequest names a lab file, the run of Genesis that carries out the file, and the machine of one step.
type LabRequest struct {
	Name    string `json:"name"` // name of the lab file
	Run     string `json:"run,omitempty"`
	Machine string `json:"machine,omitempty"`
	// Resume means that steps that an earlier run has finished are not repeated.
	Resume bool `json:"resume,omitempty"`
	// Again allows a run without Resume to repeat steps that an earlier run has finished.
	Again bool `json:"again,omitempty"`
	// Installed is the list LabTable.Installed.
	Installed []string `json:"installed,omitempty"`
	// Ours is the list LabTable.Ours.
	Ours []string `json:"ours,omitempty"`
	// Since is the start time of this run of Genesis. It is zero if the run resumes an earlier one.
	Since time.Time `json:"since,omitzero"`
}

func (q LabRequest) operation() string { return "genesis/" + q.Name }

// LabStep is a step of a lab file with the data that is needed to carry it out.
type LabStep struct {
	genesis.Step
	HardwareMap map[string]string `json:"hardwareMap,omitempty"`
	Manual      bool              `json:"manual,omitempty"`
	Finished    bool              `json:"finished,omitempty"` // an earlier run has finished the step
}

// LabTable is the part of a lab file that a workflow may see. It contains no secrets.
type LabTable struct {
	SHA256 string    `json:"sha256"`
	Steps  []LabStep `json:"steps"`
	Target string    `json:"target,omitempty"` // name of the peer to migrate to
	// Installed lists the machines that an earlier run has installed. These may already answer at their addresses.
	Installed []string `json:"installed,omitempty"`
	// Ours lists the machines that may already answer although an earlier run has not finished their steps: an
	// earlier run started to install them, or another run of this server has installed them.
	Ours []string `json:"ours,omitempty"`
}

// section returns the section s of a lab file, or an error if the file does not have this section (s is nil).
func section[T any](s *T, name string) (T, error) {
	if s == nil {
		var none T
		return none, fmt.Errorf("the lab file has no %s: %w", name, inventory.ErrInvalid)
	}
	return *s, nil
}

// ReadLab returns the steps of the lab file and marks those that earlier runs of this name have finished. If an
// earlier run has installed a machine, ReadLab returns an error, unless q.Resume or q.Again is set.
func (a *labs) ReadLab(ctx context.Context, q LabRequest) (LabTable, error) {
	lab, b, err := a.lab(ctx, q.Name)
	if err != nil {
		return LabTable{}, err
	}

	for _, typ := range []string{inventory.TypeGenesis, inventory.TypeMigrate} {
		open, err := a.Operations.Operations(ctx, inventory.OperationFilter{Type: typ, Open: true})
		if err != nil {
			return LabTable{}, err
		}
		for _, o := range open {
			own := o.Run == q.Run || o.ID == q.operation()
			if lab.Migrate != nil && o.ID == "migrate/"+lab.Migrate.Target {
				of, err := labOf(o) // the migration was started by an earlier run of this name, or by the operator for this lab
				if err != nil {
					return LabTable{}, err
				}
				own = of == q.Name
			}
			if !own {
				return LabTable{}, fmt.Errorf("%s is under way (ingot operation get %s): %w", o.ID, o.ID, inventory.ErrConflict)
			}
		}
	}

	done, err := a.doneBefore(ctx, q)
	if err != nil {
		return LabTable{}, err
	}

	t := LabTable{SHA256: b.SHA256}
	for _, s := range lab.Steps() {
		if s.Writes() && done[s.Name] {
			if !q.Resume && !q.Again {
				return LabTable{}, fmt.Errorf("an earlier run of genesis %q has completed step %q; starting from the first step would overwrite %s "+
					"again: resume the earlier run (ingot genesis resume %s), or start with --again: %w",
					q.Name, s.Name, s.Machine, q.Name, inventory.ErrConflict)
			}
			t.Installed = append(t.Installed, s.Machine)
		} else if s.Writes() && (q.Resume || q.Again) {
			ours, err := a.ours(ctx, s.Machine, q.operation())
			if err != nil {
				return LabTable{}, err
			}
			if ours {
				t.Ours = append(t.Ours, s.Machine)
			}
		}
	}

	if !q.Resume {
		done = nil
	}

	if lab.Migrate != nil {
		t.Target = lab.Migrate.Target
	}

	for _, s := range lab.Steps() {
		m, _ := lab.Machine(s.Machine)
		step := LabStep{Step: s, Manual: s.Machine != "" && m.BMC.Manual(), Finished: done[s.Name]}
		if s.Writes() {
			step.HardwareMap = m.HardwareMap
		}
		t.Steps = append(t.Steps, step)
	}
	return t, nil
}

// ours reports whether this server is the reason that the machine may answer at its address: the latest
// installation of the machine was started by the operation, or has succeeded.
func (a *labs) ours(ctx context.Context, machine, operation string) (bool, error) {
	list, err := a.installations(ctx, machine)
	if err != nil || len(list) == 0 {
		return false, err
	}
	if list[0].State == inventory.StateSuccess {
		return true, nil
	}
	return startedBy(list[0], operation)
}

// doneBefore returns, by name, whether a step is finished. The newest earlier run of this name that tried the step
// decides. Steps that no earlier run has tried are not in the map.
func (a *labs) doneBefore(ctx context.Context, q LabRequest) (map[string]bool, error) {
	runs, err := a.Operations.Operations(ctx, inventory.OperationFilter{ID: q.operation()})
	done := map[string]bool{}
	for _, o := range runs {
		for _, s := range o.Steps {
			if _, known := done[s.Name]; !known && o.Run != q.Run && s.State != inventory.StepPending {
				done[s.Name] = s.State == inventory.StepDone
			}
		}
	}
	return done, err
}
