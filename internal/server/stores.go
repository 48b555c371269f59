package server

import (
	"github.com/ingotmetal/ingot/internal/siterole"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// Nouns of the inventory, under names that none of their methods has, so that a struct can embed several.
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

// What packages read and write that use several nouns.
type (
	// journal is a bootsvc.Journal.
	journal struct {
		eventStore
		relayStore
		seenStore
		syslogStore
	}
	// metadataStore is a metadatasvc.Machines.
	metadataStore struct {
		machineStore
		grantStore
	}
	// figures is a metrics.Store.
	figures struct {
		overviewStore
		imageStore
		noticeStore
		viewStore
	}
	// tracedStore is a tracing.Store.
	tracedStore struct {
		traceStore
		changeStore
		workflowStore
	}
	// sites is an api.Site.
	sites struct {
		*siterole.Host
		*siterole.Peers
	}
	// movedStore is a siterole.Store.
	movedStore struct {
		handOverStore
		imageStore
		keyStore
	}
)
