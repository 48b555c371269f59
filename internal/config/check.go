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
		p.Add("tls_cert", "give tls_cert and tls_key, or neither", "tls_cert and tls_key must be given together")
	}
	if c.MetricsCA != "" && c.TLSCert == "" && Loopback(c.Listen) {
		p.Add("metrics_ca", "give tls_cert and tls_key; or leave metrics_ca out, and use: ingot metrics token",
			"needs TLS: without it, the server gets no client certificates")
	}
	if within(c.DataDir, c.KeyFile) {
		p.Add("key_file", "put it where copies of data_dir do not include it, for example /etc/ingot/keys.json",
			"the key file is inside data_dir")
	}

	if ui := c.TemporalUIListen(); ui != "" && !Loopback(ui) && c.TLSCert == "" && Loopback(c.Listen) {
		p.Add("temporal.ui_listen", "give tls_cert and tls_key, or write a loopback address",
			"%q can be reached from other hosts and needs TLS, but the server has no certificate while \"listen\" is a loopback address", ui)
	}

	c.Netboot.check(&p)
	c.checkShares(&p)
	c.checkBackup(&p)
	c.Images.checkRegistries(&p)
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

// within reports whether path is dir or below it.
func within(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// checkBackup checks the directory and the passphrase of the backups that the server stores.
func (c *Config) checkBackup(p *checker) {
	b := c.Backup
	if (b.Dir == "") != (b.PassphraseFile == "") {
		p.Add("backup.passphrase_file", "give backup.dir and backup.passphrase_file, or neither",
			"backup.dir and backup.passphrase_file must be given together")
	}
	if b.KeepDays < 1 {
		p.Add("backup.keep_days", "write 1 or more", "must be at least 1: the newest backup is always kept")
	}
	if b.Dir == "" {
		return
	}

	if !filepath.IsAbs(b.Dir) || filepath.Clean(b.Dir) != b.Dir || b.Dir == "/" {
		p.Add("backup.dir", "name a directory that holds only backups, for example /var/backups/ingot",
			"invalid directory %q; must be an absolute path below /, without . and ..", b.Dir)
	}
	if within(c.DataDir, b.Dir) {
		p.Add("backup.dir", "name a directory on another disk or on a share", "is inside data_dir, and would be lost with it")
	}
	if within(b.Dir, b.PassphraseFile) {
		p.Add("backup.passphrase_file", "put it next to key_file", "is inside backup.dir: copies of the backups would contain their passphrase")
	}
}

// checkShares checks images.shares. The machines' network can read every file in a share. A share must therefore not
// contain the data directory, the directory of the key file or backup.dir, and must not be below one of them.
func (c *Config) checkShares(p *checker) {
	owns := []string{c.DataDir, filepath.Dir(c.KeyFile)}
	if c.Backup.Dir != "" {
		owns = append(owns, c.Backup.Dir)
	}
	for i, dir := range c.Images.Shares {
		field := fmt.Sprintf("images.shares[%d]", i)
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir || dir == "/" {
			p.Add(field, "name a directory that holds only images, for example /mnt/images",
				"invalid directory %q; must be an absolute path below /, without . and ..", dir)
			continue
		}
		for _, own := range owns {
			if within(dir, own) || within(own, dir) {
				p.Add(field, "name a directory that holds only images",
					"one of %s and %s contains the other, and the server's own files must not be served", dir, own)
			}
		}
	}
}

// checkLimits checks sizes, counts and durations.
func (c *Config) checkLimits(p *checker) {
	if c.ProbeEvery != 0 && c.ProbeEvery < 100*time.Millisecond {
		p.Add("probe_every", "write 5s, or leave it out", "invalid interval %s; must be at least 100ms", c.ProbeEvery)
	}
	if c.MinFree < 0 {
		p.Add("min_free_mib", "", "must not be negative")
	}
	if c.Reserve < 0 {
		p.Add("reserve_mib", "write 0 to reserve nothing", "must not be negative")
	}
	if c.Records.Retention < 24*time.Hour {
		p.Add("records.retention", "write 24h or more",
			"%s is too short: operators need the records of runs that have ended", c.Records.Retention)
	}
	if c.Records.Keep < 1 {
		p.Add("records.keep", "write 1 or more", "must be at least 1: the newest run of a machine shows what is installed on its disk")
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
			p.Add(fmt.Sprintf("%s[%d]", field, i), "write an IP address, or a prefix such as 10.0.20.0/24", "invalid address %q", s)
		}
	}
}

