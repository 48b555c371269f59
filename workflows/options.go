package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
)

var do activities.Activities // used to name activities; never called

// Retry policies. Activities that use only our own database retry until they succeed, and so do activities that wait.
var (
	retryForever = &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: 30 * time.Second}
	retryBMC     = &temporal.RetryPolicy{
		InitialInterval: 2 * time.Second, MaximumInterval: 2 * time.Minute,
		MaximumAttempts: 8,
	}
)

const (
	year = 365 * 24 * time.Hour
	// workerLost is the heartbeat timeout of an operation's activities. After this time without a heartbeat, Temporal considers the
	// worker dead and starts the activity again; the activity then checks the state first.
	workerLost = 20 * time.Second
)

// Options of activities, by what the activities do.
var (
	// quick is for activities that use only our own database.
	quick = workflow.ActivityOptions{StartToCloseTimeout: time.Minute, RetryPolicy: retryForever}
	// planning has the options of quick, but limits the number of attempts: a run that cannot be planned has changed nothing and
	// may end.
	planning = workflow.ActivityOptions{
		StartToCloseTimeout: time.Minute,
		RetryPolicy: &temporal.RetryPolicy{
			InitialInterval: time.Second, MaximumInterval: 30 * time.Second,
			MaximumAttempts: 10,
		},
	}
	// fetching is for an activity that fetches files from other servers, which may take hours, or waits for another run that does.
	fetching = workflow.ActivityOptions{
		TaskQueue: WaitQueue, StartToCloseTimeout: year, HeartbeatTimeout: 30 * time.Second,
		RetryPolicy: &temporal.RetryPolicy{
			InitialInterval: 2 * time.Second, MaximumInterval: time.Minute,
			MaximumAttempts: 10,
		},
	}
	// bmc is for activities that use a management controller. The number of attempts is limited, and missing
	// heartbeats reveal a dead worker.
	bmc = workflow.ActivityOptions{
		StartToCloseTimeout: 15 * time.Minute, HeartbeatTimeout: 30 * time.Second,
		RetryPolicy: retryBMC,
	}
	// operationBMC has the options of bmc, but the heartbeat timeout of an operation's activities.
	operationBMC = workflow.ActivityOptions{
		StartToCloseTimeout: 15 * time.Minute, HeartbeatTimeout: workerLost,
		RetryPolicy: retryBMC,
	}
	// patient is for an activity that may take minutes until its result is certain.
	patient = workflow.ActivityOptions{
		StartToCloseTimeout: 10 * time.Minute, HeartbeatTimeout: 30 * time.Second,
		RetryPolicy: retryForever,
	}
	// outside is for an activity that waits for something outside this server until the workflow cancels the activity, and for an
	// activity that takes hours and resumes after an interruption.
	outside = workflow.ActivityOptions{
		StartToCloseTimeout: year, HeartbeatTimeout: 30 * time.Second,
		RetryPolicy: retryForever,
	}
	// awaiting is for an activity that waits for the record of another workflow, for any length of time.
	awaiting = workflow.ActivityOptions{
		TaskQueue: WaitQueue, StartToCloseTimeout: year, HeartbeatTimeout: workerLost, RetryPolicy: retryForever,
	}
	// following has the options of outside, but retries within seconds. It is for an activity whose connection breaks when another
	// server becomes the active one.
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
		// Each retry after a long pause adds six events to the history. With these pauses, it takes weeks until the history is
		// full.
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
	// untilRestarted is how long, after a restart of the machine, a run ignores messages from the agent of an earlier boot, which
	// may arrive late. It is longer than the time for which activities.Evidence counts a silent agent as alive.
	untilRestarted = 2 * time.Minute
	// While a run waits, its machine may boot over the network or fetch secrets. windowMargin is how much longer than the wait this
	// stays allowed.
	windowMargin = 5 * time.Minute
	// grace is how long a run waits for the report of an action after the agent's own deadline for the action.
	grace = 30 * time.Second
	// reminder is how often a run renews its permission for network boot while it waits for the operator to switch the machine on.
	reminder = 30 * time.Minute
)

// maxProlongations limits how often a wait becomes longer because some of its time does not count: the clock was set, or the server
// was down.
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
