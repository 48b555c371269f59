package server

import (
	"github.com/ingotmetal/ingot/internal/siterole"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// New names for the stores of the inventory. No method has such a name, so one struct can embed several stores.
type (
	changeStore   = sqlite.Changes
	eventStore    = sqlite.Events
	grantStore    = sqlite.Grants
	handOverStore = sqlite.HandOvers
	imageStore    = sqlite.Images
	keyStore      = sqlite.Keys
	machineStore  = sqlite.Machines
	noticeStore   = sqlite.Notices
	overviewStore = sqlite.Overview
	relayStore    = sqlite.Relays
	seenStore     = sqlite.Seen
	syslogStore   = sqlite.Syslog
	traceStore    = sqlite.Traces
	viewStore     = sqlite.Views
	workflowStore = sqlite.Workflows
)

// Structs for packages that need several stores.
type (
	// journal implements bootsvc.Journal.
	journal struct {
		eventStore
		relayStore
		seenStore
		syslogStore
	}
	// metadataStore implements metadatasvc.Machines.
	metadataStore struct {
		machineStore
		grantStore
	}
	// figures implements metrics.Store.
	figures struct {
		overviewStore
		imageStore
		noticeStore
		viewStore
	}
	// tracedStore implements tracing.Store.
	tracedStore struct {
		traceStore
		changeStore
		workflowStore
	}
	// sites implements api.Site.
	sites struct {
		*siterole.Host
		*siterole.Peers
	}
	// movedStore implements siterole.Store.
	movedStore struct {
		handOverStore
		imageStore
		keyStore
	}
)
