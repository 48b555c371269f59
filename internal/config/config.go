// Package config reads the configuration file of a server.
package config

import (
	"cmp"
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

// Config is the content of the configuration file. Every field has a default; see Default.
type Config struct {
	// DataDir is the directory of the databases and the images. It must be on a local disk, not on NFS.
	DataDir string `json:"data_dir,omitempty"`
	// KeyFile is the file of the keys that encrypt the stored secrets. It must be outside DataDir.
	KeyFile string `json:"key_file,omitempty"`
	// TokenFile is the file of the admin token.
	TokenFile string `json:"token_file,omitempty"`
	// Listen is the address, host:port, of the operators' API and web page.
	Listen string `json:"listen,omitempty"`
	// TLSCert is the file of the certificate for Listen. Default: on a loopback address, no TLS; on any other, a certificate
	// that the server makes.
	TLSCert string `json:"tls_cert,omitempty"`
	TLSKey  string `json:"tls_key,omitempty"` // file of the key of tls_cert
	// MetricsCA is a file of certificate authorities, in PEM. A client certificate that one of them has signed gives access to
	// /metrics, and to nothing else. Default: only a token gives access.
	MetricsCA string `json:"metrics_ca,omitempty"`
	// Hosts are further host names under which operators reach this server.
	Hosts    []string `json:"hosts,omitempty"`
	Netboot  Netboot  `json:"netboot,omitempty"`
	Images   Images   `json:"images,omitempty"`
	BMC      BMC      `json:"bmc,omitempty"`
	Power    Power    `json:"power,omitempty"`
	Temporal Temporal `json:"temporal,omitempty"`
	// ProbeEvery is the pause between two readiness probes of a Genesis run; 0 means 5 s.
	ProbeEvery time.Duration `json:"probe_every,omitempty"`
	// MinFree is the free space, in MiB, below which new runs and uploads are refused.
	MinFree int64 `json:"min_free_mib,omitempty"`
	// Reserve is the space, in MiB, that is reserved in DataDir so that open runs can go on if the disk
	// is full; 0 means none.
	Reserve int64   `json:"reserve_mib,omitempty"`
	Records Records `json:"records,omitempty"`
	Backup  Backup  `json:"backup,omitempty"`
	Site    Site    `json:"site,omitempty"`
	Notify  Notify  `json:"notify,omitempty"`
	Tracing Tracing `json:"tracing,omitempty"`
}

// Notify configures the notices of what happens to machines, above all when an operator is needed.
type Notify struct {
	// URL is the webhook that receives the notices, http or https; "": no notices are sent.
	URL string `json:"url,omitempty"`
	// Format is what the receiver understands: Standard Webhooks, or the messages of Slack or ntfy.
	Format string `json:"format,omitempty"`
	// SecretFile is the file of the secret that signs the notices in the format standard: whsec_ and base64 of 24 to 64 bytes.
	SecretFile string `json:"secret_file,omitempty"`
	// Events are the events for which a notice is sent; empty: those that need an operator, waiting-for-operator, failed,
	// bmc-given-up and weak-evidence.
	Events []string `json:"events,omitempty"`
	// TLSCA is a file of the certificate authorities, in PEM, that may sign the receiver's certificate;
	// default: the authorities of the operating system.
	TLSCA string `json:"tls_ca,omitempty"`
}

// Site configures the peer API, by which the active server hands its machines over to this server. The API listens only
// after "ingot standby".
type Site struct {
	// Name is this server's name among its peers; default: the host's name.
	Name string `json:"name,omitempty"`
	// Listen is the address of the peer API.
	Listen string `json:"listen,omitempty"`
	// URL is the URL under which peers reach the peer API, https://host:port; default: derived from Listen.
	URL string `json:"url,omitempty"`
}

// Records configures how long records are kept.
type Records struct {
	// Retention is how long events, and the records of ended runs, are kept.
	Retention time.Duration `json:"retention,omitempty"`
	// Keep is how many of the newest runs of each machine are kept, no matter how old they are.
	Keep int `json:"keep,omitempty"`
}

// Backup configures the backups that the server stores when "ingot backup run" asks for one, for example by a timer.
type Backup struct {
	// Dir is the directory of these backups, which must exist, for example a share that is mounted there; "": none are made.
	Dir string `json:"dir,omitempty"`
	// PassphraseFile is the file whose first line is the passphrase that encrypts the keys in these backups, 12 characters
	// or more. Without a copy of the passphrase on another host, a lost server cannot be restored.
	PassphraseFile string `json:"passphrase_file,omitempty"`
	// KeepDays is how many days' backups are kept: of each of the last days that have a backup, the newest.
	KeepDays int `json:"keep_days,omitempty"`
}

// Netboot configures how the server answers machines that boot from the network.
type Netboot struct {
	// Interfaces are the names of the interfaces on which machines are answered; default: the interface that has Address.
	Interfaces []string `json:"interfaces,omitempty"`
	// DHCP is the DHCP mode of each interface: reservation (the default); proxy, if another DHCP server
	// gives the addresses; or off, if that server also names the boot file.
	DHCP map[string]inventory.DHCPMode `json:"dhcp,omitempty"`
	// Address is the IPv4 address under which machines reach this server; default: the first IPv4
	// address of the first interface. Without Interfaces, machines are answered on the interface that has Address.
	Address string `json:"address,omitempty"`
	// Discovery makes unknown machines boot the agent, which then only reports their hardware; default: off.
	Discovery inventory.Discovery `json:"discovery,omitempty"`
	// RelayOnly makes the server answer only DHCP requests that Relays forward to Address. The server then ignores
	// broadcasts and needs no raw socket. Interfaces must be empty.
	RelayOnly bool `json:"relay_only,omitempty"`
	// Listen is needed with RelayOnly if this host does not have Address: the server then binds Listen, for example 0.0.0.0
	// in a container whose ports are published.
	Listen   string `json:"listen,omitempty"`
	HTTP     []int  `json:"http,omitempty"`     // ports of the HTTP server for boot files and images
	TFTP     int    `json:"tftp,omitempty"`     // port of the TFTP server for boot loaders
	Syslog   int    `json:"syslog,omitempty"`   // UDP port to which machines may send syslog; 0: none
	Agent    int    `json:"agent,omitempty"`    // port of the agents' API, with TLS
	Metadata []int  `json:"metadata,omitempty"` // further ports of the metadata server, which also answers on the ports of http
	// Relays are the addresses of the DHCP relays that are answered. Default: each relay in the subnet of the machine's
	// reservation.
	Relays []string `json:"relays,omitempty"`
	// Proxies are the addresses of the HTTP proxies whose X-Forwarded-For the metadata server
	// trusts; empty: none.
	Proxies []string `json:"proxies,omitempty"`
	// LinkLocal makes machines reach the metadata server at 169.254.169.254: DHCP sends them a classless route to that
	// address. The operator has to add the address to an interface of this host.
	LinkLocal bool `json:"link_local,omitempty"`
	// Loaders is the directory of undionly.kpxe, snponly.efi and ipxe.efi. There is no default; "ingot init" looks for the
	// files and writes their directory here.
	Loaders string `json:"loaders,omitempty"`
	// Loader is the boot loader for discovered machines, and for those interfaces of machines that name no loader.
	// With shim or ipxe-shim, x64 machines boot although UEFI Secure Boot is on. Default: iPXE, which is not signed.
	Loader string `json:"loader,omitempty"`
	// MinimumSBAT is the minimum SBAT generation of each component of a boot loader, for example {shim: 4, grub: 5}. A
	// loader with an older component is not served. Default: none; ingot doctor warns of known vulnerabilities.
	MinimumSBAT sbat.Minimum `json:"minimum_sbat,omitempty"`
	// AgentOS is the directory of the agent's vmlinuz and initramfs. There is no default; "ingot init" looks for the files
	// and writes their directory here.
	AgentOS string `json:"agent_os,omitempty"`
}

// On reports whether the server answers machines.
func (n Netboot) On() bool { return len(n.Interfaces) > 0 || n.RelayOnly || n.Address != "" }

// Answers reports whether the server answers DHCP requests, on at least one interface or from relays.
func (n Netboot) Answers() bool {
	return n.RelayOnly || slices.ContainsFunc(n.Interfaces, func(name string) bool { return n.DHCP[name] != inventory.DHCPOff })
}

// Resolve returns n with Interfaces set to the interface that has Address, if n has neither Interfaces nor RelayOnly. It
// fails if no interface has Address, and returns n unchanged if Address is empty, too.
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
			continue // the interface was just removed
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().String() == n.Address {
				n.Interfaces = []string{i.Name}
				return n, nil
			}
		}
	}

	return n, fmt.Errorf("netboot.address: no interface of this host has the address %s; correct it, or set netboot.interfaces, "+
		"or set relay_only if only relays reach this host: %w", n.Address, inventory.ErrInvalid)
}

