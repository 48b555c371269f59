package config

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// checker collects the problems of a configuration.
type checker struct{ inventory.Problems }

// check returns all problems of the configuration.
func (c *Config) check() inventory.Problems {
	var p checker
	p.hostPort("listen", c.Listen, "127.0.0.1:8080")
	if (c.TLSCert == "") != (c.TLSKey == "") {
		p.Add("tls_cert", "give tls_cert and tls_key, or neither", "one of certificate and key is missing")
	}
	if c.MetricsCA != "" && c.TLSCert == "" && Loopback(c.Listen) {
		p.Add("metrics_ca", "give tls_cert and tls_key, or leave it out and use: ingot metrics token",
			"listen is without TLS, so there are no client certificates")
	}
	if rel, err := filepath.Rel(c.DataDir, c.KeyFile); err == nil && filepath.IsLocal(rel) {
		p.Add("key_file", "put it where a copy of data_dir does not contain it, for example /etc/ingot/keys.json",
			"the key file is inside data_dir")
	}

	c.Netboot.check(&p)
	c.checkShares(&p)
	p.prefixes("bmc.networks", c.BMC.Networks)
	c.Power.check(&p)
	c.Notify.check(&p)
	c.Tracing.check(&p)
	c.Temporal.check(&p)
	c.Site.check(&p)
	c.checkLimits(&p)
	c.checkPorts(&p)
	return p.Problems
}

// checkShares checks images.shares. A share must not contain the data directory or the directory of the key file, or be
// below one of them: the machines' network can read each file that is served in place.
func (c *Config) checkShares(p *checker) {
	within := func(dir, path string) bool {
		rel, err := filepath.Rel(dir, path)
		return err == nil && filepath.IsLocal(rel)
	}
	for i, dir := range c.Images.Shares {
		field := fmt.Sprintf("images.shares[%d]", i)
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || dir == "/" {
			p.Add(field, "write a directory of images alone, for example /mnt/images", "%q is not a plain absolute path below /", dir)
			continue
		}
		for _, own := range []string{c.DataDir, filepath.Dir(c.KeyFile)} {
			if within(dir, own) || within(own, dir) {
				p.Add(field, "name a directory of images alone", "%s and %s contain one another, and files of the server must not be served", dir, own)
			}
		}
	}
}

// checkLimits checks sizes, counts and durations.
func (c *Config) checkLimits(p *checker) {
	if c.ProbeEvery != 0 && c.ProbeEvery < 100*time.Millisecond {
		p.Add("probe_every", "write 5s, or leave it out", "%s is too short a pause between two probes", c.ProbeEvery)
	}
	if c.MinFree < 0 {
		p.Add("min_free_mib", "", "must not be negative")
	}
	if c.Reserve < 0 {
		p.Add("reserve_mib", "write 0 for none", "must not be negative")
	}
	if c.Records.Retention < 24*time.Hour {
		p.Add("records.retention", "write 24h or more",
			"%s is too short: operators look at runs that have ended", c.Records.Retention)
	}
	if c.Records.Keep < 1 {
		p.Add("records.keep", "write 1 or more", "the newest run of a machine has to stay: it says what is on its disk")
	}
}

func (p *checker) hostPort(field, value, example string) {
	if _, _, err := net.SplitHostPort(value); err != nil {
		p.Add(field, "write "+example, "invalid host:port %q", value)
	}
}

func (p *checker) port(field string, n int) {
	if n < 1 || n > 65535 {
		p.Add(field, "write a number from 1 to 65535", "invalid port %d", n)
	}
}

func (p *checker) ports(field, example string, list []int) {
	if len(list) == 0 {
		p.Add(field, "write "+example, "no port is given")
	}
	for i, n := range list {
		p.port(fmt.Sprintf("%s[%d]", field, i), n)
	}
}

func (p *checker) ipv4(field, value, remedy string) {
	if a, err := netip.ParseAddr(value); value != "" && (err != nil || !a.Is4()) {
		p.Add(field, remedy, "invalid IPv4 address %q", value)
	}
}

