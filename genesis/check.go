package genesis

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/strictyaml"
	"github.com/ingotmetal/ingot/internal/systems"
	"github.com/ingotmetal/ingot/inventory"
)

// defaultTarget is the peer of a migration that names none.
const defaultTarget = "platform"

var (
	dnsLabel  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	digest    = regexp.MustCompile(`^[0-9a-f]{64}$`)
	reference = regexp.MustCompile(`^[a-z0-9][A-Za-z0-9._:/@-]*$`)
)

// check fills in what follows from the rest and notes everything wrong.
func (f *file) check() {
	l := f.lab
	if !dnsLabel.MatchString(l.Name) {
		f.add("name", "use up to 63 of a–z, 0–9 and -, beginning and ending with a letter or digit", "name %q is no DNS label", l.Name)
	}
	f.checkSeed()
	f.checkImages()
	roles := f.checkRoles()
	f.checkMigrate() // what machines fetch depends on it
	f.checkMachines(roles)
	f.checkRouter()
	f.checkPlatform()
	f.checkTarget()
	f.checkCluster()
	f.checkRange()
	f.checkBudgets()
}

func (f *file) checkSeed() {
	l := f.lab
	if a := l.Seed.Address; !a.Is4() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() {
		f.add("seed.address", "give the server's address as machines reach it: netboot.address of its configuration", "%s is no server's address", text(a))
	} else {
		f.owns.Add(&f.ps, "seed.address", "address", a.String(), f.at("seed.address"))
	}
	if p := l.Seed.Segment; !p.IsValid() || !p.Addr().Is4() {
		f.add("seed.segment", "write the server's own network as 192.168.1.0/24", "there is no network")
	} else {
		l.Seed.Segment = p.Masked()
		if l.Seed.Address.Is4() && !p.Contains(l.Seed.Address) {
			f.add("seed.segment", "give the network that the server is in", "%s does not contain %s", p.Masked(), l.Seed.Address)
		}
	}
	p := l.Network.Prefix
	if !p.IsValid() || !p.Addr().Is4() {
		f.add("network.prefix", "write it as 10.10.20.0/24", "there is no network")
		return
	}
	p = p.Masked()
	l.Network.Prefix = p
	if l.Router != nil && l.Seed.Segment.IsValid() && p.Overlaps(l.Seed.Segment) {
		f.add("network.prefix", "leave out router when the server is in that network itself", "%s overlaps the server's own network %s", p, l.Seed.Segment)
	}
	if g := l.Network.Gateway; !p.Contains(g) {
		f.add("network.gateway", "give the router's address in the network: relayed packets carry it", "%s does not lie in %s", text(g), p)
	} else {
		f.owns.Add(&f.ps, "network.gateway", "address", g.String(), f.at("network.gateway"))
	}
	if v := l.Network.VLAN; v < 0 || v > 4094 {
		f.add("network.vlan", "use 1–4094, or leave it out for untagged", "there is no VLAN %d", v)
	}
	if r := l.Network.Range; r != nil && (!p.Contains(r.From) || !p.Contains(r.To) || r.To.Less(r.From)) {
		f.add("network.range", "give from and to inside the network, the lower one first", "%s–%s is no range of %s", text(r.From), text(r.To), p)
		l.Network.Range = nil // nothing more is said of it
	}
}

// text is an address for people.
func text(a netip.Addr) string {
	if !a.IsValid() {
		return `""`
	}
	return a.String()
}

func (f *file) checkImages() {
	for n, i := range f.lab.Images {
		field := fmt.Sprintf("images[%d].", n)
		if len(inventory.ValidateImageName(i.Name)) > 0 {
			f.add(field+"name", "use lower-case letters, digits and . _ -", "%q is no name of an image", i.Name)
		} else {
			f.owns.Add(&f.ps, field+"name", "image name", i.Name, f.at(field+"name"))
		}
		f.lab.Images[n].SHA256 = strings.ToLower(strings.TrimPrefix(i.SHA256, "sha256:"))
		switch d := f.lab.Images[n].SHA256; {
		case d == "":
			f.add(field+"sha256", "sha256sum FILE", "the digest is missing")
		case !digest.MatchString(d):
			f.add(field+"sha256", "64 hexadecimal digits: sha256sum FILE", "%q is no SHA-256", i.SHA256)
		}
		if i.File != "" && i.URL != "" {
			f.add(field+"url", "give one of file and url", "there is a file, too")
		}
		if i.URL != "" {
			if u, err := url.Parse(i.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
				f.add(field+"url", "give an http or https address", "%q is none", i.URL)
			} else if u.User != nil {
				f.add(field+"url", "fetch it yourself and give file", "an address with a password is stored nowhere")
			}
		}
	}
}

