// Package temporalchild runs Ingot's embedded Temporal server as a supervised child process.
//
// The Temporal server ends its whole process on some errors, such as an occupied port. DHCP, TFTP
// and metadata must not end with it. The server therefore runs in a second process of the same
// binary. This package starts the process, waits until it is ready, restarts it when it ends, and
// stops it. It does not import the server, so that a build without it stays small.
//
// The protocol between parent and child:
//
//   - the child's stdin carries one line, the [Config] as JSON, and then [Order]s, one per line. When stdin ends, the
//     child stops, even if the parent was killed. A parent-death signal could not replace this: it is lost with file
//     capabilities, and fires when the starting thread ends;
//   - descriptor 3 is a pipe on which the child writes [Report]s, one per line. First it reports the start and the end of each
//     task whose time grows with the database, then that it is ready or has to give up, and later each completed order.
//     An open port would not prove that the child is ready: the port may belong to the child of an earlier parent;
//   - stdout and stderr carry log lines, slog's JSON or plain text.
package temporalchild

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"time"
)

// Subcommand is the hidden subcommand under which a binary runs the child.
const Subcommand = "temporal-child"

// ReadyFD is the descriptor on which the child writes its [Report].
const ReadyFD = 3

// Ports are the TCP ports of the embedded server. Clients use Frontend and UI; the server's own parts use the others.
type Ports struct {
	Frontend int `json:"frontend"`
	History  int `json:"history"`
	Matching int `json:"matching"`
	Worker   int `json:"worker"`
	UI       int `json:"ui"` // of the UI without a login; 0 = the UI is on its Unix socket only
}

// PortsFrom returns the ports with the frontend's port, the three ports after it, and the UI's port (0 = none).
func PortsFrom(frontend, ui int) Ports {
	return Ports{Frontend: frontend, History: frontend + 1, Matching: frontend + 2, Worker: frontend + 3, UI: ui}
}

// Config is the configuration of the child. It contains no secrets.
type Config struct {
	File  string `json:"file"` // the SQLite file; its directory and a lock file next to it are created
	Host  string `json:"host"` // a loopback address
	Ports Ports  `json:"ports"`
	// Identity is the path of a PEM file with a private key and its self-signed certificate; see [ClientTLS]. If it is set, every port
	// of the server requires this certificate from clients, and the UI has no port. "" = no TLS.
	Identity string `json:"identity,omitempty"`

	Namespace        string        `json:"namespace"`
	Retention        time.Duration `json:"retention"`        // how long finished runs are kept
	SearchAttributes []string      `json:"searchAttributes"` // all of type Keyword

	LockWait time.Duration `json:"lockWait"` // how long to wait until the child of an earlier parent releases the file
	LogLevel slog.Level    `json:"logLevel"`
	// VacuumEvery is how often the pages of deleted runs are returned to the file system; 0 = every minute.
	VacuumEvery time.Duration `json:"vacuumEvery"`
}

// DefaultConfig returns the configuration of a site's embedded server with its database in dataDir. Its ports are 7233 and
// 8233, which the temporal CLI and a browser use by default.
func DefaultConfig(dataDir string) Config {
	return Config{
		File:             filepath.Join(dataDir, "temporal.db"),
		Host:             "127.0.0.1",
		Ports:            PortsFrom(7233, 8233),
		Namespace:        "default",
		Retention:        30 * 24 * time.Hour,
		SearchAttributes: []string{"IngotMachine", "IngotTemplate", "IngotPhase", "IngotCluster"},
		LockWait:         15 * time.Second,
		LogLevel:         slog.LevelWarn,
	}
}

