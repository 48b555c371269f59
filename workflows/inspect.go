package workflows

import (
	"errors"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// Inspect boots the agent on the machine, receives the agent's report of disks, interfaces and memory, and switches the machine off
// again. It writes nothing to the machine. The workflow id is machine/<machine>.
func Inspect(ctx workflow.Context, in contract.InspectInput) (Outcome, error) {
	r, err := newMachineRun(ctx, inventory.TypeInspect, MachineID(in.Machine), in.Machine, in)
	if err != nil {
		return Outcome{}, err
	}
	return r.carryOut(ctx, r.inspect, nil)
}

func (r *machineRun) inspect(ctx workflow.Context) error {
	var hasBMC bool
	if err := execute(ctx, quick, &hasBMC, do.HasBMC, r.grant.owner.Machine); err != nil {
		return err
	}

	r.manual = !hasBMC
	if err := r.takeGrant(ctx, false); err != nil {
		return err
	}

	for {
		err := r.startMachine(ctx)
		if err == nil {
			break
		}
		if !errors.Is(err, errRestart) {
			return err
		}
		if err := r.retakeGrant(ctx); err != nil {
			return err
		}
	}

	var facts action.Facts
	if err := execute(ctx, quick, &facts, do.AgentFacts, r.grant.owner); err != nil {
		return err
	}

	if err := r.grant.closeNetboot(ctx); err != nil {
		return err
	}

	// Once the run has ended, the agent switches the machine off or boots the next device. With a BMC, the run makes
	// sure that the machine is off.
	if !r.manual {
		if err := execute(ctx, bmc, nil, do.PowerOff, r.grant.owner); err != nil {
			return err
		}
	}

	return r.record.showPhase(ctx, inventory.PhaseReady, "%d disks, %d interfaces, %d MiB of memory",
		len(facts.Disks), len(facts.NICs), facts.Memory>>20)
}
