// Package systems describes the systems that are installed from a document. For each kind of document, it says what checks the document and
// what else Ingot can do with the system. The packages below implement the systems and the clients of their APIs.
package systems

import (
	"context"
	"net/netip"

	"github.com/ingotmetal/ingot/internal/systems/endpoint"
	"github.com/ingotmetal/ingot/internal/systems/harvester"
	"github.com/ingotmetal/ingot/internal/systems/talos"
	"github.com/ingotmetal/ingot/internal/systems/vyos"
	"github.com/ingotmetal/ingot/inventory"
)

// table holds the Document of each kind. To add a system, add a package below this one, an entry here, and its kind in package
// inventory.
var table = map[string]Document{
	inventory.DocumentHarvester: harvester.Document{}, // also Disks, Downloads and Webhooks
	inventory.DocumentTalos:     talos.Document{},     // also Disks and Probe
	inventory.DocumentVyOS:      vyos.Document{},      // also Relay and SecretLister
}

// Document checks a document as strictly as the system itself would. A Document that implements one of the interfaces below has that
// feature, too.
type Document interface {
	// Check returns as problems why the system would refuse the document, and as warnings what the system accepts although it is probably a
	// mistake. Problems have a line and a field, but no file. Their texts may repeat values of the document.
	Check(file string, contents []byte) (problems, warnings inventory.Problems)
}

// SecretLister is implemented by documents that are not YAML.
type SecretLister interface {
	// Secrets returns the values of all fields whose names isSecret accepts.
	Secrets(contents []byte, isSecret func(name string) bool) []string
}

// Relay is implemented by systems that relay DHCP.
type Relay interface {
	// CheckRelay returns why DHCP packets of machines behind the system would not reach the server. It returns nothing if the document cannot
	// be read.
	CheckRelay(contents []byte, server netip.Addr) inventory.Problems
}

// Disks is implemented by systems whose document names disks.
type Disks interface {
	// Disks describes the disks that the document overwrites.
	Disks(contents []byte) []string
}

// Downloads is implemented by systems whose installer downloads an image that
// its document names.
type Downloads interface {
	Downloads(contents []byte) (names []string)
}

// Webhooks is implemented by systems whose installer reports to webhooks that
// its document names.
type Webhooks interface {
	// AddWebhooks returns the document with a webhook for each event of the installer. The URL of each webhook is prefix followed by the
	// event.
	AddWebhooks(contents []byte, prefix string) ([]byte, error)
}

// Probe is implemented by systems that prove over the network which document
// they were installed with.
type Probe interface {
	// Provable returns nil if Probe can succeed with the document, otherwise the reason why it cannot.
	Provable(contents []byte) error
	// Probe returns a text that describes the proof that the system at the address runs with the document. If the system does not show the
	// proof yet, the error is ErrUnreachable.
	Probe(ctx context.Context, dial endpoint.Dialer, address netip.Addr, contents []byte) (string, error)
}

// Of returns the Document of a kind, or nil if there is none.
func Of(kind string) Document { return table[kind] }