func (p *checker) prefixes(field string, list []string) {
	for i, s := range list {
		if _, err := Prefix(s); err != nil {
			p.Add(fmt.Sprintf("%s[%d]", field, i), "write an address or a prefix", "invalid address %q", s)
		}
	}
}

func (n Netboot) check(p *checker) {
	p.ipv4("netboot.address", n.Address, "write the server's IPv4 address on the provisioning network")
	p.ipv4("netboot.listen", n.Listen, "write 0.0.0.0, or leave it out")
	if n.Listen != "" && !n.RelayOnly {
		p.Add("netboot.listen", "leave it out, or write relay_only: true", "a server with interfaces listens at its address")
	}

	if n.Loader != "" && !slices.Contains(inventory.SecureLoaders(), n.Loader) {
		p.Add("netboot.loader", "write one of "+strings.Join(inventory.SecureLoaders(), ", ")+", or leave it out", "unknown loader %q", n.Loader)
	}
	n.checkDHCP(p)
	n.checkDiscovery(p)
	wrong := n.MinimumSBAT.Check()
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		p.Add("netboot.minimum_sbat."+name, "write for example {shim: 4, grub: 5}; 0 asks for none", "%s", wrong[name])
	}
	p.prefixes("netboot.relays", n.Relays)
	p.prefixes("netboot.proxies", n.Proxies)
	p.ports("netboot.http", "[80, 7080]", n.HTTP)
	p.ports("netboot.metadata", "[7172]", n.Metadata)
	p.port("netboot.tftp", n.TFTP)
	if n.Syslog != 0 {
		p.port("netboot.syslog", n.Syslog)
	}
	p.port("netboot.agent", n.Agent)
	if n.RelayOnly {
		n.checkRelayOnly(p)
	}
}

// checkDHCP checks the DHCP mode of each interface.
func (n Netboot) checkDHCP(p *checker) {
	for _, name := range slices.Sorted(maps.Keys(n.DHCP)) {
		field := "netboot.dhcp." + name
		if mode := n.DHCP[name]; !slices.Contains(inventory.DHCPModes(), string(mode)) {
			p.Add(field, "write one of "+strings.Join(inventory.DHCPModes(), ", "), "invalid DHCP mode %q", mode)
		}
		if !slices.Contains(n.Interfaces, name) {
			p.Add(field, "add it to netboot.interfaces, or correct the name", "%s is not one of netboot.interfaces", name)
		}
	}
}

// checkDiscovery checks the interfaces and address ranges for unknown machines, and the rules that accept such machines.
func (n Netboot) checkDiscovery(p *checker) {
	for _, name := range slices.Sorted(maps.Keys(n.Discovery.Ranges)) {
		field := "netboot.discovery.ranges." + name
		if relay, ok := inventory.RelayNetwork(name); ok {
			n.checkRelayRange(p, field, relay, n.Discovery.Ranges[name])
			continue
		}
		if !slices.Contains(n.Interfaces, name) {
			p.Add(field, "add it to netboot.interfaces, or correct the name", "%s is not one of netboot.interfaces", name)
		}
		if mode := n.DHCP[name]; mode != "" && mode != inventory.DHCPReservation {
			p.Add(field, "leave it out", "in mode %s another server gives the addresses of %s", mode, name)
		}
	}
	for i, name := range n.Discovery.Beside {
		field := fmt.Sprintf("netboot.discovery.beside[%d]", i)
		if mode := n.DHCP[name]; mode != inventory.DHCPProxy && mode != inventory.DHCPOff {
			p.Add(field, "name an interface with \"dhcp: proxy\" or \"off\", or give it a range", "%s gives the addresses itself", name)
		}
	}
	if len(n.Discovery.Accept) > 0 && !n.Discovery.On() {
		p.Add("netboot.discovery.ranges", "write for example \"ranges: {eth1: 10.0.20.200-10.0.20.230}\"", "is missing: no machine is discovered")
	}
	p.Problems = append(p.Problems, n.Discovery.Check("netboot.discovery")...)
}

