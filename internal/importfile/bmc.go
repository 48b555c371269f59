package importfile

import (
	"encoding/base64"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// controllerDocument is bmc.tinkerbell.org/v1alpha1 Machine.
type controllerDocument struct {
	typeMeta
	Spec struct {
		Connection connection `json:"connection"`
	} `json:"spec"`
}

type connection struct {
	Host            string           `json:"host"`
	Port            int              `json:"port"`
	AuthSecretRef   *reference       `json:"authSecretRef"`
	InsecureTLS     bool             `json:"insecureTLS"`
	ProviderOptions *providerOptions `json:"providerOptions"`
}

type providerOptions struct {
	PreferredOrder []string `json:"preferredOrder"`
	IntelAMT       *struct {
		Port       int    `json:"port"`
		HostScheme string `json:"hostScheme"`
	} `json:"intelAMT"`
	IPMITool *struct {
		Port        int    `json:"port"`
		CipherSuite string `json:"cipherSuite"`
	} `json:"ipmitool"`
	Redfish       any `json:"redfish"`
	RPC           any `json:"rpc"`
	HomeAssistant any `json:"homeassistant"`
}

// ignoredController are the keys of a bmc Machine that are not imported, and why.
var ignoredController = map[string]string{
	"metadata.namespace": "an inventory has no namespaces",
	"metadata.labels":    "labels are those of the Hardware",
	"spec.connection.providerOptions.preferredOrder": "a BMC has one driver",
	"spec.connection.providerOptions.redfish":        "this version has no Redfish driver",
	"spec.connection.providerOptions.rpc": "power by requests of your own is a command of the server: power.commands in its " +
		"configuration, and bmc {driver: exec, command: NAME} in the machine",
	"spec.connection.providerOptions.homeassistant": "a plug is switched by a command of the server: power.commands in its " +
		"configuration, and bmc {driver: exec, command: NAME} in the machine",
}

// A controller is a bmc Machine with its login.
type controller struct {
	object
	bmc     inventory.BMC
	unknown bool   // its login is not in the files
	usedBy  string // the machine that has it
}

// A secret is a login.
type secret struct {
	object
	user, password string
}

// secretDocument is a v1 Secret.
type secretDocument struct {
	typeMeta
	Type       any               `json:"type"`
	Immutable  any               `json:"immutable"`
	Data       map[string]string `json:"data"` // base64
	StringData map[string]string `json:"stringData"`
}

// readSecret keeps the login of a Secret for the Machines that refer to it. Its problems
// repeat no value.
func (r *reader) readSecret(o object) {
	if !o.doc.Has("data.username") && !o.doc.Has("stringData.username") &&
		!o.doc.Has("data.password") && !o.doc.Has("stringData.password") {
		r.ignore(o, "kind", "it holds no username and password of a BMC")
		return
	}

	var d secretDocument
	if !r.decode(o, &d, nil) {
		return
	}
	value := func(key string) string {
		if v, ok := d.StringData[key]; ok {
			return v
		}
		b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(d.Data[key]))
		if err != nil {
			r.add(o.doc, "data."+key, "write it into stringData, or encode it", "the value is not base64")
		}
		return string(b)
	}
	s := secret{o, value("username"), value("password")}
	if _, double := r.secrets[o.key()]; double {
		r.add(o.doc, "metadata.name", "keep one of the two", "there is a Secret %s in this namespace already", clip(o.name))
	}
	r.secrets[o.key()] = s
}

// readController keeps a bmc Machine for the Hardware that refers to it.
func (r *reader) readController(o object) {
	var d controllerDocument
	if !r.decode(o, &d, ignoredController) {
		return
	}
	if _, double := r.controllers[o.key()]; double {
		r.add(o.doc, "metadata.name", "keep one of the two", "there is a Machine %s in this namespace already", clip(o.name))
	}
	r.controllers[o.key()] = controller{object: o, bmc: bmcOf(d.Spec.Connection)}
	if ref := d.Spec.Connection.AuthSecretRef; ref != nil {
		r.logins = append(r.logins, login{o, *ref})
	}
}