// checkRoles returns the roles by machine, without those of machines that are
// not described and without the second role of a machine.
func (f *file) checkRoles() map[string]role {
	byMachine := map[string]role{}
	for _, r := range f.lab.roles() {
		_, known := f.lab.Machine(r.machine)
		other, taken := byMachine[r.machine]
		switch {
		case r.machine == "":
			f.add(r.field, "name one of machines", "no machine is named")
		case !known:
			if !f.lost("machines") {
				f.add(r.field, "add it to machines, or correct the name", "there is no machine %q", r.machine)
			}
		case taken:
			f.add(r.field, "one machine has one role", "machine %q is %s already, see %s", r.machine, other.field, f.at(other.field))
		default:
			byMachine[r.machine] = r
		}
	}
	return byMachine
}

func (f *file) checkMachines(roles map[string]role) {
	l := f.lab
	if len(l.Machines) == 0 {
		f.add("machines", "describe them as for: ingot machine push --help", "there is no machine")
	}
	token := map[string]string{} // of Harvester → the file that has it
	for n := range l.Machines {
		m := &l.Machines[n]
		prefix := fmt.Sprintf("machines[%d].", n)
		m.Machine = inventory.Canonical(m.Machine)
		r, hasRole := roles[m.Name]
		if m.Template == "" {
			m.Template = r.template
		}
		if !m.UserData.IsZero() {
			f.add(prefix+"userData", "write it to a file and name that as config", "secrets do not stand in a lab file")
		}
		m.UserData = inventory.NewSecret(f.open(prefix+"config", m.Config))
		f.checkPassword(prefix, m)
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
			f.add(prefix+"diskSelector", "name the disk's serial or wwn: ingot machine disks "+m.Name+", or the label on the disk",
				"machine %q has %d disks, and nothing says which one template %q may overwrite", m.Name, len(m.Disks), m.Template)
		}
		if m.Image != "" && !f.hasImage(m.Image) {
			f.add(prefix+"image", "add it to images, or correct the name", "there is no image %q", m.Image)
		}
		if !hasRole {
			continue
		}
		f.checkNeeds(prefix, *m)
		if m.Config == "" {
			f.add(prefix+"config", "name the file of its "+r.kind+" configuration", "machine %q has none, but is %s", m.Name, strings.TrimSuffix(strings.SplitN(r.field, ".", 2)[0], "."))
		} else if m.UserData.Reveal() != "" {
			f.checkDocument(r, *m, token)
		}
		f.checkPlace(prefix, r, *m)
	}
}

// checkNeeds checks what the machine's template, if it is built in, looks for.
func (f *file) checkNeeds(prefix string, m Machine) {
	wanted := templateLabels[m.Template]
	keys := make([]string, 0, len(wanted))
	for k := range wanted {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		field, v := prefix+"hardwareMap."+k, m.HardwareMap[k]
		if v == "" {
			field, v = prefix+"labels."+k, m.Labels[k]
		}
		if v == "" {
			what := "a version"
			if wanted[k] {
				what = "an image"
			}
			f.add(prefix+"labels", "add the label "+k, "template %q needs %s as label %s: see ingot template get %s", m.Template, what, k, m.Template)
			continue
		}
		if wanted[k] && !f.hasImage(v) {
			f.add(field, "add it to images, or correct the name", "there is no image %q", v)
		}
	}
	if _, own := wanted["version"]; own && m.Image == "" {
		f.add(prefix+"image", "name the raw image of VyOS", "template %q writes the machine's image, and there is none", m.Template)
	}
}

// hasImage tells whether there is an image called name, or may be.
func (f *file) hasImage(name string) bool {
	_, ok := f.lab.Image(name)
	return ok || f.lost("images")
}

