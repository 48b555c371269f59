package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Namespace names one of the lab's network namespaces.
type Namespace string

// The namespaces of a lab. Host is the namespace of the calling program.
const (
	Host   Namespace = ""
	Switch Namespace = "sw"  // bridges and taps, no address
	Server Namespace = "srv" // where Ingot runs
	Router Namespace = "rtr" // routes between the VLANs and relays DHCP
	BMCs   Namespace = "bmc" // the IPMI simulators
	Client Namespace = "cli" // a port on VLAN 20 without an address, for hand-made packets
)

// Addresses that every lab has, each in a separate namespace.
const (
	ServerAddress   = "10.10.20.2"      // eth0 of Server, VLAN 20
	ServerInterface = "eth0"            // the interface of ServerAddress
	ServerBMCAddr   = "10.10.10.2"      // eth10 of Server, VLAN 10: the source address for connections to the BMCs
	MetadataAddress = "169.254.169.254" // also on eth0 of Server; Router knows the way
	DirectGateway   = "10.10.20.1"      // Router on VLAN 20
	RelayedGateway  = "10.10.30.1"      // Router on VLAN 30, the giaddr of relayed requests
	DirectVLAN      = 20
	RelayedVLAN     = 30
	BMCVLAN         = 10
)

// stateRoot has one lock and one folder per lab name. Its path is short, because the paths of
// sockets in it are limited to 108 bytes.
const stateRoot = "/run/ingot-lab"

// maxLabs is how many labs one host can have at a time.
const maxLabs = 32

// Options of a lab. The zero value is usable.
type Options struct {
	// Dir is the folder for disks and logs. Close keeps it. Empty means a temporary folder, which
	// Close removes.
	Dir string
	// Logger receives log messages about the lab; nil discards them.
	Logger *slog.Logger
	// NoRelay disables the DHCP relay; StartRelay starts it later.
	NoRelay bool
	// Home adds a second location for Ingot: a home network with Seed and a home router, connected
	// through Router. The relay then sends requests from VLAN 20 to Seed; SetRelays changes that.
	Home bool
}

// Lab is a running virtual data centre. Its methods may be called from several goroutines.
type Lab struct {
	name    string
	dir     string
	ownDir  bool
	run     string // the lab's folder under stateRoot
	lock    *os.File
	log     *slog.Logger
	spawn   chan func()
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	chassis *http.Server
	faults  atomic.Int64 // faults made so far; see faultName
	trunks  sync.Mutex   // serializes changes of Open vSwitch; see Trunk

	mu       sync.Mutex
	watches  *watchGroup // of simulated machines' disks; nil before the first
	cmds     map[*Cmd]struct{}
	machines map[string]*Machine
	taken    int // machines made so far
	closers  []func() error
	relay    *Cmd
	// Of the relay: the servers that it sends to, and the flags of its interfaces.
	relays, relayFlags []string
	home               *homeDHCP // nil without Options.Home
	closed             bool
}

// New builds the network of a lab, after removing the remains of labs whose programs have died. It
// needs everything that Requirements checks, and returns its error if something is missing. ctx
// limits only the time to build the lab.
func New(ctx context.Context, opt Options) (*Lab, error) {
	if err := Requirements(); err != nil {
		return nil, err
	}
	log := opt.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	name, lock, err := takeName(ctx, log)
	if err != nil {
		return nil, err
	}
	l := &Lab{
		name: name, lock: lock, log: log.With("lab", name), run: filepath.Join(stateRoot, name), dir: opt.Dir,
		spawn: make(chan func()), cmds: map[*Cmd]struct{}{}, machines: map[string]*Machine{},
		relays: []string{ServerAddress}, relayFlags: []string{"-id", "eth30", "-iu", "eth20"},
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	go l.spawner()
	if err := l.build(ctx, opt); err != nil {
		return nil, errors.Join(fmt.Errorf("building lab %q: %w", name, err), l.Close())
	}
	return l, nil
}

// build creates folders, network, chassis socket and relay.
func (l *Lab) build(ctx context.Context, opt Options) error {
	if err := os.MkdirAll(l.run, 0o700); err != nil {
		return err
	}
	if l.dir == "" {
		dir, err := os.MkdirTemp("", "ingot-lab-")
		if err != nil {
			return err
		}
		l.dir, l.ownDir = dir, true
		if err := os.WriteFile(filepath.Join(l.run, "dir"), []byte(dir), 0o600); err != nil {
			return err
		}
	}
	dir, err := filepath.Abs(l.dir)
	if err != nil {
		return err
	}
	l.dir = dir
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return err
	}
	if err := l.buildNetwork(ctx); err != nil {
		return err
	}
	if opt.Home {
		if err := l.buildHome(ctx); err != nil {
			return err
		}
	}
	if err := l.serveChassis(); err != nil {
		return err
	}
	if opt.NoRelay {
		return nil
	}
	return l.StartRelay()
}

