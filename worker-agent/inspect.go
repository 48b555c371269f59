package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/action"
)

// maxInspection is the size limit of the facts in an inspection's report, in bytes: the server
// accepts reports of 256 KiB.
const maxInspection = 128 << 10

// inspect reports the machine's facts as JSON in Output["facts"].
func (t *attempt) inspect(ctx context.Context) error {
	if t.agent.cfg.Finder == nil {
		return errors.New("inspecting: this agent cannot read the facts of its machine")
	}

	facts, err := t.agent.cfg.Finder.Facts(ctx)
	if err != nil {
		return fmt.Errorf("inspecting: %w", err)
	}

	facts = fit(facts, func(f action.Facts) int { return jsonSize(string(jsonOf(f))) }, maxInspection)
	if facts.Truncated != "" {
		t.logf("the facts are too long for one report; left out: %s", facts.Truncated)
	}

	b, err := json.Marshal(facts)
	if err != nil {
		return fmt.Errorf("encoding the facts: %w", err)
	}

	t.output["facts"] = string(b)
	t.output["disks"] = fmt.Sprint(len(facts.Disks) + facts.DisksOmitted)
	t.logf("%d disks, %d interfaces, %d MiB of memory", len(facts.Disks), len(facts.NICs), facts.Memory>>20)
	return nil
}