func (n Netboot) check(p *checker) {
	p.ipv4("netboot.address", n.Address, "write the server's IPv4 address on the provisioning network")
	p.ipv4("netboot.listen", n.Listen, "write 0.0.0.0, or leave it out")
	if n.Listen != "" && !n.RelayOnly {
		p.Add("netboot.listen", "leave it out, or write relay_only: true",
			"applies only with relay_only: other servers listen at netboot.address")
	}

	if n.Loader != "" && !slices.Contains(inventory.SecureLoaders(), n.Loader) {
		p.Add("netboot.loader", "write one of "+strings.Join(inventory.SecureLoaders(), ", ")+", or leave it out", "unknown loader %q", n.Loader)
	}
	n.checkDHCP(p)
	n.checkDiscovery(p)
	wrong := n.MinimumSBAT.Check()
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		p.Add("netboot.minimum_sbat."+name, "write for example {shim: 4, grub: 5}; 0 means no minimum", "%s", wrong[name])
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
			p.Add(field, "leave the range out", "in DHCP mode %s, another server assigns the addresses on %s", mode, name)
		}
	}
	for i, name := range n.Discovery.Beside {
		field := fmt.Sprintf("netboot.discovery.beside[%d]", i)
		if mode := n.DHCP[name]; mode != inventory.DHCPProxy && mode != inventory.DHCPOff {
			p.Add(field, "set its DHCP mode to proxy or off, or give it a range in netboot.discovery.ranges",
				"invalid interface %s; its DHCP mode must be proxy or off", name)
		}
	}
	if len(n.Discovery.Accept) > 0 && !n.Discovery.On() {
		p.Add("netboot.discovery.ranges", "write for example \"ranges: {eth1: 10.0.20.200-10.0.20.230}\"",
			"is missing: netboot.discovery.accept has no effect, because no machine is discovered")
	}
	p.Problems = append(p.Problems, n.Discovery.Check("netboot.discovery")...)
}

// checkRelayRange checks r, the address range for unknown machines behind a relay.
func (n Netboot) checkRelayRange(p *checker, field string, relay netip.Prefix, r inventory.Range) {
	listed, err := Prefixes(n.Relays)
	if err == nil && !slices.ContainsFunc(listed, func(l netip.Prefix) bool { return l.Contains(relay.Addr()) }) {
		p.Add(field, "add it to netboot.relays", "relay %s is not in netboot.relays", relay.Addr())
	}
	if !relay.Contains(r.From) || !relay.Contains(r.To) {
		p.Add(field, "write the relay's address with the length of its network, for example 10.10.30.1/24",
			"range %s is not in network %s", r, relay.Masked())
	}
	if r.Contains(relay.Addr()) {
		p.Add(field, "leave the relay's address out of the range", "range %s contains the relay's address %s", r, relay.Addr())
	}
}

// checkRelayOnly checks the configuration of a server that answers only DHCP relays.
func (n Netboot) checkRelayOnly(p *checker) {
	if len(n.Interfaces) > 0 {
		p.Add("netboot.interfaces",
			"leave out relay_only, because relays are also answered on interfaces; or leave out interfaces",
			"cannot be combined with relay_only")
	}
	if n.Address == "" {
		p.Add("netboot.address", "write this server's address, which relays and machines reach",
			"is missing: with relay_only, it cannot be taken from an interface")
	}
	if len(n.Relays) == 0 {
		p.Add("netboot.relays", "write the relays' addresses on the machines' networks, for example \"relays: [10.0.20.1]\"",
			"is missing: with relay_only, only machines behind the listed relays are answered")
	}
}

