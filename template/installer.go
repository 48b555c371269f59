package template

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// DefaultInstallerTimeout is the time-out of an installer if its template has none.
const DefaultInstallerTimeout action.Seconds = 5400

const (
	maxDocuments  = 16
	maxDocument   = 256 << 10 // bytes of a document's text
	maxInitrds    = 8
	maxParameters = 64
)

// servedDocument is an entry of documents:, an extension of Tinkerbell's format.
type servedDocument struct {
	Name     string `json:"name"`               // last element of its URL
	Kind     string `json:"kind,omitempty"`     // how it is checked; default: text
	Contents string `json:"contents,omitempty"` // default: the machine's user-data
}

// installer is the value of installer:, an extension of Tinkerbell's format.
type installer struct {
	Kernel string   `json:"kernel"` // image of the inventory
	Initrd []string `json:"initrd"` // images of the inventory, in the order in which they are loaded
	// Payload is the image that the installer fetches last: its delivery spends the boot. Default: the last initrd.
	Payload    string         `json:"payload,omitempty"`
	Parameters []string       `json:"parameters,omitempty"` // of the kernel
	Complete   string         `json:"complete"`             // what shows that the installer has ended
	Timeout    action.Seconds `json:"timeout,omitempty"`    // seconds after its last payload; default 5400
}

func (i *installer) timeout() action.Seconds {
	if i.Timeout == 0 {
		return DefaultInstallerTimeout
	}
	return i.Timeout
}

// plan returns the installer for the plan, or nil if there is none.
func (i *installer) plan() *inventory.Installer {
	if i == nil {
		return nil
	}

	out := &inventory.Installer{
		Kernel: i.Kernel, Initrds: slices.Clone(i.Initrd), Payload: i.Payload, Parameters: slices.Clone(i.Parameters),
		Complete: i.Complete, Timeout: i.timeout(),
	}
	if out.Payload == "" && len(out.Initrds) > 0 {
		out.Payload = out.Initrds[len(out.Initrds)-1]
	}
	return out
}

// documents returns the documents of the plan. A document without contents is the machine's
// user-data.
func (d document) documents() []inventory.Document {
	var out []inventory.Document
	for _, x := range d.Documents {
		doc := inventory.Document{Name: x.Name, Kind: x.Kind, Contents: x.Contents}
		if doc.Kind == "" {
			doc.Kind = inventory.DocumentText
		}
		if doc.Contents == "" {
			doc.Contents = inventory.RefUserData
		}
		out = append(out, doc)
	}
	return out
}

// installerShape lists the documents and the installer for shape.
func (d document) installerShape() []part {
	s := []part{{"documents", fmt.Sprint(len(d.Documents))}}
	for n, x := range d.Documents {
		s = append(s, part{fmt.Sprintf("documents[%d].name", n), x.Name}, part{fmt.Sprintf("documents[%d].kind", n), x.Kind})
	}
	i := d.Installer
	if i == nil {
		return s
	}
	return append(s, part{"installer.kernel", i.Kernel}, part{"installer.initrd", strings.Join(i.Initrd, "\x00")},
		part{"installer.payload", i.Payload},
		part{"installer.parameters", fmt.Sprint(len(i.Parameters))}, part{"installer.complete", i.Complete},
		part{"installer.timeout", fmt.Sprint(i.Timeout)})
}

var (
	documentName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	imageName    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
)

func (c *checker) documents() {
	if len(c.doc.Documents) > maxDocuments {
		c.add("documents", "", "are %d; at most %d are allowed", len(c.doc.Documents), maxDocuments)
		return
	}
	names := map[string]bool{}
	for n, x := range c.doc.Documents {
		p := fmt.Sprintf("documents[%d]", n)
		switch {
		case c.open(x.Name):
		case !documentName.MatchString(x.Name):
			c.add(p+".name", "letters, digits, dot, dash and underscore, at most 64", "%q cannot be the last element of a URL",
				x.Name)
		case names[x.Name]:
			c.add(p+".name", "give each a different name", "is the second document named %q", x.Name)
		}

		names[x.Name] = true
		if kinds := inventory.DocumentKinds(); x.Kind != "" && !c.open(x.Kind) && !slices.Contains(kinds, x.Kind) {
			c.add(p+".kind", "use one of: "+strings.Join(kinds, ", "), "unknown kind of document %q", x.Kind)
		}
		if len(x.Contents) > maxDocument {
			c.add(p+".contents", "", "are larger than %d KiB", maxDocument>>10)
		}
		if inventory.Refers(x.Contents, inventory.RefBootURL) {
			c.add(p+".contents", "use .images_url", "name .boot_url, which ends with the boot")
		}
	}
}

