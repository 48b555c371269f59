package config

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// A listener is a TCP port, or a range of ports, that the server binds; key is the
// configuration key that sets it.
type listener struct {
	key, host   string
	first, last int
}

// tcpListeners returns the listeners of this server. The order matters: if two collide,
// checkPorts reports the later one.
func (c *Config) tcpListeners() []listener {
	var out []listener
	add := func(key, host string, port, count int) {
		out = append(out, listener{key, host, port, port + count - 1})
	}

	addList := func(key, host string, ports []int) {
		for i, n := range ports {
			add(fmt.Sprintf("%s[%d]", key, i), host, n, 1)
		}
	}

	if c.Temporal.Address == "" {
		const loopback = "127.0.0.1"
		add("temporal.port", loopback, c.Temporal.Port, 4)
		add("temporal.ui_port", loopback, c.Temporal.UIPort, 1)
	}
	// Leave out the default address of temporal.ui_listen: if its port is in use, the server only lacks Temporal's UI.
	if host, text, err := net.SplitHostPort(c.Temporal.UIListen); err == nil {
		if port, err := strconv.Atoi(text); err == nil {
			add("temporal.ui_listen", host, port, 1)
		}
	}
	if host, text, err := net.SplitHostPort(c.Listen); err == nil {
		if port, err := strconv.Atoi(text); err == nil {
			add("listen", host, port, 1)
		}
	}

	if n := c.Netboot; n.On() {
		host := n.Address
		switch {
		case n.Listen != "":
			host = n.Listen
		case host == "":
			host = "the first interface's"
		}
		add("netboot.agent", host, n.Agent, 1)
		addList("netboot.http", host, n.HTTP)
		addList("netboot.metadata", host, n.Metadata)
	}

	return out
}

// collides reports whether a and b would bind the same port.
func (a listener) collides(b listener) bool {
	wild := func(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }
	local := func(host string) string { return strings.Replace(host, "localhost", "127.0.0.1", 1) }
	return a.first <= b.last && b.first <= a.last &&
		(wild(a.host) || wild(b.host) || local(a.host) == local(b.host))
}
