// Package config reads the one file that says how a site's server runs.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// Config is the file. Every field has a default; see Default.
type Config struct {
	// DataDir holds the databases, the images and the agent's OS if it was put
	// there; on a local disk, never on NFS.
	DataDir string `json:"data_dir,omitempty"`
	// KeyFile holds the keys of the secrets, outside DataDir.
	KeyFile string `json:"key_file,omitempty"`
	// TokenFile holds the admin token.
	TokenFile string `json:"token_file,omitempty"`
	// Listen is where operators reach the API and the page.
	Listen string `json:"listen,omitempty"`
	// TLSCert and TLSKey are needed, or made, when Listen is beyond loopback.
	TLSCert string `json:"tls_cert,omitempty"`
	TLSKey  string `json:"tls_key,omitempty"`
	// Hosts are the names, beside Listen's, under which operators reach it.
	Hosts    []string `json:"hosts,omitempty"`
	Netboot  Netboot  `json:"netboot,omitempty"`
	Images   Images   `json:"images,omitempty"`
	BMC      BMC      `json:"bmc,omitempty"`
	Power    Power    `json:"power,omitempty"`
	Temporal Temporal `json:"temporal,omitempty"`
	// ProbeEvery is how often a Genesis asks what it has installed whether that
	// is ready; 0: every 5 s.
	ProbeEvery time.Duration `json:"probe_every,omitempty"`
	// MinFree is the free space, in MiB, below which new runs and uploads are refused.
	MinFree int64 `json:"min_free_mib,omitempty"`
	// Reserve is the space, in MiB, that is kept in DataDir for the case that
	// the disk is full; 0: none.
	Reserve int64   `json:"reserve_mib,omitempty"`
	Records Records `json:"records,omitempty"`
	Site    Site    `json:"site,omitempty"`
	Notify  Notify  `json:"notify,omitempty"`
}

// Notify says who is told of what needs a person.
type Notify struct {
	// URL is the webhook, http or https; "" = nobody is told.
	URL string `json:"url,omitempty"`
	// SecretFile holds what notices are signed with, 32 characters or more.
	SecretFile string `json:"secret_file,omitempty"`
	// Events are those that are told; empty: all.
	Events []string `json:"events,omitempty"`
	// TLSCA holds the certificates of the authorities of the receiver, in PEM;
	// default: the system's.
	TLSCA string `json:"tls_ca,omitempty"`
}

func (n Notify) check(p *inventory.Problems) {
	if n.URL == "" {
		for field, given := range map[string]bool{"secret_file": n.SecretFile != "", "events": len(n.Events) > 0, "tls_ca": n.TLSCA != ""} {
			if given {
				p.Add("notify."+field, "give notify.url, too", "there is nobody to tell")
			}
		}
		return
	}
	switch u, err := url.Parse(n.URL); { // which may hold a token: it is not repeated
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		p.Add("notify.url", "write https://host/path", "this is no URL that a notice could be sent to")
	case u.User != nil:
		p.Add("notify.url", "remove user and password: notices are signed", "credentials do not belong into a URL")
	}
	if n.SecretFile == "" {
		p.Add("notify.secret_file", "make one: openssl rand -hex 32 > FILE", "is missing: a receiver could not tell a notice from a forged one")
	}
	for i, e := range n.Events {
		if !slices.Contains(inventory.NoticeEvents(), e) {
			p.Add(fmt.Sprintf("notify.events[%d]", i), "use "+strings.Join(inventory.NoticeEvents(), ", "), "there is no event %q", e)
		}
	}
}

// Site says how another server reaches this one, from which the site moves
// here. Without "ingot standby" nothing listens.
type Site struct {
	// Name is this server's among its peers; default: the host's name.
	Name string `json:"name,omitempty"`
	// Listen is the address of the peer API.
	Listen string `json:"listen,omitempty"`
	// URL is how peers reach it, https://host:port; default: made of Listen.
	URL string `json:"url,omitempty"`
}

// Records says how long what happened is remembered.
type Records struct {
	// Retention is how long runs that are over, and events, stay.
	Retention time.Duration `json:"retention,omitempty"`
	// Keep is how many runs of each machine stay, however old.
	Keep int `json:"keep,omitempty"`
}

