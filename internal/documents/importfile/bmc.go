package importfile

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// controllerDocument is a Machine of bmc.tinkerbell.org/v1alpha1: a BMC.
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
	Redfish *struct {
		Port       int    `json:"port"`
		SystemName string `json:"systemName"`
	} `json:"redfish"`
	RPC           any `json:"rpc"`
	HomeAssistant any `json:"homeassistant"`
}

// ignoredController maps each ignored key of a bmc Machine to the reason why it is not imported.
var ignoredController = map[string]string{
	"metadata.namespace": "an inventory has no namespaces",
	"metadata.labels":    "a machine gets its labels from the Hardware",
	"spec.connection.providerOptions.preferredOrder":       "a BMC has one driver",
	"spec.connection.providerOptions.redfish.useBasicAuth": "Ingot uses a session if the BMC supports sessions",
	"spec.connection.providerOptions.rpc": "give the machine bmc {driver: rpc, host: HOST, consumerURL: URL} and the key as the " +
		"BMC's password; there are no options for headers and signatures",
	"spec.connection.providerOptions.homeassistant": "a smart plug is switched by a command on the server: " +
		"write it under power.commands in the server's configuration, and give the machine bmc {driver: exec, command: NAME}",
}

// A controller is a BMC that a document describes, with its login.
type controller struct {
	object
	key     string // in bmcs.controllers
	at      string // path of the connection in the document
	secret  string // key, below at, of the reference to the Secret that holds the login
	bmc     inventory.BMC
	unknown bool   // the files hold no Secret with the login of this BMC
	usedBy  string // the Hardware that refers to this BMC; "": none yet
}

// A secret is the login of a BMC, from a v1 Secret.
type secret struct {
	object
	user, password string
}

// secretDocument is a v1 Secret.
type secretDocument struct {
	typeMeta
	Data       map[string]string `json:"data"` // base64
	StringData map[string]string `json:"stringData"`
}

// ignoredSecret maps each ignored key of a Secret to the reason why it is not imported.
var ignoredSecret = map[string]string{
	"metadata.namespace": "an inventory has no namespaces",
	"metadata.labels":    "a machine gets its labels from the Hardware",
	"type":               "Ingot recognises a Secret by its keys",
	"immutable":          "a BMC's login can always be changed",
}

// bmcs holds the BMCs of the documents, and the logins of BMCs, by "namespace/name". wrongSecrets holds
// the Secrets that have a problem. A reference to one of them is not reported as a second problem.
type bmcs struct {
	found        *findings
	controllers  map[string]controller
	secrets      map[string]secret
	wrongSecrets map[string]bool
	logins       []login
}

// readSecret stores the login in a Secret, for the bmc Machines that refer to the Secret. The problems that it adds quote no value.
func (r *bmcs) readSecret(o object) {
	if !o.doc.Has("data.username") && !o.doc.Has("stringData.username") &&
		!o.doc.Has("data.password") && !o.doc.Has("stringData.password") {
		r.found.ignore(o, "kind", "the Secret has no username and password of a BMC")
		return
	}

	var d secretDocument
	if !r.found.decode(o, &d, ignoredSecret) {
		r.wrongSecrets[o.key()] = true
		return
	}
	for path, values := range map[string]map[string]string{"data": d.Data, "stringData": d.StringData} {
		for key := range values {
			if key != "username" && key != "password" {
				r.found.ignore(o, path+"."+key, "a BMC's login has only username and password")
			}
		}
	}
	value := func(key string) string {
		if v, ok := d.StringData[key]; ok {
			return v
		}
		b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(d.Data[key]))
		if err != nil {
			r.found.add(o.doc, "data."+key, "write the plain value into stringData, or encode it in base64", "the value is not base64")
		}
		return string(b)
	}
	s := secret{o, value("username"), value("password")}
	if _, double := r.secrets[o.key()]; double {
		r.found.add(o.doc, "metadata.name", "keep one of the two", "there is a Secret %s in this namespace already", clip(o.name))
	}
	r.secrets[o.key()] = s
}

// readController stores the BMC of a bmc Machine for the Hardware that refers to it.
func (r *bmcs) readController(o object) {
	var d controllerDocument
	if !r.found.decode(o, &d, ignoredController) {
		return
	}
	if _, double := r.controllers[o.key()]; double {
		r.found.add(o.doc, "metadata.name", "keep one of the two", "there is a Machine %s in this namespace already", clip(o.name))
	}
	r.addController(controller{object: o, key: o.key(), at: "spec.connection", secret: "authSecretRef"}, d.Spec.Connection)
}

// addController stores c with the connection x. It also records the reference to the login of c, for joinLogins.
func (r *bmcs) addController(c controller, x connection) {
	c.bmc = bmcOf(x)
	r.noteConnection(c, x)
	r.controllers[c.key] = c
	if x.AuthSecretRef != nil {
		r.logins = append(r.logins, login{c.key, *x.AuthSecretRef})
	} else if c.bmc.Capabilities().NeedsPassword {
		r.found.add(c.doc, c.at+"."+c.secret, "name a Secret with username and password",
			"there is no login, and the driver %s needs one", c.bmc.Driver)
	}
}

// amtTLSPort is the port of AMT with TLS.
const amtTLSPort = 16993