// bmcOf returns the connection without its login. It is IPMI unless the options say what
// else it is.
func bmcOf(c connection) inventory.BMC {
	b := inventory.BMC{Driver: inventory.DriverIPMI, Host: c.Host}
	p := c.ProviderOptions
	if p == nil {
		p = &providerOptions{}
	}

	prefers := func(names ...string) bool {
		return len(p.PreferredOrder) > 0 && slices.Contains(names, strings.ToLower(p.PreferredOrder[0]))
	}
	switch {
	case p.RPC != nil && p.IPMITool == nil, p.HomeAssistant != nil && p.IPMITool == nil:
		return inventory.BMC{Driver: inventory.DriverManual}
	case p.IntelAMT != nil && !prefers("ipmitool", "gofish", "redfish"), prefers("intelamt"):
		b.Driver, b.InsecureTLS = inventory.DriverAMT, c.InsecureTLS
		if a := p.IntelAMT; a != nil && a.Port != 0 {
			b.Port = a.Port
		} else if a != nil && a.HostScheme == "https" {
			b.Port = 16993
		}
	default:
		b.Port = c.Port
		if i := p.IPMITool; i != nil {
			b.CipherSuite = i.CipherSuite
			if i.Port != 0 {
				b.Port = i.Port
			}
		}
		if b.Port == 443 || b.Port == 80 { // of Redfish, which Tinkerbell tries over the same entry
			b.Port = 0
		}
	}
	return b
}

// A login is a reference of a bmc Machine to its Secret.
type login struct {
	from object
	ref  reference
}

// joinLogins gives controllers their logins, and checks the controllers.
func (r *reader) joinLogins() {
	for _, l := range r.logins {
		c := r.controllers[l.from.key()]
		s, ok := r.secrets[l.ref.key(l.from)]
		if !ok {
			if c.bmc.Capabilities().NeedsPassword {
				r.add(l.from.doc, "spec.connection.authSecretRef", "give the file with that Secret as well",
					"the files hold no Secret %s in this namespace", clip(l.ref.Name))
			}
			c.unknown = true
		} else if c.bmc.Capabilities().NeedsPassword {
			c.bmc.User, c.bmc.Password = s.user, inventory.NewSecret(s.password)
		}
		r.controllers[l.from.key()] = c
	}

	for _, c := range r.controllers {
		r.checkController(c)
	}
}

// checkController reports what is wrong with a BMC, in its own document.
func (r *reader) checkController(c controller) {
	m := inventory.Canonical(inventory.Machine{Name: "x", BMC: &c.bmc})
	for _, p := range inventory.Validate(m) {
		if !strings.HasPrefix(p.Field, "bmc") || c.unknown && strings.HasPrefix(p.Field, "bmc.user") ||
			c.unknown && strings.HasPrefix(p.Field, "bmc.password") {
			continue
		}
		p.Field = controllerField(p.Field)
		r.problems = append(r.problems, c.doc.Locate(inventory.Problems{p})...)
	}
}

// controllerField translates a field of a machine's BMC to a path of a bmc Machine.
func controllerField(field string) string {
	const at = "spec.connection."
	switch field {
	case "bmc.host", "bmc.port", "bmc.insecureTLS":
		return at + strings.TrimPrefix(field, "bmc.")
	case "bmc.user", "bmc.password":
		return at + "authSecretRef"
	case "bmc.cipherSuite":
		return at + "providerOptions.ipmitool.cipherSuite"
	}
	return "spec.connection"
}

// use notes that a machine has the controller.
func (r *reader) use(c controller, by object) {
	if c.usedBy != "" {
		r.add(by.doc, "spec.bmcRef", "give each machine a BMC of its own", "the BMC %s belongs to %s already", clip(c.name), c.usedBy)
	}
	c.usedBy = by.String()
	r.controllers[c.key()] = c
}

// noteUnused notes BMCs that no machine has.
func (r *reader) noteUnused() {
	for _, c := range r.controllers {
		if c.usedBy == "" {
			r.ignore(c.object, "kind", "no Hardware in the files refers to it; a BMC belongs to a machine")
		}
	}
}
