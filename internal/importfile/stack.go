package importfile

import (
	"cmp"
	"errors"
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

	var m inventory.Machine
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

	metadata, ok := r.stackMetadata(o, x.Metadata)
	if !ok {
		return
	}
	if metadata.Instance != nil {
		r.fillInstance(o, &m, "metadata.instance", *metadata.Instance)
	}
	r.hardware = append(r.hardware, hardware{o, m, nil, "", hardwareField("network.interfaces", "metadata", "")})
}

// stackMetadata reads the metadata of o, an object or its JSON as text, and notes what is not
// imported. A problem in text has the line of that text.
func (r *reader) stackMetadata(o object, x any) (out hardwareMetadata, ok bool) {
	if x == nil {
		return out, true
	}
	part, line := o.doc.Part("metadata"), func(string) int { return o.doc.LineOf("metadata") }
	if text, isText := x.(string); isText {
		docs, err := strictyaml.Documents(o.doc.File, []byte(text))
		if err != nil || len(docs) != 1 {
			r.add(o.doc, "metadata", "write it as an object", "the text is not one JSON object")
			return out, false
		}
		part = docs[0]
		part.Each(func(path string, _ int) {
			if why, ignored := ignoredMetadata[index.ReplaceAllString(path, "[]")]; ignored {
				r.ignore(o, "metadata."+path, why)
			}
		})
	} else {
		line = func(field string) int { return part.LineOf(field) }
	}

	err := part.Decode(&out)
	var ps inventory.Problems
	if !errors.As(err, &ps) {
		return out, true
	}
	for _, p := range ps {
		p.Line = line(p.Field)
		p.Field = strings.TrimSuffix("metadata."+p.Field, ".")
		r.problems = append(r.problems, p)
	}
	return out, false
}
