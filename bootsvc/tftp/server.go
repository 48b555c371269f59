// Package tftp serves files by TFTP (RFC 1350, 2347, 2348, 2349, 7440) on one port. A Handler chooses the file for a
// client, and the rank of the request.
package tftp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
)

// A Request is a read request for a Handler.
type Request struct {
	Name  string
	From  netip.Addr
	Local netip.Addr // address of this host that the client asked
	// Send sends a file of size bytes, and returns nil when the client has acknowledged all of it.
	Send func(rank Rank, size int64, content io.Reader) error
}

// A Handler sends the file of a request, or returns an error. If there is no file to send, the error is ErrNoFile or
// ErrOptional.
type Handler func(context.Context, Request) error

// Server answers TFTP requests.
type Server struct {
	handle Handler
	limits Limits
	guard  *guard.Guard
	stats  counters
}

// Stats counts requests. It also counts the answers that were not sent: because too many waited for ARP (Unresolved),
// because too many went at once to clients that have not answered (Unproven), or because the socket had no room
// (Unsent).
type Stats struct {
	Served, Refused, Aborted     int64
	Unresolved, Unproven, Unsent int64
}

// NewServer returns a server that answers with the files of h.
func NewServer(h Handler, l Limits, g *guard.Guard) *Server {
	return &Server{handle: h, limits: l, guard: g}
}

// Stats returns the counts since the start of the server.
func (s *Server) Stats() Stats {
	c := &s.stats
	return Stats{
		Served: c.served.Load(), Refused: c.refused.Load(), Aborted: c.aborted.Load(),
		Unresolved: c.unresolved.Load(), Unproven: c.unproven.Load(), Unsent: c.unsent.Load(),
	}
}

// Listen binds a UDP address.
func Listen(ctx context.Context, addr string) (*Conn, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		controlErr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1) })
		return errors.Join(err, controlErr)
	}}
	pc, err := lc.ListenPacket(ctx, "udp4", addr)
	if err != nil {
		return nil, fmt.Errorf("binding UDP %s for TFTP: %w (%s)", addr, err, httpserve.BindRemedy(err, "TFTP address"))
	}
	s, err := newSocket(pc.(*net.UDPConn))
	if err != nil {
		return nil, fmt.Errorf("preparing the TFTP socket: %w", err)
	}
	return newConn(s), nil
}

// Serve serves until ctx ends, and closes c. All transfers use one port: with a new port for each transfer, every
// router between relay and server would need connection tracking.
//
// One goroutine receives packets and handles ACKs. Each transfer has a goroutine of its own, which looks up the
// machine, reads the file ahead and repeats lost blocks.
func (s *Server) Serve(ctx context.Context, c *Conn) error {
	c.guard, c.limits, c.stats = s.guard, s.limits, &s.stats
	defer c.Close() // deferred first, so it runs after all transfers have ended
	var transfers sync.WaitGroup
	defer transfers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer c.shut()
	defer context.AfterFunc(ctx, c.shut)()
	return c.receive(func(session *session) {
		transfers.Go(func() { s.transfer(ctx, c, session) })
	})
}

// transfer handles one read request, and counts its result.
func (s *Server) transfer(ctx context.Context, c *Conn, session *session) {
	err := errBrokeOff
	defer func() {
		if v := recover(); v != nil {
			s.guard.Caught("a TFTP transfer", v)
		}
		switch {
		case err == nil:
			s.stats.served.Add(1)
		case errors.Is(err, ErrOptional):
		case errors.Is(err, ErrNoFile), errors.Is(err, errBusy):
			s.stats.refused.Add(1)
		default:
			s.stats.aborted.Add(1)
		}
		c.finish(session, err)
	}()
	session.unresolved = c.limits.Unresolved(session.peer.Addr())
	err = s.handle(ctx, Request{
		Name: session.request.name, From: session.peer.Addr(), Local: session.local,
		Send: func(rank Rank, size int64, content io.Reader) error {
			return c.transfer(session, rank, size, content)
		},
	})
}
