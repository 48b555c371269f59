// Package config reads the one file that says how a site's server runs.
package config

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/ingotmetal/ingot/internal/images/sbat"
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
	// TLSCert is the file of Listen's certificate. Default: beyond loopback one is made.
	TLSCert string `json:"tls_cert,omitempty"`
	TLSKey  string `json:"tls_key,omitempty"` // file of its key
	// MetricsCA is a file of authorities, PEM: a client certificate that one of them has signed opens /metrics, and nothing
	// else. Default: only tokens do.
	MetricsCA string `json:"metrics_ca,omitempty"`
	// Hosts are further host names under which operators reach it.
	Hosts    []string `json:"hosts,omitempty"`
	Netboot  Netboot  `json:"netboot,omitempty"`
	Images   Images   `json:"images,omitempty"`
	BMC      BMC      `json:"bmc,omitempty"`
	Power    Power    `json:"power,omitempty"`
	Temporal Temporal `json:"temporal,omitempty"`
	// ProbeEvery is the pause between two readiness probes of a Genesis run; 0:
	// 5 s.
	ProbeEvery time.Duration `json:"probe_every,omitempty"`
	// MinFree is the free space, in MiB, below which new runs and uploads are refused.
	MinFree int64 `json:"min_free_mib,omitempty"`
	// Reserve is the space, in MiB, that is kept in DataDir for the case that
	// the disk is full; 0: none.
	Reserve int64   `json:"reserve_mib,omitempty"`
	Records Records `json:"records,omitempty"`
	Site    Site    `json:"site,omitempty"`
	Notify  Notify  `json:"notify,omitempty"`
	Tracing Tracing `json:"tracing,omitempty"`
}

// Notify says where notices go when an operator is needed.
type Notify struct {
	// URL is the webhook, http or https; "": no notices.
	URL string `json:"url,omitempty"`
	// SecretFile holds what notices are signed with, 32 characters or more.
	SecretFile string `json:"secret_file,omitempty"`
	// Events are those that make a notice; empty: all.
	Events []string `json:"events,omitempty"`
	// TLSCA holds the certificates of the authorities of the receiver, in PEM;
	// default: the system's.
	TLSCA string `json:"tls_ca,omitempty"`
}

// Site says how another server reaches this one, from which the site moves
// here. Without "ingot standby" nothing listens.
type Site struct {
	// Name is this server's name among its peers; default: the host's name.
	Name string `json:"name,omitempty"`
	// Listen is the address of the peer API.
	Listen string `json:"listen,omitempty"`
	// URL is how peers reach it, https://host:port; default: derived from Listen.
	URL string `json:"url,omitempty"`
}

// Records says how long records are kept.
type Records struct {
	// Retention is how long runs that have ended, and events, stay.
	Retention time.Duration `json:"retention,omitempty"`
	// Keep is how many runs of each machine stay, however old.
	Keep int `json:"keep,omitempty"`
}

// Netboot says where machines are answered.
type Netboot struct {
	// Interfaces are those on which machines are answered; default: the interface of Address.
	Interfaces []string `json:"interfaces,omitempty"`
	// DHCP is the mode of each interface: reservation (the default), proxy next to a DHCP server
	// that gives addresses, or off where that server also names the boot file.
	DHCP map[string]inventory.DHCPMode `json:"dhcp,omitempty"`
	// Address is the server as the machines see it; default: the first IPv4
	// address of the first interface. Alone it names the interface that has it.
	Address string `json:"address,omitempty"`
	// Discovery makes unknown machines boot the agent, which only reports their hardware; default: off.
	Discovery inventory.Discovery `json:"discovery,omitempty"`
	// RelayOnly answers DHCP that Relays send to Address, in place of
	// Interfaces: no raw socket, no broadcast.
	RelayOnly bool `json:"relay_only,omitempty"`
	// Listen is what a RelayOnly server binds where Address is not one of this
	// host, in a container whose ports are published.
	Listen   string `json:"listen,omitempty"`
	HTTP     []int  `json:"http,omitempty"`     // ports of boot files and images
	TFTP     int    `json:"tftp,omitempty"`     // port of the loaders
	Syslog   int    `json:"syslog,omitempty"`   // UDP port to which machines may send syslog; 0: none
	Agent    int    `json:"agent,omitempty"`    // port for agents, TLS
	Metadata []int  `json:"metadata,omitempty"` // ports of metadata, besides those of http
	// Relays are the addresses of DHCP relays that may ask; empty: a relay in
	// the subnet of the reservation that it asks for.
	Relays []string `json:"relays,omitempty"`
	// Proxies are the addresses of HTTP proxies before the metadata server,
	// whose X-Forwarded-For is believed; empty: none.
	Proxies []string `json:"proxies,omitempty"`
	// LinkLocal serves 169.254.169.254, an alias that the operator has added,
	// by classless routes.
	LinkLocal bool `json:"link_local,omitempty"`
	// Loaders is the folder of undionly.kpxe, snponly.efi and ipxe.efi. Default: next to the program.
	Loaders string `json:"loaders,omitempty"`
	// Loader is the loader for interfaces without one, and for discovered machines: shim or ipxe-shim, with which UEFI x64
	// boots with Secure Boot on. Default: iPXE, which is not signed.
	Loader string `json:"loader,omitempty"`
	// MinimumSBAT are the least SBAT generations of components of the loaders, for example {shim: 4, grub: 5}. A
	// loader below is not served. Default: none, and ingot doctor warns of known vulnerabilities.
	MinimumSBAT sbat.Minimum `json:"minimum_sbat,omitempty"`
	// AgentOS is the folder of vmlinuz and initramfs. Default: next to the program.
	AgentOS string `json:"agent_os,omitempty"`
}

