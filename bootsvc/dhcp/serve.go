package dhcp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/net/ipv4"
	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	workers    = 8
	slowBatch  = 5 * time.Millisecond // if one batch takes longer, another worker reads the next batch
	lookupTime = 2 * time.Second      // for the look-ups of a batch; a client asks again after 1 to 4 s
)

// Listen binds the UDP ports that the mode of each interface needs. With RelayAt, it binds only port 67 of that
// address.
func (s *Server) Listen(ctx context.Context) (out []*Conn, err error) {
	if s.cfg.RelayAt.IsValid() {
		c, err := listenRelayed(ctx, s.cfg.RelayAt)
		return []*Conn{c}, err
	}
	for _, name := range slices.Sorted(maps.Keys(s.cfg.Modes)) {
		mode := s.cfg.Modes[name]
		var ports []int
		switch mode {
		case inventory.DHCPReservation:
			ports = []int{dhcpv4.ServerPort}
		case inventory.DHCPProxy:
			ports = []int{dhcpv4.ServerPort, wire.ProxyPort}
		}
		for _, port := range ports {
			c, err := Listen(ctx, name, port, s.cfg.Address)
			if err != nil {
				for _, c := range out {
					_ = c.Close() // ignore this error: err says why Listen fails
				}
				return nil, err
			}
			c.mode = mode
			out = append(out, c)
		}
	}
	return out, nil
}

// Serve answers packets until ctx ends, and then closes c. Only the worker that holds c.turn reads packets. The same
// worker also answers them, because to wake another worker for each packet takes more time. If a batch takes longer
// than slowBatch, because the inventory is slow, the worker sends the replies that are ready, and another worker reads
// the next batch.
func (s *Server) Serve(ctx context.Context, c *Conn) error {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetReadDeadline(past) })
	defer stop()
	var g errgroup.Group
	for range workers {
		g.Go(func() error { return s.serveTurns(ctx, c) })
	}
	return g.Wait()
}

// serveTurns takes c.turn, and then reads and answers packets. It returns nil when ctx ends.
func (s *Server) serveTurns(ctx context.Context, c *Conn) error {
	batch := newPacketBatch()
	c.turn.Lock()
	defer c.turn.Unlock()
	for {
		packets, err := c.read(batch, &s.Counters.Dropped)
		asked := errors.Is(err, os.ErrDeadlineExceeded)
		if asked {
			c.confirm(ctx)
		}
		if ctx.Err() != nil {
			return nil
		}
		if asked {
			continue
		}
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("reading DHCP on %s: %w", c.name, err)
			}
			// The interface is down. It may come up again, so go on.
			s.cfg.Log.Warn("reading DHCP", "interface", c.name, "error", err)
			_ = clock.Sleep(ctx, time.Second)
			continue
		}
		s.Counters.Received.Add(int64(len(packets)))
		slow := time.AfterFunc(slowBatch, func() {
			batch.delay()
			s.sendReady(c, batch)
			c.turn.Unlock()
		})
		s.handleBatch(ctx, c, batch, packets)
		if !slow.Stop() {
			c.turn.Lock() // the timer has unlocked it
		}
		batch.late = false
	}
}

// handleBatch answers the packets of one read. These packets share one deadline for the inventory, lookupTime after the
// start; after slowBatch, the remaining packets get a new deadline.
func (s *Server) handleBatch(ctx context.Context, c *Conn, batch *packetBatch, packets []ipv4.Message) {
	in := c.link()
	lookup, cancel := context.WithTimeout(ctx, lookupTime)
	began := time.Now()
	for _, p := range packets {
		if time.Since(began) > slowBatch {
			cancel()
			lookup, cancel = context.WithTimeout(ctx, lookupTime)
			began = time.Now()
		}
		in.From = p.Addr.(*net.UDPAddr).AddrPort()
		r := s.Handle(lookup, p.Buffers[0][:p.N], in)
		if r.Route != RouteNone && s.maySend(c, r) && batch.add(r) {
			s.sendReady(c, batch)
		}
	}
	cancel()
	s.sendReady(c, batch)
}

// sendReady sends the replies that are ready. If the socket's buffer is full, it does not wait: a reply that cannot be
// sent at once is lost.
func (s *Server) sendReady(c *Conn, b *packetBatch) {
	defer s.cfg.Guard.Recover("a DHCP reply")
	b.mu.Lock()
	defer b.mu.Unlock()
	replies := b.ready
	b.ready = b.ready[:0]
	c.write(b.out, replies, func(r Reply, err error) {
		s.Counters.Unsent.Add(1)
		s.cfg.Log.Error("sending a DHCP reply", "interface", c.name, "route", r.Route.String(), "to", r.To.String(), "error", err)
	})
}

// maySend reports whether the limits permit the reply r. If they do not, it counts r. A raw or broadcast reply is
// always permitted, because it needs no ARP.
func (s *Server) maySend(c *Conn, r Reply) bool {
	if r.Route == RouteRaw || r.Route == RouteBroadcast || s.cfg.Limits.Admit(r.To, r.own) {
		return true
	}
	s.Counters.Unresolved.Add(1)
	s.cfg.Log.Warn("DHCP reply not sent: too many replies wait for addresses that do not answer ARP; the request may be forged",
		"interface", c.name, "route", r.Route.String(), "to", r.To.String())
	return false
}

// Handle parses the packet b and returns the reply. It does not keep b. It counts and drops malformed packets. If the
// library panics on a packet, which any host on the network may have sent, Handle recovers and drops only this packet.
func (s *Server) Handle(ctx context.Context, b []byte, in Link) (r Reply) {
	defer func() {
		if v := recover(); v != nil {
			s.Counters.Malformed.Add(1)
			s.cfg.Guard.Caught("a DHCP packet", v)
			r = Reply{}
		}
	}()
	p, err := dhcpv4.FromBytes(b)
	if err != nil {
		s.Counters.Malformed.Add(1)
		return Reply{}
	}
	r = s.answer(ctx, p, in)
	if mac, ok := wire.HostMAC(p.ClientHWAddr); ok && p.OpCode == dhcpv4.OpcodeBootRequest {
		s.cfg.History.Add(mac, wire.Entry{At: s.cfg.Now(), Where: in.Name, Relay: wire.Addr4(p.GatewayIPAddr), Packet: b, Answer: r.summary()})
	}
	return r
}
