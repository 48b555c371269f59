package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/documents/importfile"
)

// addAddressFlag adds the flag of allowByAddress.
func (a *application) addAddressFlag(x *pflag.FlagSet) {
	x.BoolVar(&a.byAddress, "user-data-by-address", false,
		"during a run, give a machine's user data to any client with the machine's IP address (userDataByAddress); only for "+
			"machines in another program's format, such as Tinkerbell's")
}

// openedByAddress says which clients get user data by userDataByAddress.
const openedByAddress = "any client with a machine's IP address gets the machine's user data while the secrets window of a run is open"

// allowByAddress sets userDataByAddress of the machines in documents of other programs, if the flag is given. Without the flag, it does
// something only if the files have a template whose systems request user data by their address: on a terminal it asks the operator, and
// elsewhere it prints a note.
func (a *application) allowByAddress(c *Call, read importfile.Import) error {
	var machines, templates []string
	for _, m := range read.Machines {
		if !m.Own && !m.UserDataByAddress {
			machines = append(machines, m.Name)
		}
	}
	for _, t := range read.Templates {
		if strings.Contains(t.Source, "metadata_urls") || strings.Contains(t.Source, action.HegelVariable) {
			templates = append(templates, t.Name)
		}
	}
	if len(machines) == 0 || len(templates) == 0 && !a.byAddress {
		return nil
	}
	of := "machine " + machines[0]
	if len(machines) > 1 {
		of = fmt.Sprintf("%d machines", len(machines))
	}

	if !a.byAddress {
		why := fmt.Sprintf("Systems of template %s ask for their user data by the machine's address", strings.Join(templates, ", "))
		if a.dryRun || a.offline || !Interactive(c.Command) {
			c.Note("%s, and get it only with --user-data-by-address: then, %s", why, openedByAddress)
			return nil
		}
		got, err := Prompt(c.Command, fmt.Sprintf("%s.\nIf you allow this, %s.\nAllow it for %s? [y/N] ", why, openedByAddress, of))
		if err != nil || got != "y" && got != "yes" {
			return err
		}
	}
	for i := range read.Machines {
		if m := &read.Machines[i]; !m.Own {
			m.UserDataByAddress = true
		}
	}
	c.Note("userDataByAddress of %s: %s", of, openedByAddress)
	return nil
}
