package hostnet

import (
	"net"

	"github.com/ingotmetal/ingot/internal/config"
)

// A Socket is an address that the server listens on, and the configuration key that sets it.
type Socket struct{ Network, Addr, Key string }

// Sockets returns the sockets of a server with this configuration. If the provisioning address cannot be determined, it
// returns the error and the sockets outside of the provisioning network.
func Sockets(c config.Config) ([]Socket, error) {
	out := []Socket{{"tcp", c.Listen, "listen"}}
	tcp := func(key, host string, ports ...int) {
		for _, p := range ports {
			out = append(out, Socket{"tcp", config.Join(host, p), key})
		}
	}

	if t := c.Temporal; t.Address == "" {
		tcp("temporal.port", "127.0.0.1", t.Port, t.Port+1, t.Port+2, t.Port+3)
		if !t.MutualTLS {
			tcp("temporal.ui_port", "127.0.0.1", t.UIPort)
		}
	}

	// The server works without the default port of the UI.
	if ui := c.TemporalUIListen(); ui != "" && c.Temporal.UIListen != "" {
		out = append(out, Socket{"tcp", ui, "temporal.ui_listen"})
	}

	n := c.Netboot
	if !n.On() {
		return out, nil
	}

	a, err := ProvisioningAddress(n)
	if err != nil {
		return out, err
	}

	at, dhcp := n.Bind(a), "0.0.0.0"
	if n.RelayOnly {
		dhcp = at
	}
	tcp("netboot.http", at, n.HTTP...)
	tcp("netboot.metadata", at, n.Metadata...)
	tcp("netboot.agent", at, n.Agent)
	out = append(out, Socket{"udp", config.Join(at, n.TFTP), "netboot.tftp"})
	if n.Answers() {
		out = append(out, Socket{"udp", config.Join(dhcp, 67), "DHCP"})
	}
	return out, nil
}

// Try binds the socket and closes it again; its error says why the socket cannot be bound.
func (s Socket) Try() error {
	if s.Network == "udp" {
		c, err := net.ListenPacket(s.Network, s.Addr)
		if err != nil {
			return err
		}
		return c.Close()
	}

	l, err := net.Listen(s.Network, s.Addr)
	if err != nil {
		return err
	}

	return l.Close()
}