// Bind returns the address that the listeners for machines bind: n.Listen or, if n.Listen is empty, the given address,
// at which machines reach the server.
func (n Netboot) Bind(address netip.Addr) string {
	return cmp.Or(n.Listen, address.String())
}

// Images configures the image store.
type Images struct {
	Dir           string   `json:"dir,omitempty"`            // directory of the images; default: images below data_dir
	RequireDigest bool     `json:"require_digest,omitempty"` // refuse images for which the operator has declared no digest
	FetchHosts    []string `json:"fetch_hosts,omitempty"`    // hosts that may serve images by http or at private addresses
	UploadHosts   []string `json:"upload_hosts,omitempty"`   // hosts to which the action slurp may send the content of disks
	Catalog       string   `json:"catalog,omitempty"`        // file of the image catalog; default: the catalog of this version
	Shares        []string `json:"shares,omitempty"`         // directories whose files may be served in place
	// Registries are the registries of container images that need a mirror, credentials or other settings.
	Registries []Registry `json:"registries,omitempty"`
	// PrivilegedContainers are the digests (sha256:…) of the container images that may run as privileged containers.
	PrivilegedContainers []string `json:"privileged_containers,omitempty"`
}

// Registry configures how the server reaches a registry of container images, which may be at a private address.
type Registry struct {
	Host         string `json:"host"`                    // host and port as in references to images, such as docker.io
	Mirror       string `json:"mirror,omitempty"`        // the registry that is used in place of host: HOST:PORT or HOST:PORT/PATH
	Username     string `json:"username,omitempty"`      // sent to this registry only
	PasswordFile string `json:"password_file,omitempty"` // file of the password or token, read for each pull
	PlainHTTP    bool   `json:"plain_http,omitempty"`    // the registry has no TLS
	CAFile       string `json:"ca_file,omitempty"`       // file of further authorities, in PEM, for the registry's certificate
}

