package actions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/facts"
)

// maxInspection is the maximum size of the facts in the report of an inspection, in bytes. The server accepts reports of up to 256 KiB.
const maxInspection = 128 << 10

// inspect returns the machine's facts as JSON in the output "facts".
func inspect(ctx context.Context, t *Task) error {
	if t.machine.Finder == nil {
		return errors.New("inspecting: this agent cannot read the machine's facts")
	}

	found, err := t.machine.Finder.Facts(ctx)
	if err != nil {
		return fmt.Errorf("inspecting: %w", err)
	}

	// The report contains the JSON of the facts as a JSON string, in which some characters are escaped. So the escaped size counts.
	found = facts.Fit(found, func(f action.Facts) int { return facts.JSONSize(jsonText(f)) }, maxInspection)
	if found.Truncated != "" {
		t.logf("the machine's facts are too long for one report; left out: %s", found.Truncated)
	}

	t.output["facts"] = jsonText(found)
	t.output["disks"] = fmt.Sprint(len(found.Disks) + found.DisksOmitted)
	t.logf("%d disks, %d interfaces, %d MiB of memory", len(found.Disks), len(found.NICs), found.Memory>>20)
	return nil
}

// jsonText returns facts as JSON.
func jsonText(facts action.Facts) string {
	b, err := json.Marshal(facts)
	if err != nil {
		return "" // cannot fail for this type
	}
	return string(b)
}
