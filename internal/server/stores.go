package server

import (
	"github.com/ingotmetal/ingot/internal/siterole"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// Embedded under these names, the stores do not hide their methods Images and Notices.
type (
	imageStore  = sqlite.Images
	noticeStore = sqlite.Notices
)

// Structs for packages that need several stores.
type (
	// journal implements bootsvc.Journal.
	journal struct {
		sqlite.Events
		sqlite.Relays
		sqlite.Seen
		sqlite.Syslog
	}
	// metadataStore implements metadatasvc.Machines.
	metadataStore struct {
		sqlite.Machines
		sqlite.Grants
	}
	// figures implements metrics.Store.
	figures struct {
		sqlite.Overview
		imageStore
		noticeStore
		sqlite.Views
	}
	// tracedStore implements tracing.Store.
	tracedStore struct {
		sqlite.Traces
		sqlite.Changes
		sqlite.Workflows
	}
	// sites implements api.Site.
	sites struct {
		*siterole.Host
		*siterole.Peers
	}
	// movedStore implements siterole.Store.
	movedStore struct {
		sqlite.HandOvers
		imageStore
		sqlite.Keys
	}
)
