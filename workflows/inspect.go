package workflows

import (
	"errors"
	"fmt"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// Inspect boots the machine into the agent, which reports disks, interfaces
// and memory with its hello, and switches it off again. Nothing is written.
func Inspect(ctx workflow.Context, in InspectInput) (out Outcome, err error) {
	r, err := newRun(ctx, InspectType, MachineID(in.Machine), in.Machine, in)
	if err != nil {
		return Outcome{}, err
	}
	defer func() {
		err = r.end(ctx, err)
		out = Outcome{State: r.record.State, Message: r.record.Message}
	}()
	err = r.inspect(ctx)
	for lost(err) {
		err = r.lament(ctx, err)
	}
	return out, err
}

func (r *run) inspect(ctx workflow.Context) error {
	if err := r.quickly(ctx, do.HasBMC, r.owner.Machine, &r.manual); err != nil {
		return err
	}
	r.manual = !r.manual
	if err := r.arm(ctx, false); err != nil {
		return err
	}
	for {
		err := r.begin(ctx)
		if errors.Is(err, errRestart) {
			err = r.rearm(ctx)
			if err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		break
	}
	var facts action.Facts
	if err := r.quickly(ctx, do.AgentFacts, r.owner, &facts); err != nil {
		return err
	}
	if err := r.disarm(ctx); err != nil {
		return err
	}
	// An agent without a run switches its machine off by itself or leaves it
	// to its boot order; with a BMC it is made sure of.
	if !r.manual {
		if err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, bmc), do.PowerOff, r.owner).Get(ctx, nil); err != nil {
			return err
		}
	}
	r.record.Message = fmt.Sprintf("%d disks, %d interfaces, %d MiB of memory", len(facts.Disks), len(facts.NICs), facts.Memory>>20)
	return r.phase(ctx, inventory.PhaseReady, "%s", r.record.Message)
}
