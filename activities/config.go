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

	"github.com/ingotmetal/ingot/action"
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
	// Troubles, if not nil, stores which activities are being retried. It is also one of the worker's interceptors.
	Troubles *Troubles
	// TraceOf, if not nil, returns the trace of the run that executes an activity.
	TraceOf func(context.Context) *inventory.Trace
}

// Systems holds the clients for installed systems.
type Systems struct {
	Presence   Presence
	Routers    Routers
	Talos      TalosNodes
	Kubernetes Kubernetes
	Clusters   Clusters
	// Dial opens connections. If nil, connections use the host's network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Move holds the dependencies for moving the active role from this server to another host.
type Move struct {
	Mover Mover // nil if this server cannot move
	Peers Peers
	// VerifySite checks the server from outside after a move and returns notes for the operator. If nil, nothing is
	// checked.
	VerifySite func(ctx context.Context) ([]string, error)
}

// Clocks holds the clocks of the activities.
type Clocks struct {
	// Now reads the wall clock; Clock measures elapsed time.
	Now   func() time.Time
	Clock Clock
	// Silence returns the time since the last contact with the agent of this boot of the owner's machine, measured
	// by the monotonic clock. It returns false if there was no contact.
	Silence func(o inventory.Owner, boot int) (time.Duration, bool)
	// ProbeEvery is how often installed systems are asked whether they are ready, and how often records of runs are
	// read. If it is 0, systems are asked every 5 s and records are read every second.
	ProbeEvery time.Duration
}

// Clock measures elapsed time, independent of changes to the wall clock.
type Clock interface {
	// Up returns how long this process has been listening without a break.
	Up() time.Duration
	// Listened returns how long the process has been listening during the last d.
	Listened(d time.Duration) time.Duration
	// Left returns how much of a wait is left. length is the whole wait. began is what the wall clock showed when
	// the wait began.
	Left(began time.Time, length time.Duration) time.Duration
}

// Site holds this server's keys, URLs and limits.
type Site struct {
	ClaimKey []byte
	// PlanKey signs the orders for agents (security S8). Agents refuse unsigned orders, so a server without this
	// key cannot write to any machine.
	PlanKey ed25519.PrivateKey
	// ImageURL returns the base URL of images for agents, without a trailing slash, such as
	// http://10.0.0.2:7080/images. It is nil while no interface is configured.
	ImageURL func() string
	// Bootable returns an error if machines cannot boot the agent. If Bootable is nil, machines can boot it.
	Bootable func() error
	// MediaURL returns the URL of the image that is inserted into virtual CD drives and boots a machine over the
	// network. If MediaURL is nil, there is no such image.
	MediaURL func() (string, error)
	// MetadataURL is the base URL of the metadata server, such as http://10.0.0.2:7172.
	MetadataURL string
	// MetadataHosts are the hosts, with ports, at which the metadata server answers, such as 10.0.0.2:7172.
	MetadataHosts []string
	// RequireDigest means that images that were added without a digest are refused (security S18).
	RequireDigest bool
	// Loader is the boot loader of each interface for which the inventory names none; it may be "".
	Loader string
	// UploadHosts are the hosts to which an action may send the content of a disk (security S59).
	UploadHosts []string
	// ProbeImage returns an error if this server could not fetch an image from the address. It does not fetch the
	// image. If ProbeImage is nil, this server fetches no images.
	ProbeImage func(ctx context.Context, address string) error
	// FetchImage stores the file at an address as the image called name, unless that image is stored already. by is the name of the
	// operator. It returns inventory.ErrConflict if another caller stores the image just now.
	FetchImage func(ctx context.Context, name, address, by string) error
	// ResolveContainer returns the digest of the image that the registry has now for a tag, for linux/amd64. It returns
	// inventory.ErrUnreachable if the registry does not answer. Addresses of container images for FetchImage begin with
	// action.ContainerScheme.
	ResolveContainer func(ctx context.Context, r action.ContainerReference) (digest string, err error)
	// Runtime returns the SHA-256 of the archive with the container runtime, which agents fetch from this server. If Runtime is nil, or
	// returns an error, no action can be a container.
	Runtime func() (sha256 string, err error)
	// PrivilegedContainers are the digests of the images that may run as privileged containers.
	PrivilegedContainers []string
	// ImageStored checks the file of a planned image. It returns inventory.ErrNotFound if this server does not have
	// the file, and inventory.ErrConflict if the file is one in place (inventory.InPlace) that is gone or has
	// changed. If ImageStored is nil, files are not checked.
	ImageStored func(ctx context.Context, i inventory.PlannedImage) error
}

// containerRuntime returns the SHA-256 of the archive with the container runtime. It returns an error if this server has none.
func (s Site) containerRuntime() (sha256 string, err error) {
	if s.Runtime == nil {
		return "", fmt.Errorf("no machine can run a container: this server has no container runtime: %w", inventory.ErrInvalid)
	}
	return s.Runtime()
}

// mayRunContainers returns an error if one of the actions is a container, but this server has no container runtime.
func (s Site) mayRunContainers(actions ...action.Action) error {
	if !slices.ContainsFunc(actions, func(x action.Action) bool { return x.Container != nil }) {
		return nil
	}
	_, err := s.containerRuntime()
	return err
}

// bootable returns an error if this server cannot boot machines over the network.
func (s Site) bootable() error {
	if s.ImageURL == nil {
		return errOff
	}
	if s.Bootable != nil {
		return s.Bootable()
	}
	return nil
}

// mediaReady returns an error if m may have to boot by virtual media, but the server has no image for virtual CD
// drives.
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

// A Fence checks, directly before each write to a BMC, whether the write is still allowed. No other operation uses
// the BMC during the check and the write. An error prevents the write.
type Fence = func(ctx context.Context) error

// BMC is the client for management controllers. Every method that changes something reads the state back, and nil
// means that the new state was observed. The exception is wake-on-LAN, because a machine does not answer it. Errors
// wrap inventory.ErrUnreachable, ErrRefused or ErrUnsupported.
type BMC interface {
	// State returns the power state: on, off, transitional or unknown.
	State(ctx context.Context, b inventory.BMC, password inventory.Secret) (string, error)
	// Set switches the power; power is on, off, soft, cycle or reset. It returns nil if the machine has this state
	// already.
	Set(ctx context.Context, b inventory.BMC, password inventory.Secret, power string, fence Fence) error
	// SetBootDevice sets the boot device. warning tells what could not be verified.
	SetBootDevice(ctx context.Context, b inventory.BMC, password inventory.Secret, d inventory.BootDevice,
		fence Fence) (warning string, err error)
	// SetMedia inserts the image at url into the virtual CD drive. If url is "", it ejects the inserted image.
	SetMedia(ctx context.Context, b inventory.BMC, password inventory.Secret, url string, fence Fence) error
	// ResetBMC restarts the BMC itself and returns when the BMC answers again.
	ResetBMC(ctx context.Context, b inventory.BMC, password inventory.Secret, fence Fence) error
}

// Presence finds out whether a host answers at an address, and the host's MAC if it is visible.
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
	// Bootstrap creates a cluster. already means that the cluster existed before the call.
	Bootstrap(ctx context.Context, address string, talosconfig inventory.Secret) (already bool, err error)
	// Kubeconfig returns a kubeconfig. server is the URL of the API server in it; if server is "", the kubeconfig
	// has the URL that Talos gives.
	Kubeconfig(ctx context.Context, address string, talosconfig inventory.Secret, server string) (inventory.Secret, error)
}

