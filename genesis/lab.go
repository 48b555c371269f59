// Package genesis reads the lab file: the role of each machine, its images and documents,
// and where the server itself moves. It reports every problem of the file at once, and
// creates the table of steps that builds the lab. It does not access machines or the
// network: workflows carry out the table.
package genesis

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"github.com/ingotmetal/ingot/internal/documents/machinefile"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// A Lab is the content of one lab file. Every section except machines is optional; a missing
// section has no steps.
type Lab struct {
	// Name is the name of the Genesis, a DNS label. The workflow id is genesis/<name>.
	Name    string  `json:"name"`
	Seed    Seed    `json:"seed"`
	Network Network `json:"network"`
	Images  []Image `json:"images,omitempty"` // files to install, which the server has or gets from here
	// Machines have the keys of "ingot machine push" and some that only Genesis reads.
	Machines []Machine `json:"machines"`
	Router   *Router   `json:"router,omitempty"`
	Platform *Platform `json:"platform,omitempty"`
	Migrate  *Migrate  `json:"migrate,omitempty"`
	Cluster  *Cluster  `json:"cluster,omitempty"`
	// Budgets overrides the time limits of steps, by step name. A step that exceeds its
	// budget fails, unless it waits for an operator.
	Budgets map[string]time.Duration `json:"budgets,omitempty"`

	doc      strictyaml.Document // for the lines of problems
	warnings inventory.Problems
	// unreadImages: images could not be read, so that references to them cannot be checked.
	unreadImages bool
}

// Schema returns the JSON Schema of a lab file.
func Schema() strictyaml.Schema {
	rules := machinefile.Rules().Below("machines[]")
	rules["network.vlan"] = strictyaml.Between(0, 4094)
	return strictyaml.SchemaOf[Lab]("A lab file, as ingot genesis reads it", rules)
}

// A Seed is the host on which the first server runs (the NAS).
type Seed struct {
	// Address is the server's address for all machines, direct or routed.
	Address netip.Addr `json:"address"`
	// Segment is the server's own network, on which the router boots before it runs as a
	// relay.
	Segment netip.Prefix `json:"segment"`
}

// A Network is the network on which machines are provisioned, behind the router.
type Network struct {
	Prefix  netip.Prefix `json:"prefix"`         // such as 10.10.0.0/24
	Gateway netip.Addr   `json:"gateway"`        // the router there, which relays DHCP
	VLAN    int          `json:"vlan,omitempty"` // 1–4094, 0 = untagged
	// Range is the addresses of a DHCP server; fixed addresses must lie outside. Without it
	// there is no such server.
	Range *Range `json:"range,omitempty"`
}

// A Range is the addresses from From to To, inclusive.
type Range struct {
	From netip.Addr `json:"from"` // first address
	To   netip.Addr `json:"to"`   // last address
}

// Contains reports whether a lies in the range.
func (r *Range) Contains(a netip.Addr) bool {
	return r != nil && a.IsValid() && !a.Less(r.From) && !r.To.Less(a)
}

// An Image is a file to install. Either the server already has it under that name, or it
// comes from File or URL.
type Image struct {
	Name string `json:"name"` // under which the server stores it
	// File is a path on the host of the command line, relative to the lab file.
	File string `json:"file,omitempty"`
	URL  string `json:"url,omitempty"` // the server fetches it
	// SHA256 is the digest of the file as it is served, in hex; required.
	SHA256 string `json:"sha256"`
}

// Source is the URL without parts that may hold credentials: user, password, query and
// fragment. It is "" without a URL. Messages use Source, never URL.
func (i Image) Source() string {
	u, err := url.Parse(i.URL)
	if err != nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}).String()
}

// A Machine is a machine of the inventory with fields that only Genesis reads.
type Machine struct {
	inventory.Machine
	// Config names the file with the machine's user data: VyOS's config.boot, Talos's
	// machine configuration, or Harvester's configuration.
	Config string `json:"config,omitempty"`
	// BMCPasswordFile names the file whose first line is the BMC's password.
	BMCPasswordFile string `json:"bmcPasswordFile,omitempty"`
	// HardwareMap is data for the machine's template, in this Genesis only; use labels for values that later installations need too. Values in
	// either that name an image are images that the machine needs.
	HardwareMap map[string]string `json:"hardwareMap,omitempty"`
}

