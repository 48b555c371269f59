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

// Config holds the dependencies of the activities.
type Config struct {
	Store
	Systems
	Move
	Clocks
	BMC BMC
	// Rotation changes the passwords of BMCs.
	Rotation *Rotation
	Site     Site
	Log      *slog.Logger
	// Troubles, if not nil, stores which activities are being retried. It is also an interceptor of the worker.
	Troubles *Troubles
	// TraceOf, if not nil, returns the trace of the run to which an activity belongs.
	TraceOf func(context.Context) *inventory.Trace
}

// Systems holds the clients for installed systems.
type Systems struct {
	Presence   Presence
	Routers    Routers
	Talos      TalosNodes
	Kubernetes Kubernetes
	Clusters   Clusters
	// Dial opens connections. If nil, the host's network is used.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Move holds what moves this server to another host.
type Move struct {
	Mover Mover // nil if this server cannot move
	Peers Peers
	// VerifySite checks the server from outside after a move and returns notes for the operator; nil means no check.
	VerifySite func(ctx context.Context) ([]string, error)
}

// Clocks holds the clocks of the activities.
type Clocks struct {
	// Now reads the wall clock; Clock measures elapsed time.
	Now   func() time.Time
	Clock Clock
	// Silence returns the time since the last contact with the agent of the owner's boot, by the monotonic clock, or
	// false if there was none.
	Silence func(o inventory.Owner, boot int) (time.Duration, bool)
	// ProbeEvery is the interval at which installed systems are asked whether they are ready, and records of runs are
	// read. If 0, these intervals are 5 s and 1 s.
	ProbeEvery time.Duration
}

// Clock measures elapsed time, independent of changes to the wall clock.
type Clock interface {
	// Up returns how long this process has been listening without a break.
	Up() time.Duration
	// Listened returns how much of the last d the process has been listening.
	Listened(d time.Duration) time.Duration
	// Left returns the part of a wait of the given length that has not passed. The wait began when the wall clock
	// showed began.
	Left(began time.Time, length time.Duration) time.Duration
}

// Site holds this server's keys, URLs and limits.
type Site struct {
	ClaimKey []byte
	// PlanKey signs the orders for agents (security S8). Agents refuse unsigned assignments, so without this key no
	// machine is written.
	PlanKey ed25519.PrivateKey
	// ImageURL returns the base URL of images for agents, without a trailing slash:
	// http://10.0.0.2:7080/images. It is nil while no interface is configured.
	ImageURL func() string
	// Bootable returns an error if machines cannot boot the agent. If Bootable is nil, they can.
	Bootable func() error
	// MediaURL returns the URL of the image for virtual CD drives, which boots the machine over the network. If nil,
	// there is no such image.
	MediaURL func() (string, error)
	// MetadataURL is the base URL of the metadata server: http://10.0.0.2:7172.
	MetadataURL string
	// RequireDigest refuses images that were added without a digest (security S18).
	RequireDigest bool
	// Loader is the boot loader of interfaces without one of their own, or "".
	Loader string
	// UploadHosts are the hosts to which an action may send the content of a disk (security S59).
	UploadHosts []string
	// ProbeImage returns an error if this server cannot fetch an image from the address; it does not fetch it. If
	// nil, this server fetches no images.
	ProbeImage func(ctx context.Context, address string) error
	// ImageStored returns inventory.ErrNotFound if this server does not have the file of a planned image, and
	// inventory.ErrConflict if the image is a file in place (inventory.InPlace) that is gone or has changed. If nil,
	// images are not checked.
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

// mediaReady returns an error if m may have to boot by virtual media and the server has no image for that.
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

// A Fence is called directly before each write to a BMC, while no other operation uses that BMC. An error prevents
// the write.
type Fence = func(ctx context.Context) error

// BMC is the client for management controllers. Every method that changes something reads the state back: nil
// means that the new state was observed, except for wake-on-LAN, which has no answer. Errors wrap
// inventory.ErrUnreachable, ErrRefused or ErrUnsupported.
type BMC interface {
	// State returns the power state: on, off, transitional or unknown.
	State(ctx context.Context, b inventory.BMC, password inventory.Secret) (string, error)
	// Set switches the power; power is on, off, soft, cycle or reset. A state that is already reached is not an
	// error.
	Set(ctx context.Context, b inventory.BMC, password inventory.Secret, power string, fence Fence) error
	// SetBootDevice sets the boot device. warning names what could not be verified.
	SetBootDevice(ctx context.Context, b inventory.BMC, password inventory.Secret, d inventory.BootDevice,
		fence Fence) (warning string, err error)
	// SetMedia inserts the image at url into the virtual CD drive. If url is empty, it ejects the image.
	SetMedia(ctx context.Context, b inventory.BMC, password inventory.Secret, url string, fence Fence) error
	// ResetBMC restarts the BMC itself and returns when it answers again.
	ResetBMC(ctx context.Context, b inventory.BMC, password inventory.Secret, fence Fence) error
}

// Presence reports whether a host answers at an address, and its MAC if known.
type Presence interface {
	Answers(ctx context.Context, a netip.Addr) (found bool, mac string, err error)
}

// Routers reads and changes the list of DHCP servers to which a router relays. Errors wrap
// inventory.ErrUnreachable, ErrRefused or ErrInvalid.
type Routers interface {
	RelayServers(ctx context.Context, e inventory.Endpoint, key inventory.Secret) ([]string, error)
	SetRelayServer(ctx context.Context, e inventory.Endpoint, key inventory.Secret, server string, listed bool) error
}

// TalosNodes is the client for the API of a Talos node, with the client certificate of the talosconfig. Errors
// wrap inventory.ErrUnreachable, ErrRefused or ErrInvalid.
type TalosNodes interface {
	Version(ctx context.Context, address string, talosconfig inventory.Secret) (string, error)
	// Bootstrap creates a cluster. already means that it existed before.
	Bootstrap(ctx context.Context, address string, talosconfig inventory.Secret) (already bool, err error)
	// Kubeconfig returns a kubeconfig with server as the URL of the API server or, if server is empty, with the URL
	// from Talos.
	Kubeconfig(ctx context.Context, address string, talosconfig inventory.Secret, server string) (inventory.Secret, error)
}

// Kubernetes is the client for an API server, with a kubeconfig. Errors wrap inventory.ErrUnreachable, ErrRefused
// or ErrInvalid.
type Kubernetes interface {
	Ready(ctx context.Context, kubeconfig inventory.Secret) error
	Nodes(ctx context.Context, kubeconfig inventory.Secret) ([]inventory.ClusterNode, error)
	// Apply and Delete may be repeated. They return the names of the objects.
	Apply(ctx context.Context, kubeconfig, manifest inventory.Secret) ([]string, error)
	Delete(ctx context.Context, kubeconfig, manifest inventory.Secret) ([]string, error)
}

// Clusters is the client for a Harvester cluster at its virtual address. Errors wrap inventory.ErrUnreachable,
// ErrRefused or ErrInvalid.
type Clusters interface {
	// Ready returns nil once other nodes can join.
	Ready(ctx context.Context, e inventory.Endpoint) error
	// LogIn starts a session and LogOut ends it. Requests with the token of an ended session return ErrRefused.
	LogIn(
		ctx context.Context, e inventory.Endpoint, user string, password inventory.Secret,
	) (token inventory.Secret, err error)
	LogOut(ctx context.Context, e inventory.Endpoint, token inventory.Secret) error
	Nodes(ctx context.Context, e inventory.Endpoint, token inventory.Secret) ([]inventory.ClusterNode, error)
}

// Mover is the part of the server process that moves the active role to another server. It is outside Temporal,
// because a hand-over stops Temporal.
type Mover interface {
	// CheckTarget returns an error if the target could not become the active server.
	CheckTarget(ctx context.Context, target string) error
	// SyncImages sends the image files that the target lacks.
	SyncImages(ctx context.Context, target string, progress func(text string)) (sent int, err error)
	// HandOverState returns the state of a hand-over, one of inventory.HandOver…, and the reason if it failed.
	HandOverState(ctx context.Context, id string) (state, why string, err error)
	// WithdrawHandOver prevents a hand-over that has not begun.
	WithdrawHandOver(ctx context.Context, id string) error
}

// Peers holds what this server stores about other servers.
type Peers interface {
	// Known reports whether this server can hand over to the peer, which takes its address, key and token.
	Known(ctx context.Context, name string) (bool, error)
	// Standby creates the identity of the standby with this name and URL, unless it exists, and returns it as a
	// Kubernetes Secret in YAML.
	Standby(ctx context.Context, name, url string) (secret inventory.Secret, err error)
	// Moved reports whether this server became the active one by this run of Migrate.
	Moved(ctx context.Context, run string) (bool, error)
	// Forget removes a peer that this server has not handed over to.
	Forget(ctx context.Context, name string) error
}
