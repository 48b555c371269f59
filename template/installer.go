package template

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// DefaultInstallerTimeout is the time-out of an installer if the template sets none.
const DefaultInstallerTimeout action.Seconds = 5400

const (
	maxDocuments  = 16
	maxDocument   = 256 << 10 // maximum size of a document in bytes
	maxInitrds    = 8
	maxParameters = 64
)

// servedDocument is an entry in the list documents of a template. This list is an extension of Tinkerbell's format.
type servedDocument struct {
	Name     string `json:"name"`               // last element of the document's URL
	Kind     string `json:"kind,omitempty"`     // format, by which the document is checked; default: text
	Contents string `json:"contents,omitempty"` // default: the machine's user-data
}

// installer is the value of the key installer of a template. This key is an extension of Tinkerbell's format.
type installer struct {
	Kernel string   `json:"kernel"` // name of an image
	Initrd []string `json:"initrd"` // names of images, in the order in which they are loaded
	// Payload is the image that the installer fetches last. When it was delivered completely, the machine does not boot the installer again.
	// Default: the last initrd.
	Payload    string         `json:"payload,omitempty"`
	Parameters []string       `json:"parameters,omitempty"` // parameters of the kernel
	Complete   string         `json:"complete"`             // what shows Ingot that the installer has ended
	Timeout    action.Seconds `json:"timeout,omitempty"`    // seconds that the installer may take after payload was delivered; default 5400
}

func (i *installer) timeout() action.Seconds {
	if i.Timeout == 0 {
		return DefaultInstallerTimeout
	}
	return i.Timeout
}

// plan returns the installer in the form that a plan contains. If i is nil, it returns nil.
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

// documents returns the documents in the form that a plan contains. The contents of a document that has none are a reference to the
// machine's user-data.
func (d document) documents() []inventory.Document {
	var out []inventory.Document
	for _, x := range d.Documents {
		kind, contents := cmp.Or(x.Kind, inventory.DocumentText), cmp.Or(x.Contents, inventory.RefUserData)
		out = append(out, inventory.Document{Name: x.Name, Kind: kind, Contents: contents})
	}
	return out
}

// installerShape is the part of shape that is about the documents and the installer.
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