// BMC configures which BMCs the server may contact.
type BMC struct {
	// Networks are the addresses or prefixes in which BMCs may be; empty: the private ranges.
	Networks []string `json:"networks,omitempty"`
	// CAFile is a file of the certificate authorities, in PEM, that must have signed the certificate of a BMC. Without CAFile, these
	// are the authorities of the operating system, and the key of any other BMC is stored at first use and required from then on.
	CAFile string `json:"ca_file,omitempty"`
}

// Power holds the commands that switch the power of machines whose BMC has the driver exec.
type Power struct {
	Commands map[string]PowerCommand `json:"commands,omitempty"` // commands by name; the BMC of a machine refers to a command by its name
}

// PowerCommand is three programs with their arguments. In arguments, {machine} and
// {host} are replaced by the machine's name and the address of its BMC. The programs are
// started without a shell.
type PowerCommand struct {
	On     []string `json:"on"`     // program, with arguments, that switches the power on; {machine} and {host} are replaced
	Off    []string `json:"off"`    // program, with arguments, that switches the power off
	Status []string `json:"status"` // program, with arguments, whose last line of output is on or off
	// Timeout is how long each program may take; default 30 s.
	Timeout time.Duration `json:"timeout,omitempty"`
}

// Temporal configures the embedded Temporal server, or the Temporal cluster that is used instead.
type Temporal struct {
	Port   int `json:"port,omitempty"`    // first of four consecutive ports of the embedded server
	UIPort int `json:"ui_port,omitempty"` // port of the embedded server's web UI
	// UIListen is the address, host:port, of the embedded server's web UI for operators who are logged in, with TLS as on
	// Listen; "off": none. Default: the host of Listen, port 8234.
	UIListen string `json:"ui_listen,omitempty"`
	// MutualTLS makes the embedded server refuse each client without the certificate in
	// data_dir, and closes UIPort, which has no log-in.
	MutualTLS bool `json:"mutual_tls,omitempty"`
	// Address is the host:port of the Temporal cluster that is used instead of the embedded server.
	Address   string `json:"address,omitempty"`
	Namespace string `json:"namespace,omitempty"` // namespace in the cluster or in the embedded server
	TLSCert   string `json:"tls_cert,omitempty"`  // file of the client certificate for the cluster
	TLSKey    string `json:"tls_key,omitempty"`   // file of the key of tls_cert
	TLSCA     string `json:"tls_ca,omitempty"`    // file of the cluster's certificate authorities; default: those of the operating system
	// TLSServerName is the host name in the cluster's certificate; default: the host of Address.
	TLSServerName string `json:"tls_server_name,omitempty"`
	// APIKeyFile is the file of an API key (a JSON Web Token) for the cluster. The file is read for every request, so the key
	// can be replaced while the server runs.
	APIKeyFile string `json:"api_key_file,omitempty"`
	// EncryptionKeyFile is the file of the keys that encrypt the payloads that Ingot writes to the cluster; "": payloads are not encrypted.
	EncryptionKeyFile string `json:"encryption_key_file,omitempty"`
	// UIURL is the URL of Temporal's web UI. The web page and the status contain links to it. It is the URL of the cluster's
	// own UI, or of a proxy that forwards to UIListen.
	UIURL string `json:"ui_url,omitempty"`
	// UIOrigin is the origin of the cluster's web UI. In the browser of an operator who is logged in to this server, that UI
	// may ask this server to decrypt payloads.
	UIOrigin string `json:"ui_origin,omitempty"`
	// Retention is how long Temporal keeps closed workflows.
	Retention time.Duration `json:"retention,omitempty"`
}

