package bmc

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net/netip"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	// ipmitoolTime limits one run of ipmitool. Opening a session has five steps; ipmitool tries each step, and the
	// command, twice for up to 5 s.
	ipmitoolTime = 30 * time.Second
	// redfishRequestTime limits one request: some BMCs take seconds for each.
	redfishRequestTime = 30 * time.Second
	// redfishBusyTime limits how long one command waits in total for a busy service.
	redfishBusyTime = 30 * time.Second
	// redfishLogoutTime limits the deletion of a session, which is also done after the operation was canceled.
	redfishLogoutTime = 15 * time.Second
	// perMinute is the default limit of sessions with one BMC per minute, and the size of a burst. A power cycle with its
	// reads takes about thirty.
	perMinute = 120
)

// Config is the configuration of a Driver. New replaces most zero fields by the defaults given below.
type Config struct {
	Log *slog.Logger
	// Ipmitool is the path of ipmitool; "" = found in PATH.
	Ipmitool string
	// Home is the HOME directory of ipmitool, created if needed. It contains a short list of vendors, with which ipmitool
	// starts six times as fast. "" = none.
	Home string
	// Step is the pause between two reads of the power state (default 3 s). Hard limits the wait for a new state (60 s),
	// and Soft the wait after soft (180 s).
	Step, Hard, Soft time.Duration
	// Settle is how long a BMC must keep answering after its reset to count as restarted (default 30 s). Back limits how
	// long it may be unreachable (5 min).
	Settle, Back time.Duration
	// Networks are the networks in which BMCs may be; nil = DefaultNetworks. The Driver dials no address outside them.
	Networks []netip.Prefix
	// Resolver looks up the names of BMCs; nil = the system's resolver.
	Resolver Resolver
	// Authorities are the certificate authorities for the certificates of BMCs; nil = the system's. Keys stores the keys
	// of certificates that no authority has signed; nil = such certificates are refused.
	Authorities *x509.CertPool
	Keys        KeyStore
	// Refusals stores refused log-ins across restarts; nil = they are kept only in memory. DigestKey is the HMAC key for
	// the digests of refused credentials, 32 bytes; nil = a random one.
	Refusals  RefusalStore
	DigestKey []byte
	// PerMinute limits the sessions with one BMC per minute; 0 = 120.
	PerMinute int
	// Commands are the commands of driver exec, by name.
	Commands map[string]Command
	// LockFile is a file that this server's programs keep locked while they run, so that the next server can wait for
	// their end; "" = none.
	LockFile string
	// WakeFrom is the source address of magic packets. If it is invalid, the routing table determines the source.
	WakeFrom netip.Addr
	// Observe is called after each operation, with the operation's context; nil = not called.
	Observe func(context.Context, Operation)

	now   func() time.Time
	sleep func(context.Context, time.Duration) error
	// request limits one Redfish request, logout the deletion of a session, and busy the total wait of a command for a
	// busy service.
	request, logout, busy time.Duration
}

// RefusalStore stores the log-ins that BMCs have refused, across restarts.
type RefusalStore interface {
	// BMCRefusals returns the refusals of the BMC at address, or zero if none are stored.
	BMCRefusals(ctx context.Context, address string) (inventory.BMCRefusals, error)
	// PutBMCRefusals replaces the refusals of the BMC at address. If r.Count is 0, it removes them.
	PutBMCRefusals(ctx context.Context, address string, r inventory.BMCRefusals) error
}

// KeyStore stores the TLS keys of BMCs.
type KeyStore interface {
	// KnownBMCKey returns the stored key of the BMC at address (see inventory.BMC.KeyAddress), or "authority" if an
	// authority had signed the BMC's first certificate. If nothing is stored, it stores fingerprint and returns it.
	KnownBMCKey(ctx context.Context, address, fingerprint string) (known string, err error)
	// HasBMCKey reports whether a key or "authority" is stored for the BMC at address.
	HasBMCKey(ctx context.Context, address string) (bool, error)
}

// Resolver looks up the name of a BMC. *net.Resolver implements it.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Command controls a machine with programs of the administrator. Each of On, Off and Status is the absolute path of a
// program, followed by its arguments; no shell is involved. In the arguments, {machine} is replaced by the machine's
// name, and {host} by the address of its BMC.
//
// The program gets the machine's password, if any, as one line on standard input. Exit status 0 means success. The
// last line that Status prints must be on or off. No log and no error contains output of a program.
type Command struct {
	On, Off, Status []string
	// Timeout limits one run of a program; 0 = 30 s.
	Timeout time.Duration
}

// Operation describes a completed operation on a BMC. Driver, Name and Outcome have few different values, so they can
// be metric labels.
type Operation struct {
	Driver, Name, Outcome string
	// Machine is the machine's name, and Address the host of its BMC; "" = not known.
	Machine, Address string
	Took             time.Duration // includes waiting for other operations on the BMC
}