// checkPassword reads the password of a BMC, which stands in a file of its own.
func (f *file) checkPassword(prefix string, m *Machine) {
	if m.BMC != nil && !m.BMC.Password.IsZero() {
		f.add(prefix+"bmc.password", "write it to a file and name that as bmcPasswordFile of the machine", "secrets do not stand in a lab file")
		b := *m.BMC
		b.Password = inventory.Secret{}
		m.BMC = &b
	}
	switch {
	case m.BMCPasswordFile != "" && m.BMC.Manual():
		f.add(prefix+"bmcPasswordFile", "add bmc, or leave it out", "nothing switches machine %q that would take a password", m.Name)
	case m.BMCPasswordFile != "":
		b := *m.BMC
		b.Password = f.line(prefix+"bmcPasswordFile", m.BMCPasswordFile)
		m.BMC = &b
	case m.BMC != nil && m.BMC.Capabilities().NeedsPassword:
		f.add(prefix+"bmcPasswordFile", "name the file that holds the BMC's password", "the driver %s needs a password", m.BMC.Driver)
	}
}

// checkOwners claims what two machines must not share beside MACs and
// addresses. A BMC may have the address of its own machine, as Intel AMT does.
func (f *file) checkOwners(prefix string, m inventory.Machine) {
	for n, i := range m.Interfaces {
		if i.Hostname != "" && !slices.ContainsFunc(m.Interfaces[:n], func(o inventory.Interface) bool { return o.Hostname == i.Hostname }) {
			field := fmt.Sprintf("%sinterfaces[%d].hostname", prefix, n)
			f.owns.Add(&f.ps, field, "host name", i.Hostname, f.at(field))
		}
	}
	if m.BMC == nil || m.BMC.Manual() || m.BMC.Host == "" {
		return
	}
	if m.BMC.Capabilities().Shared {
		return // one plug strip switches many
	}
	a, err := netip.ParseAddr(m.BMC.Host)
	if err == nil && slices.ContainsFunc(m.Interfaces, func(i inventory.Interface) bool { return i.Address == a }) {
		return
	}
	f.owns.Add(&f.ps, prefix+"bmc.host", "address", m.BMC.Host, f.at(prefix+"bmc.host"))
}

// checkPlace checks that a machine boots where somebody can answer it.
func (f *file) checkPlace(prefix string, r role, m Machine) {
	l := f.lab
	n := slices.IndexFunc(m.Interfaces, func(i inventory.Interface) bool { return !i.DisableNetboot })
	if n < 0 {
		if len(m.Interfaces) > 0 {
			f.add(prefix+"interfaces", "leave out disableNetboot of the one that it boots from", "machine %q has no interface that boots from the network", m.Name)
		}
		return
	}
	i, field := m.Interfaces[n], fmt.Sprintf("%sinterfaces[%d].address", prefix, n)
	where := l.Network.Prefix
	what := "the network behind the router"
	if r.kind == inventory.DocumentVyOS {
		where, what = l.Seed.Segment, "the server's own network: there is no relay before the router runs"
	}
	switch {
	case !i.Address.IsValid():
		f.add(field, "reserve one", "machine %q has no address for the interface that it boots from", m.Name)
	case where.IsValid() && !where.Contains(i.Address):
		f.add(field, "reserve an address of "+where.String(), "%s does not lie in %s, %s", i.Address, where, what)
	}
}

func (f *file) checkRouter() {
	r := f.lab.Router
	if r == nil {
		return
	}
	if r.KeyFile == "" {
		f.add("router.keyFile", "name the file that holds the key of VyOS's HTTP API", "there is no key")
	}
	r.Key = f.line("router.keyFile", r.KeyFile)
	f.pin("router.fingerprint", &r.Fingerprint)
	if m, ok := f.lab.Machine(r.Machine); ok && r.API == "" && m.Address().IsValid() {
		r.API = "https://" + m.Address().String()
	}
	f.base("router.api", r.API)
}

// pin checks the fingerprint of a key.
func (f *file) pin(field string, v *string) {
	if *v = strings.ToLower(*v); *v == "" {
		return
	}
	if what := inventory.PinProblem(*v); what != "" {
		f.add(field, "write sha256: and 64 hexadecimal digits", "%q %s", *v, what)
	}
}

// base checks the base URL of an API.
func (f *file) base(field, v string) {
	if v == "" {
		return
	}
	if what := inventory.BaseProblem(v); what != "" {
		f.add(field, "write it as https://192.168.1.20", "%q %s", v, what)
	} else if u, err := url.Parse(v); err == nil {
		f.host(field, u.Hostname())
	}
}

