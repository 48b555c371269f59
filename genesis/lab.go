// Package genesis reads lab files. A lab file describes the machines of a site with their roles, images and documents,
// and the platform to which the server itself moves. The package reports all problems of a file at once, and creates
// the table of steps that build the lab. It does not access machines or the network: workflows carry out the steps.
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

// A Lab is the content of a lab file. The sections router, platform, migrate and cluster are optional; without a
// section, its steps are left out.
type Lab struct {
	// Name is the name of the Genesis, a DNS label. The workflow id is genesis/<name>.
	Name    string  `json:"name"`
	Seed    Seed    `json:"seed"`
	Network Network `json:"network"`
	Images  []Image `json:"images,omitempty"` // images that the machines need
	// Machines have the keys of "ingot machine push", and further ones that only Genesis reads.
	Machines []Machine `json:"machines"`
	Router   *Router   `json:"router,omitempty"`
	Platform *Platform `json:"platform,omitempty"`
	Migrate  *Migrate  `json:"migrate,omitempty"`
	Cluster  *Cluster  `json:"cluster,omitempty"`
	// Budgets overrides the time limits of steps, by step name. A step that exceeds its limit fails. Time during which
	// the step waits for an operator does not count.
	Budgets map[string]time.Duration `json:"budgets,omitempty"`

	doc      strictyaml.Document // the parsed file, to find the lines of problems
	warnings inventory.Problems
	systems  Systems // nil: the documents of the machines are neither checked nor read
	// unreadImages is set if the list of images could not be read. References to images then cannot be checked.
	unreadImages bool
}

// Systems knows the documents of the systems that a lab installs.
type Systems interface {
	// Review checks a document of the given kind. The warnings count only if there are no problems.
	Review(kind, file string, contents []byte) (problems, warnings inventory.Problems)
	// CheckRelay returns why DHCP packets of machines behind the system would not reach the server.
	CheckRelay(kind string, contents []byte, server netip.Addr) inventory.Problems
	// Disks describes the disks that the document overwrites.
	Disks(kind string, contents []byte) []string
	// Downloads returns the names of the images that the installer fetches.
	Downloads(kind string, contents []byte) []string
}

// Schema returns the JSON Schema of a lab file.
func Schema() strictyaml.Schema {
	rules := machinefile.Rules().Below("machines[]")
	rules["network.vlan"] = strictyaml.Between(0, 4094)
	return strictyaml.SchemaOf[Lab]("A lab file, as ingot genesis reads it", rules)
}

// A Seed is the host on which the first server runs, such as a NAS.
type Seed struct {
	// Address is the address at which all machines reach the server, directly or through the router.
	Address netip.Addr `json:"address"`
	// Segment is the server's own network. The router is installed on this network, because it cannot relay DHCP yet.
	Segment netip.Prefix `json:"segment"`
}

// A Network is the network on which machines are provisioned, behind the router.
type Network struct {
	Prefix  netip.Prefix `json:"prefix"`         // addresses of the network, such as 10.10.0.0/24
	Gateway netip.Addr   `json:"gateway"`        // address that the router, which relays DHCP, has in this network
	VLAN    int          `json:"vlan,omitempty"` // 1–4094; 0 means untagged
	// Range is the range of addresses that another DHCP server on this network leases. Fixed addresses must be outside
	// of it. Leave Range out if there is no such server.
	Range *Range `json:"range,omitempty"`
}

// A Range holds all addresses between From and To, both included.
type Range struct {
	From netip.Addr `json:"from"` // first address
	To   netip.Addr `json:"to"`   // last address
}

// Contains reports whether the address a is in the range. A nil range contains no address.
func (r *Range) Contains(a netip.Addr) bool {
	return r != nil && a.IsValid() && !a.Less(r.From) && !r.To.Less(a)
}

// An Image is a file that machines need for their installation. Either the server already has an image called Name, or
// the file comes from File or URL.
type Image struct {
	Name string `json:"name"` // name under which the server stores the image
	// File is a path on the host of the command line, relative to the lab file.
	File string `json:"file,omitempty"`
	URL  string `json:"url,omitempty"` // address from which the server fetches the file
	// SHA256 is the digest of the file, in hex; required.
	SHA256 string `json:"sha256"`
}

// Source returns the URL without the parts that may hold credentials: user, password, query and fragment. It returns ""
// if there is no URL. Messages must contain Source, never URL.
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
	// BMCPasswordFile names the file that holds the BMC's password, on a single line.
	BMCPasswordFile string `json:"bmcPasswordFile,omitempty"`
	// HardwareMap holds values for the template of the machine, for this Genesis only. Use labels for values that later
	// installations need, too. If a value in HardwareMap or in the labels is the name of an image, the machine needs
	// that image.
	HardwareMap map[string]string `json:"hardwareMap,omitempty"`
}

