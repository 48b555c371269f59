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

// Machines reads machines and grants from the inventory. For an unknown machine, the error is inventory.ErrNotFound. For a machine that no
// run has ever owned, Grant returns this error or the zero Grant.
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

// Installers provides the documents that installers of operating systems read, such as Harvester's. It also stores the reports of these
// installers.
type Installers interface {
	// Plan returns the plan of a run. Only the documents in the plan are used.
	Plan(ctx context.Context, run string) (inventory.Plan, error)
	// InstallerReported stores the final report of the installer that runs in the owner's current boot. fresh is true if this is the first
	// report; further reports are ignored. If no installer runs in the owner's current boot, the error is inventory.ErrFenced.
	InstallerReported(ctx context.Context, o inventory.Owner, failed bool, message string) (fresh bool, err error)
}

// Config configures a Server.
type Config struct {
	// Address is the address at which machines reach this server. Addrs are the addresses to listen on: host:port, or :port for a port of
	// Address. If Addrs is empty, they are :7172 and :50061. Port 80 belongs to the boot server, which forwards requests for paths that it
	// does not serve to this server.
	Address netip.Addr
	Addrs   []string
	// URL is the beginning of all URLs that machines get, without a slash at the end. If it is empty, it is http:// with Address and the port
	// of Addrs[0].
	URL string
	// Key is the key from which capabilities, nonces and tokens are derived; it has at least 16 bytes. If it is empty, because the key file is
	// lost, no secrets are served.
	Key []byte
	// Installers may be nil; then documents of plans are not served, and reports of installers are not accepted.
	Installers Installers
	// ImageURL returns the current base URL of images, without a slash at the end. If a plan was made before the server moved to another
	// address, this URL replaces the old one in the plan's documents. If ImageURL is nil, nothing is replaced.
	ImageURL func() string
	// Proxies are the addresses of proxies whose X-Forwarded-For header is trusted.
	Proxies []netip.Prefix
	// Guard counts the panics of request handlers. If it is nil, New creates one.
	Guard *guard.Guard
	Log   *slog.Logger
	Now   func() time.Time
}

// A Server is the metadata service. Use New to make one. Its Handler can be used without Run.
type Server struct {
	cfg      Config
	machines Machines
	journal  Journal
	log      *slog.Logger
	now      func() time.Time
	grace    time.Duration // when Run ends, how long it waits for open requests

	fetches  *fetches
	requests httpserve.Requests
}

const maxPhoneHome = 64 << 10 // maximum size of a report, in bytes

func notFound(w http.ResponseWriter) { http.Error(w, "not found", http.StatusNotFound) }

// printable returns s without characters other than printable ASCII, cut to at most 253 characters.
func printable(s string) string { return plaintext.ASCII(s, 253) }
