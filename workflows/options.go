package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
)

var do *activities.Activities // nil: names activities, never called

// Retry policies. What touches our own database or waits goes on until it succeeds.
var (
	retryForever = &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: 30 * time.Second}
	retryBMC     = &temporal.RetryPolicy{
		InitialInterval: 2 * time.Second, MaximumInterval: 2 * time.Minute,
		MaximumAttempts: 8,
	}
)

const (
	year = 365 * 24 * time.Hour
	// workerLost is how long an operation's activity that waits may be silent until
	// it is started again: its worker has died. It looks first.
	workerLost = 20 * time.Second
)

// Activity options by the kind of work.
var (
	// quick touches our own database alone.
	quick = workflow.ActivityOptions{StartToCloseTimeout: time.Minute, RetryPolicy: retryForever}
	// planning is quick that gives up: a run that cannot be planned has
	// touched nothing and may as well end.
	planning = workflow.ActivityOptions{
		StartToCloseTimeout: time.Minute,
		RetryPolicy: &temporal.RetryPolicy{
			InitialInterval: time.Second, MaximumInterval: 30 * time.Second,
			MaximumAttempts: 10,
		},
	}
	// bmc talks to a management controller: finite attempts, and a worker
	// that died is noticed by its missing heartbeats.
	bmc = workflow.ActivityOptions{
		StartToCloseTimeout: 15 * time.Minute, HeartbeatTimeout: 30 * time.Second,
		RetryPolicy: retryBMC,
	}
	// operationBMC is bmc for what an operation does itself.
	operationBMC = workflow.ActivityOptions{
		StartToCloseTimeout: 15 * time.Minute, HeartbeatTimeout: workerLost,
		RetryPolicy: retryBMC,
	}
	// patient waits in the activity until its answer is certain.
	patient = workflow.ActivityOptions{
		StartToCloseTimeout: 10 * time.Minute, HeartbeatTimeout: 30 * time.Second,
		RetryPolicy: retryForever,
	}
	// outside waits in the activity for something outside this server, until the
	// workflow cancels it, or takes hours and goes on where it was interrupted.
	outside = workflow.ActivityOptions{
		StartToCloseTimeout: year, HeartbeatTimeout: 30 * time.Second,
		RetryPolicy: retryForever,
	}
	// awaiting waits for another workflow's record, for as long as it takes.
	awaiting = workflow.ActivityOptions{
		TaskQueue: WaitQueue, StartToCloseTimeout: year, HeartbeatTimeout: workerLost, RetryPolicy: retryForever,
	}
	// following is outside for what is cut off when the site moves: it starts again soon.
	following = workflow.ActivityOptions{
		StartToCloseTimeout: year, HeartbeatTimeout: 10 * time.Second,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: 5 * time.Second},
	}
	// switching is for the relay: when the router does not answer, the operator is asked in the end.
	switching = workflow.ActivityOptions{
		ScheduleToCloseTimeout: 10 * time.Minute, HeartbeatTimeout: 30 * time.Second, RetryPolicy: retryForever,
	}
	// local reads or writes a row within the workflow task. It goes on until it
	// succeeds, as quick does: without the longer time-out all tries together would
	// have that of one.
	local = workflow.LocalActivityOptions{
		StartToCloseTimeout:    20 * time.Second,
		ScheduleToCloseTimeout: year,
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
	// windowMargin is how much longer than its wait a window stays open.
	windowMargin = 5 * time.Minute
	// grace is given to the agent's own deadline of an action.
	grace = 30 * time.Second
	// reminder is how often a run that waits for a power button renews its window.
	reminder = 30 * time.Minute
)

// maxProlongations is how often a wait goes on after its time was up by a clock
// that had been set.
const maxProlongations = 2

// Pauses before an action that failed is tried again.
const (
	firstPause = 10 * time.Second
	lastPause  = 5 * time.Minute
)

// lossesUntilAsked is how often the agent of an action is lost to a server or power
// failure before the operator is asked.
const lossesUntilAsked = 2

// busyRetries is how often a run that is about to end is waited for: half a minute
// in all.
const busyRetries = 5
