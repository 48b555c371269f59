// Package hostnet reads the network of this host: its interfaces, its routes, and the sockets that a server with a given
// configuration listens on.
package hostnet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/ingotmetal/ingot/internal/config"
)

// An Interface is a network interface of this host; loopback is excluded.
type Interface struct {
	Name      string
	MAC       string
	Up        bool
	Addresses []string // IPv4, with prefix length
}

// State returns "up" or "down".
func (i Interface) State() string {
	if i.Up {
		return "up"
	}
	return "down"
}

// Interfaces returns the interfaces of this host except loopback, or none if they cannot be read.
func Interfaces() []Interface {
	all, err := net.Interfaces()
	if err != nil {
		return nil
	}

	var out []Interface
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // it was removed since
		}
		x := Interface{Name: i.Name, MAC: i.HardwareAddr.String(), Up: i.Flags&net.FlagUp != 0}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
				x.Addresses = append(x.Addresses, n.String())
			}
		}
		out = append(out, x)
	}

	return out
}

// sysClassNet is the directory in which the kernel lists network interfaces.
const sysClassNet = "/sys/class/net"

// Controller returns the bridge or bond that contains the named interface, or "". Packets arrive at the bridge or
// bond, not at its members.
func Controller(name string) string { return controllerIn(sysClassNet, name) }

func controllerIn(sys, name string) string {
	for _, member := range []string{"brport", "bonding_slave"} {
		if _, err := os.Stat(filepath.Join(sys, name, member)); err != nil {
			continue
		}
		if to, err := os.Readlink(filepath.Join(sys, name, "master")); err == nil {
			return filepath.Base(to)
		}
	}
	return ""
}

// Addresses returns the addresses of this host except loopback, or none if they cannot be read.
func Addresses() (out []netip.Addr) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}

	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLoopback() {
			out = append(out, p.Addr())
		}
	}

	return out
}

// ProvisioningAddress returns the server's address on the machines' network: the configured one, or the first IPv4
// address of the first interface.
func ProvisioningAddress(n config.Netboot) (netip.Addr, error) {
	if n.Address != "" {
		return netip.ParseAddr(n.Address)
	}

	name := n.Interfaces[0]
	i, err := net.InterfaceByName(name)
	var addrs []net.Addr
	if err == nil {
		addrs, err = i.Addrs()
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("netboot.interfaces[0] %q: %w", name, err)
	}

	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
			return p.Addr(), nil
		}
	}

	return netip.Addr{}, fmt.Errorf(
		"netboot.interfaces[0] %q has no IPv4 address: assign one, or set netboot.address", name)
}

// LocalURL returns the URL at which operators on this host reach the server.
func LocalURL(c config.Config) string {
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return "http://" + c.Listen
	}
	if a, err := netip.ParseAddr(host); host == "" || err == nil && a.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http://"
	if OperatorsUseTLS(c) {
		scheme = "https://"
	}
	return scheme + net.JoinHostPort(host, port)
}

// OperatorsUseTLS reports whether the listeners for operators have TLS.
func OperatorsUseTLS(c config.Config) bool { return c.TLSCert != "" || !config.Loopback(c.Listen) }

// ServerAnswers reports whether a server accepts connections at the configured operator address.
func ServerAnswers(ctx context.Context, c config.Config) bool {
	u, err := url.Parse(LocalURL(c))
	if err != nil {
		return false
	}

	conn, err := (&net.Dialer{Timeout: 3 * time.Second}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return false
	}
	_ = conn.Close() // nothing was sent
	return true
}
