// Package activities holds the Temporal activities: everything that a workflow reads or changes outside itself.
//
// Every activity may run twice, and may still run after its run has ended. Therefore each change names an
// inventory.Owner (a run and its epoch), and the SQL statement that makes the change checks that this owner still
// holds the machine's grant.
package activities

// Activities holds all activities, in one struct for each subject. A worker registers Activities; the name of each
// method is the activity type.
type Activities struct {
	*shared
	*assignments
	*bmcs
	*clusters
	*grants
	*labs
	*moves
	*operations
	*plans
	*runRecords
	*retirements
	*routers
}

// New returns the activities, which use the dependencies in c.
func New(c Config) *Activities {
	s := &shared{Config: c}
	return &Activities{
		s, &assignments{s}, &bmcs{s}, &clusters{s}, &grants{shared: s}, &labs{s}, &moves{s}, &operations{s}, &plans{s}, &runRecords{s},
		&retirements{s}, &routers{s},
	}
}
