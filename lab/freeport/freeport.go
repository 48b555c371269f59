// Package freeport finds unused TCP ports for tests.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports from first to last are below the range from which the kernel chooses the ports of clients (ip_local_port_range,
// ip(7)): no outgoing connection takes such a port between Find and its use.
const first, last = 10000, 30000

// Find returns the first of n consecutive TCP ports of 127.0.0.1 that are not in use.
func Find(n int) (int, error) {
	var err error
	for range 100 {
		port := first + rand.IntN(last-first-n) //nolint:gosec // no secret
		if err = free(port, n); err == nil {
			return port, nil
		}
	}
	return 0, err
}

// free returns nil if the n ports that begin with port are not in use.
func free(port, n int) (err error) {
	for i := range n {
		l, e := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port+i)))
		if e != nil {
			return e
		}
		defer func() { err = errors.Join(err, l.Close()) }()
	}
	return nil
}