// Kubernetes is the client for an API server, with a kubeconfig. Errors wrap inventory.ErrUnreachable, ErrRefused
// or ErrInvalid.
type Kubernetes interface {
	Ready(ctx context.Context, kubeconfig inventory.Secret) error
	Nodes(ctx context.Context, kubeconfig inventory.Secret) ([]inventory.ClusterNode, error)
	// Apply and Delete may be called again for the same manifest. They return the names of the objects.
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

// Mover is the part of the server process that moves the active role to another server. Mover is not part of
// Temporal, because a hand-over stops Temporal.
type Mover interface {
	// CheckTarget returns an error if the target cannot become the active server.
	CheckTarget(ctx context.Context, target string) error
	// SyncImages sends the image files that the target lacks.
	SyncImages(ctx context.Context, target string, progress func(text string)) (sent int, err error)
	// HandOverState returns the state of a hand-over: one of inventory.HandOver…, and the reason if the hand-over
	// failed.
	HandOverState(ctx context.Context, id string) (state, why string, err error)
	// WithdrawHandOver prevents a hand-over that has not begun yet.
	WithdrawHandOver(ctx context.Context, id string) error
}

// Peers holds what this server stores about other servers.
type Peers interface {
	// Known reports whether this server has the address, key and token of the peer, which a hand-over needs.
	Known(ctx context.Context, name string) (bool, error)
	// Standby creates the identity of a standby server with this name and URL, unless the identity exists. It
	// returns the identity as a Kubernetes Secret in YAML.
	Standby(ctx context.Context, name, url string) (secret inventory.Secret, err error)
	// Moved reports whether this server became the active one by the given run of Migrate.
	Moved(ctx context.Context, run string) (bool, error)
	// Forget removes a peer to which this server has not handed over.
	Forget(ctx context.Context, name string) error
}