// temporalUIPort is the default port of the listener for Temporal's UI.
const temporalUIPort = 8234

// TemporalUIListen returns the address of the listener for Temporal's UI, or "" if there is none.
func (c Config) TemporalUIListen() string {
	switch {
	case c.Temporal.Address != "" || c.Temporal.UIListen == "off":
		return ""
	case c.Temporal.UIListen != "":
		return c.Temporal.UIListen
	}
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return ""
	}
	return Join(host, temporalUIPort)
}

// Prefix parses an address or a prefix. For an address it returns the prefix that contains only this address.
func Prefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	return netip.ParsePrefix(s)
}

// Prefixes parses a list of addresses and prefixes. It returns nil for an empty list.
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

// TemporalIdentity returns the path of the file with the key and the certificate that the embedded
// Temporal server and its clients share; "" without mutual TLS.
func (c Config) TemporalIdentity() string {
	if !c.Temporal.MutualTLS || c.Temporal.Address != "" {
		return ""
	}
	return filepath.Join(c.DataDir, "temporal", "identity.pem")
}

// ImageDir returns the directory of the images.
func (c Config) ImageDir() string {
	return cmp.Or(c.Images.Dir, filepath.Join(c.DataDir, "images"))
}

// Loopback reports whether addr, host:port, is a loopback address or localhost.
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

// Tracing configures the collector to which traces of runs are sent.
type Tracing struct {
	// Endpoint is the URL of the collector for OTLP over HTTP, http or https; "": no traces are sent.
	Endpoint string `json:"endpoint,omitempty"`
	// HeadersFile is a file with a line "Name: value" for each header of the requests to the collector, for example a token.
	HeadersFile string `json:"headers_file,omitempty"`
	// TLSCA is a file of the certificate authorities, in PEM, that may sign the collector's certificate; default: the
	// authorities of the operating system.
	TLSCA string `json:"tls_ca,omitempty"`
}
