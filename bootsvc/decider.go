package bootsvc

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// lookupTime limits one inventory look-up for a UDP packet.
const lookupTime = 2 * time.Second

// awaitedLookup limits one inventory look-up for a TCP connection.
const awaitedLookup = 200 * time.Millisecond

// decider decides what to answer a client, from the client's machine and grant in the inventory.
type decider struct {
	cfg       *Config
	machines  Machines
	network   *network
	discovery *discovery
}

// lookup finds in the inventory the machine that has sent r, and decides the answer. If the inventory cannot be read,
// it returns an error and the verdict Unknown.
func (c *decider) lookup(ctx context.Context, r Request) (inventory.Machine, inventory.Grant, Decision, error) {
	m, g, err := c.findMachine(ctx, r)
	if err != nil {
		return m, g, c.decide(m, g, r), err
	}
	return m, g, c.decideAny(m, g, r), nil
}

// findMachine finds in the inventory the machine that has sent r. If the machine is unknown, it returns zero values
// without an error.
func (c *decider) findMachine(ctx context.Context, r Request) (m inventory.Machine, g inventory.Grant, err error) {
	if r.MAC != "" {
		m, g, err = c.machines.MachineByMAC(ctx, r.MAC)
	} else {
		m, g, err = c.machines.MachineByAddress(ctx, r.Address)
	}
	switch {
	case errors.Is(err, inventory.ErrNotFound):
		return inventory.Machine{}, inventory.Grant{}, nil
	case err != nil:
		return inventory.Machine{}, inventory.Grant{}, err
	}
	return m, g, nil
}

// machineAt returns the name of the machine whose reserved address is source. It returns "" if there is no such
// machine, or if the inventory cannot be read.
func (c *decider) machineAt(ctx context.Context, source netip.Addr) string {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	_, _, d, err := c.lookup(ctx, c.network.identify(Request{Address: source, Class: wire.ClassNone, Arch: wire.ArchUnknown}))
	if err != nil {
		return ""
	}
	return d.Machine
}

// decideAny does the same as decide. In addition, it decides for unknown machines in discovery.
func (c *decider) decideAny(m inventory.Machine, g inventory.Grant, r Request) Decision {
	d := c.decide(m, g, r)
	if d.Verdict == Unknown {
		d = c.discovery.decideGuest(r, d)
	}
	return d
}

// decide calls Decide with the configured loader. If the server has no claim key, no machine is armed, because anyone
// could forge the claims.
func (c *decider) decide(m inventory.Machine, g inventory.Grant, r Request) Decision {
	keyless := len(c.cfg.ClaimKey) == 0
	if keyless {
		g.NetbootUntil = time.Time{}
	}
	r.Loader = c.cfg.Loader
	d := Decide(m, g, r, c.cfg.Now())
	if keyless && !d.Armed() {
		d.because("this server has no key of claims, so it arms no machine; run: ingot doctor")
	}
	return d
}

// find finds the machine that has sent req, and decides the answer. It returns a nil machine if the answer must be 404.
// If source is valid, find may first admit an unknown machine to discovery.
func (c *decider) find(ctx context.Context, req Request, source netip.Addr) (*inventory.Machine, Decision) {
	if req.MAC == "" && !req.Address.IsValid() {
		return nil, Decision{Verdict: Unknown}
	}
	m, _, d, err := c.lookup(ctx, req)
	if err == nil && d.Verdict == Unknown && c.discovery.admitVisitor(ctx, req.MAC, source) {
		m, _, d, err = c.lookup(ctx, req)
	}
	if err != nil {
		c.cfg.Log.Error("looking up a booting machine", "mac", req.MAC, "error", err)
	}
	if d.Verdict == Unknown {
		return nil, d
	}
	return &m, d
}

// isAwaited reports whether source is the reserved address of a machine that may now boot from the network or fetch
// secrets. Connections from such addresses have priority. isAwaited is called only while all connections are in use.
func (c *decider) isAwaited(ctx context.Context, source netip.Addr) bool {
	defer c.cfg.Guard.Recover("the source of a connection")
	ctx, cancel := context.WithTimeout(ctx, awaitedLookup)
	defer cancel()
	_, g, d, err := c.lookup(ctx, Request{Address: source, Class: wire.ClassIPXE, Arch: wire.ArchUnknown})
	return err == nil && (d.Armed() || d.Owner.Run != "" && c.cfg.Now().Before(g.SecretsUntil))
}

// beginTransfer records that a file is being sent to the machine of d. The caller must call end when the transfer has
// ended. If d is not armed, nothing is recorded.
func beginTransfer(history *wire.History, d Decision) (end func()) {
	if d.Interface.MAC == "" || !d.Armed() {
		return func() {}
	}
	return history.BeginTransfer(d.Interface.MAC)
}
