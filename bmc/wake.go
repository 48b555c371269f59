package bmc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	// wakes is how many packets are sent, with the pause wakePause between them. A switch may lose the first packet,
	// while it changes the link speed of a sleeping card.
	wakes     = 3
	wakePause = 200 * time.Millisecond
)

// magic returns the packet that wakes the network card with the MAC address mac: six bytes FF, and then sixteen times
// the address.
func magic(mac string) ([]byte, error) {
	hw, err := net.ParseMAC(mac)
	if err != nil || len(hw) != 6 {
		return nil, fmt.Errorf("invalid MAC address %q; must be six bytes: %w", mac, inventory.ErrInvalid)
	}
	return append(bytes.Repeat([]byte{0xff}, 6), bytes.Repeat(hw, 16)...), nil
}

// wake sends magic packets to the machine. It cannot check whether they have woken the machine, because magic packets
// are not answered.
func (d *Driver) wake(ctx context.Context, b inventory.BMC, power string, fence func(context.Context) error) (err error) {
	defer d.observe(ctx, b, "power "+power, &err)()
	if power != "on" {
		return fmt.Errorf("power %s: %w", power, check(b))
	}

	packet, err := magic(b.MAC)
	if err != nil {
		return fmt.Errorf("waking: %w", err)
	}

	to := b.Broadcast
	if b.Host != "" {
		if to, err = netip.ParseAddr(b.Host); err == nil {
			err = d.checkAddr(to)
		}
		if err != nil {
			return fmt.Errorf("waking %s: %w", b.MAC, err)
		}
	}
	if !to.Is4() {
		return fmt.Errorf("waking %s: invalid IPv4 address %s: %w", b.MAC, to, inventory.ErrInvalid)
	}

	t, err := d.lockTarget(ctx, "wol/"+b.MAC)
	if err != nil {
		return fmt.Errorf("waking %s: %w", b.MAC, err)
	}
	defer func() { <-t.token }()
	if fence != nil {
		if err := fence(ctx); err != nil {
			return fenceError{err}
		}
	}

	// If the destination is 255.255.255.255, the source address also determines the interface.
	var dialer net.Dialer
	if d.cfg.WakeFrom.IsValid() {
		dialer.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(d.cfg.WakeFrom, 0))
	}

	c, err := dialer.DialContext(ctx, "udp4", net.JoinHostPort(to.String(), strconv.Itoa(b.ListenPort())))
	if err != nil {
		return fmt.Errorf("waking %s: %w: %w", b.MAC, inventory.ErrUnreachable, err)
	}

	for n := range wakes {
		if n > 0 {
			if err = d.cfg.sleep(ctx, wakePause); err != nil {
				break
			}
		}
		if _, err = c.Write(packet); err != nil {
			err = fmt.Errorf("%w: %w", inventory.ErrUnreachable, err)
			break
		}
	}
	if err = errors.Join(err, c.Close()); err != nil {
		return fmt.Errorf("waking %s: %w", b.MAC, err)
	}

	d.cfg.Log.Debug("magic packets sent", "mac", b.MAC, "to", to)
	return nil
}
