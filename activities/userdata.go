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

// warnOfWaiting adds a warning if the run would wait for a phone-home that m's system cannot send. The system
// cannot if three conditions are met: its image uses EC2 metadata only, no action writes the phone-home to the
// disk, and the phone-home cannot be added to the user data.
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

// phonesHome reports whether the action writes something to the disk that makes the installed system phone home.
func phonesHome(x action.Action) bool {
	return writesPhoneHome(x) || refers(x, inventory.RefMetadataURL)
}

// writesPhoneHome reports whether the action writes the nonce or the URL of the phone-home to the disk.
func writesPhoneHome(x action.Action) bool {
	native, _ := action.Native(x.Image)
	// If the template gives vendor-data, the disk does not get the vendor-data that phones home.
	return native == action.ConfigDrive && x.Environment["VENDOR_DATA"] == "" ||
		refers(x, inventory.RefNonce) || refers(x, inventory.RefPhoneHomeURL)
}

// refers reports whether the action itself contains the reference and so writes its value to the disk. Handlers of
// the action do not count, because they run only after a failure.
func refers(x action.Action, ref string) bool {
	x.OnFailure, x.OnTimeout = nil, nil
	return template.Refers(x, ref)
}

// resolvedText is the value that checkResolved takes for references whose real values are known only in the run.
const resolvedText = "http://192.0.2.1/x"

// checkResolved returns an error for each action that the agent would refuse after user data and vendor data are
// filled in. For example, a list of files is then invalid JSON, or a command or handler is not UTF-8. A variable of
// the environment may hold any bytes.
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
			// Leave out the error of Check: it may contain a part of a secret.
			problems.Add(field, "pass the data in a separate variable (action inject: name that variable in from)",
				"the action's environment is invalid with the machine's user data or vendor data in it")
		}
	}
	return problems.Err()
}
