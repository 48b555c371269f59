package activities

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// Config is what activities depend on.
type Config struct {
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
	// Silence returns how long ago, by the monotonic clock, the last contact was with the agent of
	// the owner's boot, or false if never.
	Silence func(o inventory.Owner, boot int) (time.Duration, bool)
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

// Presence reports whether a host answers at an address, and its MAC if known.
type Presence interface {
	Answers(ctx context.Context, a netip.Addr) (found bool, mac string, err error)
}

// Routers reads and changes the list of servers to which a router relays DHCP. Errors wrap
// inventory.ErrUnreachable, ErrRefused or ErrInvalid.
type Routers interface {
	RelayServers(ctx context.Context, e inventory.Endpoint, key inventory.Secret) ([]string, error)
	SetRelayServer(ctx context.Context, e inventory.Endpoint, key inventory.Secret, server string, listed bool) error
}

// TalosNodes is the API of a Talos node, with the client certificate of the
// talosconfig. Errors are inventory.ErrUnreachable, ErrRefused or ErrInvalid,
// wrapped.
type TalosNodes interface {
	Version(ctx context.Context, address string, talosconfig inventory.Secret) (string, error)
	// Bootstrap creates a cluster. already means that it was created before.
	Bootstrap(ctx context.Context, address string, talosconfig inventory.Secret) (already bool, err error)
	// Kubeconfig returns a kubeconfig with the given API server URL, or with Talos's own.
	Kubeconfig(ctx context.Context, address string, talosconfig inventory.Secret, server string) (inventory.Secret, error)
}

// Kubernetes drives an API server by a kubeconfig. Errors are
// inventory.ErrUnreachable, ErrRefused or ErrInvalid, wrapped.
type Kubernetes interface {
	Ready(ctx context.Context, kubeconfig inventory.Secret) error
	Nodes(ctx context.Context, kubeconfig inventory.Secret) ([]inventory.ClusterNode, error)
	// Apply and Delete may be repeated; they return the names of the objects.
	Apply(ctx context.Context, kubeconfig, manifest inventory.Secret) ([]string, error)
	Delete(ctx context.Context, kubeconfig, manifest inventory.Secret) ([]string, error)
}

// Clusters asks a Harvester cluster at its virtual address. Errors are
// inventory.ErrUnreachable, ErrRefused or ErrInvalid, wrapped.
type Clusters interface {
	// Ready returns nil once other nodes can join.
	Ready(ctx context.Context, e inventory.Endpoint) error
	// LogIn starts a session and LogOut ends it. The token of an ended session gets
	// ErrRefused.
	LogIn(
		ctx context.Context, e inventory.Endpoint, user string, password inventory.Secret,
	) (token inventory.Secret, err error)
	LogOut(ctx context.Context, e inventory.Endpoint, token inventory.Secret) error
	Nodes(ctx context.Context, e inventory.Endpoint, token inventory.Secret) ([]inventory.ClusterNode, error)
}

// Mover is the server's own state machine, which moves the site, because Temporal cannot run
// the activity that stops it.
type Mover interface {
	// CheckTarget returns an error if the target could not take over.
	CheckTarget(ctx context.Context, target string) error
	// SyncImages sends the image files that the target lacks.
	SyncImages(ctx context.Context, target string, progress func(text string)) (sent int, err error)
	// HandOverState returns the result of a hand-over; see inventory.HandOver….
	HandOverState(ctx context.Context, id string) (state, why string, err error)
	// WithdrawHandOver prevents a hand-over that has not begun.
	WithdrawHandOver(ctx context.Context, id string) error
}

// Peers is what this server knows about other sites.
type Peers interface {
	// Known reports whether this server can hand over to the peer, that is, has its address,
	// key and token.
	Known(ctx context.Context, name string) (bool, error)
	// Standby creates, once, the identity of the standby with this name and URL: the Secret
	// of its manifest.
	Standby(ctx context.Context, name, url string) (secret inventory.Secret, err error)
	// Moved reports whether a run of Migrate made this server the site.
	Moved(ctx context.Context, run string) (bool, error)
	// Forget removes a peer that this server has not handed over to.
	Forget(ctx context.Context, name string) error
}