// A Router runs VyOS and relays DHCP between Network and the seed.
type Router struct {
	Machine string `json:"machine"` // name of the machine
	// API is the base URL of VyOS's HTTP API as the server reaches it, for
	// example https://192.168.1.20. Default: https and the machine's address.
	API string `json:"api,omitempty"`
	// KeyFile names the file that holds the API's key.
	KeyFile string `json:"keyFile"`
	// Fingerprint pins the key of the API's certificate: sha256: and the hexadecimal digest
	// of its SubjectPublicKeyInfo. Without it any certificate is accepted.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Key is the content of KeyFile.
	Key inventory.Secret `json:"-"`
}

// A Platform is a Talos node with Kubernetes, to which the server moves.
type Platform struct {
	Machine string `json:"machine"` // name of the machine
	// Talos is the host and port of the node's API. Default: the machine's address, port
	// 50000.
	Talos string `json:"talos,omitempty"`
	// TalosconfigFile names the file of the client's certificates.
	TalosconfigFile string `json:"talosconfigFile"`
	// Kubernetes is the base URL of the cluster's API. Default: https, the
	// machine's address, port 6443.
	Kubernetes string `json:"kubernetes,omitempty"`
	// Talosconfig is the content of TalosconfigFile.
	Talosconfig inventory.Secret `json:"-"`
}

// Migrate moves the server from the seed onto the platform.
type Migrate struct {
	// Target names the peer to move to. Default: "platform".
	Target string `json:"target,omitempty"`
	// Address is the new server's address for machines. Default: the platform's machine.
	Address netip.Addr `json:"address,omitzero"`
	// Image is the reference of the container image that the manifest runs.
	Image string `json:"image,omitempty"`
	// ManifestFile names the Kubernetes manifest that starts the standby. In it INGOT_IMAGE
	// is replaced by Image and INGOT_ADDRESS by Address. Without it the target is a known peer
	// that was started by hand.
	ManifestFile string `json:"manifestFile,omitempty"`
	// Manifest is the content of ManifestFile with both values filled in.
	Manifest string `json:"-"`
}

// A Cluster is a Harvester cluster: one node creates it, the others join.
type Cluster struct {
	VIP    netip.Addr `json:"vip"`            // address of the cluster
	Create string     `json:"create"`         // machine that creates the cluster
	Join   []string   `json:"join,omitempty"` // machines that join, in this order
	// API is the base URL of the cluster. Default: https and VIP.
	API string `json:"api,omitempty"`
	// Fingerprint pins the key of the API's certificate, as for the router.
	Fingerprint string `json:"fingerprint,omitempty"`
	// PasswordFile names the file that holds the password of the cluster's user
	// admin. Default: "admin", which a fresh Harvester has.
	PasswordFile string `json:"passwordFile,omitempty"`
	// Password is the content of PasswordFile.
	Password inventory.Secret `json:"-"`
}

// Warnings returns probable mistakes in the documents of the lab.
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

// Inventory returns the machines on their way into the inventory, with secrets, and which fields
// the file states.
func (l Lab) Inventory(replace bool) inventory.LabMachines {
	out := inventory.LabMachines{Operation: "genesis/" + l.Name, Replace: replace}
	for n, m := range l.Machines {
		says := func(field string) bool { return l.doc.Has(fmt.Sprintf("machines[%d].%s", n, field)) }
		out.Machines = append(out.Machines, inventory.LabMachine{Machine: m.Machine, Says: says})
	}
	return out
}

// With returns the lab with its machines as they are stored.
func (l Lab) With(merged []inventory.MergedMachine) Lab {
	l.Machines = slices.Clone(l.Machines)
	for n, m := range merged {
		l.Machines[n].Machine = m.Machine
	}
	return l
}

// Address returns the reservation of a machine's first netboot interface.
func (m Machine) Address() netip.Addr {
	i, _ := m.Netboot()
	return i.Address
}