// On reports whether machines are answered at all.
func (n Netboot) On() bool { return len(n.Interfaces) > 0 || n.RelayOnly || n.Address != "" }

// Answers reports whether DHCP is answered on an interface or to a relay.
func (n Netboot) Answers() bool {
	return n.RelayOnly || slices.ContainsFunc(n.Interfaces, func(name string) bool { return n.DHCP[name] != inventory.DHCPOff })
}

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

	return n, fmt.Errorf("netboot.address: no interface of this host has %s; correct it, or name netboot.interfaces, "+
		"or write relay_only where only relays reach this host: %w", n.Address, inventory.ErrInvalid)
}

// Bind is the address that the listeners for machines bind, given the address of the
// server as the machines see it.
func (n Netboot) Bind(address netip.Addr) string {
	if n.Listen != "" {
		return n.Listen
	}
	return address.String()
}

// Images says how images are kept.
type Images struct {
	Dir           string   `json:"dir,omitempty"`            // where images lie; default: images below data_dir
	RequireDigest bool     `json:"require_digest,omitempty"` // refuse images whose digest no one declared
	FetchHosts    []string `json:"fetch_hosts,omitempty"`    // hosts that may be fetched from over http or in private ranges
	UploadHosts   []string `json:"upload_hosts,omitempty"`   // hosts to which slurp may send the content of disks
	Catalog       string   `json:"catalog,omitempty"`        // file; default: the list of this version
	Shares        []string `json:"shares,omitempty"`         // directories whose files may be served in place
}

// BMC says where management controllers may be.
type BMC struct {
	// Networks are addresses or prefixes; empty: the private ranges.
	Networks []string `json:"networks,omitempty"`
	// CAFile holds the certificate authorities (PEM) that must sign the certificates of BMCs; empty:
	// the system's, or the key of the first use.
	CAFile string `json:"ca_file,omitempty"`
}

// Power holds the commands that switch machines of driver exec.
type Power struct {
	Commands map[string]PowerCommand `json:"commands,omitempty"` // by the names that machines use
}

// PowerCommand is programs with their arguments. In arguments, {machine} and
// {host} are replaced by the machine's name and the address of its BMC; no shell is
// between. Status writes on or off as its last line.
type PowerCommand struct {
	On     []string `json:"on"`     // program and arguments that switch on; {machine} and {host} are replaced
	Off    []string `json:"off"`    // program and arguments that switch off
	Status []string `json:"status"` // program and arguments that write on or off as their last line
	// Timeout is how long one of them may take; default 30 s.
	Timeout time.Duration `json:"timeout,omitempty"`
}

// Temporal is the embedded server, or another one by address.
type Temporal struct {
	Port   int `json:"port,omitempty"`    // of the embedded server, which takes the three ports that follow too
	UIPort int `json:"ui_port,omitempty"` // of the embedded server's pages
	// MutualTLS makes the embedded server refuse every process that does not
	// hold the certificate in data_dir, and switches its UI off.
	MutualTLS bool `json:"mutual_tls,omitempty"`
	// Address makes Ingot use that cluster instead of its own.
	Address   string `json:"address,omitempty"`
	Namespace string `json:"namespace,omitempty"` // of that cluster or of the embedded server
	TLSCert   string `json:"tls_cert,omitempty"`  // file of the client's certificate, for Address
	TLSKey    string `json:"tls_key,omitempty"`   // file of its key
	TLSCA     string `json:"tls_ca,omitempty"`    // file of the authorities of that cluster; default: the system's
	// TLSServerName is the name in that cluster's certificate; default: the host of Address.
	TLSServerName string `json:"tls_server_name,omitempty"`
	// APIKeyFile is the file of an API key (a JSON Web Token) for Address. It is read for every request, so the key
	// can be replaced while the server runs.
	APIKeyFile string `json:"api_key_file,omitempty"`
	// EncryptionKeyFile is the file of the keys that encrypt what Ingot writes into the cluster of Address; "" = it is not
	// encrypted.
	EncryptionKeyFile string `json:"encryption_key_file,omitempty"`
	// UIOrigin is the origin of that cluster's UI, which may ask this server to decrypt, in the browser of an operator who
	// is logged in here.
	UIOrigin string `json:"ui_origin,omitempty"`
	// Retention is how long closed runs stay in Temporal.
	Retention time.Duration `json:"retention,omitempty"`
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

// Loopback reports whether addr, host:port, can be reached from this host alone.
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

// Tracing says where the traces of runs go.
type Tracing struct {
	// Endpoint is the collector, OTLP over HTTP: http or https; "": no traces.
	Endpoint string `json:"endpoint,omitempty"`
	// HeadersFile holds a line "Name: value" for each header that requests to the collector carry, for example a token.
	HeadersFile string `json:"headers_file,omitempty"`
	// TLSCA holds the certificates of the authorities of the collector, in PEM; default: the system's.
	TLSCA string `json:"tls_ca,omitempty"`
}