// Netboot says where machines are answered.
type Netboot struct {
	Interfaces []string `json:"interfaces,omitempty"`
	// Address is the server as the machines see it; default: the first IPv4
	// address of the first interface. Alone it names the interface that has it.
	Address string `json:"address,omitempty"`
	// RelayOnly answers DHCP that Relays send to Address, in place of
	// Interfaces: no raw socket, no broadcast.
	RelayOnly bool `json:"relay_only,omitempty"`
	// Listen is what a RelayOnly server binds where Address is not one of this
	// host, in a container whose ports are published.
	Listen string `json:"listen,omitempty"`
	// Ports of the listeners on Address.
	HTTP     []int `json:"http,omitempty"`
	TFTP     int   `json:"tftp,omitempty"`
	Agent    int   `json:"agent,omitempty"`
	Metadata []int `json:"metadata,omitempty"`
	// Relays are the addresses of DHCP relays that may ask; empty: a relay in
	// the subnet of the reservation that it asks for.
	Relays []string `json:"relays,omitempty"`
	// Proxies are the addresses of HTTP proxies before the metadata server,
	// whose X-Forwarded-For is believed; empty: nobody's.
	Proxies []string `json:"proxies,omitempty"`
	// LinkLocal serves 169.254.169.254, an alias that the operator has added,
	// by classless routes.
	LinkLocal bool `json:"link_local,omitempty"`
	// Loaders holds undionly.kpxe, snponly.efi and ipxe.efi; AgentOS holds
	// vmlinuz and initramfs. Default: beside the program.
	Loaders string `json:"loaders,omitempty"`
	AgentOS string `json:"agent_os,omitempty"`
}

// On tells whether machines are answered at all.
func (n Netboot) On() bool { return len(n.Interfaces) > 0 || n.RelayOnly || n.Address != "" }

// Resolve returns n with the interface that holds Address where nothing but
// Address says on which interface machines are.
func (n Netboot) Resolve() (Netboot, error) {
	if len(n.Interfaces) > 0 || n.RelayOnly || n.Address == "" {
		return n, nil
	}
	all, err := net.Interfaces()
	if err != nil {
		return n, fmt.Errorf("listing the interfaces of this host: %w", err)
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			continue // it has just gone
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().String() == n.Address {
				n.Interfaces = []string{i.Name}
				return n, nil
			}
		}
	}
	return n, fmt.Errorf("netboot.address: no interface of this host has %s; correct it, or name netboot.interfaces, or write relay_only where relays alone reach this host: %w", n.Address, inventory.ErrInvalid)
}

// Bind is the address that the listeners for machines bind, given that of the
// server as the machines see it.
func (n Netboot) Bind(address netip.Addr) string {
	if n.Listen != "" {
		return n.Listen
	}
	return address.String()
}

// check looks at what belongs together.
func (n Netboot) check(p *inventory.Problems) {
	if n.Listen != "" {
		if a, err := netip.ParseAddr(n.Listen); err != nil || !a.Is4() {
			p.Add("netboot.listen", "write 0.0.0.0, or leave it out", "%q is no IPv4 address", n.Listen)
		}
		if !n.RelayOnly {
			p.Add("netboot.listen", "leave it out, or write relay_only: true", "a server with interfaces listens at its address")
		}
	}
	if !n.RelayOnly {
		return
	}
	if len(n.Interfaces) > 0 {
		p.Add("netboot.interfaces", "leave relay_only out: an interface answers relays, too; or leave interfaces out", "with relay_only no interface is served")
	}
	if n.Address == "" {
		p.Add("netboot.address", "write this server's address, which relays and machines reach", "with relay_only there is no interface to take it from")
	}
	if len(n.Relays) == 0 {
		p.Add("netboot.relays", "write \"relays: [10.0.20.1]\", the relays' addresses on the machines' networks", "with relay_only the relays have to be listed, or nobody could be answered")
	}
}

// Images says how images are kept.
type Images struct {
	Dir           string   `json:"dir,omitempty"` // default: images below DataDir
	RequireDigest bool     `json:"require_digest,omitempty"`
	FetchHosts    []string `json:"fetch_hosts,omitempty"` // may be fetched from over http or in private ranges
}

