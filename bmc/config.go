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
	// ipmitoolTime limits one run of ipmitool. ipmitool tries each of the five steps
	// of opening a session, and the command, twice for up to 5 s.
	ipmitoolTime = 30 * time.Second
	// redfishRequestTime limits one request: controllers of some servers take seconds for each.
	redfishRequestTime = 30 * time.Second
	// redfishBusyTime is how long a command waits in all for a service that is busy.
	redfishBusyTime = 30 * time.Second
	// redfishLogoutTime limits a request for the deletion of a session, which happens even if the operation was canceled.
	redfishLogoutTime = 15 * time.Second
	// perMinute is the default limit of sessions with one BMC: the burst, and the
	// rate per minute. A power cycle with its reads takes about thirty.
	perMinute = 120
)

// Config is the configuration of a Driver. A zero field means its default.
type Config struct {
	Log *slog.Logger
	// Ipmitool is the path of ipmitool; "" = found in PATH.
	Ipmitool string
	// Home is the HOME directory of ipmitool, created as needed. It makes ipmitool
	// start six times as fast. "" = none.
	Home string
	// Step is the pause between two reads while waiting for a power state (3 s).
	// Hard is how long to wait (60 s), and Soft how long to wait after soft (180 s).
	Step, Hard, Soft time.Duration
	// Settle is how long a BMC must go on answering after its reset to count as
	// restarted (30 s). Back is how long it may be unreachable (5 min).
	Settle, Back time.Duration
	// Networks are the networks that BMCs may be in; nil = DefaultNetworks. No
	// address outside of them is dialed.
	Networks []netip.Prefix
	// Resolver looks up the names of BMCs; nil = the system's resolver.
	Resolver Resolver
	// Authorities are the certificate authorities that may sign the certificates of BMCs; nil =
	// the system's. Keys remembers the keys of certificates that they did not sign; nil = such
	// certificates are refused.
	Authorities *x509.CertPool
	Keys        KeyStore
	// Refusals remembers refused log-ins across restarts; nil = they are forgotten with the Driver. DigestKey is the
	// key of the digests of their credentials, 32 bytes; nil = a random one.
	Refusals  RefusalStore
	DigestKey []byte
	// PerMinute is the limit of sessions per minute with one BMC; 0 = 120.
	PerMinute int
	// Commands are the commands of driver exec, by name.
	Commands map[string]Command
	// LockFile is a file that this server's commands lock while they run, so that
	// the next server can wait for them to end; "" = none.
	LockFile string
	// WakeFrom is the source address of magic packets. If it is the zero address,
	// the routing table chooses one.
	WakeFrom netip.Addr
	// Observe is called after each operation with its context; nil = not.
	Observe func(context.Context, Operation)

	now   func() time.Time
	sleep func(context.Context, time.Duration) error
	// request limits one request of Redfish, logout the deletion of its session, and busy how long a command waits
	// for a busy service.
	request, logout, busy time.Duration
}

// RefusalStore remembers the log-ins that BMCs have refused, across restarts.
type RefusalStore interface {
	// BMCRefusals returns what is remembered for the BMC at address; zero if there is nothing.
	BMCRefusals(ctx context.Context, address string) (inventory.BMCRefusals, error)
	// PutBMCRefusals replaces it. A count of 0 removes it.
	PutBMCRefusals(ctx context.Context, address string, r inventory.BMCRefusals) error
}

// KeyStore remembers the TLS keys of BMCs.
type KeyStore interface {
	// KnownBMCKey returns the key that is known for the BMC at address (see
	// inventory.BMC.KeyAddress), or "authority" if an authority had signed its first certificate. If
	// nothing is known, it remembers fingerprint and returns it.
	KnownBMCKey(ctx context.Context, address, fingerprint string) (known string, err error)
	// HasBMCKey reports whether something is known for the BMC at address.
	HasBMCKey(ctx context.Context, address string) (bool, error)
}

// Resolver looks up the name of a BMC. *net.Resolver implements it.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Command switches a machine by the administrator's programs. Each of On, Off and
// Status is the absolute path of a program and its arguments; no shell is involved.
// In arguments, {machine} is replaced by the machine's name and {host} by the
// address of its BMC.
//
// The machine's password, if any, is one line on the program's standard input. Exit
// status 0 means success. The last line of Status's output is on or off. No log and
// no error contains a program's output.
type Command struct {
	On, Off, Status []string
	// Timeout limits each run of a program; 0 = 30 s.
	Timeout time.Duration
}

// Operation is an operation on a BMC that has ended. Driver, Name and Outcome have few values.
type Operation struct {
	Driver, Name, Outcome string
	// Machine is its name, and Address the host of its BMC; "" = not known.
	Machine, Address string
	Took             time.Duration // with the time in which another operation used the BMC
}