// host checks a host that the server will ask whether it is ready, and send
// credentials to.
func (f *file) host(field, v string) {
	if what := inventory.HostProblem(v); what != "" {
		f.add(field, "give the address of the system that was installed", "%q %s", v, what)
	}
}

func (f *file) checkPlatform() {
	l := f.lab
	if p := l.Platform; p != nil {
		if p.TalosconfigFile == "" {
			f.add("platform.talosconfigFile", "name the talosconfig that talosctl gen config wrote", "there are no certificates for the Talos API")
		}
		p.Talosconfig = inventory.NewSecret(f.open("platform.talosconfigFile", p.TalosconfigFile))
		m, ok := l.Machine(p.Machine)
		if ok {
			f.checkTalosconfig(p, m)
		}
		if ok && m.Address().IsValid() {
			if p.Talos == "" {
				p.Talos = netip.AddrPortFrom(m.Address(), 50000).String()
			}
			if p.Kubernetes == "" {
				p.Kubernetes = "https://" + netip.AddrPortFrom(m.Address(), 6443).String()
			}
		}
		if p.Talos != "" {
			if u, err := url.Parse("tcp://" + p.Talos); err != nil || u.Port() == "" || u.Hostname() == "" || u.Path != "" {
				f.add("platform.talos", "write it as 10.10.20.11:50000", "%q is not host and port", p.Talos)
			} else {
				f.host("platform.talos", u.Hostname())
			}
		}
		f.base("platform.kubernetes", p.Kubernetes)
	}
}

func (f *file) checkMigrate() {
	l := f.lab
	g := l.Migrate
	if g == nil {
		return
	}
	if l.Platform == nil {
		f.add("migrate", "add platform, or leave migrate out", "there is no platform to move to")
	} else if m, ok := l.Machine(l.Platform.Machine); ok && !g.Address.IsValid() {
		g.Address = m.Address()
	}
	if g.Address.IsValid() && (g.Address == l.Seed.Address || !g.Address.Is4()) {
		f.add("migrate.address", "give the platform's address", "%s is not where the server moves to", g.Address)
	}
	if g.Target == "" {
		g.Target = defaultTarget
	}
	if !dnsLabel.MatchString(g.Target) {
		f.add("migrate.target", "use up to 63 of a–z, 0–9 and -", "%q is no name of a peer", g.Target)
	}
	g.Manifest = f.open("migrate.manifestFile", g.ManifestFile)
	if needs := strings.Contains(g.Manifest, "INGOT_IMAGE"); (needs || g.Image != "") && !reference.MatchString(g.Image) {
		f.add("migrate.image", "name the container image, such as registry.example.org/ingot:1.0", "%q is no reference of an image", g.Image)
	}
	g.Manifest = strings.NewReplacer("INGOT_IMAGE", g.Image, "INGOT_ADDRESS", text(g.Address)).Replace(g.Manifest)
}

// checkTarget claims the address to which the server moves, unless it is the
// platform's own, which is claimed already.
func (f *file) checkTarget() {
	l := f.lab
	if l.Migrate == nil || l.Platform == nil || !l.Migrate.Address.Is4() || l.Migrate.Address == l.Seed.Address {
		return
	}
	if m, ok := l.Machine(l.Platform.Machine); ok && !has(m, l.Migrate.Address) {
		f.owns.Add(&f.ps, "migrate.address", "address", l.Migrate.Address.String(), f.at("migrate.address"))
	}
}

// has tells whether an interface of m has the address a.
func has(m Machine, a netip.Addr) bool {
	return slices.ContainsFunc(m.Interfaces, func(i inventory.Interface) bool { return i.Address == a })
}

func (f *file) checkCluster() {
	l := f.lab
	c := l.Cluster
	if c == nil {
		return
	}
	f.pin("cluster.fingerprint", &c.Fingerprint)
	if c.Password = inventory.NewSecret("admin"); c.PasswordFile != "" {
		c.Password = f.line("cluster.passwordFile", c.PasswordFile)
	}
	switch {
	case !c.VIP.Is4():
		f.add("cluster.vip", "reserve one in the network", "%s is no address for the cluster", text(c.VIP))
		return
	case l.Network.Prefix.IsValid() && !l.Network.Prefix.Contains(c.VIP):
		f.add("cluster.vip", "give an address of "+l.Network.Prefix.String(), "%s does not lie in the network of the nodes", c.VIP)
	}
	f.owns.Add(&f.ps, "cluster.vip", "address", c.VIP.String(), f.at("cluster.vip"))
	if c.API == "" {
		c.API = "https://" + c.VIP.String()
	}
	f.base("cluster.api", c.API)
}

