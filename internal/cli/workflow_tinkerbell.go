package cli

import (
	"encoding/json"
	"fmt"

	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// outputTinkerbell is an output format: JSON with the field names of Tinkerbell before
// v0.25.
const outputTinkerbell = "tinkerbell"

// printTinkerbell prints a run as Tinkerbell before v0.25 did.
func printTinkerbell(c *Call, w inventory.Workflow) error {
	b, err := json.MarshalIndent(w.Tinkerbell(), "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(c.OutOrStdout(), human.Escape(string(b)))
	return err
}
