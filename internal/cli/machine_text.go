package cli

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// addressText formats an address; an unset one is "".
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

// selectorText describes the disks that a selector matches.
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

// standingText describes the standing of a machine after a decommissioning.
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

// powerSource returns one word for what switches a machine.
func powerSource(b *inventory.BMC) string {
	switch {
	case b.Wakes():
		return "wol, hand"
	case b.Manual():
		return "hand"
	}
	return b.Driver
}

// powerText describes what switches a machine.
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

// installedText describes what Ingot last installed on a machine's disk.
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

// machineState returns the standing of a machine, or the state of its last run.
func machineState(m apitypes.MachineView) string {
	if m.Standing != nil && (m.Workflow == nil || inventory.Final(m.Workflow.State)) {
		return m.Standing.State
	}
	return runState(m.Workflow)
}

// runState returns the state of a run, with its phase while it is open.
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
