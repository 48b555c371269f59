package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
)

var do activities.Activities // used to name activities; never called

// Retry policies. Activities that use only our own database, and activities that wait, retry until they succeed.
var (
	retryForever = &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: 30 * time.Second}
	retryBMC     = &temporal.RetryPolicy{
		InitialInterval: 2 * time.Second, MaximumInterval: 2 * time.Minute,
		MaximumAttempts: 8,
	}
)

const (
	year = 365 * 24 * time.Hour
	// workerLost is the heartbeat timeout of an operation's activities. After it, Temporal considers the worker dead
	// and starts the activity again, which checks the state first.
	workerLost = 20 * time.Second
)

// Options of activities, by what the activities do.
var (
	// quick is for activities that use only our own database.
	quick = workflow.ActivityOptions{StartToCloseTimeout: time.Minute, RetryPolicy: retryForever}
	// planning is quick with a limited number of attempts: a run that cannot be planned has changed nothing and may
	// end.
	planning = workflow.ActivityOptions{
		StartToCloseTimeout: time.Minute,
		RetryPolicy: &temporal.RetryPolicy{
			InitialInterval: time.Second, MaximumInterval: 30 * time.Second,
			MaximumAttempts: 10,
		},
	}
	// bmc is for activities that use a management controller. The number of attempts is limited, and missing
	// heartbeats reveal a dead worker.
	bmc = workflow.ActivityOptions{
		StartToCloseTimeout: 15 * time.Minute, HeartbeatTimeout: 30 * time.Second,
		RetryPolicy: retryBMC,
	}
	// operationBMC is bmc for the activities of an operation.
	operationBMC = workflow.ActivityOptions{
		StartToCloseTimeout: 15 * time.Minute, HeartbeatTimeout: workerLost,
		RetryPolicy: retryBMC,
	}
	// patient is for an activity that may take minutes until its result is certain.
	patient = workflow.ActivityOptions{
		StartToCloseTimeout: 10 * time.Minute, HeartbeatTimeout: 30 * time.Second,
		RetryPolicy: retryForever,
	}
	// outside is for an activity that waits for something outside this server until the workflow cancels it, or that
	// takes hours and resumes after an interruption.
	outside = workflow.ActivityOptions{
		StartToCloseTimeout: year, HeartbeatTimeout: 30 * time.Second,
		RetryPolicy: retryForever,
	}
	// awaiting is for an activity that waits for the record of another workflow, for any length of time.
	awaiting = workflow.ActivityOptions{
		TaskQueue: WaitQueue, StartToCloseTimeout: year, HeartbeatTimeout: workerLost, RetryPolicy: retryForever,
	}
	// following is outside for an activity whose connection breaks when another server becomes the active one: it
	// retries within seconds.
	following = workflow.ActivityOptions{
		StartToCloseTimeout: year, HeartbeatTimeout: 10 * time.Second,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: 5 * time.Second},
	}
	// switching is for changes of the router's DHCP relay. If the router does not answer within 10 minutes, the step
	// fails and the operator is asked.
	switching = workflow.ActivityOptions{
		ScheduleToCloseTimeout: 10 * time.Minute, HeartbeatTimeout: 30 * time.Second, RetryPolicy: retryForever,
	}
	// local is for local activities, which read or write one row within the workflow task and retry until they
	// succeed. Without ScheduleToCloseTimeout, all attempts together would have to end within StartToCloseTimeout.
	local = workflow.LocalActivityOptions{
		StartToCloseTimeout:    20 * time.Second,
		ScheduleToCloseTimeout: year,
		// A retry after a longer pause adds six history events. With this policy it takes weeks to fill the history.
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: 100 * time.Millisecond, MaximumInterval: 10 * time.Minute},
	}
)

// How long a run waits in each phase before it checks what is known about the machine. Servers take minutes before
// they first use their network card.
const (
	untilDHCP   = 12 * time.Minute
	untilScript = 5 * time.Minute
	untilAgent  = 8 * time.Minute
	untilReady  = 20 * time.Minute
	// untilPayload is how long an installer may take to fetch its files, which may be gigabytes.
	untilPayload = 20 * time.Minute
	// untilStopped is the time that an agent has to stop an action before the machine's power is cut.
	untilStopped = time.Minute
	// untilRestarted is how long after a restart of the machine a run ignores messages of the agent of an earlier
	// boot, because they may arrive late. It is longer than activities.Evidence counts a silent agent as alive.
	untilRestarted = 2 * time.Minute
	// windowMargin is added to the length of a wait to get how long the netboot or secrets window for it stays open.
	windowMargin = 5 * time.Minute
	// grace is how long a run waits for the report of an action after the agent's own deadline for the action.
	grace = 30 * time.Second
	// reminder is how often a run renews the netboot window while it waits for the operator to switch the machine on.
	reminder = 30 * time.Minute
)

// maxProlongations limits how often a wait is prolonged by time that did not really pass, because the clock was
// set or the server was down.
const maxProlongations = 2

// Pauses before the retries of a failed action. The first is firstPause; each further one is twice as long, up to
// lastPause.
const (
	firstPause = 10 * time.Second
	lastPause  = 5 * time.Minute
)

// lossesUntilAsked is how often the agent may be lost during one action before the operator is asked.
const lossesUntilAsked = 2

// busyRetries is how often an operation tries again to start a run of a machine whose earlier run is about to end.
// The pauses add up to 30 seconds.
const busyRetries = 5
