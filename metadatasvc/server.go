package metadatasvc

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/inventory"
)

// Machines reads machines and grants from the inventory. For an unknown machine, the error is inventory.ErrNotFound.
// For a machine that no run has ever owned, Grant returns ErrNotFound or the zero Grant.
type Machines interface {
	MachineByAddress(ctx context.Context, addr netip.Addr) (inventory.Machine, inventory.Grant, error)
	Machine(ctx context.Context, name string) (inventory.Machine, error)
	Grant(ctx context.Context, machine string) (inventory.Grant, error)
	// UserData returns the decrypted user data and vendor data of a machine.
	UserData(ctx context.Context, machine string) (user, vendor inventory.Secret, err error)
}

// Journal stores events of machines.
type Journal interface {
	AppendEvents(ctx context.Context, events []inventory.Event) error
}

// Installers provides the documents for operating-system installers, such as Harvester's, and stores their reports.
type Installers interface {
	// Plan returns the plan of a run. Only its documents are used.
	Plan(ctx context.Context, run string) (inventory.Plan, error)
	// InstallerReported stores the final report of the installer that runs in the owner's current boot. fresh is true
	// for the first report; later reports are ignored. The error is inventory.ErrFenced if the owner has no running
	// installer.
	InstallerReported(ctx context.Context, o inventory.Owner, failed bool, message string) (fresh bool, err error)
}

// Config configures a Server.
type Config struct {
	// Address is this server's address as the machines see it. Addrs are the addresses to listen on, as host:port, or
	// :port for a port on Address; empty means :7172 and :50061. Port 80 belongs to the boot server, which forwards
	// paths that it does not serve to this server.
	Address netip.Addr
	Addrs   []string
	// URL is the base of the URLs that machines get, without a slash at the end. Empty means http:// with Address and
	// the port of Addrs[0].
	URL string
	// Key is the key from which capabilities, nonces and tokens are derived; it has at least 16 bytes. If it is empty,
	// because the key file is lost, only non-secret profiles are served.
	Key []byte
	// Installers provides the documents of plans and stores the reports of installers. If it is nil, neither is
	// available.
	Installers Installers
	// ImageURL returns the current base URL of images, without a slash at the end. It replaces the old base URL in
	// documents of plans that were made before the server moved to another address. If it is nil, documents are not
	// changed.
	ImageURL func() string
	// Proxies are the addresses of proxies whose X-Forwarded-For header is trusted.
	Proxies []netip.Prefix
	// Guard counts the panics of request handlers. If it is nil, New creates one.
	Guard *guard.Guard
	Log   *slog.Logger
	Now   func() time.Time
}

// A Server is the metadata service. New creates it. Handler may be used without Run.
type Server struct {
	cfg      Config
	machines Machines
	journal  Journal
	log      *slog.Logger
	now      func() time.Time
	grace    time.Duration // how long Run waits for open requests when it ends

	fetches  *fetches
	requests httpserve.Requests
}

const maxPhoneHome = 64 << 10 // maximum size of a report, in bytes

func notFound(w http.ResponseWriter) { http.Error(w, "not found", http.StatusNotFound) }

// printable returns the printable ASCII characters of s, at most 253.
func printable(s string) string { return plaintext.ASCII(s, 253) }
