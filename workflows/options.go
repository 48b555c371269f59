package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
)

var do activities.Activities // zero: only names activities, never called

// Retry policies. Activities that use only our own database, and those that wait, retry
// until they succeed.
var (
	retryForever = &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: 30 * time.Second}
	retryBMC     = &temporal.RetryPolicy{
		InitialInterval: 2 * time.Second, MaximumInterval: 2 * time.Minute,
		MaximumAttempts: 8,
	}
)

const (
	year = 365 * 24 * time.Hour
	// workerLost is the heartbeat timeout of an operation's waiting activity. After it the
	// worker counts as dead and the activity starts again; it checks the state first.
	workerLost = 20 * time.Second
)

// Activity options by the kind of work.
var (
	// quick uses only our own database.
	quick = workflow.ActivityOptions{StartToCloseTimeout: time.Minute, RetryPolicy: retryForever}
	// planning is quick with limited retries: a run that cannot be planned has changed
	// nothing and may end.
	planning = workflow.ActivityOptions{
		StartToCloseTimeout: time.Minute,
		RetryPolicy: &temporal.RetryPolicy{
			InitialInterval: time.Second, MaximumInterval: 30 * time.Second,
			MaximumAttempts: 10,
		},
	}
	// bmc talks to a management controller. The attempts are limited, and missing heartbeats
	// reveal a dead worker.
	bmc = workflow.ActivityOptions{
		StartToCloseTimeout: 15 * time.Minute, HeartbeatTimeout: 30 * time.Second,
		RetryPolicy: retryBMC,
	}
	// operationBMC is bmc for BMC calls of an operation itself.
	operationBMC = workflow.ActivityOptions{
		StartToCloseTimeout: 15 * time.Minute, HeartbeatTimeout: workerLost,
		RetryPolicy: retryBMC,
	}
	// patient waits in the activity until its answer is certain.
	patient = workflow.ActivityOptions{
		StartToCloseTimeout: 10 * time.Minute, HeartbeatTimeout: 30 * time.Second,
		RetryPolicy: retryForever,
	}
	// outside waits for something outside this server until the workflow cancels it, or
	// takes hours and resumes after an interruption.
	outside = workflow.ActivityOptions{
		StartToCloseTimeout: year, HeartbeatTimeout: 30 * time.Second,
		RetryPolicy: retryForever,
	}
	// awaiting waits for another workflow's record, without a limit.
	awaiting = workflow.ActivityOptions{
		TaskQueue: WaitQueue, StartToCloseTimeout: year, HeartbeatTimeout: workerLost, RetryPolicy: retryForever,
	}
	// following is outside for connections that break when the site moves: it retries soon.
	following = workflow.ActivityOptions{
		StartToCloseTimeout: year, HeartbeatTimeout: 10 * time.Second,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: 5 * time.Second},
	}
	// switching is for the DHCP relay. If the router does not answer, the operator is asked
	// in the end.
	switching = workflow.ActivityOptions{
		ScheduleToCloseTimeout: 10 * time.Minute, HeartbeatTimeout: 30 * time.Second, RetryPolicy: retryForever,
	}
	// local reads or writes a row within the workflow task and retries until it succeeds, as
	// quick does. Without the longer schedule-to-close timeout, all attempts together would
	// get the time of one.
	local = workflow.LocalActivityOptions{
		StartToCloseTimeout:    20 * time.Second,
		ScheduleToCloseTimeout: year,
		// A retry after a longer pause adds six history events. With this policy the history
		// lasts for weeks.
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: 100 * time.Millisecond, MaximumInterval: 10 * time.Minute},
	}
)

// How long a run waits in each phase before it checks the evidence. Servers take minutes
// before they first use their network card.
const (
	untilDHCP   = 12 * time.Minute
	untilScript = 5 * time.Minute
	untilAgent  = 8 * time.Minute
	untilReady  = 20 * time.Minute
	// untilPayload is for an installer's files, which may be gigabytes.
	untilPayload = 20 * time.Minute
	// untilStopped is the time an agent gets to close its descriptors before the power is
	// cut.
	untilStopped = time.Minute
	// untilRestarted is how long after a start an agent of an earlier boot may still report,
	// although the machine was restarted: its last message may arrive late. It is longer than
	// activities.Evidence counts an agent as alive.
	untilRestarted = 2 * time.Minute
	// windowMargin is how much longer than its wait a window stays open.
	windowMargin = 5 * time.Minute
	// grace is added to the agent's own deadline of an action.
	grace = 30 * time.Second
	// reminder is how often a run that waits for the power button renews its window.
	reminder = 30 * time.Minute
)

// maxProlongations is how often a wait is prolonged because the clock was set.
const maxProlongations = 2

// Pauses before a failed action is tried again.
const (
	firstPause = 10 * time.Second
	lastPause  = 5 * time.Minute
)

// lossesUntilAsked is how often an action's agent may be lost to a server or power failure
// before the operator is asked.
const lossesUntilAsked = 2

// busyRetries is how often an operation waits for a run that is about to end: 30 seconds in
// total.
const busyRetries = 5