func (c *checker) installer() {
	i := c.doc.Installer
	if i == nil {
		return
	}

	c.imageName("installer.kernel", i.Kernel)
	if len(i.Initrd) == 0 || len(i.Initrd) > maxInitrds {
		c.add("installer.initrd", "name the initramfs, an image of the inventory", "has %d entries; 1 to %d are allowed",
			len(i.Initrd), maxInitrds)
	}

	seen := map[string]bool{i.Kernel: true}
	for n, name := range i.Initrd {
		path := fmt.Sprintf("installer.initrd[%d]", n)
		c.imageName(path, name)
		if seen[name] {
			c.add(path, "", "%q is loaded twice", name)
		}
		seen[name] = true
	}

	if i.Payload != "" {
		c.imageName("installer.payload", i.Payload)
		if i.Payload == i.Kernel {
			c.add("installer.payload", "name what is fetched last", "is the kernel, which is fetched first")
		}
	}
	if len(i.Parameters) > maxParameters {
		c.add("installer.parameters", "", "are %d; at most %d are allowed", len(i.Parameters), maxParameters)
	}

	for n, a := range i.Parameters {
		c.parameter(fmt.Sprintf("installer.parameters[%d]", n), a)
	}
	c.completion(i.Complete)
	if i.Timeout < 0 {
		c.add("installer.timeout", "give seconds, or leave it out", "is negative")
	}
	if c.doc.GlobalTimeout > 0 && c.doc.GlobalTimeout <= i.timeout() {
		c.add("global_timeout", "make it longer, or leave it out", "ends before installer.timeout of %d s", i.timeout())
	}

	c.leaving()
}

// completion checks how the end of the installer is detected.
func (c *checker) completion(complete string) {
	known := inventory.Completions()
	if !c.open(complete) && !slices.Contains(known, complete) {
		c.add("installer.complete", "use one of: "+strings.Join(known, ", "),
			"invalid sign of an installer's end %q", complete)
	}

	documents := 0
	for _, x := range c.doc.Documents {
		if x.Kind == complete {
			documents++
		}
	}
	if inventory.ProvenByDocument(complete) && documents != 1 {
		c.add("installer.complete", "give it one document of kind "+complete,
			"is %s, but there are %d documents of that kind", complete, documents)
	}
}

// leaving checks that the last action lets the machine boot the installer.
func (c *checker) leaving() {
	for i, t := range c.doc.Tasks {
		for j, s := range t.Actions {
			native, ok := action.Native(s.Image)
			if ok && action.Leaves(native) && native != action.Reboot {
				c.add(fmt.Sprintf("tasks[%d].actions[%d].image", i, j), "leave it out",
					"%q does not lead to the installer, which is booted next", s.Image)
			}
		}
	}
}

func (c *checker) imageName(path, name string) {
	if !c.open(name) && !imageName.MatchString(name) {
		c.add(path, "add the file with: ingot image add NAME FILE, and name it here", "invalid image name %q", name)
	}
}

// secretElsewhere are references that may not appear on a kernel command line, because every
// process can read it (security S44).
var secretElsewhere = []string{inventory.RefNonce, inventory.RefPhoneHomeURL, inventory.RefUserData, inventory.RefVendorData}

func (c *checker) parameter(path, a string) {
	for _, ref := range secretElsewhere {
		if inventory.Refers(a, ref) {
			c.add(path, "put it into a document, and give the kernel .documents_url",
				"puts a secret on the kernel command line, where every process can read it")
			return
		}
	}
	if c.open(a) {
		return
	}
	if why := inventory.InstallerParameterProblem(a); why != "" {
		c.add(path, "write one parameter per entry, as the kernel reads it, or leave it out", "%q %s", a, why)
	}
}
