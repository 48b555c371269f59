package activities

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/inventory"
)

// Labs is where lab files lie, and what operations have found out.
type Labs interface {
	Genesis(ctx context.Context, name string) (inventory.GenesisBundle, error)
	PutMachines(ctx context.Context, ms []inventory.Machine, replace bool, by string) error
	Operation(ctx context.Context, run string) (inventory.Operation, error)
	PutFact(ctx context.Context, operation, name string, value inventory.Secret) error
	Fact(ctx context.Context, operation, name string) (inventory.Secret, error)
}

// Names of facts.
const (
	factKubeconfig   = "kubeconfig"
	factBootstrapped = "bootstrapped" // of which run of the platform's machine
	factTakenBack    = "taken-back/"  // and a machine: which of its runs
)

// LabRequest names a lab file, the operation that carries it out, and the step.
type LabRequest struct {
	Name    string `json:"name"` // of the lab file
	Run     string `json:"run,omitempty"`
	Machine string `json:"machine,omitempty"`
	// Resume lets steps that an earlier run has done stay done.
	Resume bool `json:"resume,omitempty"`
	// Again lets a run that does not resume do again what an earlier one has done.
	Again bool `json:"again,omitempty"`
	// Installed are machines that need not be free any more.
	Installed []string `json:"installed,omitempty"`
	// Ours are machines of LabTable.Ours.
	Ours []string `json:"ours,omitempty"`
	// Since is when this Genesis began; zero for one that goes on with an earlier one.
	Since time.Time `json:"since,omitzero"`
}

func (q LabRequest) operation() string { return "genesis/" + q.Name }

// LabStep is a row of the table with what carrying it out needs beside.
type LabStep struct {
	genesis.Step
	HardwareMap map[string]string `json:"hardwareMap,omitempty"`
	Manual      bool              `json:"manual,omitempty"`
	Finished    bool              `json:"finished,omitempty"` // by an earlier run
}

// LabTable is what a lab file says that a workflow may know: no secrets.
type LabTable struct {
	SHA256 string    `json:"sha256"`
	Steps  []LabStep `json:"steps"`
	Target string    `json:"target,omitempty"` // peer of the migration
	// Installed are machines that an earlier run has installed: they have their
	// addresses.
	Installed []string `json:"installed,omitempty"`
	// Ours are machines that may answer although their steps are not done: an
	// earlier run has begun to install them, or another run of this server has.
	Ours []string `json:"ours,omitempty"`
}

func (a *Activities) lab(ctx context.Context, name string) (genesis.Lab, inventory.GenesisBundle, error) {
	b, err := a.Labs.Genesis(ctx, name)
	if err != nil {
		return genesis.Lab{}, b, err
	}

	a.lastLab.mu.Lock()
	defer a.lastLab.mu.Unlock()
	if b.SHA256 == "" || a.lastLab.sha256 != b.SHA256 {
		lab, err := genesis.Load(b.File, b.Read)
		if err != nil {
			return genesis.Lab{}, b, err
		}
		a.lastLab.lab, a.lastLab.sha256 = lab, b.SHA256
	}
	return a.lastLab.lab, b, nil
}

// section returns a section of a lab file, which that must have.
func section[T any](s *T, name string) (T, error) {
	if s == nil {
		var none T
		return none, fmt.Errorf("the lab file has no %s: %w", name, inventory.ErrInvalid)
	}
	return *s, nil
}

// labCache holds the lab file that was read last: reading and checking it with
// its documents takes as long as everything else that most activities do.
type labCache struct {
	mu     sync.Mutex
	sha256 string // "": none was read
	lab    genesis.Lab
}

// ReadLab reads the lab file and the table that it makes, and what of it
// earlier runs of this name have done already. A new run after one that
// has installed something is refused: that would be installed again.
func (a *Activities) ReadLab(ctx context.Context, q LabRequest) (LabTable, error) {
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
				of, err := labOf(o) // begun by an earlier run of this name, or for it by the operator
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

// ours reports whether a machine has been given its address by this server: the
// operation has begun to install it, or the last installation has succeeded,
// whichever run began that.
func (a *Activities) ours(ctx context.Context, machine, operation string) (bool, error) {
	list, err := a.installations(ctx, machine)
	if err != nil || len(list) == 0 {
		return false, err
	}
	if list[0].State == inventory.StateSuccess {
		return true, nil
	}
	return startedBy(list[0], operation)
}

// doneBefore returns which steps earlier runs of this name have done, by the
// newest run that has tried each.
func (a *Activities) doneBefore(ctx context.Context, q LabRequest) (map[string]bool, error) {
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
