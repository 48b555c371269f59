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

// Machines is what the metadata server reads from the inventory. For an unknown
// machine, it returns inventory.ErrNotFound. The grant of a machine that was never
// owned is ErrNotFound or the zero Grant.
type Machines interface {
	MachineByAddress(ctx context.Context, addr netip.Addr) (inventory.Machine, inventory.Grant, error)
	Machine(ctx context.Context, name string) (inventory.Machine, error)
	Grant(ctx context.Context, machine string) (inventory.Grant, error)
	// UserData returns the machine's secret user data and vendor data.
	UserData(ctx context.Context, machine string) (user, vendor inventory.Secret, err error)
}

// Journal stores events of machines.
type Journal interface {
	AppendEvents(ctx context.Context, events []inventory.Event) error
}

// Installers provides the documents of other installers and stores their reports.
type Installers interface {
	// Plan returns the plan of a run. Only its documents are used.
	Plan(ctx context.Context, run string) (inventory.Plan, error)
	// InstallerReported stores the final report of the installer of o's current boot.
	// fresh means that it is the first report; later ones are ignored. The error is
	// inventory.ErrFenced if no installer of o is running.
	InstallerReported(ctx context.Context, o inventory.Owner, failed bool, message string) (fresh bool, err error)
}

// Config says what to serve and where.
type Config struct {
	// Address is this server's address as the machines see it. Addrs are the
	// listeners, host:port or :port (then on Address); empty = 7172 and 50061.
	// Port 80 belongs to the boot server, which forwards other paths to this one.
	Address netip.Addr
	Addrs   []string
	// URL is the base of the URLs that are handed out, without a slash at the end.
	// Empty = http://Address:port of the first of Addrs.
	URL string
	// Key derives capabilities, nonces and tokens; it has at least 16 bytes. Without
	// a key (the key file is lost) only the non-secret profile is served.
	Key []byte
	// Installers, if set, provides the documents of plans and stores the reports of
	// installers.
	Installers Installers
	// ImageURL returns the current base URL of images, without a slash at the end. It
	// replaces the old URL in documents of plans that were made before the site
	// moved. If it is nil, documents are not changed.
	ImageURL func() string
	// Proxies lists the proxies whose X-Forwarded-For is trusted.
	Proxies []netip.Prefix
	// Guard counts panics while network input is handled; nil = a new one.
	Guard *guard.Guard
	Log   *slog.Logger
	Now   func() time.Time
}

// Server answers installed systems. New creates it. Handler may be used without Run.
type Server struct {
	cfg      Config
	machines Machines
	journal  Journal
	log      *slog.Logger
	now      func() time.Time
	grace    time.Duration // that Run leaves to the requests under way when it ends

	fetches  *fetches
	requests httpserve.Requests
}

const maxPhoneHome = 64 << 10 // bytes of a report

func notFound(w http.ResponseWriter) { http.Error(w, "not found", http.StatusNotFound) }

// printable returns the printable ASCII of a machine's text, at most 253 characters.
func printable(s string) string { return plaintext.ASCII(s, 253) }
