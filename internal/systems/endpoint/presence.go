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

const (
	// arpTable is the kernel's table of addresses that were resolved by ARP.
	arpTable = "/proc/net/arp"
	// connectTimeout is long enough for a connection within a data centre.
	connectTimeout = 1500 * time.Millisecond
)

// connectPorts are the ports that an installed system or a firmware may serve: SSH, HTTPS, HTTP, Talos.
var connectPorts = []uint16{22, 443, 80, 50000}

// Presence finds out whether an address is in use.
type Presence struct{}

// Answers reports whether a host answers at an address, and its MAC if the address is on a network of this host. It tries a TCP connection,
// before which the kernel asks for the MAC by ARP: a packet filter on the other host cannot suppress the ARP answer. A host that refuses
// the connection is found, too.
func (Presence) Answers(ctx context.Context, a netip.Addr) (found bool, mac string, err error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()

	var connecting sync.WaitGroup
	answered := make(chan struct{}, len(connectPorts))
	for _, port := range connectPorts {
		connecting.Go(func() {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(a, port).String())
			if err == nil {
				_ = c.Close() // nothing was sent
			}
			if err == nil || errors.Is(err, syscall.ECONNREFUSED) {
				answered <- struct{}{}
			}
		})
	}
	connecting.Wait()

	found = len(answered) > 0
	if mac, err = resolvedMAC(a); err != nil {
		return found, "", err
	}
	return found || mac != "", mac, nil
}

// resolvedMAC returns the MAC in this host's ARP table for a, or "" if there is none.
func resolvedMAC(a netip.Addr) (string, error) {
	f, err := os.Open(arpTable)
	if err != nil {
		return "", fmt.Errorf("reading the ARP table: %w", err)
	}
	defer func() { _ = f.Close() }() // only read

	s := bufio.NewScanner(f)
	for s.Scan() {
		// The columns are address, hardware type, flags, MAC, mask and device. Flag 2 means that the address was resolved.
		col := strings.Fields(s.Text())
		if len(col) >= 6 && col[0] == a.String() && col[2] != "0x0" && col[3] != "00:00:00:00:00:00" {
			return col[3], nil
		}
	}
	return "", s.Err()
}
