package activities

import (
	"context"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

// warnOfWaiting adds a warning if the run waits for a phone-home that m's system cannot send: its image uses EC2
// metadata only, no action writes the phone-home to the disk, and the phone-home cannot be added to the user data.
func (a *plans) warnOfWaiting(ctx context.Context, m inventory.Machine, plan inventory.Plan, out *Planned) (err error) {
	written := slices.ContainsFunc(plan.Actions, writesPhoneHome)
	if out.Evidence != EvidencePhoneHome || written || plan.Installer != nil || !m.UserDataByAddress {
		return nil
	}
	if m.UserData, _, err = a.Machines.UserData(ctx, m.Name); err != nil {
		return err
	}
	if w := cloudinit.PhoneHomeWarning(m); w != "" {
		out.Warnings = append(out.Warnings, "machine "+m.Name+": "+w)
	}
	return nil
}

// phonesHome reports whether the action writes to the disk what makes the installed system phone home.
func phonesHome(x action.Action) bool {
	return writesPhoneHome(x) || refers(x, inventory.RefMetadataURL)
}

// writesPhoneHome reports whether the action writes the phone-home's nonce or URL to the disk.
func writesPhoneHome(x action.Action) bool {
	native, _ := action.Native(x.Image)
	// The vendor-data of a template replaces the vendor-data that phones home.
	return native == action.ConfigDrive && x.Environment["VENDOR_DATA"] == "" ||
		refers(x, inventory.RefNonce) || refers(x, inventory.RefPhoneHomeURL)
}

// refers reports whether the action itself writes the value of the reference to the disk. Its handlers do not
// count, because they run only after a failure.
func refers(x action.Action, ref string) bool {
	x.OnFailure, x.OnTimeout = nil, nil
	return template.Refers(x, ref)
}

// resolvedText replaces, in checkResolved, references whose values are not known before the run.
const resolvedText = "http://192.0.2.1/x"

// checkResolved returns an error for actions that the agent would refuse once user data and vendor data are filled
// in: a list of files is then invalid JSON, or a command or handler is not UTF-8. A variable of the environment
// may hold any bytes.
func (a *plans) checkResolved(ctx context.Context, machine string, actions []action.Action) error {
	var problems inventory.Problems
	for i, x := range actions {
		if !template.Refers(x, inventory.RefUserData) && !template.Refers(x, inventory.RefVendorData) {
			continue
		}
		user, vendor, err := a.Machines.UserData(ctx, machine)
		if err != nil {
			return err
		}
		field := fmt.Sprintf("actions[%d] %s", i, x.Name)
		known := map[string]string{inventory.RefUserData: user.Reveal(), inventory.RefVendorData: vendor.Reveal()}
		words := x
		words.Environment = nil
		for ref, text := range known {
			if template.Refers(words, ref) && !utf8.ValidString(text) {
				problems.Add(field, "pass the data in a variable of the environment",
					"the action's command or a handler contains %s of the machine, which is not UTF-8", ref)
			}
		}

		resolved, err := template.Resolve(x, func(ref string) (string, error) {
			if text, ok := known[ref]; ok {
				return text, nil
			}
			return resolvedText, nil
		})
		if err != nil {
			return err
		}
		native, _ := action.Native(x.Image)
		if action.Check(native, resolved.Environment) != nil {
			// Do not report the error of Check: it may contain a part of a secret.
			problems.Add(field, "pass the data in a separate variable (with inject, in from)",
				"the action's environment is invalid with the machine's user data or vendor data in it")
		}
	}
	return problems.Err()
}
