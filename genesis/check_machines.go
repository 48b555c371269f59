package genesis

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// checkRoles stores the valid roles in f.roles. It adds a problem for a role without a machine, for a role whose
// machine is not in machines, and for a machine with a second role.
func (f *file) checkRoles() {
	f.roles = map[string]role{}
	for _, r := range f.lab.roles() {
		_, known := f.lab.Machine(r.machine)
		other, taken := f.roles[r.machine]
		switch {
		case r.machine == "":
			f.add(r.field, "give the name of a machine in machines", "is missing")
		case !known:
			if !f.isUnreadable("machines") {
				f.add(r.field, "add it to machines, or correct the name", "unknown machine %q", r.machine)
			}
		case taken:
			f.add(r.field, "give each machine only one role",
				"machine %q is already named in %s, see %s", r.machine, other.field, f.at(other.field))
		default:
			f.roles[r.machine] = r
		}
	}
}

// checkMachines checks every machine. If a machine has a role, it also checks the machine's document.
func (f *file) checkMachines() {
	l := f.lab
	if len(l.Machines) == 0 {
		f.add("machines", "describe at least one machine, as in: ingot machine push --help", "is empty")
	}
	for n := range l.Machines {
		m := &l.Machines[n]
		prefix := fmt.Sprintf("machines[%d].", n)
		m.Machine = inventory.Canonical(m.Machine)
		r, hasRole := f.roles[m.Name]
		m.Template = cmp.Or(m.Template, r.template)
		if !m.UserData.IsZero() {
			f.add(prefix+"userData", "write the user data to a file and name that file in config", "a lab file must not contain secrets")
		}
		m.UserData = inventory.NewSecret(f.open(prefix+"config", m.Config))
		f.checkPassword(prefix, m)
		f.checkMachine(prefix, *m)
		if hasRole {
			f.checkRole(prefix, r, *m)
		}
	}
}

// checkMachine checks a machine by the rules of the inventory, and against the other machines and the images of the lab
// file.
func (f *file) checkMachine(prefix string, m Machine) {
	for _, p := range inventory.Validate(m.Machine) {
		if p.Field == "userData" {
			p.Field = "config"
		}
		p.Field = prefix + p.Field
		f.ps = append(f.ps, p)
	}
	f.owns.Machine(&f.ps, prefix, m.Machine, f.at)
	f.checkOwners(prefix, m.Machine)
	if len(m.Disks) > 1 && m.DiskSelector == nil {
		f.add(prefix+"diskSelector",
			"give the disk's serial or wwn; see ingot machine disks "+m.Name+", or the label on the disk",
			"machine %q has %d disks, and nothing says which one template %q may overwrite", m.Name, len(m.Disks), m.Template)
	}
	if m.Image != "" && !f.lab.hasImage(m.Image) {
		f.add(prefix+"image", "add it to images, or correct the name", "unknown image %q", m.Image)
	}
}

// checkRole checks that a machine has the labels, the document and the address that its role needs.
func (f *file) checkRole(prefix string, r role, m Machine) {
	f.checkLabels(prefix, m)
	section, _, _ := strings.Cut(r.field, ".")
	if m.Config == "" {
		f.add(prefix+"config", "name the file with the machine's "+r.kind+" configuration",
			"is missing: machine %q is the %s", m.Name, section)
	} else if !m.UserData.IsZero() {
		f.docs.check(r, m)
	}
	f.checkPlace(prefix, m)
}

// checkLabels checks that a machine has the labels or the hardwareMap entries that its built-in template needs. If the
// value must be the name of an image, the image must be in the lab file.
func (f *file) checkLabels(prefix string, m Machine) {
	wanted := templateLabels[m.Template]
	for _, k := range slices.Sorted(maps.Keys(wanted)) {
		field, v := prefix+"hardwareMap."+k, m.HardwareMap[k]
		if v == "" {
			field, v = prefix+"labels."+k, m.Labels[k]
		}
		if v == "" {
			what := "a version"
			if wanted[k] {
				what = "an image"
			}
			f.add(prefix+"labels", "add the label "+k,
				"template %q needs %s as label %s of the machine: see ingot template get %s", m.Template, what, k, m.Template)
			continue
		}
		if wanted[k] && !f.lab.hasImage(v) {
			f.add(field, "add it to images, or correct the name", "unknown image %q", v)
		}
	}
	if _, writes := wanted["version"]; writes && m.Image == "" {
		f.add(prefix+"image", "name the raw image of VyOS",
			"is missing: template %q writes the machine's image", m.Template)
	}
}