// checkRelayRange checks r, the address range for unknown machines behind a relay.
func (n Netboot) checkRelayRange(p *checker, field string, relay netip.Prefix, r inventory.Range) {
	listed, err := Prefixes(n.Relays)
	if err == nil && !slices.ContainsFunc(listed, func(l netip.Prefix) bool { return l.Contains(relay.Addr()) }) {
		p.Add(field, "add it to netboot.relays", "%s is not a listed relay", relay.Addr())
	}
	if !relay.Contains(r.From) || !relay.Contains(r.To) {
		p.Add(field, "write the relay's address with the length of its network, for example 10.10.30.1/24", "%s is not in %s", r, relay.Masked())
	}
	if r.Contains(relay.Addr()) {
		p.Add(field, "leave the relay's address out of the range", "%s contains %s", r, relay.Addr())
	}
}

// checkRelayOnly checks the configuration of a server that answers only relays.
func (n Netboot) checkRelayOnly(p *checker) {
	if len(n.Interfaces) > 0 {
		p.Add("netboot.interfaces",
			"leave relay_only out: an interface answers relays, too; or leave interfaces out",
			"with relay_only no interface is served")
	}
	if n.Address == "" {
		p.Add("netboot.address", "write this server's address, which relays and machines reach",
			"with relay_only there is no interface to take it from")
	}
	if len(n.Relays) == 0 {
		p.Add("netboot.relays", "write \"relays: [10.0.20.1]\", the relays' addresses on the machines' networks",
			"with relay_only the relays have to be listed, or no machine could be answered")
	}
}

func (t Temporal) check(p *checker) {
	if t.MutualTLS && t.Address != "" {
		p.Add("temporal.mutual_tls", "leave it out; temporal.tls_cert, tls_key and tls_ca are for temporal.address",
			"temporal.address replaces the embedded server")
	}
	if t.TLSCert != "" && t.TLSKey == "" || t.TLSCert == "" && t.TLSKey != "" {
		p.Add("temporal.tls_key", "give both temporal.tls_cert and temporal.tls_key", "a certificate needs its key")
	}
	if t.Address == "" {
		for field, value := range map[string]string{
			"tls_cert": t.TLSCert, "tls_ca": t.TLSCA, "tls_server_name": t.TLSServerName, "api_key_file": t.APIKeyFile,
			"encryption_key_file": t.EncryptionKeyFile,
		} {
			if value != "" {
				p.Add("temporal."+field, "leave it out, or give temporal.address", "it is for another cluster than the embedded server")
			}
		}
		p.port("temporal.port", t.Port)
		if t.Port > 65535-3 && t.Port <= 65535 {
			p.Add("temporal.port", "write a number up to 65532", "the three ports that follow %d are needed, too", t.Port)
		}
		p.port("temporal.ui_port", t.UIPort)
	}
	if t.UIOrigin != "" {
		u, err := url.Parse(t.UIOrigin)
		switch {
		case t.EncryptionKeyFile == "":
			p.Add("temporal.ui_origin", "leave it out, or give temporal.encryption_key_file", "without encryption there is nothing to decrypt")
		case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.Scheme+"://"+u.Host != t.UIOrigin:
			p.Add("temporal.ui_origin", "write https://temporal-ui.example.com, with the port if it has one and nothing after it",
				"invalid origin %q", t.UIOrigin)
		}
	}
	if t.Retention < 24*time.Hour {
		p.Add("temporal.retention", "write 24h or more", "%s is too short: operators look at closed runs", t.Retention)
	}
}

func (s Site) check(p *checker) {
	p.hostPort("site.listen", s.Listen, ":7444")
	if s.URL == "" {
		return
	}

	u, err := url.Parse(s.URL)
	if err != nil || u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		p.Add("site.url", "write https://host:7444", "invalid URL %q", s.URL)
	}
}

