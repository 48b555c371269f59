// Package activities holds the side effects of provisioning: every effect of a workflow is
// one of these methods.
//
// Every method may run twice, and may run after its run has ended. Therefore each change is
// bound to the (run, epoch) of an inventory.Owner, which the changing statement compares.
package activities

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// Activities carries the dependencies of the activities. A worker registers one.
type Activities struct {
	Store
	Systems
	Move
	Clocks
	BMC BMC
	// Rotation changes passwords of BMCs.
	Rotation *Rotation
	Site     Site
	Log      *slog.Logger
	// Troubles, if not nil, receives each attempt from the worker.
	Troubles *Troubles
	// TraceOf, if not nil, returns to which trace the run of an activity belongs.
	TraceOf func(context.Context) *inventory.Trace

	lastLab labCache
	// confirmed is the time, in Unix nanoseconds, of the newest event that the operator
	// declared wrong, confirming the clock.
	confirmed atomic.Int64
}

// Store is the part of the inventory that activities use, by noun.
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

// Systems reaches installed systems over the network.
type Systems struct {
	Presence   Presence
	Routers    Routers
	Talos      TalosNodes
	Kubernetes Kubernetes
	Clusters   Clusters
	// Dial opens connections; nil means the host's network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Move is what moves this server to another host.
type Move struct {
	Mover Mover // nil: this server cannot move
	Peers Peers
	// VerifySite checks the site from outside and returns what the operator should check;
	// nil means no check.
	VerifySite func(ctx context.Context) ([]string, error)
}

// Clocks is how activities measure time.
type Clocks struct {
	// Now reads the wall clock; Clock measures elapsed time.
	Now   func() time.Time
	Clock Clock
	// Heard returns how long ago, by the monotonic clock, this process heard the agent of
	// the owner's boot, or false if never.
	Heard func(o inventory.Owner, boot int) (time.Duration, bool)
	// ProbeEvery is the interval for asking installed systems whether they are ready, and
	// for reading records of runs; 0 means 5 s and 1 s.
	ProbeEvery time.Duration
}

// Clock measures elapsed time, independent of changes to the wall clock.
type Clock interface {
	// Up is how long this process has been listening without a break.
	Up() time.Duration
	// Listened is for how long it has listened in the last d, breaks left out.
	Listened(d time.Duration) time.Duration
	// Left returns the rest of a wait that began when the wall clock showed began.
	Left(began time.Time, length time.Duration) time.Duration
}

// Site is what a server knows of itself.
type Site struct {
	ClaimKey []byte
	// PlanKey signs what agents carry out (security S8). Agents refuse unsigned assignments,
	// so without the key no machine is written.
	PlanKey ed25519.PrivateKey
	// ImageURL returns the base URL of images for agents, without a trailing slash:
	// http://10.0.0.2:7080/images. It is nil while no interface is configured.
	ImageURL func() string
	// Bootable returns what keeps machines from booting the agent; nil means nothing.
	Bootable func() error
	// MediaURL returns the URL of the image for virtual CD drives, which boots over the network; nil
	// means that there is none.
	MediaURL func() (string, error)
	// MetadataURL is the base URL of the metadata server: http://10.0.0.2:7172.
	MetadataURL string
	// RequireDigest refuses images without a declared digest (security S18).
	RequireDigest bool
	// Loader is the loader of interfaces that name none, or "".
	Loader string
	// UploadHosts are the hosts to which an action may send the content of a disk (security S59).
	UploadHosts []string
	// ProbeImage returns why this server cannot fetch an image from an address, without
	// fetching it. Nil means that this server fetches no images.
	ProbeImage func(ctx context.Context, address string) error
	// ImageStored returns inventory.ErrNotFound if this server does not have the file of a
	// planned image, and inventory.ErrConflict if a file in place is gone or was changed. Nil means no check.
	ImageStored func(ctx context.Context, i inventory.PlannedImage) error
}

// bootable returns an error if no machine can be booted over the network.
func (s Site) bootable() error {
	if s.ImageURL == nil {
		return errOff
	}
	if s.Bootable != nil {
		return s.Bootable()
	}
	return nil
}

// mediaReady returns an error if m may have to boot by virtual media and the server has none.
func (s Site) mediaReady(m inventory.Machine) error {
	if m.BMC == nil || s.MediaURL == nil || !slices.Contains(m.BMC.BootPath, inventory.PathMedia) {
		return nil
	}
	if _, err := s.MediaURL(); err != nil {
		return fmt.Errorf("booting by virtual media (bmc.bootPath): %w", err)
	}
	return nil
}

// URLOf returns the URL from which agents fetch an image.
func (s Site) URLOf(img inventory.Image) string {
	if img.File == "" || s.ImageURL == nil {
		return img.URL
	}
	return s.ImageURL() + "/" + img.Name
}

// Machines is what activities use of machines.
type Machines interface {
	Machine(ctx context.Context, name string) (inventory.Machine, error)
	Machines(ctx context.Context) ([]inventory.Machine, error)
	UserData(ctx context.Context, name string) (user, vendor inventory.Secret, err error)
	Retire(ctx context.Context, o inventory.Owner, s inventory.Standing, keepAddress bool) error
}

// Passwords returns the password of a machine's BMC.
type Passwords interface {
	BMCPassword(ctx context.Context, name string) (inventory.Secret, error)
}

// Disks records which run wrote which disk.
type Disks interface {
	DisksWritten(ctx context.Context, machine string) (map[string]string, error)
	DiskWritten(ctx context.Context, o inventory.Owner, d action.Disk) error
}

// Templates is where templates come from.
type Templates interface {
	Template(ctx context.Context, name string) (inventory.Template, error)
}

// Images is where images come from.
type Images interface {
	Image(ctx context.Context, name string) (inventory.Image, error)
	Images(ctx context.Context) ([]inventory.Image, error)
}

// Keys checks the keys of the inventory.
type Keys interface {
	KeyCheck(ctx context.Context) error
}

// Grants changes who owns a machine.
type Grants interface {
	Grant(ctx context.Context, machine string) (inventory.Grant, error)
	TakeGrant(ctx context.Context, machine, run, workflowID string, force bool) (inventory.Grant, error)
	EndGrant(ctx context.Context, o inventory.Owner) error
}

// Windows changes what a grant allows. Each method compares the owner.
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

// Agents is what the store knows about the agent of a run.
type Agents interface {
	Agent(ctx context.Context, o inventory.Owner) (inventory.Agent, error)
}

// Plans holds the plans of runs.
type Plans interface {
	PutPlan(ctx context.Context, p inventory.Plan) error
	Plan(ctx context.Context, run string) (inventory.Plan, error)
}

// Assignments holds what the agent's long poll returns.
type Assignments interface {
	Assign(ctx context.Context, a inventory.Assignment) error
	StopAssignment(ctx context.Context, o inventory.Owner, k action.Key, at time.Time) error
	Result(ctx context.Context, run string, k action.Key) (action.Result, error)
}

// Workflows holds the records of runs.
type Workflows interface {
	PutWorkflow(ctx context.Context, w inventory.Workflow) error
	Workflow(ctx context.Context, run string) (inventory.Workflow, error)
	LatestWorkflow(ctx context.Context, machine string) (inventory.Workflow, error)
	Workflows(ctx context.Context, f inventory.WorkflowFilter) ([]inventory.Workflow, error)
	Successor(ctx context.Context, run string) (string, error)
	Resumable(ctx context.Context, run string) error
}

// Events holds what has happened.
type Events interface {
	AppendEvents(ctx context.Context, events []inventory.Event) error
	Events(ctx context.Context, f inventory.EventFilter) ([]inventory.Event, error)
	NewestEvent(ctx context.Context) (time.Time, error)
	PendingSignals(ctx context.Context, o inventory.Owner) (int, error)
}

// BMCJobs holds the tasks that BMCs carry out.
type BMCJobs interface {
	PutBMCJob(ctx context.Context, j inventory.BMCJob) error
	BMCJob(ctx context.Context, machine, name string) (inventory.BMCJob, error)
}

// Media holds which virtual CD drives have an image.
type Media interface {
	PutMedia(ctx context.Context, m inventory.Media) error
}

// A Fence is called immediately before each write to a BMC, while no other operation on that
// BMC can run. An error prevents the write.
type Fence = func(ctx context.Context) error

// BMC drives management controllers. Every method verifies by reading back: a nil error
// means that the state was observed, except for wake-on-LAN, which has no answer. Errors
// wrap inventory.ErrUnreachable, ErrRefused or ErrUnsupported.
type BMC interface {
	// State returns on, off, transitional or unknown.
	State(ctx context.Context, b inventory.BMC, password inventory.Secret) (string, error)
	// Set accepts on, off, soft, cycle or reset. A state that is already reached is not an
	// error.
	Set(ctx context.Context, b inventory.BMC, password inventory.Secret, power string, fence Fence) error
	// SetBootDevice returns what could not be verified as a warning.
	SetBootDevice(ctx context.Context, b inventory.BMC, password inventory.Secret, d inventory.BootDevice,
		fence Fence) (warning string, err error)
	// SetMedia inserts the image at url into the virtual CD drive, or ejects what is in it.
	SetMedia(ctx context.Context, b inventory.BMC, password inventory.Secret, url string, fence Fence) error
	// ResetBMC restarts the BMC itself and returns when it answers again.
	ResetBMC(ctx context.Context, b inventory.BMC, password inventory.Secret, fence Fence) error
}

// Types of the errors that workflows distinguish.
const (
	TypeFenced      = "Fenced"
	TypeInvalid     = "Invalid"
	TypeConflict    = "Conflict"
	TypeNotFound    = "NotFound"
	TypeSealed      = "Sealed"
	TypeRefused     = "Refused"
	TypeUnsupported = "Unsupported"
	TypeUnreachable = "Unreachable"
	// TypeClock: this server's clock is behind its newest event.
	TypeClock = "Clock"
	// TypeClaimed: the agent of a boot that was given up has reported.
	TypeClaimed = "Claimed"
)

// fail maps the inventory's errors to Temporal's. Only here is it decided which errors are
// retryable. The interceptor Errors applies fail to the error of every activity.
func fail(err error) error {
	if err == nil {
		return nil
	}

	for _, m := range []struct {
		is  error
		typ string
	}{
		{inventory.ErrFenced, TypeFenced},
		{inventory.ErrInvalid, TypeInvalid},
		{inventory.ErrConflict, TypeConflict},
		{inventory.ErrNotFound, TypeNotFound},
		{inventory.ErrSealed, TypeSealed},
		{inventory.ErrRefused, TypeRefused},
		{inventory.ErrUnsupported, TypeUnsupported},
		{inventory.ErrClaimed, TypeClaimed},
	} {
		if errors.Is(err, m.is) {
			return temporal.NewNonRetryableApplicationError(err.Error(), m.typ, nil)
		}
	}

	if errors.Is(err, inventory.ErrUnreachable) {
		return temporal.NewApplicationError(err.Error(), TypeUnreachable)
	}
	return err
}

// event appends an event with the current time.
func (a *Activities) event(ctx context.Context, e inventory.Event) error {
	e.At = a.Now()
	return a.Events.AppendEvents(ctx, []inventory.Event{e})
}

// Record writes the record of a run with its input. It is a local activity and runs whenever
// the record changes.
func (a *Activities) Record(ctx context.Context, w inventory.Workflow, input any) error {
	var err error
	if w.Input, err = json.Marshal(input); err != nil {
		return fmt.Errorf("recording the input of run %q: %w", w.Run, err)
	}
	if a.TraceOf != nil {
		w.Trace = a.TraceOf(ctx)
	}
	return a.Workflows.PutWorkflow(ctx, w)
}
