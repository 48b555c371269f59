package importfile

import (
	"cmp"
	"strings"

	"github.com/ingotmetal/ingot/internal/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// firstTinkerbell is the kind of object for messages.
const firstTinkerbell = "hardware"

// isFirstTinkerbell reports whether d is hardware of the first Tinkerbell, as "tink hardware
// push" read it.
func isFirstTinkerbell(d strictyaml.Document) bool {
	return d.Text("kind") == "" && d.Has("network.interfaces[0].dhcp")
}

// stackHardware is that document.
type stackHardware struct {
	ID       string `json:"id"`
	Version  any    `json:"version"`
	Metadata any    `json:"metadata"` // an object, or its JSON as text
	Network  struct {
		Interfaces []stackInterface `json:"interfaces"`
	} `json:"network"`
}

type stackInterface struct {
	DHCP    *hardwareDHCP `json:"dhcp"`
	Netboot *stackNetboot `json:"netboot"`
}

type stackNetboot struct {
	AllowPXE      bool `json:"allow_pxe"`
	AllowWorkflow any  `json:"allow_workflow"`
	IPXE          any  `json:"ipxe"`
	OSIE          any  `json:"osie"`
}

var ignoredStack = below(map[string]string{
	"id": "a machine is identified by its name and MAC addresses", "version": "it is a version of the document",
	"network.interfaces[].netboot.osie": ownLoader,
}, "network.interfaces[].", "metadata.")

// readFirstTinkerbell reads hardware of the first Tinkerbell. The machine's name is the host
// name of its first interface, else that of its instance, else its id.
func (r *reader) readFirstTinkerbell(d strictyaml.Document) {
	host := cmp.Or(d.Text("network.interfaces[0].dhcp.hostname"), d.Text("metadata.instance.hostname"), d.Text("id"))
	o := object{doc: d, kind: firstTinkerbell, name: host}
	var x stackHardware
	if !r.decode(o, &x, ignoredStack) {
		return
	}

	m := inventory.Machine{Notes: map[string]string{}}
	m.Name, _ = shortName(strings.ToLower(host))
	var all []hardwareInterface
	for _, i := range x.Network.Interfaces {
		n := hardwareInterface{DHCP: i.DHCP}
		if i.Netboot != nil {
			n.Netboot = &hardwareNetboot{AllowPXE: &i.Netboot.AllowPXE}
		}
		all = append(all, n)
	}
	r.interfaces(o, &m, "network.interfaces", all)

	if d.Has("metadata.instance") {
		var instance hardwareInstance
		if err := d.Part("metadata.instance").Decode(&instance); err != nil {
			r.report(err)
			return
		}
		fillInstance(&m, instance)
	}
	r.hardware = append(r.hardware, hardware{o, m, nil, hardwareField("network.interfaces", "metadata", "")})
}