// BMC says where management controllers may be.
type BMC struct {
	// Networks are addresses or prefixes; empty: the private ranges.
	Networks []string `json:"networks,omitempty"`
}

// Power holds the commands that switch machines of driver exec.
type Power struct {
	Commands map[string]PowerCommand `json:"commands,omitempty"`
}

// PowerCommand is programs with their arguments. In arguments, {machine} and
// {host} stand for the machine's name and the address of its BMC; no shell is
// between. Status writes on or off as its last line.
type PowerCommand struct {
	On     []string `json:"on"`
	Off    []string `json:"off"`
	Status []string `json:"status"`
	// Timeout is how long one of them may take; default 30 s.
	Timeout time.Duration `json:"timeout,omitempty"`
}

// Temporal is the embedded server, or another one by address.
type Temporal struct {
	Port   int `json:"port,omitempty"`
	UIPort int `json:"ui_port,omitempty"`
	// MutualTLS makes the embedded server refuse every process that does not
	// hold the certificate in DataDir, and switches its UI off.
	MutualTLS bool `json:"mutual_tls,omitempty"`
	// Address makes Ingot use that cluster instead of its own.
	Address   string `json:"address,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	TLSCert   string `json:"tls_cert,omitempty"`
	TLSKey    string `json:"tls_key,omitempty"`
	TLSCA     string `json:"tls_ca,omitempty"`
	// Retention is how long closed runs stay in Temporal.
	Retention time.Duration `json:"retention,omitempty"`
}

// Paths returns where config and state lie: /etc/ingot and /var/lib/ingot for
// root, the XDG directories for anybody else.
func Paths() (etc, state string) {
	if os.Geteuid() == 0 && os.Getenv("XDG_CONFIG_HOME") == "" {
		return "/etc/ingot", "/var/lib/ingot"
	}
	home := os.Getenv("HOME")
	pick := func(env, fallback string) string {
		if v := os.Getenv(env); v != "" {
			return filepath.Join(v, "ingot")
		}
		return filepath.Join(home, fallback, "ingot")
	}
	return pick("XDG_CONFIG_HOME", ".config"), pick("XDG_STATE_HOME", ".local/state")
}

// DefaultFile is where the file is looked for.
func DefaultFile() string { etc, _ := Paths(); return filepath.Join(etc, "ingot.yaml") }

// Default returns the configuration of a server without a file.
func Default() Config {
	etc, state := Paths()
	return Config{
		DataDir: state, KeyFile: filepath.Join(etc, "keys.json"), TokenFile: filepath.Join(etc, "token"), Listen: "127.0.0.1:8080",
		Netboot:  Netboot{HTTP: []int{80, 7080}, TFTP: 69, Agent: 7443, Metadata: []int{7172}},
		Temporal: Temporal{Port: 7233, UIPort: 8233, Namespace: "default", Retention: 30 * 24 * time.Hour},
		MinFree:  1024,
		Reserve:  64,
		Records:  Records{Retention: 90 * 24 * time.Hour, Keep: 10},
		Site:     Site{Listen: ":7444"},
	}
}

// Load reads file over the defaults. A file that does not exist is the
// defaults, unless it was named. Everything wrong comes back at once as
// inventory.Problems.
func Load(file string, named bool) (Config, error) {
	c := Default()
	b, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !named:
		return c, nil
	case err != nil:
		return c, fmt.Errorf("reading the configuration: %w", err)
	}
	var unread inventory.Problems
	if err := strictyaml.Decode(file, b, &c); err != nil && !errors.As(err, &unread) {
		return c, err
	}
	// What could not be read has its default, so that whatever is said of it
	// now is said of something else.
	for _, u := range unread {
		if u.Field == "" {
			return c, unread.Err()
		}
	}
	var p inventory.Problems
	c.check(&p)
	for _, x := range strictyaml.Locate(file, b, p) {
		if !slices.ContainsFunc(unread, func(u inventory.Problem) bool { return strings.HasPrefix(x.Field, u.Field) }) {
			unread = append(unread, x)
		}
	}
	slices.SortStableFunc(unread, func(a, b inventory.Problem) int { return a.Line - b.Line })
	return c, unread.Err()
}

func (c *Config) check(p *inventory.Problems) {
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		p.Add("listen", "write 127.0.0.1:8080", "%q is no host:port", c.Listen)
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		p.Add("tls_cert", "give tls_cert and tls_key, or neither", "one of certificate and key is missing")
	}
	if c.Netboot.Address != "" {
		if a, err := netip.ParseAddr(c.Netboot.Address); err != nil || !a.Is4() {
			p.Add("netboot.address", "write the server's IPv4 address on the provisioning network", "%q is no IPv4 address", c.Netboot.Address)
		}
	}
	c.Netboot.check(p)
	for i, r := range c.Netboot.Relays {
		if _, err := Prefix(r); err != nil {
			p.Add(fmt.Sprintf("netboot.relays[%d]", i), "write an address or a prefix", "%q is neither", r)
		}
	}
	for i, r := range c.Netboot.Proxies {
		if _, err := Prefix(r); err != nil {
			p.Add(fmt.Sprintf("netboot.proxies[%d]", i), "write an address or a prefix", "%q is neither", r)
		}
	}
	for i, r := range c.BMC.Networks {
		if _, err := Prefix(r); err != nil {
			p.Add(fmt.Sprintf("bmc.networks[%d]", i), "write an address or a prefix", "%q is neither", r)
		}
	}
	c.Power.check(p)
	c.Notify.check(p)
	port := func(field string, n int) {
		if n < 1 || n > 65535 {
			p.Add(field, "write a number from 1 to 65535", "%d is no port", n)
		}
	}
	if len(c.Netboot.HTTP) == 0 {
		p.Add("netboot.http", "write [80, 7080]", "no port is given")
	}
	if len(c.Netboot.Metadata) == 0 {
		p.Add("netboot.metadata", "write [7172]", "no port is given")
	}
	for i, n := range c.Netboot.HTTP {
		port(fmt.Sprintf("netboot.http[%d]", i), n)
	}
	for i, n := range c.Netboot.Metadata {
		port(fmt.Sprintf("netboot.metadata[%d]", i), n)
	}
	port("netboot.tftp", c.Netboot.TFTP)
	port("netboot.agent", c.Netboot.Agent)
	if c.Temporal.MutualTLS && c.Temporal.Address != "" {
		p.Add("temporal.mutual_tls", "leave it out; temporal.tls_cert, tls_key and tls_ca are for temporal.address", "there is no embedded server beside temporal.address")
	}
	if c.Temporal.Address == "" {
		port("temporal.port", c.Temporal.Port)
		if c.Temporal.Port > 65535-3 && c.Temporal.Port <= 65535 {
			p.Add("temporal.port", "write a number up to 65532", "the three ports that follow %d are needed, too", c.Temporal.Port)
		}
		port("temporal.ui_port", c.Temporal.UIPort)
	}
	c.checkPorts(p)
	if rel, err := filepath.Rel(c.DataDir, c.KeyFile); err == nil && filepath.IsLocal(rel) {
		p.Add("key_file", "put it where a copy of data_dir does not contain it, for example /etc/ingot/keys.json", "the key file lies inside data_dir")
	}
	if c.Temporal.Retention < 24*time.Hour {
		p.Add("temporal.retention", "write 24h or more", "%s is too short: closed runs have to be looked at", c.Temporal.Retention)
	}
	if c.ProbeEvery != 0 && c.ProbeEvery < 100*time.Millisecond {
		p.Add("probe_every", "write 5s, or leave it out", "%s is no pause between two questions", c.ProbeEvery)
	}
	if c.MinFree < 0 {
		p.Add("min_free_mib", "", "must not be negative")
	}
	if c.Reserve < 0 {
		p.Add("reserve_mib", "write 0 for none", "must not be negative")
	}
	if c.Records.Retention < 24*time.Hour {
		p.Add("records.retention", "write 24h or more", "%s is too short: runs that are over have to be looked at", c.Records.Retention)
	}
	if _, _, err := net.SplitHostPort(c.Site.Listen); err != nil {
		p.Add("site.listen", "write :7444", "%q is no host:port", c.Site.Listen)
	}
	if u, err := url.Parse(c.Site.URL); c.Site.URL != "" && (err != nil || u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "") {
		p.Add("site.url", "write https://host:7444", "%q is no such address", c.Site.URL)
	}
	if c.Records.Keep < 1 {
		p.Add("records.keep", "write 1 or more", "the newest run of a machine has to stay: it says what is on its disk")
	}
}

// A listener is a TCP port, or several that follow one another, of the key that
// sets it.
type listener struct {
	key, host   string
	first, last int
}

// tcpListeners returns those of this server, in the order of their claim.
func (c *Config) tcpListeners() []listener {
	var out []listener
	add := func(key, host string, port, count int) {
		out = append(out, listener{key, host, port, port + count - 1})
	}
	if c.Temporal.Address == "" {
		const loopback = "127.0.0.1"
		add("temporal.port", loopback, c.Temporal.Port, 4)
		add("temporal.ui_port", loopback, c.Temporal.UIPort, 1)
	}
	if host, text, err := net.SplitHostPort(c.Listen); err == nil {
		if port, err := strconv.Atoi(text); err == nil {
			add("listen", host, port, 1)
		}
	}
	if !c.Netboot.On() {
		return out
	}
	host := c.Netboot.Address
	switch {
	case c.Netboot.Listen != "":
		host = c.Netboot.Listen
	case host == "":
		host = "the first interface's"
	}
	add("netboot.agent", host, c.Netboot.Agent, 1)
	for i, n := range c.Netboot.HTTP {
		add(fmt.Sprintf("netboot.http[%d]", i), host, n, 1)
	}
	for i, n := range c.Netboot.Metadata {
		add(fmt.Sprintf("netboot.metadata[%d]", i), host, n, 1)
	}
	return out
}

// checkPorts finds ports that two listeners of this server would bind.
func (c *Config) checkPorts(p *inventory.Problems) {
	wild := func(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }
	local := func(host string) string { return strings.Replace(host, "localhost", "127.0.0.1", 1) }
	all := c.tcpListeners()
	for i, b := range all {
		for _, a := range all[:i] {
			if b.first > a.last || a.first > b.last || !wild(a.host) && !wild(b.host) && local(a.host) != local(b.host) {
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

// powerName is what the inventory may name.
var powerName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

var placeholder = regexp.MustCompile(`\{[^{}]*\}`)

// maxPowerTimeout keeps a command that hangs from holding a run for ever.
const maxPowerTimeout = 5 * time.Minute

func (w Power) check(p *inventory.Problems) {
	for _, name := range slices.Sorted(maps.Keys(w.Commands)) {
		field, c := "power.commands."+name, w.Commands[name]
		if !powerName.MatchString(name) {
			p.Add("power.commands", "use up to 64 letters, digits, _ and -", "%q is no name of a command", name)
			continue
		}
		for _, x := range []struct {
			word string
			argv []string
		}{{"on", c.On}, {"off", c.Off}, {"status", c.Status}} {
			if len(x.argv) == 0 {
				p.Add(field+"."+x.word, "write [/path/of/program, argument, …]; what was switched is seen by status alone", "there is no %s", x.word)
				continue
			}
			for i, a := range x.argv {
				at := fmt.Sprintf("%s.%s[%d]", field, x.word, i)
				if strings.ContainsRune(a, 0) {
					p.Add(at, "remove it", "it holds a zero byte")
				}
				if i == 0 && (!filepath.IsAbs(a) || filepath.Clean(a) != a || placeholder.MatchString(a)) {
					p.Add(at, "write the whole path of the program; no shell looks for it", "%q is no absolute path of a program", a)
					continue
				}
				for _, x := range placeholder.FindAllString(a, -1) {
					if x != "{machine}" && x != "{host}" {
						p.Add(at, "use {machine} and {host}", "there is no placeholder %s", x)
					}
				}
			}
		}
		if c.Timeout < 0 || c.Timeout > maxPowerTimeout {
			p.Add(field+".timeout", "write up to 5m, or leave it out for 30s", "%s is no time for a command", c.Timeout)
		}
	}
}

// Prefix reads an address or a prefix.
func Prefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	return netip.ParsePrefix(s)
}

// Prefixes reads a list of addresses and prefixes that Load has checked; nil
// for an empty one.
func Prefixes(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range list {
		p, err := Prefix(s)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// TemporalIdentity returns the file with key and certificate of the embedded
// Temporal server and its clients; "" without mutual TLS.
func (c Config) TemporalIdentity() string {
	if !c.Temporal.MutualTLS || c.Temporal.Address != "" {
		return ""
	}
	return filepath.Join(c.DataDir, "temporal", "identity.pem")
}

// ImageDir returns where images lie.
func (c Config) ImageDir() string {
	if c.Images.Dir != "" {
		return c.Images.Dir
	}
	return filepath.Join(c.DataDir, "images")
}

// Loopback tells whether addr, host:port, can be reached from this host alone.
func Loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// Join returns host:port.
func Join(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// Example is the commented file that "ingot init" writes; %s are the lines of
// the interfaces.
const Example = `# Ingot's configuration. A value that is commented out is the default, or an example where the default is none.
# ingot config check FILE tells what is wrong with it; ingot doctor what is wrong around it.

#data_dir: /var/lib/ingot          # databases and images; a local disk, never NFS
#key_file: /etc/ingot/keys.json    # keys of the stored secrets; back it up, apart from data_dir
#token_file: /etc/ingot/token      # the admin token
#listen: 127.0.0.1:8080            # API and page; beyond loopback with TLS only
#tls_cert: /etc/ingot/tls.pem      # certificate of listen, with tls_key; beyond loopback one is made if there is none
#tls_key: /etc/ingot/tls.key
#hosts: [ingot.example.com]        # further names under which operators reach it

netboot:
%s  #address: 10.0.0.2             # this server as the machines see it; default: the interface's
  #relay_only: true              # answer DHCP that relays send to address, in place of interfaces
  #listen: 0.0.0.0               # with relay_only, in a container whose ports are published
  #http: [80, 7080]
  #tftp: 69
  #agent: 7443                    # agents, TLS
  #metadata: [7172]
  #relays: [10.0.1.1]             # DHCP relays that may ask
  #proxies: []                    # HTTP proxies before the metadata server, whose X-Forwarded-For is believed
  #link_local: false              # tell machines the way to 169.254.169.254 (option 121)
  #loaders: /usr/lib/ipxe         # undionly.kpxe, snponly.efi, ipxe.efi
  #agent_os: /usr/share/ingot     # vmlinuz, initramfs

#images:
#  dir: /var/lib/ingot/images
#  require_digest: false          # refuse images whose digest nobody declared
#  fetch_hosts: []                # hosts from which "image add URL" may fetch over http

#bmc:
#  networks: [10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, "fc00::/7"]  # where BMCs may be; nothing else is dialled

#power:
#  commands:                      # how machines of driver exec are switched; the inventory names them only
#    plug:
#      on: [/usr/local/bin/plug, "on", "{machine}", "{host}"]   # no shell; a stored password comes on standard input
#      off: [/usr/local/bin/plug, "off", "{machine}", "{host}"]
#      status: [/usr/local/bin/plug, status, "{machine}", "{host}"]   # its last line is on or off
#      timeout: 30s

#temporal:
#  port: 7233                     # the embedded server, on loopback
#  ui_port: 8233
#  mutual_tls: false              # true on a host whose loopback others share (a NAS, a Kubernetes node): no UI; ingot temporal env
#  address: ""                    # use this cluster instead
#  namespace: default
#  tls_cert: ""                   # for address; with tls_key, and tls_ca for its authority
#  tls_key: ""
#  tls_ca: ""
#  retention: 720h

#records:
#  retention: 2160h               # how long runs that are over stay in the inventory
#  keep: 10                       # runs of each machine that stay, however old

#site:                            # moving to another host, see docs/migration.md
#  name: ""                       # this server among its peers; default: the host's name
#  listen: :7444                  # peer API of a server that ingot standby made; TLS, pinned keys
#  url: ""                        # how peers reach it; default: made of listen

#notify:
#  url: https://example.com/hook  # who is told when a person is needed; nobody by default
#  secret_file: /etc/ingot/notify # what notices are signed with; openssl rand -hex 32
#  events: [waiting-for-person, failed, bmc-given-up]
#  tls_ca: ""                     # authorities of the receiver; default: the system's

#probe_every: 5s                   # how often a Genesis asks whether what it installed is ready
#min_free_mib: 1024               # below this, new runs and uploads get 507
#reserve_mib: 64                  # kept in data_dir for runs under way when the disk is full
`
