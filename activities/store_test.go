package activities

// The parts of a Store, under names that none of their methods has, so that a struct can embed them.
type (
	storeAgents      = Agents
	storeAssignments = Assignments
	storeBMCJobs     = BMCJobs
	storeDisks       = Disks
	storeEvents      = Events
	storeGenesis     = Genesis
	storeGrants      = Grants
	storeHandOvers   = HandOvers
	storeImages      = Images
	storeInstalled   = Installed
	storeKeys        = Keys
	storeMachines    = Machines
	storeMedia       = Media
	storeOperations  = Operations
	storePasswords   = Passwords
	storePlans       = Plans
	storeRelays      = Relays
	storeTemplates   = Templates
	storeWindows     = Windows
	storeWorkflows   = Workflows
)

// unused has every method of a Store, and panics in each: tests embed it and replace the methods that they expect.
type unused struct {
	storeAgents
	storeAssignments
	storeBMCJobs
	storeDisks
	storeEvents
	storeGenesis
	storeGrants
	storeHandOvers
	storeImages
	storeInstalled
	storeKeys
	storeMachines
	storeMedia
	storeOperations
	storePasswords
	storePlans
	storeRelays
	storeTemplates
	storeWindows
	storeWorkflows
}

// storeOf returns a Store with s as every part.
func storeOf(s interface {
	Agents
	Assignments
	BMCJobs
	Disks
	Events
	Genesis
	Grants
	HandOvers
	Images
	Installed
	Keys
	Machines
	Media
	Operations
	Passwords
	Plans
	Relays
	Templates
	Windows
	Workflows
},
) Store {
	return Store{
		Agents: s, Assignments: s, BMCJobs: s, Disks: s, Events: s, Genesis: s, Grants: s, HandOvers: s, Images: s,
		Installed: s, Keys: s, Machines: s, Media: s, Operations: s, Passwords: s, Plans: s, Relays: s, Templates: s, Windows: s,
		Workflows: s,
	}
}