// checkPassword reads the BMC password of a machine from bmcPasswordFile. It removes a password that is written in the
// lab file itself.
func (f *file) checkPassword(prefix string, m *Machine) {
	if m.BMC != nil && !m.BMC.Password.IsZero() {
		f.add(prefix+"bmc.password", "write the password to a file and name that file in the machine's bmcPasswordFile",
			"a lab file must not contain secrets")
		b := *m.BMC
		b.Password = inventory.Secret{}
		m.BMC = &b
	}
	switch {
	case m.BMCPasswordFile != "" && m.BMC.Manual():
		f.add(prefix+"bmcPasswordFile", "add bmc, or leave out bmcPasswordFile", "machine %q has no BMC that takes a password", m.Name)
	case m.BMCPasswordFile != "":
		b := *m.BMC
		b.Password = f.line(prefix+"bmcPasswordFile", m.BMCPasswordFile)
		m.BMC = &b
	case m.BMC != nil && m.BMC.Capabilities().NeedsPassword && !m.BMC.HasPassword:
		f.add(
			prefix+"bmcPasswordFile",
			"name the file that holds the BMC's password, or write bmc.hasPassword: true if the inventory has it",
			"the driver %s needs a password",
			m.BMC.Driver,
		)
	}
}

// checkOwners adds a problem for a host name or a BMC address that belongs to two machines. A BMC may have the same
// address as its own machine, as with Intel AMT.
func (f *file) checkOwners(prefix string, m inventory.Machine) {
	for n, i := range m.Interfaces {
		repeated := slices.ContainsFunc(m.Interfaces[:n], func(o inventory.Interface) bool { return o.Hostname == i.Hostname })
		if i.Hostname != "" && !repeated {
			field := fmt.Sprintf("%sinterfaces[%d].hostname", prefix, n)
			f.claim(field, "host name", i.Hostname)
		}
	}
	if m.BMC == nil || m.BMC.Manual() || m.BMC.Host == "" {
		return
	}
	if m.BMC.Capabilities().Shared {
		return // one power strip switches many machines
	}
	a, err := netip.ParseAddr(m.BMC.Host)
	if err == nil && slices.ContainsFunc(m.Interfaces, func(i inventory.Interface) bool { return i.Address == a }) {
		return
	}
	f.claim(prefix+"bmc.host", "address", m.BMC.Host)
}

// checkPlace checks that the reserved address of a machine is on a network that this server serves when the machine is
// installed: the server's own network for the router, the network behind the router for the others.
func (f *file) checkPlace(prefix string, m Machine) {
	l := f.lab
	n := slices.IndexFunc(m.Interfaces, func(i inventory.Interface) bool { return !i.DisableNetboot })
	if n < 0 {
		if len(m.Interfaces) > 0 {
			f.add(prefix+"interfaces", "remove disableNetboot from the interface that the machine boots from",
				"machine %q has no interface that boots from the network", m.Name)
		}
		return
	}
	i, field := m.Interfaces[n], fmt.Sprintf("%sinterfaces[%d].address", prefix, n)
	where := l.Network.Prefix
	what := "the network behind the router"
	if l.Router != nil && m.Name == l.Router.Machine {
		where, what = l.Seed.Segment, "the server's own network: no relay exists before the router runs"
	}
	switch {
	case !i.Address.IsValid():
		f.add(field, "reserve an address", "machine %q has no address for the interface that it boots from", m.Name)
	case where.IsValid() && !where.Contains(i.Address):
		f.add(field, "reserve an address of "+where.String(), "%s does not lie in %s, %s", i.Address, where, what)
	}
}
