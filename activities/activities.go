// Package activities holds the side effects of provisioning: every effect of a workflow is
// a method of a noun in this package.
//
// Every method may run twice, and may run after its run has ended. Therefore each change is
// bound to the (run, epoch) of an inventory.Owner, which the changing statement compares.
package activities

// Activities are the side effects of workflows, one struct for each noun. A worker registers one: the type of an activity is the
// name of its method.
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

// New returns activities that depend on c.
func New(c Config) *Activities {
	s := &shared{Config: c}
	return &Activities{
		s, &assignments{s}, &bmcs{s}, &clusters{s}, &grants{shared: s}, &labs{s}, &moves{s}, &operations{s}, &plans{s}, &runRecords{s},
		&retirements{s}, &routers{s},
	}
}