// checkRange checks that nobody else may hand out what is fixed.
func (f *file) checkRange() {
	l := f.lab
	r := l.Network.Range
	say := func(field, what string, a netip.Addr) {
		if r.Contains(a) {
			f.add(field, "take an address outside "+r.From.String()+"–"+r.To.String()+", or make the range smaller", "%s %s lies in the DHCP range", what, a)
		}
	}
	say("network.gateway", "the gateway", l.Network.Gateway)
	for n, m := range l.Machines {
		for k, i := range m.Interfaces {
			say(fmt.Sprintf("machines[%d].interfaces[%d].address", n, k), "the reservation", i.Address)
		}
	}
	if l.Cluster != nil {
		say("cluster.vip", "the VIP", l.Cluster.VIP)
	}
	if l.Migrate != nil && l.Platform != nil {
		if m, ok := l.Machine(l.Platform.Machine); ok && m.Address() != l.Migrate.Address {
			say("migrate.address", "the new server's address", l.Migrate.Address)
		}
	}
}

func (f *file) checkBudgets() {
	names := f.lab.stepNames()
	keys := make([]string, 0, len(f.lab.Budgets))
	for k := range f.lab.Budgets {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		if !slices.Contains(names, k) {
			f.add("budgets."+k, "the steps are "+strings.Join(names, ", "), "there is no step %q", k)
		} else if f.lab.Budgets[k] <= 0 {
			f.add("budgets."+k, "give for example 30m", "%s is no time", f.lab.Budgets[k])
		}
	}
}

// checkDocument checks a machine's document, by itself and against the lab.
func (f *file) checkDocument(r role, m Machine, token map[string]string) {
	b := []byte(m.UserData.Reveal())
	ps, warnings := systems.Review(r.kind, m.Config, b)
	if len(ps) == 0 {
		f.lab.warnings = append(f.lab.warnings, warnings...)
	}
	var more inventory.Problems
	if relay := systems.Of(r.kind).Relay; relay != nil {
		more = relay.CheckRelay(b, f.lab.Seed.Address)
	}
	if r.mode != "" {
		more = append(more, f.checkHarvester(r, m, token)...)
	}
	for n := range more {
		more[n].File = m.Config
	}
	for _, p := range more {
		// What the document lacks by itself is said already.
		if !slices.ContainsFunc(ps, func(q inventory.Problem) bool { return q.Field == p.Field || q.Field == "" }) {
			ps = append(ps, p)
		}
	}
	for _, p := range ps {
		if !slices.Contains(f.named, p) { // one document may serve several machines
			f.named = append(f.named, p)
		}
	}
}

// checkHarvester checks what a node's configuration must share with the lab.
func (f *file) checkHarvester(r role, m Machine, token map[string]string) (ps inventory.Problems) {
	docs, err := strictyaml.Documents(m.Config, []byte(m.UserData.Reveal()))
	if err != nil || len(docs) != 1 {
		return nil // its own check says so
	}
	d := docs[0]
	if mode := d.Text("install.mode"); mode != r.mode {
		ps.Add("install.mode", "write "+r.mode+", or change "+r.field+" of the lab file", "is %q, but machine %q is %s", mode, m.Name, r.field)
	}
	c := f.lab.Cluster
	known, vip := c.VIP.IsValid(), "VIP"
	if known {
		vip = c.VIP.String()
	}
	if r.mode == "join" {
		switch u, err := url.Parse(d.Text("server_url")); {
		case d.Text("server_url") == "":
			ps.Add("server_url", "write server_url: https://"+vip+":443", "is missing, and machine %q joins", m.Name)
		case known && (err != nil || u.Hostname() != vip):
			ps.Add("server_url", "write https://"+vip+":443", "%q does not lead to the cluster's VIP %s", d.Text("server_url"), vip)
		}
	} else {
		if v := d.Text("install.vip"); known && v != vip {
			ps.Add("install.vip", "write "+vip+", or change cluster.vip", "is %q, but the cluster's VIP is %s", v, vip)
		}
		if u := d.Text("server_url"); u != "" {
			ps.Add("server_url", "leave it out: machine "+m.Name+" creates the cluster", "is for nodes that join")
		}
	}
	const ip = "install.management_interface.ip"
	if a, err := netip.ParseAddr(d.Text(ip)); err == nil && d.Text("install.management_interface.method") == "static" && !has(m, a) {
		f.owns.Add(&ps, ip, "address", a.String(), fmt.Sprintf("%s:%d", m.Config, d.LineOf(ip)))
	}
	ps = append(ps, f.checkISO(d.Text("install.iso_url"))...)
	switch t := d.Text("token"); {
	case t == "":
		ps.Add("token", "give all nodes the same", "is missing")
	case len(token) == 0:
		token[t] = m.Config
	case token[t] == "":
		for _, other := range token {
			ps.Add("token", "give all nodes the same", "is another than in %s", other)
		}
	}
	for n := 0; ; n++ {
		field := fmt.Sprintf("install.management_interface.interfaces[%d].hwAddr", n)
		hw := d.Text(field)
		if hw == "" {
			break
		}
		mac, err := inventory.ParseMAC(hw)
		if _, ok := m.InterfaceByMAC(mac); err == nil && !ok {
			ps.Add(field, "correct it, or add the interface to machine "+m.Name, "%s is no interface of machine %q", hw, m.Name)
		}
	}
	return d.Locate(ps)
}

