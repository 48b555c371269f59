package activities

import (
	"context"
	"net/netip"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// Store holds the parts of the inventory that activities use.
type Store struct {
	Agents      Agents
	Assignments Assignments
	BMCJobs     BMCJobs
	Disks       Disks
	Events      Events
	Genesis     Genesis
	Grants      Grants
	HandOvers   HandOvers
	Images      Images
	Installed   Installed
	Keys        Keys
	Machines    Machines
	Media       Media
	Operations  Operations
	Passwords   Passwords
	Plans       Plans
	Relays      Relays
	Templates   Templates
	Windows     Windows
	Workflows   Workflows
}

// Installed tells what was installed last on each machine.
type Installed interface {
	Installed(ctx context.Context, machine string) (map[string]inventory.Installed, error)
}

// Machines is the store of machines.
type Machines interface {
	Machine(ctx context.Context, name string) (inventory.Machine, error)
	Machines(ctx context.Context) ([]inventory.Machine, error)
	UserData(ctx context.Context, name string) (user, vendor inventory.Secret, err error)
	Retire(ctx context.Context, o inventory.Owner, s inventory.Standing, keepAddress bool) error
}

// Passwords is the store of BMC passwords.
type Passwords interface {
	BMCPassword(ctx context.Context, name string) (inventory.Secret, error)
}

// Disks records which run last wrote each disk of a machine.
type Disks interface {
	DisksWritten(ctx context.Context, machine string) (map[string]string, error)
	DiskWritten(ctx context.Context, o inventory.Owner, d action.Disk) error
}

// Templates is the store of templates.
type Templates interface {
	Template(ctx context.Context, name string) (inventory.Template, error)
}

// Images is the store of images.
type Images interface {
	Image(ctx context.Context, name string) (inventory.Image, error)
	Images(ctx context.Context) ([]inventory.Image, error)
}

// Keys checks that the server has the keys that decrypt the secrets in the inventory.
type Keys interface {
	KeyCheck(ctx context.Context) error
}

// Grants stores which run owns a machine.
type Grants interface {
	Grant(ctx context.Context, machine string) (inventory.Grant, error)
	TakeGrant(ctx context.Context, machine, run, workflowID string, force bool) (inventory.Grant, error)
	TakeGrants(ctx context.Context, claimants []inventory.Claimant) error
	EndGrant(ctx context.Context, o inventory.Owner) error
}

// Windows stores what the grant of a machine allows: network boots, and reading secrets. Each method returns
// inventory.ErrFenced if o does not hold the grant.
type Windows interface {
	AllowBoot(ctx context.Context, o inventory.Owner, boot int, until time.Time) (inventory.Grant, error)
	AllowInstaller(ctx context.Context, o inventory.Owner, boot int, until time.Time) (inventory.Grant, error)
	AllowBootAfterReset(ctx context.Context, o inventory.Owner, boot int, until time.Time, installer bool) error
	MoreBoots(ctx context.Context, o inventory.Owner, n int) error
	RenewNetboot(ctx context.Context, o inventory.Owner, until time.Time) error
	CloseNetboot(ctx context.Context, o inventory.Owner) error
	OpenSecrets(ctx context.Context, o inventory.Owner, until time.Time) error
	CloseSecrets(ctx context.Context, o inventory.Owner) error
}

// Agents stores what the agent of a run has reported about itself.
type Agents interface {
	Agent(ctx context.Context, o inventory.Owner) (inventory.Agent, error)
	MachineAgent(ctx context.Context, machine string) (inventory.Agent, error)
}

// Plans holds the plans of runs.
type Plans interface {
	PutPlan(ctx context.Context, p inventory.Plan) error
	Plan(ctx context.Context, run string) (inventory.Plan, error)
}

// Assignments stores the assignments that agents poll for, and their results.
type Assignments interface {
	Assign(ctx context.Context, a inventory.Assignment) error
	StopAssignment(ctx context.Context, o inventory.Owner, k action.Key, at time.Time) error
	Result(ctx context.Context, run string, k action.Key) (action.Result, error)
}

// Workflows stores the records of runs.
type Workflows interface {
	PutWorkflow(ctx context.Context, w inventory.Workflow) error
	Workflow(ctx context.Context, run string) (inventory.Workflow, error)
	LatestWorkflow(ctx context.Context, machine string) (inventory.Workflow, error)
	Workflows(ctx context.Context, f inventory.WorkflowFilter) ([]inventory.Workflow, error)
	Successor(ctx context.Context, run string) (string, error)
	Resumable(ctx context.Context, run string) error
}

// Events stores the events of machines.
type Events interface {
	AppendEvents(ctx context.Context, events []inventory.Event) error
	Events(ctx context.Context, f inventory.EventFilter) ([]inventory.Event, error)
	NewestEvent(ctx context.Context) (time.Time, error)
	PendingSignals(ctx context.Context, o inventory.Owner) (int, error)
}

// BMCJobs stores the lists of BMC tasks and their progress.
type BMCJobs interface {
	PutBMCJob(ctx context.Context, j inventory.BMCJob) error
	BMCJob(ctx context.Context, machine, name string) (inventory.BMCJob, error)
}

// Media stores into which virtual CD drives an image is inserted.
type Media interface {
	PutMedia(ctx context.Context, m inventory.Media) error
}

// Genesis stores lab files and the facts that Genesis keeps between its runs.
type Genesis interface {
	Genesis(ctx context.Context, name string) (inventory.GenesisBundle, error)
	MergeLabMachines(ctx context.Context, l inventory.LabMachines) ([]inventory.MergedMachine, error)
	PutLabMachines(ctx context.Context, l inventory.LabMachines, by string) error
	PutFact(ctx context.Context, operation, name string, value inventory.Secret) error
	Fact(ctx context.Context, operation, name string) (inventory.Secret, error)
}

// Operations stores the records of operations.
type Operations interface {
	PutOperation(ctx context.Context, o inventory.Operation) error
	Operations(ctx context.Context, f inventory.OperationFilter) ([]inventory.Operation, error)
	Operation(ctx context.Context, run string) (inventory.Operation, error)
}

// HandOvers stores what a migration requests from the server process.
type HandOvers interface {
	CloseIntake(ctx context.Context, why string) error
	OpenIntake(ctx context.Context) error
	RequestHandOver(ctx context.Context, h inventory.HandOver) error
}

// Relays tells when the last packet came from the DHCP relay with the address giaddr: the zero time means never.
// The time is kept when the server is restarted.
type Relays interface {
	Relayed(ctx context.Context, giaddr netip.Addr) (time.Time, error)
}
