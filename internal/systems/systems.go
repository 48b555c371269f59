// Package systems has one row for each kind of document that an installer or an
// installed system is configured with: what checks the document, and what else
// the system can do. The folders below hold the systems, with the clients of
// their APIs.
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

// A System is one row: one interface for each feature, nil if the system lacks it.
type System struct {
	Document  Document
	Relay     Relay
	Disks     Disks
	Downloads Downloads
	Webhooks  Webhooks
	Probe     Probe
}

// table has one row for each kind of document that a system reads. Another system
// is a folder below, a row here, and its kind in package inventory.
var table = map[string]System{
	inventory.DocumentHarvester: {
		Document:  harvester.Document{},
		Disks:     harvester.Document{},
		Downloads: harvester.Document{},
		Webhooks:  harvester.Document{},
	},
	inventory.DocumentTalos: {
		Document: talos.Document{},
		Disks:    talos.Document{},
		Probe:    talos.Document{},
	},
	inventory.DocumentVyOS: {
		Document: vyos.Document{},
		Relay:    vyos.Document{},
	},
}

// Document checks a document as strictly as the system itself would.
type Document interface {
	// Check returns everything for which the system would refuse the document,
	// and what it accepts but is probably a mistake. Problems have line and
	// field, but no file; their texts may repeat values.
	Check(file string, contents []byte) (problems, warnings inventory.Problems)
}

// SecretLister is implemented by documents that are not YAML.
type SecretLister interface {
	// Secrets returns the values of the fields whose names isSecret accepts.
	Secrets(contents []byte, isSecret func(name string) bool) []string
}

// Relay is implemented by systems that relay DHCP.
type Relay interface {
	// CheckRelay returns why machines behind the system would not reach the
	// server. A document that cannot be read has no such problems.
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
	// AddWebhooks returns the document with webhooks for the installer's events.
	// Their URLs are prefix and the name of the event.
	AddWebhooks(contents []byte, prefix string) ([]byte, error)
}

// Probe is implemented by systems that prove over the network which document
// they were installed with.
type Probe interface {
	// Provable returns why Probe could never succeed with the document.
	Provable(contents []byte) error
	// Probe returns a text about the proof that the system at the address runs
	// with the document; ErrUnreachable if it does not yet.
	Probe(ctx context.Context, dial endpoint.Dialer, address netip.Addr, contents []byte) (string, error)
}

// Of returns the row of a kind, with everything nil for a kind without one.
func Of(kind string) System { return table[kind] }
