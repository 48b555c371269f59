// Package genesis reads the lab file: which machine becomes what, from which
// images and documents, and where the server itself moves. It reports everything
// wrong with the file at once, and makes the table of steps that leads from
// nothing to the running lab. It touches no machine and no network: workflows
// carry the table out.
package genesis

import (
	"net/netip"
	"net/url"
	"time"

	"github.com/ingotmetal/ingot/internal/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// A Lab is what one file describes. Every section may be left out except
// machines; the steps of a section that is not there do not exist.
type Lab struct {
	// Name is the name of the Genesis, a DNS label: its workflow is
	// genesis/<name>.
	Name    string  `json:"name"`
	Seed    Seed    `json:"seed"`
	Network Network `json:"network"`
	Images  []Image `json:"images,omitempty"`
	// Machines have the keys of "ingot machine push", and a few more.
	Machines []Machine `json:"machines"`
	Router   *Router   `json:"router,omitempty"`
	Platform *Platform `json:"platform,omitempty"`
	Migrate  *Migrate  `json:"migrate,omitempty"`
	Cluster  *Cluster  `json:"cluster,omitempty"`
	// Budgets replaces the time that a step may take, by the step's name. A step
	// that is over its budget fails, unless it waits for an operator.
	Budgets map[string]time.Duration `json:"budgets,omitempty"`

	doc      strictyaml.Document // for the lines of problems
	warnings inventory.Problems
}

// A Seed is the host on which the first server runs (the NAS).
type Seed struct {
	// Address is the server as all machines reach it, directly or routed.
	Address netip.Addr `json:"address"`
	// Segment is its own network: where the router boots before there is a relay.
	Segment netip.Prefix `json:"segment"`
}

// A Network is the one on which machines are provisioned, behind the router.
type Network struct {
	Prefix  netip.Prefix `json:"prefix"`
	Gateway netip.Addr   `json:"gateway"` // the router there, which relays DHCP
	VLAN    int          `json:"vlan,omitempty"`
	// Range is what a DHCP server may hand out; no fixed address may lie in it.
	// Nil: there is no such range.
	Range *Range `json:"range,omitempty"`
}

// A Range is addresses from From to To, both included.
type Range struct {
	From netip.Addr `json:"from"`
	To   netip.Addr `json:"to"`
}

// Contains reports whether a lies in the range.
func (r *Range) Contains(a netip.Addr) bool {
	return r != nil && a.IsValid() && !a.Less(r.From) && !r.To.Less(a)
}

// An Image is a file that is installed. The server has it under that name
// already, or it comes from one of File and URL.
type Image struct {
	Name string `json:"name"`
	// File is a path on the host of the command line, relative to the lab file.
	File string `json:"file,omitempty"`
	URL  string `json:"url,omitempty"` // the server fetches it
	// SHA256 is the digest of the file as it is served, in hex; required.
	SHA256 string `json:"sha256"`
}

// Source is the address without what may be a credential: user and password,
// query and fragment. "" without an address. Messages name it, never URL.
func (i Image) Source() string {
	u, err := url.Parse(i.URL)
	if err != nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}

// A Machine is a machine of the inventory with what only Genesis reads.
type Machine struct {
	inventory.Machine
	// Config names the file that becomes the machine's user data: VyOS's
	// config.boot, Talos' machine configuration, Harvester's configuration.
	Config string `json:"config,omitempty"`
	// BMCPasswordFile names the file whose first line is the BMC's password.
	BMCPasswordFile string `json:"bmcPasswordFile,omitempty"`
	// HardwareMap is given to the machine's template as ProvisionInput.HardwareMap,
	// by Genesis only: what a later installation needs as well are labels. Values
	// of both that name an image are images that the machine needs.
	HardwareMap map[string]string `json:"hardwareMap,omitempty"`
}

// A Router runs VyOS and relays DHCP between Network and the seed.
type Router struct {
	Machine string `json:"machine"`
	// API is the base URL of VyOS's HTTP API as the server reaches it, for
	// example https://192.168.1.20. Default: https and the machine's address.
	API string `json:"api,omitempty"`
	// KeyFile names the file that holds the API's key.
	KeyFile string `json:"keyFile"`
	// Fingerprint pins the key of the API's certificate: sha256: and the
	// hexadecimal digest of its SubjectPublicKeyInfo. "": any certificate.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Key is the content of KeyFile.
	Key inventory.Secret `json:"-"`
}

// A Platform is one node of Talos with a Kubernetes, to which the server moves.
type Platform struct {
	Machine string `json:"machine"`
	// Talos is host and port of the Talos API. Default: the machine's address,
	// port 50000.
	Talos string `json:"talos,omitempty"`
	// TalosconfigFile names the file of the client's certificates.
	TalosconfigFile string `json:"talosconfigFile"`
	// Kubernetes is the base URL of the Kubernetes API. Default: https, the
	// machine's address, port 6443.
	Kubernetes string `json:"kubernetes,omitempty"`
	// Talosconfig is the content of TalosconfigFile.
	Talosconfig inventory.Secret `json:"-"`
}

// Migrate moves the server from the seed onto the platform.
type Migrate struct {
	// Target names the peer that it becomes, in the inventory and in
	// MigrateInput. Default: "platform".
	Target string `json:"target,omitempty"`
	// Address is the new server as machines reach it. Default: the platform's
	// machine.
	Address netip.Addr `json:"address,omitzero"`
	// Image is the reference of the container image that the manifest runs.
	Image string `json:"image,omitempty"`
	// ManifestFile names the Kubernetes manifest that starts the standby. In it
	// INGOT_IMAGE stands for Image and INGOT_ADDRESS for Address. Without it the
	// target is a peer that the server knows and that was started by hand.
	ManifestFile string `json:"manifestFile,omitempty"`
	// Manifest is the content of ManifestFile, filled in.
	Manifest string `json:"-"`
}

// A Cluster is a Harvester cluster: one node creates it, the others join.
type Cluster struct {
	VIP    netip.Addr `json:"vip"`
	Create string     `json:"create"`         // machine
	Join   []string   `json:"join,omitempty"` // machines, in this order
	// API is the base URL of the cluster. Default: https and VIP.
	API string `json:"api,omitempty"`
	// Fingerprint pins the key of the API's certificate, as Router.Fingerprint.
	Fingerprint string `json:"fingerprint,omitempty"`
	// PasswordFile names the file that holds the password of the cluster's user
	// admin. Default: "admin", which a fresh Harvester has.
	PasswordFile string `json:"passwordFile,omitempty"`
	// Password is the content of PasswordFile.
	Password inventory.Secret `json:"-"`
}

// Warnings returns what is probably a mistake in a document of the lab.
func (l Lab) Warnings() inventory.Problems { return l.warnings }

// Machine returns the machine called name.
func (l Lab) Machine(name string) (Machine, bool) {
	for _, m := range l.Machines {
		if m.Name == name {
			return m, true
		}
	}
	return Machine{}, false
}

// Image returns the image called name.
func (l Lab) Image(name string) (Image, bool) {
	for _, i := range l.Images {
		if i.Name == name {
			return i, true
		}
	}
	return Image{}, false
}

// Inventory returns the machines as the inventory stores them, secrets
// included.
func (l Lab) Inventory() []inventory.Machine {
	out := make([]inventory.Machine, len(l.Machines))
	for n, m := range l.Machines {
		out[n] = m.Machine
	}
	return out
}

// Address returns the reservation of a machine's first netboot interface.
func (m Machine) Address() netip.Addr {
	i, _ := m.Netboot()
	return i.Address
}
