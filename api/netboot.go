package api

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// WindowStore reads the grant of a machine, and opens and closes the netboot window in which an operator allows network
// boots.
type WindowStore interface {
	Grant(ctx context.Context, machine string) (inventory.Grant, error)
	ArmByHand(ctx context.Context, machine, by string, until time.Time) (inventory.Grant, error)
	DisarmByHand(ctx context.Context, machine, by string, force bool) error
}

// Netboot holds functions that read the state of the provisioning network. Each function may be nil.
type Netboot struct {
	// Network returns the current provisioning network, with which reservations of addresses are checked.
	Network func() inventory.Network
	// UnknownDropped returns how many packets from unknown MACs were not recorded since the server started, and are
	// therefore missing from GET /v1/seen.
	UnknownDropped func() int64
	// Why returns the boot decision for a MAC and the reasons for the decision.
	Why func(ctx context.Context, mac string) (any, error)
	// Leases returns the DHCP leases that machines have got since the server started.
	Leases func() []inventory.DHCPLease
	// Capture writes a machine's packets to w as a pcap file until ctx ends or the file has its full size.
	Capture func(ctx context.Context, w io.Writer, m inventory.Machine, all bool) error
}

func (n Netboot) network() inventory.Network {
	if n.Network == nil {
		return inventory.Network{}
	}
	return n.Network()
}

const (
	armedFor    = time.Hour
	maxArmedFor = 24 * time.Hour
)

type setNetboot struct {
	byName
	Arm   *bool  `json:"arm"`
	For   string `json:"for"`
	Force bool   `json:"force"`

	duration time.Duration
}

// Validate returns an error if Arm is missing. It also parses the field For.
func (q *setNetboot) Validate() (err error) {
	if q.Arm == nil {
		return inventory.Invalid("arm", "", "is missing")
	}
	q.duration, err = parseFor(q.For, armedFor, maxArmedFor)
	return err
}

func (m *machines) setNetboot(ctx context.Context, q setNetboot) (inventory.Netboot, error) {
	found, err := m.find(ctx, q.Name)
	if err != nil {
		return inventory.Netboot{}, err
	}
	return m.setWindow(ctx, found.Name, *q.Arm, q.duration, q.Force)
}

// setWindow opens the netboot window of a machine for the duration d, on the order of an operator, or closes it. force
// is used only for closing.
func (m *machines) setWindow(
	ctx context.Context, machine string, open bool, d time.Duration, force bool,
) (inventory.Netboot, error) {
	by := httpapi.Actor(ctx)
	var err error
	if open {
		// A server without its secret key must not boot a machine for an installation, because it could not decrypt the
		// secrets that the installation needs.
		if err := m.stores.Keys.KeyCheck(ctx); err != nil {
			return inventory.Netboot{}, fmt.Errorf("arming %q: %w", machine, err)
		}
		_, err = m.stores.Windows.ArmByHand(ctx, machine, by, m.now().Add(d))
	} else {
		err = m.stores.Windows.DisarmByHand(ctx, machine, by, force)
	}
	if err != nil {
		return inventory.Netboot{}, err
	}
	g, err := m.stores.Windows.Grant(ctx, machine)

	return g.View(m.now()), err
}

// why returns the boot decision for the netboot interface of a machine, and the reasons for the decision.
func (m *machines) why(ctx context.Context, q byName) (any, error) {
	found, err := m.find(ctx, q.Name)
	if err != nil {
		return nil, err
	}
	i, ok := found.Netboot()
	if !ok {
		return nil, inventory.Invalid("interfaces", "", "machine %q has no interface that may boot from the network", found.Name)
	}
	return m.decisionFor(ctx, i.MAC)
}

func (m *machines) listLeases(context.Context, httpapi.Empty) (httpapi.List[inventory.DHCPLease], error) {
	if m.netboot.Leases == nil {
		return httpapi.NewList[inventory.DHCPLease](nil), nil
	}
	return httpapi.NewList(m.netboot.Leases()), nil
}

type byMAC struct {
	MAC string `path:"mac" json:"-"`
}

func (m *machines) whyMAC(ctx context.Context, q byMAC) (any, error) {
	mac, err := inventory.ParseMAC(q.MAC)
	if err != nil {
		return nil, err
	}
	return m.decisionFor(ctx, mac)
}

func (m *machines) decisionFor(ctx context.Context, mac string) (any, error) {
	if m.netboot.Why == nil {
		return nil, fmt.Errorf("this server answers no machines, so it makes no boot decisions (run ingot init on its host): %w",
			inventory.ErrUnavailable)
	}
	return m.netboot.Why(ctx, mac)
}
