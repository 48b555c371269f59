package httpserve

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
)

// WithHost returns addr, with host added if addr contains only a port.
func WithHost(addr string, host netip.Addr) string {
	h, port, err := net.SplitHostPort(addr)
	if err != nil || h != "" || !host.IsValid() {
		return addr
	}
	return net.JoinHostPort(host.String(), port)
}

// BindRemedy returns a remedy for an error in binding a TCP or UDP socket. setting is the configuration field that
// holds the socket's address.
func BindRemedy(err error, setting string) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "another program uses the port: stop that program, or change the " + setting + " in the configuration"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return "ports below 1024 and raw sockets need root, " +
			"or the capabilities CAP_NET_BIND_SERVICE, CAP_NET_RAW and CAP_NET_ADMIN"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "the address is not on this host: correct it in the configuration"
	}
	return "check interface and address in the configuration"
}