// bmcOf returns the BMC of a connection, without its login. The driver is IPMI unless the
// provider options select another one.
func bmcOf(c connection) inventory.BMC {
	b := inventory.BMC{Driver: inventory.DriverIPMI, Host: c.Host}
	p := cmp.Or(c.ProviderOptions, &providerOptions{})

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
			b.Port = amtTLSPort
		}
	case p.Redfish != nil && (p.IPMITool == nil || prefers("gofish", "redfish")):
		b.Driver, b.InsecureTLS = inventory.DriverRedfish, c.InsecureTLS
		b.Port, b.SystemName = p.Redfish.Port, p.Redfish.SystemName
	default:
		b.Port = c.Port
		if i := p.IPMITool; i != nil {
			b.CipherSuite = i.CipherSuite
			if i.Port != 0 {
				b.Port = i.Port
			}
		}
		if b.Port == 443 || b.Port == 80 { // this is a port of Redfish, which Tinkerbell tries, too, with the same connection
			b.Port = 0
		}
	}
	return b
}

// noteConnection records as ignored those keys of the connection x that the driver of c does not use.
func (r *bmcs) noteConnection(c controller, x connection) {
	at := c.at + "."
	ignore := func(given bool, key, why string) {
		if given {
			r.found.ignore(c.object, at+key, why)
		}
	}
	b := c.bmc
	ignore(
		x.InsecureTLS && b.Driver != inventory.DriverAMT && b.Driver != inventory.DriverRedfish,
		"insecureTLS",
		"power is switched without TLS by the driver "+b.Driver,
	)
	ignore(x.Host != "" && b.Host == "", "host", "the driver "+b.Driver+" has no address")
	ignore(x.Port != 0 && b.Port != x.Port, "port", "another port is used by the driver "+b.Driver)
	if p := x.ProviderOptions; p != nil {
		if a := p.IntelAMT; a != nil && b.Driver == inventory.DriverAMT && a.HostScheme == "https" && b.Port != amtTLSPort {
			r.found.add(
				c.doc,
				at+"providerOptions.intelAMT.port",
				fmt.Sprintf("use port %d", amtTLSPort),
				"AMT serves TLS only on port %d, not on %d",
				amtTLSPort,
				b.Port,
			)
		}
		ignore(p.IntelAMT != nil && b.Driver != inventory.DriverAMT, "providerOptions.intelAMT", "the driver is "+b.Driver)
		ignore(p.Redfish != nil && b.Driver != inventory.DriverRedfish, "providerOptions.redfish", "the driver is "+b.Driver)
		ignore(p.IPMITool != nil && b.Driver != inventory.DriverIPMI, "providerOptions.ipmitool", "the driver is "+b.Driver)
	}
	ignore(x.AuthSecretRef != nil && !b.Capabilities().NeedsPassword, c.secret, "the driver "+b.Driver+" needs no password")
}

// A login is the reference from a controller to the Secret that holds the login of this controller.
type login struct {
	controller string // key in bmcs.controllers
	ref        reference
}

// joinLogins copies each login to the controller that refers to it, and checks all controllers.
func (r *bmcs) joinLogins() {
	for _, l := range r.logins {
		c := r.controllers[l.controller]
		key, ok := find(r.secrets, l.ref, c.object)
		s := r.secrets[key]
		if !ok {
			_, wrong := find(r.wrongSecrets, l.ref, c.object)
			if c.bmc.Capabilities().NeedsPassword && !wrong {
				r.found.add(c.doc, c.at+"."+c.secret, "import the file with that Secret as well",
					"the files hold no Secret %s in this namespace", clip(l.ref.Name))
			}
			c.unknown = true
		} else if c.bmc.Capabilities().NeedsPassword {
			c.bmc.User, c.bmc.Password = s.user, inventory.NewSecret(s.password)
			if s.password == "" {
				r.found.add(s.doc, "stringData.password", "write the password there, or in base64 into data",
					"there is no password, and the %s needs one", c)
			}
		}
		r.controllers[c.key] = c
	}

	for _, key := range slices.Sorted(maps.Keys(r.controllers)) {
		r.checkController(r.controllers[key])
	}
}

// checkController adds the problems of the BMC of c, with their places in the document of c.
func (r *bmcs) checkController(c controller) {
	m := inventory.Canonical(inventory.Machine{Name: "x", BMC: &c.bmc})
	for _, p := range inventory.Validate(m) {
		if !strings.HasPrefix(p.Field, "bmc") || c.unknown && strings.HasPrefix(p.Field, "bmc.user") ||
			c.unknown && strings.HasPrefix(p.Field, "bmc.password") {
			continue
		}
		p.Field = c.field(p.Field)
		r.found.problems = append(r.found.problems, c.doc.Locate(inventory.Problems{p})...)
	}
}

// field translates a field of inventory.Machine, such as "bmc.host", to its path in the controller's document.
func (c controller) field(field string) string {
	at := c.at + "."
	switch field {
	case "bmc.host", "bmc.port", "bmc.insecureTLS":
		return at + strings.TrimPrefix(field, "bmc.")
	case "bmc.user", "bmc.password":
		return at + c.secret
	case "bmc.cipherSuite":
		return at + "providerOptions.ipmitool.cipherSuite"
	}
	return c.at
}

// use assigns c to the machine of the document by. If another machine has c already, use adds a problem and returns false.
func (r *bmcs) use(c controller, by object) bool {
	if c.usedBy != "" {
		r.found.add(by.doc, "spec.bmcRef", "give each machine a BMC of its own", "the BMC %s belongs to %s already", clip(c.name), c.usedBy)
		return false
	}
	c.usedBy = by.String()
	r.controllers[c.key] = c
	return true
}

// noteUnused records as ignored each BMC to which no Hardware refers.
func (r *bmcs) noteUnused() {
	for _, c := range r.controllers {
		if c.usedBy == "" {
			r.found.ignore(c.object, "kind", "no Hardware in the files refers to this BMC, and Ingot stores a BMC only with its machine")
		}
	}
}
