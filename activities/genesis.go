package activities

import (
	"context"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/inventory"
)

// labs read and check lab files.
type labs struct{ *shared }

// Names of facts.
const (
	factKubeconfig   = "kubeconfig"
	factBootstrapped = "bootstrapped" // run of the platform's machine
	factTakenBack    = "taken-back/"  // plus a machine: its run
)

// LabRequest names a lab file, the operation that carries it out, and a step.
type LabRequest struct {
	Name    string `json:"name"` // of the lab file
	Run     string `json:"run,omitempty"`
	Machine string `json:"machine,omitempty"`
	// Resume keeps the finished steps of an earlier run.
	Resume bool `json:"resume,omitempty"`
	// Again lets a run without Resume repeat the steps of an earlier run.
	Again bool `json:"again,omitempty"`
	// Installed lists machines whose addresses may be in use.
	Installed []string `json:"installed,omitempty"`
	// Ours are machines of LabTable.Ours.
	Ours []string `json:"ours,omitempty"`
	// Since is the start time of this Genesis; zero if it resumes an earlier one.
	Since time.Time `json:"since,omitzero"`
}

func (q LabRequest) operation() string { return "genesis/" + q.Name }

// LabStep is a row of the table with the data that its execution needs.
type LabStep struct {
	genesis.Step
	HardwareMap map[string]string `json:"hardwareMap,omitempty"`
	Manual      bool              `json:"manual,omitempty"`
	Finished    bool              `json:"finished,omitempty"` // by an earlier run
}

// LabTable is the part of a lab file that a workflow may see: no secrets.
type LabTable struct {
	SHA256 string    `json:"sha256"`
	Steps  []LabStep `json:"steps"`
	Target string    `json:"target,omitempty"` // peer of the migration
	// Installed are machines that an earlier run has installed, so they answer at their
	// addresses.
	Installed []string `json:"installed,omitempty"`
	// Ours are machines that may answer although their steps are not done: an earlier run
	// started to install them, or another run of this server owns them.
	Ours []string `json:"ours,omitempty"`
}

// section returns a section of a lab file, or an error if it is missing.
func section[T any](s *T, name string) (T, error) {
	if s == nil {
		var none T
		return none, fmt.Errorf("the lab file has no %s: %w", name, inventory.ErrInvalid)
	}
	return *s, nil
}

// ReadLab returns the table of the lab file and the steps that earlier runs of this name
// have finished. If an earlier run has installed a machine, it returns an error unless the
// request has Resume or Again.
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
				of, err := labOf(o) // started by an earlier run of this name, or by the operator for it
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
				return LabTable{}, fmt.Errorf("an earlier run of genesis %q has done step %q, which would overwrite %s "+
					"again: resume it (ingot genesis resume %s), or say that all is to be done again: %w",
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

// ours reports whether this server has given a machine its address: the operation started to
// install it, or the last installation by any run succeeded.
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

// doneBefore returns the steps that earlier runs of this name finished. For each step the
// newest run that tried it counts.
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