// Name returns the prefix of the lab's namespaces, at most eight characters.
func (l *Lab) Name() string { return l.name }

// Dir returns the folder of disks and logs.
func (l *Lab) Dir() string { return l.dir }

// NamespaceName returns the name of a namespace in `ip netns`.
func (l *Lab) NamespaceName(ns Namespace) string { return l.name + "-" + string(ns) }

// Close ends every process of the lab, removes its namespaces and its temporary folder, and
// releases its name. Later calls have no effect.
func (l *Lab) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	closers := l.closers
	cmds := make([]*Cmd, 0, len(l.cmds))
	for c := range l.cmds {
		cmds = append(cmds, c)
	}
	l.mu.Unlock()

	l.cancel()
	var errs []error
	for i := len(closers) - 1; i >= 0; i-- {
		errs = append(errs, closers[i]())
	}
	for _, c := range cmds {
		c.Kill()
	}
	for _, c := range cmds {
		<-c.Done()
	}
	close(l.spawn)
	errs = append(errs, removeRemains(l.name))
	if l.ownDir {
		errs = append(errs, os.RemoveAll(l.dir))
	}
	errs = append(errs, l.lock.Close()) // releases the lock
	return errors.Join(errs...)
}

// onClose registers f to be called by Close, last one first. It reports whether the lab is still
// open.
func (l *Lab) onClose(f func() error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.closers = append(l.closers, f)
	return true
}

// takeName locks a free name. It clears every name on the way that no living program has locked.
func takeName(ctx context.Context, log *slog.Logger) (string, *os.File, error) {
	if err := os.MkdirAll(stateRoot, 0o700); err != nil {
		return "", nil, fmt.Errorf("making the lab's state folder: %w", err)
	}
	var name string
	var lock *os.File
	for i := range maxLabs {
		if ctx.Err() != nil {
			break
		}
		n := "ilab" + strconv.Itoa(i)
		path := filepath.Join(stateRoot, n+".lock")
		if _, err := os.Stat(path); lock != nil && errors.Is(err, fs.ErrNotExist) {
			break // the lowest free names are used first, so there is nothing to clear after the first unused one
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return "", nil, fmt.Errorf("locking lab name %q: %w", n, err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			_ = f.Close() // in use by another lab
			continue
		}
		if err := removeRemains(n); err != nil {
			log.Warn("removing what a dead lab left", "lab", n, "error", err)
			_ = f.Close()
			continue
		}
		if lock != nil {
			_ = f.Close() // cleared; the name itself is not needed
			continue
		}
		name, lock = n, f
	}
	switch {
	case ctx.Err() != nil:
		if lock != nil {
			_ = lock.Close()
		}
		return "", nil, ctx.Err()
	case lock == nil:
		return "", nil, fmt.Errorf("taking a lab name: all %d are in use (see %s)", maxLabs, stateRoot)
	}
	return name, lock, nil
}

// removeRemains ends the processes of lab name and removes its namespaces and folders. The caller
// holds the lock of the name.
func removeRemains(name string) error {
	run := filepath.Join(stateRoot, name)
	killRecorded(filepath.Join(run, "pids"))
	errs := []error{unmountBelow(run), removeGroups(name)}             // see SmallDisk and Sever
	namespaces, _ := filepath.Glob(filepath.Join(netnsDir, name+"-*")) // the pattern is valid: name has letters and a number
	for _, ns := range namespaces {
		errs = append(errs, removeNamespace(filepath.Base(ns)))
	}
	if dir, err := os.ReadFile(filepath.Join(run, "dir")); err == nil && strings.Contains(string(dir), "ingot-lab-") {
		errs = append(errs, os.RemoveAll(string(dir)))
	}
	return errors.Join(append(errs, os.RemoveAll(run))...)
}

// poll calls ready every 20 ms until it returns true or an error, or ctx ends.
func poll(ctx context.Context, ready func() (bool, error)) error {
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for {
		if ok, err := ready(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}
