package cli

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// addressText formats an address. It returns "" for the zero Addr.
func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// interfaceText describes a network interface in one line.
func interfaceText(i inventory.Interface) string {
	text := i.MAC
	add := func(what, v string) {
		if v != "" {
			text += "  " + what + v
		}
	}

	add("", addressText(i.Address))
	add("netmask ", i.Netmask)
	add("gateway ", addressText(i.Gateway))
	if i.RouterOnLink() {
		add("", "on link")
	}
	for _, n := range i.Nameservers {
		add("name server ", n.String())
	}

	add("host name ", i.Hostname)
	add("", i.Arch)
	if i.UEFI {
		add("", "UEFI")
	}
	if i.DisableNetboot {
		add("", "never boots")
	}

	return text
}

// selectorText describes the conditions of a disk selector.
func selectorText(s inventory.DiskSelector) string {
	var out []string
	for _, f := range [][2]string{{"serial", s.Serial}, {"wwn", s.WWN}, {"by-id", s.ByID}, {"model", s.Model}} {
		if f[1] != "" {
			out = append(out, f[0]+" "+f[1])
		}
	}
	if s.MinSize > 0 {
		out = append(out, "at least "+human.Size(int64(s.MinSize)))
	}
	if s.MaxSize > 0 {
		out = append(out, "at most "+human.Size(int64(s.MaxSize)))
	}

	return strings.Join(out, ", ")
}

// labelsText returns labels in one line, sorted.
func labelsText(labels map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, k+"="+labels[k])
	}
	return strings.Join(out, ", ")
}

// standingText describes the state of a decommissioned machine, with the time and the reason. It returns "" for nil:
// the machine is in service.
func standingText(s *inventory.Standing) string {
	if s == nil {
		return ""
	}

	text := s.State + " since " + human.Time(s.Since)
	if s.Reason != "" {
		text += ": " + s.Reason
	}

	return text
}

// powerSource returns a short name for what switches the power of a machine: the driver of its BMC, or the operator's hand.
func powerSource(b *inventory.BMC) string {
	switch {
	case b.Wakes():
		return "wol, hand"
	case b.Manual():
		return "hand"
	}
	return b.Driver
}

// powerText describes what switches the power of a machine.
func powerText(b *inventory.BMC) string {
	switch {
	case b.Wakes():
		text := "on by wake-on-LAN, off by hand"
		for _, x := range []string{b.MAC, b.Host} {
			if x != "" {
				text += "  " + x
			}
		}
		return text
	case b.Manual():
		return "by hand"
	case b.Driver == inventory.DriverExec:
		text := "command " + b.Command
		if b.Host != "" {
			text += " at " + b.Host
		}
		return text
	}

	text := fmt.Sprintf("%s://%s@%s", b.Driver, b.User, b.Host)
	if b.Port != 0 {
		text += fmt.Sprintf(":%d", b.Port)
	}
	if b.Fingerprint != "" {
		text += "  key " + b.Fingerprint
	}
	if !b.HasPassword {
		text += "  no password is stored"
	}

	return text
}

// installedText describes the last run that wrote to a machine's disk: what it has installed, or how it ended. It returns "" for nil.
func installedText(i *inventory.Installed) string {
	if i == nil {
		return ""
	}

	what := cmp.Or(i.Image, i.Template, "by run "+i.Run)
	switch {
	case i.System() && i.Evidence == inventory.EvidenceWeak:
		return what + " (evidence: weak)"
	case i.System():
		return what
	case i.NoSystem:
		return what + " (wrote no system)"
	}
	if i.Type == inventory.TypeDecommission {
		what = "wiped"
	}

	return what + " (" + i.State + ")"
}

// machineState returns the state of a decommissioned machine that has no open run. For any other machine it returns the
// state of the last run.
func machineState(m apitypes.MachineView) string {
	if m.Standing != nil && (m.Workflow == nil || inventory.Final(m.Workflow.State)) {
		return m.Standing.State
	}
	return runState(m.Workflow)
}

// runState returns the state of a run and, while the run is open, its phase. It returns "" for nil.
func runState(w *inventory.Workflow) string {
	switch {
	case w == nil:
		return ""
	case w.State == inventory.StateSuccess && w.Evidence == inventory.EvidenceWeak:
		return w.State + " (evidence: weak)"
	case inventory.Final(w.State):
		return w.State
	}
	return w.State + " " + w.Phase
}
