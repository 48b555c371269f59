package bootsvc

import (
	"net"
	"sync/atomic"
	"testing"
)

func TestDHCPCountsWhatTheKernelDrops(t *testing.T) {
	lc := net.ListenConfig{Control: dhcpSocket("")}
	pc, err := lc.ListenPacket(t.Context(), "udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &dhcpConn{conn: pc.(*net.UDPConn), raw: -1}
	defer c.Close()
	if err := c.conn.SetReadBuffer(1); err != nil { // the kernel's smallest
		t.Fatal(err)
	}
	self := c.conn.LocalAddr().(*net.UDPAddr).AddrPort()
	send := func() {
		t.Helper()
		if _, err := c.conn.WriteToUDPAddrPort(make([]byte, 300), self); err != nil {
			t.Fatal(err)
		}
	}
	var dropped atomic.Int64
	read := func() {
		t.Helper()
		n, from, err := c.read(make([]byte, maxDatagram), &dropped)
		if n != 300 || from != self || err != nil {
			t.Fatalf("%d bytes of %s: %v", n, from, err)
		}
	}
	const sent = 100
	for range sent {
		send()
	}
	read()
	if dropped.Load() != 0 {
		t.Errorf("%d packets were dropped before the first one", dropped.Load())
	}
	for dropped.Load() == 0 { // the next packet that the kernel accepts tells of those before it
		send()
		read()
	}
	if total := dropped.Load(); total < sent/2 || total >= sent {
		t.Errorf("%d of %d packets were dropped", total, sent)
	}
}
