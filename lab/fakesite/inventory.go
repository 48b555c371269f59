package fakesite

import (
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// Nouns of the inventory, under names that none of their methods has, so that Inventory can embed them.
type (
	agents        = sqlite.Agents
	applications  = sqlite.Applications
	assignments   = sqlite.Assignments
	bmcJobs       = sqlite.BMCJobs
	bmcPasswords  = sqlite.BMCPasswords
	changes       = sqlite.Changes
	disks         = sqlite.Disks
	events        = sqlite.Events
	genesis       = sqlite.Genesis
	grants        = sqlite.Grants
	handOvers     = sqlite.HandOvers
	images        = sqlite.Images
	keyedRequests = sqlite.KeyedRequests
	keys          = sqlite.Keys
	machines      = sqlite.Machines
	media         = sqlite.Media
	notices       = sqlite.Notices
	operations    = sqlite.Operations
	overview      = sqlite.Overview
	plans         = sqlite.Plans
	relays        = sqlite.Relays
	seen          = sqlite.Seen
	sessions      = sqlite.Sessions
	syslog        = sqlite.Syslog
	templates     = sqlite.Templates
	tokens        = sqlite.Tokens
	traces        = sqlite.Traces
	views         = sqlite.Views
	workflowsOf   = sqlite.Workflows
)

// Inventory has the methods of all nouns, for tests that replace some of them: they embed it, and use the result as each
// noun.
type Inventory struct {
	agents
	applications
	assignments
	bmcJobs
	bmcPasswords
	changes
	disks
	events
	genesis
	grants
	handOvers
	images
	keyedRequests
	keys
	machines
	media
	notices
	operations
	overview
	plans
	relays
	seen
	sessions
	syslog
	templates
	tokens
	traces
	views
	workflowsOf
}

// InventoryOf returns the inventory in a store.
func InventoryOf(s *sqlite.Store) Inventory {
	return Inventory{
		s.Agents,
		s.Applications,
		s.Assignments,
		s.BMCJobs,
		s.BMCPasswords,
		s.Changes,
		s.Disks,
		s.Events,
		s.Genesis,
		s.Grants,
		s.HandOvers,
		s.Images,
		s.KeyedRequests,
		s.Keys,
		s.Machines,
		s.Media,
		s.Notices,
		s.Operations,
		s.Overview,
		s.Plans,
		s.Relays,
		s.Seen,
		s.Sessions,
		s.Syslog,
		s.Templates,
		s.Tokens,
		s.Traces,
		s.Views,
		s.Workflows,
	}
}

// ActivityStore returns the store of activities with s as every part.
func ActivityStore(s interface {
	activities.Agents
	activities.Assignments
	activities.BMCJobs
	activities.Disks
	activities.Events
	activities.Genesis
	activities.Grants
	activities.HandOvers
	activities.Images
	activities.Installed
	activities.Keys
	activities.Machines
	activities.Media
	activities.Operations
	activities.Passwords
	activities.Plans
	activities.Relays
	activities.Templates
	activities.Windows
	activities.Workflows
},
) activities.Store {
	return activities.Store{
		Agents: s, Assignments: s, BMCJobs: s, Disks: s, Events: s, Genesis: s, Grants: s, HandOvers: s, Images: s,
		Installed: s, Keys: s, Machines: s, Media: s, Operations: s, Passwords: s, Plans: s, Relays: s, Templates: s, Windows: s,
		Workflows: s,
	}
}