// Validate returns the mistakes in c, joined, that the check of the configuration file does not find. Each is a *[Failure] that names
// the configuration key.
func (c Config) Validate() error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, &Failure{Key: key, Message: key + ": " + fmt.Sprintf(format, args...)})
	}

	switch {
	case !filepath.IsAbs(c.File):
		bad("data_dir", "the database file %q is not an absolute path", c.File)
	case strings.ContainsAny(c.File, "?#%"):
		// The server puts the path into a URI without escaping it.
		bad("data_dir", "the database file %q contains one of ? # %%, which is not allowed in its path", c.File)
	}

	// The frontend has no authentication: every client that reaches it can start and signal every
	// workflow.
	if ip, err := netip.ParseAddr(c.Host); err != nil || !ip.IsLoopback() {
		bad("temporal.host", "%q must be a loopback address; the embedded Temporal server and its UI have no login and listen on "+
			"loopback only. Use 127.0.0.1, or an external Temporal (temporal.address) with TLS", c.Host)
	}

	if c.Identity != "" {
		if !filepath.IsAbs(c.Identity) {
			bad("data_dir", "the certificate %q is not an absolute path", c.Identity)
		}
		if c.Ports.UI != 0 {
			bad("temporal.mutual_tls", "with mutual TLS, the UI's port must be 0: the port has no login and would show everything to every "+
				"process of this host")
		}
	}

	if c.Namespace == "" {
		bad("temporal.namespace", "is empty")
	}

	return errors.Join(errs...)
}

// Server is a running embedded server.
type Server struct {
	Frontend    string `json:"frontend"`     // host:port for clients
	UI          string `json:"ui,omitempty"` // host:port of the web UI without a login; "" = none
	Namespace   string `json:"namespace"`
	Identity    string `json:"identity,omitempty"` // see Config.Identity
	ClusterID   string `json:"clusterID"`          // assigned when the database is created
	ClusterName string `json:"clusterName"`
	PID         int    `json:"pid"`
}

// Failure says to an operator why the child gave up.
type Failure struct {
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
	Key     string `json:"key,omitempty"`     // configuration key to change
	Address string `json:"address,omitempty"` // the occupied address
	Holder  string `json:"holder,omitempty"`  // process that occupies the address or the file, if known
}

// Error returns the message and the remedy.
func (f *Failure) Error() string {
	if f.Remedy == "" {
		return f.Message
	}

	return f.Message + ": " + f.Remedy
}

// Report is one line that the child writes on [ReadyFD]. Exactly one field is set. The child first writes any number of Busy, then one
// Ready or Failure, and after Ready one Backup for each order.
type Report struct {
	Busy    *Busy       `json:"busy,omitempty"`
	Ready   *Server     `json:"ready,omitempty"`
	Failure *Failure    `json:"failure,omitempty"`
	Backup  *BackupDone `json:"backup,omitempty"`
}

// Busy reports the start or the end of work that the child does before it is ready. How long this work takes depends on the size of the
// database.
type Busy struct {
	With string `json:"with,omitempty"` // description of the work; "" = the work is done, and the server is starting
}

// Order is a line that a ready child reads on its stdin.
type Order struct {
	Backup *BackupOrder `json:"backup,omitempty"`
}

// BackupOrder orders a copy of the database. Only the child can make it: a second SQLite driver in the same process would
// drop the locks of the first.
type BackupOrder struct {
	File string `json:"file"` // absolute path of a file that does not exist
	ID   string `json:"id"`   // id of the backup; it is written into the copy
}

// BackupDone is the result of a [BackupOrder].
type BackupDone struct {
	ID    string `json:"id"`
	Error string `json:"error,omitempty"` // "" = the copy is complete and matches the database
}

// WriteReport writes r as one line.
func WriteReport(w io.Writer, r Report) error {
	if err := json.NewEncoder(w).Encode(r); err != nil {
		return fmt.Errorf("reporting to the parent: %w", err)
	}
	return nil
}

// errNoReport means that the child ended, and so closed its report pipe, before it wrote a report.
var errNoReport = errors.New("the child ended without a report")

// readReport calls busy for each Busy report, and returns the server or the failure of the first other report.
func readReport(r *json.Decoder, busy func(Busy)) (Server, error) {
	for {
		var report Report
		err := r.Decode(&report)
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return Server{}, errNoReport
		case err != nil:
			return Server{}, fmt.Errorf("reading the child's report: %w", err)
		case report.Busy != nil && report.Ready == nil && report.Failure == nil:
			busy(*report.Busy)
		case (report.Ready == nil) == (report.Failure == nil):
			return Server{}, errors.New("reading the child's report: the report must be either ready or a failure")
		case report.Failure != nil:
			return Server{}, report.Failure
		default:
			return *report.Ready, nil
		}
	}
}