// checkISO checks an address of an image of this server: after the migration it
// is the new server that serves images.
func (f *file) checkISO(iso string) (ps inventory.Problems) {
	l := f.lab
	u, err := url.Parse(iso)
	if err != nil || iso == "" {
		return nil
	}
	name, ours := strings.CutPrefix(u.Path, "/images/")
	host, err := netip.ParseAddr(u.Hostname())
	if err != nil || !ours || host != l.Seed.Address && (l.Migrate == nil || host != l.Migrate.Address) {
		return nil // somebody else's
	}
	if l.Migrate != nil && l.Migrate.Address.IsValid() && host != l.Migrate.Address {
		u.Host = strings.Replace(u.Host, host.String(), l.Migrate.Address.String(), 1)
		ps.Add("install.iso_url", "write "+u.String(), "the server at %s has moved to %s before the cluster is installed", host, l.Migrate.Address)
	}
	if !f.hasImage(name) {
		ps.Add("install.iso_url", "add it to images of the lab file, or correct the name", "there is no image %q", name)
	}
	return ps
}

// checkTalosconfig checks that the certificates are those of the machine's
// Talos: another cluster's would be refused when Talos is there already.
func (f *file) checkTalosconfig(p *Platform, m Machine) {
	if p.Talosconfig.IsZero() {
		return
	}
	client, err := strictyaml.Documents(p.TalosconfigFile, []byte(p.Talosconfig.Reveal()))
	if err != nil || len(client) != 1 || client[0].Text("context") == "" {
		f.named = append(f.named, inventory.Problem{
			File: p.TalosconfigFile, Field: "context", What: "this is no talosconfig, or no context is chosen in it", Remedy: "make it with: talosctl gen config",
		})
		return
	}
	ca := client[0].Text("contexts." + client[0].Text("context") + ".ca")
	docs, err := strictyaml.Documents(m.Config, []byte(m.UserData.Reveal()))
	if err != nil || ca == "" {
		return
	}
	for _, d := range docs {
		if own := d.Text("machine.ca.crt"); own != "" && own != ca {
			f.named = append(f.named, inventory.Problem{
				File: p.TalosconfigFile, Line: client[0].LineOf("contexts." + client[0].Text("context") + ".ca"), Field: "ca",
				What: "its certificate authority is not that of " + m.Config, Remedy: "take both files from one run of: talosctl gen config",
			})
		}
	}
}

// equal compares what two machines say by what they would store.
func equal(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && (bytes.Equal(x, y) || empty(x) && empty(y))
}

func empty(b []byte) bool { return slices.Contains([]string{"null", "{}", "[]", `""`}, string(b)) }

// bare returns b without what is a secret or says that there is one; nobody is
// somebody who presses the button.
func bare(b *inventory.BMC) *inventory.BMC {
	if b == nil {
		return &inventory.BMC{Driver: inventory.DriverManual}
	}
	c := *b
	c.Password, c.HasPassword = inventory.Secret{}, false
	return &c
}
