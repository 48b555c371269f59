package endpoint

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Presence finds out whether somebody has an address.
type Presence struct{}

// arpTable is where Linux tells whom it has resolved.
const arpTable = "/proc/net/arp"

// knock is how long a connection may take on the way to a neighbour.
const knock = 1500 * time.Millisecond

// Answers tells whether somebody answers at an address, with the MAC of who
// does where it lies on a network of this host. To knock makes the kernel ask
// by ARP, which no packet filter of the other side keeps from answering; a
// connection that is refused proves as much as one that is accepted.
func (Presence) Answers(ctx context.Context, a netip.Addr) (found bool, mac string, err error) {
	ctx, cancel := context.WithTimeout(ctx, knock)
	defer cancel()
	var heard sync.WaitGroup
	answered := make(chan struct{}, 4)
	for _, port := range []uint16{22, 443, 80, 50000} {
		heard.Go(func() {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(a, port).String())
			if err == nil {
				_ = c.Close() // it has said what it was asked
			}
			if err == nil || errors.Is(err, syscall.ECONNREFUSED) {
				answered <- struct{}{}
			}
		})
	}
	heard.Wait()
	found = len(answered) > 0
	if mac, err = neighbour(a); err != nil {
		return found, "", err
	}
	return found || mac != "", mac, nil
}

// neighbour returns the MAC that this host has resolved for a, "" if none.
func neighbour(a netip.Addr) (string, error) {
	f, err := os.Open(arpTable)
	if err != nil {
		return "", fmt.Errorf("reading who is on the network: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	s := bufio.NewScanner(f)
	for s.Scan() {
		// address, hardware type, flags, MAC, mask, device; flag 2: resolved.
		col := strings.Fields(s.Text())
		if len(col) >= 6 && col[0] == a.String() && col[2] != "0x0" && col[3] != "00:00:00:00:00:00" {
			return col[3], nil
		}
	}
	return "", s.Err()
}
