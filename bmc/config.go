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
	// ipmitoolTime limits one run of ipmitool. To open a session takes five steps. ipmitool tries each step, and then
	// the command, up to twice, and waits up to 5 s each time.
	ipmitoolTime = 30 * time.Second
	// redfishRequestTime limits one request: some BMCs take seconds for each.
	redfishRequestTime = 30 * time.Second
	// redfishBusyTime limits how long one command waits in total for a busy service.
	redfishBusyTime = 30 * time.Second
	// redfishLogoutTime limits how long the deletion of a session may take. A session is deleted even if the operation
	// was cancelled.
	redfishLogoutTime = 15 * time.Second
	// perMinute is the default for Config.PerMinute. The same number of sessions is permitted in one burst. A power
	// cycle with its reads takes about thirty sessions.
	perMinute = 120
)

// Config is the configuration of a Driver. New replaces most zero fields by the defaults given below.
type Config struct {
	Log *slog.Logger
	// Ipmitool is the path of ipmitool; "" = found in PATH.
	Ipmitool string
	// Home is the HOME directory of ipmitool; "" = none. New creates it, with a short list of vendors that lets
	// ipmitool start six times as fast.
	Home string
	// Step is the pause between two reads of the power state (default 3 s). Hard limits how long to wait for a new
	// power state (default 60 s). Soft limits the same wait after the command soft (default 180 s).
	Step, Hard, Soft time.Duration
	// Settle is for how long a BMC must answer after its reset until it counts as restarted (default 30 s). Back limits
	// for how long the BMC may be unreachable after its reset (default 5 min).
	Settle, Back time.Duration
	// Networks are the networks in which BMCs may be; nil = DefaultNetworks. The Driver connects to no address outside
	// these networks.
	Networks []netip.Prefix
	// Resolver looks up the names of BMCs; nil = the system's resolver.
	Resolver Resolver
	// Authorities are the certificate authorities that may sign certificates of BMCs; nil = those of the system. Keys
	// stores the keys of certificates that no authority has signed; nil = such certificates are refused.
	Authorities *x509.CertPool
	Keys        KeyStore
	// Refusals stores refused log-ins, so that a restarted server knows them; nil = they are kept only in memory.
	// DigestKey is the HMAC key, of 32 bytes, for the digests of refused credentials; nil = New creates a random key.
	Refusals  RefusalStore
	DigestKey []byte
	// PerMinute limits how many sessions per minute are opened with one BMC; 0 = 120.
	PerMinute int
	// Commands are the commands that a machine with driver exec can name.
	Commands map[string]Command
	// LockFile is a file that the programs of this server (such as ipmitool) keep locked while they run, so that the
	// next server can wait until they have ended; "" = none.
	LockFile string
	// WakeFrom is the source address of magic packets. If it is invalid, the routing table determines the source.
	WakeFrom netip.Addr
	// Observe is called after each operation, with the operation's context. It may be nil.
	Observe func(context.Context, Operation)

	now   func() time.Time
	sleep func(context.Context, time.Duration) error
	// request limits one Redfish request. logout limits the deletion of a session. busy limits how long one command
	// waits in total for a service that is busy.
	request, logout, busy time.Duration
}

// RefusalStore stores which log-ins BMCs have refused, so that a restarted server knows them.
type RefusalStore interface {
	// BMCRefusals returns the refusals of the BMC at address, or zero if none are stored.
	BMCRefusals(ctx context.Context, address string) (inventory.BMCRefusals, error)
	// PutBMCRefusals replaces the refusals of the BMC at address. If r.Count is 0, it removes them.
	PutBMCRefusals(ctx context.Context, address string, r inventory.BMCRefusals) error
}

// KeyStore stores the TLS keys of BMCs.
type KeyStore interface {
	// KnownBMCKey returns the stored key of the BMC at address (see inventory.BMC.KeyAddress), or "authority" if the
	// BMC's first certificate was signed by an authority. If neither is stored yet, it stores fingerprint and returns
	// it.
	KnownBMCKey(ctx context.Context, address, fingerprint string) (known string, err error)
	// HasBMCKey reports whether a key or "authority" is stored for the BMC at address.
	HasBMCKey(ctx context.Context, address string) (bool, error)
}

// Resolver looks up the name of a BMC. *net.Resolver implements it.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Command controls a machine with programs of the administrator. Each of On, Off and Status is the absolute path of a
// program, followed by its arguments. No shell runs them. In the arguments, {machine} is replaced by the machine's
// name, and {host} by the address of its BMC.
//
// The program gets the machine's password, if any, as one line on standard input. Exit status 0 means success. The last
// line that Status prints must be on or off. The output of a program appears in no log and no error.
type Command struct {
	On, Off, Status []string
	// Timeout limits one run of a program; 0 = 30 s.
	Timeout time.Duration
}

// Operation describes an operation on a BMC that has ended. Driver, Name and Outcome each have only a few possible
// values, so they can be metric labels.
type Operation struct {
	Driver, Name, Outcome string
	// Machine is the machine's name, and Address is the host of the machine's BMC; "" = not known.
	Machine, Address string
	Took             time.Duration // includes waiting for other operations on the BMC
}
