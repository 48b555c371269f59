package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
)

var do *activities.Activities // nil: names activities, never called

// Activity options by the kind of work.
var (
	// quick touches our own database alone; it goes on until it succeeds.
	quick = workflow.ActivityOptions{
		StartToCloseTimeout: time.Minute,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: 30 * time.Second},
	}
	// planning is quick that gives up: a run that cannot be planned has
	// touched nothing and may as well end.
	planning = workflow.ActivityOptions{
		StartToCloseTimeout: time.Minute,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: 30 * time.Second, MaximumAttempts: 10},
	}
	// bmc talks to a management controller: finite attempts, and a worker
	// that died is noticed by its missing heartbeats.
	bmc = workflow.ActivityOptions{
		StartToCloseTimeout: 15 * time.Minute,
		HeartbeatTimeout:    30 * time.Second,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: 2 * time.Second, MaximumInterval: 2 * time.Minute, MaximumAttempts: 8},
	}
	// patient waits in the activity until it can tell.
	patient = workflow.ActivityOptions{
		StartToCloseTimeout: 10 * time.Minute,
		HeartbeatTimeout:    30 * time.Second,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: 30 * time.Second},
	}
	// outside waits in the activity for something that happens in the world, for
	// as long as the workflow does not cancel it.
	outside = workflow.ActivityOptions{
		StartToCloseTimeout: 365 * 24 * time.Hour,
		HeartbeatTimeout:    30 * time.Second,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: 30 * time.Second},
	}
	// awaiting waits for another workflow's record, for as long as it takes.
	awaiting = workflow.ActivityOptions{
		TaskQueue:           WaitQueue,
		StartToCloseTimeout: 365 * 24 * time.Hour,
		HeartbeatTimeout:    workerLost,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: 30 * time.Second},
	}
	// local writes a row beside the workflow; see the design on assignments. It
	// goes on until it succeeds, as quick does: without the longer time-out all
	// tries together would have that of one.
	local = workflow.LocalActivityOptions{
		StartToCloseTimeout:    20 * time.Second,
		ScheduleToCloseTimeout: 365 * 24 * time.Hour,
		// A try after a longer pause leaves six events: this way a history holds
		// out for weeks.
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: 100 * time.Millisecond, MaximumInterval: 10 * time.Minute},
	}
)

// How long a run waits in each phase before it asks for evidence. Servers
// take minutes before they first touch their network card.
const (
	untilDHCP   = 12 * time.Minute
	untilScript = 5 * time.Minute
	untilAgent  = 8 * time.Minute
	untilReady  = 20 * time.Minute
	// untilPayload is for the files of an installer, which may be gigabytes.
	untilPayload = 20 * time.Minute
	// untilStopped is what an agent gets to close its descriptors before the
	// power is taken away.
	untilStopped = time.Minute
	// beyond is how much longer than its wait a netboot window stays open.
	beyond = 5 * time.Minute
	// grace is given to the agent's own deadline of an action.
	grace = 30 * time.Second
	// reminder is how often a run that waits for a power button renews its window.
	reminder = 30 * time.Minute
)

// resumes is how often a wait goes on after its time was up by a clock that
// somebody had set.
const resumes = 2

// brief are the phases that wait for nothing outside this server.
var brief = []string{inventory.PhaseArm, inventory.PhaseBind, inventory.PhaseDisarm}

// Pauses before an action that failed is tried again.
const (
	firstPause = 10 * time.Second
	lastPause  = 5 * time.Minute
)

// lostAttempts is how often an action is tried when its agent was lost to a
// server or power failure.
const lostAttempts = 2
