package genesis

import (
	"cmp"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// defaultTarget is the default of migrate.target.
const defaultTarget = "platform"

var imageReference = regexp.MustCompile(`^[a-z0-9][A-Za-z0-9._:/@-]*$`)

func (f *file) checkRouter() {
	r := f.lab.Router
	if r == nil {
		return
	}
	if r.KeyFile == "" {
		f.add("router.keyFile", "name the file that holds the key of VyOS's HTTP API", "is missing")
	}
	r.Key = f.line("router.keyFile", r.KeyFile)
	f.checkPin("router.fingerprint", &r.Fingerprint)
	if m, ok := f.lab.Machine(r.Machine); ok && r.API == "" && m.Address().IsValid() {
		r.API = "https://" + m.Address().String()
	}
	f.checkURL("router.api", r.API)
}

func (f *file) checkPlatform() {
	l := f.lab
	p := l.Platform
	if p == nil {
		return
	}
	if p.TalosconfigFile == "" {
		f.add("platform.talosconfigFile", "name the talosconfig that talosctl gen config wrote",
			"is missing: the Talos API needs the certificates in it")
	}
	p.Talosconfig = inventory.NewSecret(f.open("platform.talosconfigFile", p.TalosconfigFile))
	m, ok := l.Machine(p.Machine)
	if ok {
		f.docs.checkTalosconfig(p, m)
	}
	if ok && m.Address().IsValid() {
		p.Talos = cmp.Or(p.Talos, netip.AddrPortFrom(m.Address(), 50000).String())
		p.Kubernetes = cmp.Or(p.Kubernetes, "https://"+netip.AddrPortFrom(m.Address(), 6443).String())
	}
	if p.Talos != "" {
		if u, err := url.Parse("tcp://" + p.Talos); err != nil || u.Port() == "" || u.Hostname() == "" || u.Path != "" {
			f.add("platform.talos", "write it as 10.10.20.11:50000", "invalid host and port %q", p.Talos)
		} else {
			f.checkHost("platform.talos", u.Hostname())
		}
	}
	f.checkURL("platform.kubernetes", p.Kubernetes)
}

func (f *file) checkMigrate() {
	l := f.lab
	g := l.Migrate
	if g == nil {
		return
	}
	if l.Platform == nil {
		f.add("migrate", "add platform, or leave migrate out", "there is no platform to move the server to")
	} else if m, ok := l.Machine(l.Platform.Machine); ok && !g.Address.IsValid() {
		g.Address = m.Address()
	}
	if g.Address.IsValid() && (g.Address == l.Seed.Address || !g.Address.Is4()) {
		f.add("migrate.address", "give the platform's address",
			"the server cannot move to %s; must be an IPv4 address other than seed.address", g.Address)
	}
	g.Target = cmp.Or(g.Target, defaultTarget)
	if !dnsLabel.MatchString(g.Target) {
		f.add("migrate.target", "use up to 63 characters: a–z, 0–9 and -", "invalid peer name %q", g.Target)
	}
	g.Manifest = f.open("migrate.manifestFile", g.ManifestFile)
	required := strings.Contains(g.Manifest, "INGOT_IMAGE")
	if (required || g.Image != "") && !imageReference.MatchString(g.Image) {
		f.add("migrate.image", "name the container image, such as registry.example.org/ingot:1.0",
			"invalid image reference %q", g.Image)
	}
	g.Manifest = strings.NewReplacer("INGOT_IMAGE", g.Image, "INGOT_ADDRESS", text(g.Address)).Replace(g.Manifest)
}

// checkTarget adds a problem if migrate.address belongs to a machine other than the platform.
func (f *file) checkTarget() {
	l := f.lab
	if l.Migrate == nil || l.Platform == nil {
		return
	}
	a := l.Migrate.Address
	if !a.Is4() || a == l.Seed.Address {
		return
	}
	if m, ok := l.Machine(l.Platform.Machine); ok && !hasAddress(m, a) {
		f.claim("migrate.address", "address", a.String())
	}
}

// hasAddress reports whether an interface of m has the address a.
func hasAddress(m Machine, a netip.Addr) bool {
	return slices.ContainsFunc(m.Interfaces, func(i inventory.Interface) bool { return i.Address == a })
}

func (f *file) checkCluster() {
	l := f.lab
	c := l.Cluster
	if c == nil {
		return
	}
	f.checkPin("cluster.fingerprint", &c.Fingerprint)
	if c.Password = inventory.NewSecret("admin"); c.PasswordFile != "" {
		c.Password = f.line("cluster.passwordFile", c.PasswordFile)
	}
	switch {
	case !c.VIP.Is4():
		f.add("cluster.vip", "reserve an address in network.prefix", "invalid address %s of the cluster", text(c.VIP))
		return
	case l.Network.Prefix.IsValid() && !l.Network.Prefix.Contains(c.VIP):
		f.add("cluster.vip", "give an address of "+l.Network.Prefix.String(), "%s does not lie in the network of the nodes", c.VIP)
	}
	f.claim("cluster.vip", "address", c.VIP.String())
	c.API = cmp.Or(c.API, "https://"+c.VIP.String())
	f.checkURL("cluster.api", c.API)
}

// checkPin checks the fingerprint of a key and converts it to lower case. An empty fingerprint is valid.
func (f *file) checkPin(field string, v *string) {
	if *v = strings.ToLower(*v); *v == "" {
		return
	}
	if what := inventory.PinProblem(*v); what != "" {
		f.add(field, "write sha256: and 64 hexadecimal digits", "%q %s", *v, what)
	}
}

// checkURL checks the base URL of an API. An empty URL is valid.
func (f *file) checkURL(field, v string) {
	if v == "" {
		return
	}
	if what := inventory.BaseProblem(v); what != "" {
		f.add(field, "write it as https://192.168.1.20", "%q %s", v, what)
	} else if u, err := url.Parse(v); err == nil {
		f.checkHost(field, u.Hostname())
	}
}

// checkHost adds a problem if v is not a valid host to send credentials to.
func (f *file) checkHost(field, v string) {
	if what := inventory.HostProblem(v); what != "" {
		f.add(field, "give the address of the system that was installed", "%q %s", v, what)
	}
}
