package activities

// The parts of a Store, under names that none of their methods has, so that a struct can embed them.
type (
	agents      = Agents
	assignments = Assignments
	bmcJobs     = BMCJobs
	disks       = Disks
	events      = Events
	genesisOf   = Genesis
	grants      = Grants
	handOvers   = HandOvers
	images      = Images
	keys        = Keys
	machines    = Machines
	media       = Media
	operations  = Operations
	passwords   = Passwords
	plans       = Plans
	relays      = Relays
	templates   = Templates
	windows     = Windows
	workflows   = Workflows
)

// unused has every method of a Store, and panics in each: tests embed it and replace the methods that they expect.
type unused struct {
	agents
	assignments
	bmcJobs
	disks
	events
	genesisOf
	grants
	handOvers
	images
	keys
	machines
	media
	operations
	passwords
	plans
	relays
	templates
	windows
	workflows
}

// storeOf returns a Store of which s is every part.
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
		Keys: s, Machines: s, Media: s, Operations: s, Passwords: s, Plans: s, Relays: s, Templates: s, Windows: s,
		Workflows: s,
	}
}
