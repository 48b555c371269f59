// Package activities holds the Temporal activities: everything that a workflow reads or changes outside itself.
//
// Every activity may run twice, and may run after its run has ended. Therefore each change is bound to the run and
// epoch of an inventory.Owner, which the changing SQL statement compares with the grant.
package activities

// Activities holds all activities, in one struct for each subject. A worker registers it; the name of a method is
// the activity type.
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

// New returns the activities with their dependencies in c.
func New(c Config) *Activities {
	s := &shared{Config: c}
	return &Activities{
		s, &assignments{s}, &bmcs{s}, &clusters{s}, &grants{shared: s}, &labs{s}, &moves{s}, &operations{s}, &plans{s}, &runRecords{s},
		&retirements{s}, &routers{s},
	}
}
