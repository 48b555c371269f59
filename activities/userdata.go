package activities

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

// judgeUserData says what is known only from m's user data: whether a system that asks for it by its address phones home, and a warning if
// the run would wait for a phone-home that the system cannot send. It cannot if its image uses EC2 metadata only, no action writes the
// phone-home to the disk, and the phone-home cannot be added to the user data.
func (a *plans) judgeUserData(ctx context.Context, m inventory.Machine, plan inventory.Plan, out *Planned) (err error) {
	written := slices.ContainsFunc(plan.Actions, writesPhoneHome)
	asks := a.asksByAddress(plan.Actions, out) && answersByAddress(m) && out.Evidence == EvidenceWeak &&
		!slices.ContainsFunc(plan.Actions, isPowerOff)
	if !m.UserDataByAddress || plan.Installer != nil || !asks && (out.Evidence != EvidencePhoneHome || written) {
		return nil
	}
	if m.UserData, _, err = a.Machines.UserData(ctx, m.Name); err != nil {
		return err
	}
	w := cloudinit.PhoneHomeWarning(m)
	switch {
	case w == "" && asks:
		out.Evidence = EvidencePhoneHome
	case w != "" && !asks:
		out.Warnings = append(out.Warnings, "machine "+m.Name+": "+w)
	}
	return nil
}

// answersByAddress reports whether the metadata server knows the installed system of m by its address.
func answersByAddress(m inventory.Machine) bool {
	nic, ok := m.Netboot()
	if !ok || !nic.Address.IsValid() {
		return false
	}
	if m.Network == nil {
		return true
	}
	for _, e := range m.Network.Ethernets {
		for _, p := range e.Addresses {
			if p.Addr() == nic.Address {
				return true
			}
		}
	}
	return false
}

func isPowerOff(x action.Action) bool {
	native, _ := x.Native()
	return native == action.PowerOff
}

// phonesHome reports whether the action writes something to the disk that makes the installed system phone home.
func phonesHome(x action.Action) bool {
	return writesPhoneHome(x) || refers(x, inventory.RefMetadataURL)
}

// urlHost matches a URL up to its path; its group is the host with the port.
var urlHost = regexp.MustCompile(`http://([^\s/"',\]]+)`)

// asksByAddress reports whether the actions configure cloud-init's Ec2 data source so that the installed system asks this server for its
// user data, by its address. The phone-home is then part of the user data; see cloudinit.Combined. For a port of this server at which its
// metadata server does not answer, asksByAddress adds a warning.
func (a *plans) asksByAddress(actions []action.Action, out *Planned) (asks bool) {
	server, err := url.Parse(a.Site.MetadataURL)
	if err != nil || server.Host == "" {
		return false
	}
	for _, x := range actions {
		for variable, text := range x.Environment {
			ec2 := strings.Contains(text, "metadata_urls")
			if !ec2 && variable != action.HegelVariable {
				continue
			}
			for _, m := range urlHost.FindAllStringSubmatch(text, -1) {
				u := url.URL{Host: m[1]}
				served := slices.Contains(a.Site.MetadataHosts, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80")))
				asks = asks || ec2 && served
				if u.Hostname() == server.Hostname() && !served {
					out.Warnings = append(out.Warnings, fmt.Sprintf("action %s: the metadata server does not answer at %s: add the port to "+
						"netboot.metadata of the configuration", x.Name, m[1]))
				}
			}
		}
	}
	return asks
}

// writesPhoneHome reports whether the action writes the nonce or the URL of the phone-home to the disk.
func writesPhoneHome(x action.Action) bool {
	native, _ := x.Native()
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
		native, _ := x.Native()
		if action.Check(native, resolved.Environment) != nil {
			// Leave out the error of Check: it may contain a part of a secret.
			problems.Add(field, "pass the data in a separate variable (action inject: name that variable in from)",
				"the action's environment is invalid with the machine's user data or vendor data in it")
		}
	}
	return problems.Err()
}