func (n Notify) check(p *checker) {
	if n.URL == "" {
		given := map[string]bool{"secret_file": n.SecretFile != "", "events": len(n.Events) > 0, "tls_ca": n.TLSCA != ""}
		for field, is := range given {
			if is {
				p.Add("notify."+field, "give notify.url, too", "notices have no receiver")
			}
		}
		return
	}

	switch u, err := url.Parse(n.URL); { // the URL may hold a token, so no problem quotes it
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		p.Add("notify.url", "write https://host/path", "invalid URL for notices")
	case u.User != nil:
		p.Add("notify.url", "remove user and password: notices are signed", "a URL must not hold credentials")
	}
	if n.SecretFile == "" {
		p.Add("notify.secret_file", "make one: openssl rand -hex 32 > FILE",
			"is missing: a receiver could not distinguish a notice from a forged one")
	}

	for i, e := range n.Events {
		if known := inventory.NoticeEvents(); !slices.Contains(known, e) {
			p.Add(fmt.Sprintf("notify.events[%d]", i), "use "+strings.Join(known, ", "), "unknown event %q", e)
		}
	}
}

// powerName matches a name of a power command that the BMC of a machine may refer to.
var powerName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

var placeholder = regexp.MustCompile(`\{[^{}]*\}`)

// maxPowerTimeout is the longest time-out of a power command, so that a command that hangs cannot block a run for long.
const maxPowerTimeout = 5 * time.Minute

func (w Power) check(p *checker) {
	for _, name := range slices.Sorted(maps.Keys(w.Commands)) {
		if !powerName.MatchString(name) {
			p.Add("power.commands", "use up to 64 letters, digits, _ and -", "invalid name of a command %q", name)
			continue
		}
		field, c := "power.commands."+name, w.Commands[name]
		p.program(field+".on", c.On)
		p.program(field+".off", c.Off)
		p.program(field+".status", c.Status)
		if c.Timeout < 0 || c.Timeout > maxPowerTimeout {
			p.Add(field+".timeout", "write up to 5m, or leave it out for 30s", "invalid timeout %s", c.Timeout)
		}
	}
}

// program checks argv, a program and its arguments.
func (p *checker) program(field string, argv []string) {
	if len(argv) == 0 {
		p.Add(field, "write [/path/of/program, argument, …]; only status shows whether the power was switched",
			"is missing")
		return
	}
	if path := argv[0]; !filepath.IsAbs(path) || filepath.Clean(path) != path || placeholder.MatchString(path) {
		p.Add(field+"[0]", "write the whole path of the program; no shell looks for it", "%q is not an absolute path", path)
	}

	for i, a := range argv {
		at := fmt.Sprintf("%s[%d]", field, i)
		if strings.ContainsRune(a, 0) {
			p.Add(at, "remove it", "it holds a zero byte")
		}
		for _, x := range placeholder.FindAllString(a, -1) {
			if i > 0 && x != "{machine}" && x != "{host}" {
				p.Add(at, "use {machine} and {host}", "unknown placeholder %s", x)
			}
		}
	}
}

func (t Tracing) check(p *checker) {
	if t.Endpoint == "" {
		for field, value := range map[string]string{"headers_file": t.HeadersFile, "tls_ca": t.TLSCA} {
			if value != "" {
				p.Add("tracing."+field, "give tracing.endpoint, too", "traces have no collector")
			}
		}
		return
	}

	switch u, err := url.Parse(t.Endpoint); { // the URL may hold a token, so no problem quotes it
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		p.Add("tracing.endpoint", "write https://host:4318", "invalid URL of a collector")
	case u.User != nil || u.RawQuery != "":
		p.Add("tracing.endpoint", "write a header to tracing.headers_file", "a URL must not hold credentials")
	}
}

// checkPorts adds a problem for each port that two listeners of this server would bind.
func (c *Config) checkPorts(p *checker) {
	all := c.tcpListeners()
	for i, b := range all {
		for _, a := range all[:i] {
			if !a.collides(b) {
				continue
			}
			what := a.key
			if a.last > a.first {
				what += fmt.Sprintf(", which is %d to %d", a.first, a.last)
			}
			p.Add(b.key, "choose another port", "port %d is taken by %s", max(a.first, b.first), what)
			break
		}
	}
}