// A Router runs VyOS and relays DHCP between Network and the seed.
type Router struct {
	Machine string `json:"machine"` // name of the machine
	// API is the base URL of VyOS's HTTP API as the server reaches it, for example https://192.168.1.20. Default:
	// https:// and the machine's address.
	API string `json:"api,omitempty"`
	// KeyFile names the file that holds the key of VyOS's HTTP API.
	KeyFile string `json:"keyFile"`
	// Fingerprint pins the key of the API's TLS certificate. It is "sha256:" and the hexadecimal digest of the
	// SubjectPublicKeyInfo. Without it any certificate is accepted.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Key is the content of KeyFile.
	Key inventory.Secret `json:"-"`
}

// A Platform is a Talos node with Kubernetes, to which the server moves.
type Platform struct {
	Machine string `json:"machine"` // name of the machine
	// Talos is the host and port of apid, the API of the node. Default: the machine's address, port 50000.
	Talos string `json:"talos,omitempty"`
	// TalosconfigFile names the talosconfig, which holds the client certificate for the node's API.
	TalosconfigFile string `json:"talosconfigFile"`
	// Kubernetes is the base URL of the cluster's API server. Default: https://, the machine's address, port 6443.
	Kubernetes string `json:"kubernetes,omitempty"`
	// Talosconfig is the content of TalosconfigFile.
	Talosconfig inventory.Secret `json:"-"`
}

// Migrate moves the server from the seed onto the platform.
type Migrate struct {
	// Target is the name of the peer to which the server moves. Default: "platform".
	Target string `json:"target,omitempty"`
	// Address is the address at which machines reach the new server. Default: the address of the platform's machine.
	Address netip.Addr `json:"address,omitzero"`
	// Image is the reference of the container image that the manifest runs.
	Image string `json:"image,omitempty"`
	// ManifestFile names the Kubernetes manifest that starts the standby. In the manifest, INGOT_IMAGE is replaced by
	// Image, and INGOT_ADDRESS by Address. Without ManifestFile, Target must be a known peer that was started by hand.
	ManifestFile string `json:"manifestFile,omitempty"`
	// Manifest is the content of ManifestFile with Image and Address filled in.
	Manifest string `json:"-"`
}

// A Cluster is a Harvester cluster: one node creates it, the others join.
type Cluster struct {
	VIP    netip.Addr `json:"vip"`            // address of the cluster
	Create string     `json:"create"`         // machine that creates the cluster
	Join   []string   `json:"join,omitempty"` // machines that join, in this order
	// API is the base URL of Harvester's API. Default: https:// and VIP.
	API string `json:"api,omitempty"`
	// Fingerprint pins the key of the API's TLS certificate, as for the router.
	Fingerprint string `json:"fingerprint,omitempty"`
	// PasswordFile names the file that holds the password of the cluster's user admin. Default: the password "admin" of
	// a new Harvester.
	PasswordFile string `json:"passwordFile,omitempty"`
	// Password is the content of PasswordFile.
	Password inventory.Secret `json:"-"`
}

// Warnings returns the probable mistakes that Load has found in the machines' documents.
func (l Lab) Warnings() inventory.Problems { return l.warnings }

// Machine returns the machine called name, or false if there is none.
func (l Lab) Machine(name string) (Machine, bool) {
	for _, m := range l.Machines {
		if m.Name == name {
			return m, true
		}
	}
	return Machine{}, false
}

// Image returns the image called name, or false if there is none.
func (l Lab) Image(name string) (Image, bool) {
	for _, i := range l.Images {
		if i.Name == name {
			return i, true
		}
	}
	return Image{}, false
}

// Inventory returns the machines of the lab for the inventory, with their secrets. For each machine it also returns a
// function that reports whether the lab file states a field of the machine. replace is as in inventory.LabMachines.
func (l Lab) Inventory(replace bool) inventory.LabMachines {
	out := inventory.LabMachines{Operation: "genesis/" + l.Name, Replace: replace}
	for n, m := range l.Machines {
		says := func(field string) bool { return l.doc.Has(fmt.Sprintf("machines[%d].%s", n, field)) }
		out.Machines = append(out.Machines, inventory.LabMachine{Machine: m.Machine, Says: says})
	}
	return out
}

// With returns the lab with the machines as the inventory has merged them. merged must be in the order of l.Machines.
func (l Lab) With(merged []inventory.MergedMachine) Lab {
	l.Machines = slices.Clone(l.Machines)
	for n, m := range merged {
		l.Machines[n].Machine = m.Machine
	}
	return l
}

// Address returns the reserved address of the machine's first netboot interface, or the zero Addr.
func (m Machine) Address() netip.Addr {
	i, _ := m.Netboot()
	return i.Address
}