func (t Temporal) check(p *checker) {
	if t.MutualTLS && t.Address != "" {
		p.Add("temporal.mutual_tls", "leave it out; for temporal.address, give temporal.tls_cert, tls_key and tls_ca",
			"applies only to the embedded server, which temporal.address replaces")
	}
	if t.TLSCert != "" && t.TLSKey == "" || t.TLSCert == "" && t.TLSKey != "" {
		p.Add("temporal.tls_key", "give both, or neither", "temporal.tls_cert and temporal.tls_key must be given together")
	}
	if t.Address == "" {
		for field, value := range map[string]string{
			"tls_cert": t.TLSCert, "tls_ca": t.TLSCA, "tls_server_name": t.TLSServerName, "api_key_file": t.APIKeyFile,
			"encryption_key_file": t.EncryptionKeyFile,
		} {
			if value != "" {
				p.Add("temporal."+field, "leave it out, or give temporal.address", "applies only to an external Temporal cluster")
			}
		}
		p.port("temporal.port", t.Port)
		if t.Port > 65535-3 && t.Port <= 65535 {
			p.Add("temporal.port", "write a number up to 65532", "the embedded server also needs the three ports after %d", t.Port)
		}
		p.port("temporal.ui_port", t.UIPort)
	}
	switch u, err := url.Parse(t.UIURL); {
	case t.UIURL == "":
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "":
		p.Add("temporal.ui_url", "write for example https://temporal-ui.example.com", "invalid URL %q", t.UIURL)
	case t.Address == "" && u.Scheme+"://"+u.Host != t.UIURL:
		p.Add("temporal.ui_url", "write a host name of its own, without a path", "the embedded server's UI does not work at %q", t.UIURL)
	}
	switch {
	case t.UIListen == "" || t.UIListen == "off":
	case t.Address != "":
		p.Add("temporal.ui_listen", "leave it out; for a link to the cluster's UI, give temporal.ui_url",
			"applies only to the embedded server, which temporal.address replaces")
	default:
		p.hostPort("temporal.ui_listen", t.UIListen, "127.0.0.1:8234, or off")
	}
	if t.UIOrigin != "" {
		u, err := url.Parse(t.UIOrigin)
		switch {
		case t.EncryptionKeyFile == "":
			p.Add("temporal.ui_origin", "leave it out, or give temporal.encryption_key_file",
				"without temporal.encryption_key_file there is nothing to decrypt")
		case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.Scheme+"://"+u.Host != t.UIOrigin:
			p.Add("temporal.ui_origin", "write for example https://temporal-ui.example.com:8443, without a path",
				"invalid origin %q", t.UIOrigin)
		}
	}
	if t.Retention < 24*time.Hour {
		p.Add("temporal.retention", "write 24h or more", "%s is too short: operators need the history of closed runs", t.Retention)
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
		given := map[string]bool{
			"format":      n.Format != inventory.NoticeStandard,
			"secret_file": n.SecretFile != "",
			"events":      len(n.Events) > 0,
			"tls_ca":      n.TLSCA != "",
		}
		for field, is := range given {
			if is {
				p.Add("notify."+field, "give notify.url, too", "has no effect without notify.url")
			}
		}
		return
	}

	switch u, err := url.Parse(n.URL); { // no problem quotes the URL, which may hold a token
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		p.Add("notify.url", "write https://host/path", "invalid URL of the receiver")
	case u.User != nil:
		p.Add("notify.url", "remove user and password", "the URL must not contain credentials")
	}
	switch formats := inventory.NoticeFormats(); {
	case !slices.Contains(formats, n.Format):
		p.Add("notify.format", "", "invalid format %q; must be one of %s", n.Format, strings.Join(formats, ", "))
	case n.Format != inventory.NoticeStandard && n.SecretFile != "":
		p.Add("notify.secret_file", "remove it", "has no effect: notices in the format %s are not signed", n.Format)
	case n.Format == inventory.NoticeStandard && n.SecretFile == "":
		p.Add("notify.secret_file", "make a secret: echo whsec_$(openssl rand -base64 32) > FILE",
			"is missing: without a secret, the receiver cannot detect forged notices")
	}

	for i, e := range n.Events {
		if known := inventory.NoticeEvents(); !slices.Contains(known, e) {
			p.Add(fmt.Sprintf("notify.events[%d]", i), "use "+strings.Join(known, ", "), "unknown event %q", e)
		}
	}
}

// powerName matches a valid name of a power command. The BMC of a machine refers to the command by this name.
var powerName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

var placeholder = regexp.MustCompile(`\{[^{}]*\}`)

// maxPowerTimeout is the longest time-out of a power command. A command that hangs can therefore not block a run for long.
const maxPowerTimeout = 5 * time.Minute

func (w Power) check(p *checker) {
	for _, name := range slices.Sorted(maps.Keys(w.Commands)) {
		if !powerName.MatchString(name) {
			p.Add("power.commands", "use up to 64 letters, digits, _ and -", "invalid command name %q", name)
			continue
		}
		field, c := "power.commands."+name, w.Commands[name]
		p.program(field+".on", c.On)
		p.program(field+".off", c.Off)
		p.program(field+".status", c.Status)
		if c.Timeout < 0 || c.Timeout > maxPowerTimeout {
			p.Add(field+".timeout", "write at most 5m, or leave it out for the default of 30s", "invalid timeout %s", c.Timeout)
		}
	}
}

// program checks argv, a program and its arguments.
func (p *checker) program(field string, argv []string) {
	if len(argv) == 0 {
		p.Add(field, `write [/path/of/program, argument, …]; "on", "off" and "status" are all needed: "status" checks the effect of the others`,
			"is missing")
		return
	}
	if path := argv[0]; !filepath.IsAbs(path) || filepath.Clean(path) != path || placeholder.MatchString(path) {
		p.Add(field+"[0]", "write the absolute path of the program: PATH is not searched",
			"invalid program %q; must be an absolute path without . and .., and without placeholders", path)
	}

	for i, a := range argv {
		at := fmt.Sprintf("%s[%d]", field, i)
		if strings.ContainsRune(a, 0) {
			p.Add(at, "remove it", "contains a zero byte")
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
				p.Add("tracing."+field, "give tracing.endpoint, too", "has no effect without tracing.endpoint")
			}
		}
		return
	}

	switch u, err := url.Parse(t.Endpoint); { // no problem quotes the URL, which may hold a token
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		p.Add("tracing.endpoint", "write https://host:4318", "invalid URL of the collector")
	case u.User != nil || u.RawQuery != "":
		p.Add("tracing.endpoint", "write the credentials as a header into tracing.headers_file", "the URL must not contain credentials")
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
				what += fmt.Sprintf(" (ports %d to %d)", a.first, a.last)
			}
			p.Add(b.key, "choose another port", "port %d is already used by %s", max(a.first, b.first), what)
			break
		}
	}
}
