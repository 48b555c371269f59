package bootsvc

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/net/ipv4"

	"github.com/ingotmetal/ingot/inventory"
)

func TestDHCPCountsWhatTheKernelDrops(t *testing.T) {
	lc := net.ListenConfig{Control: dhcpSocket("")}
	pc, err := lc.ListenPacket(t.Context(), "udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &dhcpConn{conn: pc.(*net.UDPConn), p4: ipv4.NewPacketConn(pc), raw: -1}
	defer c.Close()
	if err := c.conn.SetReadBuffer(1); err != nil { // the kernel's smallest
		t.Fatal(err)
	}
	self := c.conn.LocalAddr().(*net.UDPAddr).AddrPort()
	batch := newPacketBatch()
	batch.in = batch.in[:1]
	send := func() {
		t.Helper()
		if _, err := c.conn.WriteToUDPAddrPort(make([]byte, 300), self); err != nil {
			t.Fatal(err)
		}
	}
	var dropped atomic.Int64
	read := func() {
		t.Helper()
		packets, err := c.read(batch, &dropped)
		if err != nil || len(packets) != 1 || packets[0].N != 300 || packets[0].Addr.String() != self.String() {
			t.Fatalf("%+v, %v", packets, err)
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

// heldMachines keeps each lookup by MAC until its context ends.
type heldMachines struct {
	Machines
	asked chan string
}

func (h heldMachines) MachineByMAC(ctx context.Context, mac string) (inventory.Machine, inventory.Grant, error) {
	h.asked <- mac
	<-ctx.Done()
	return inventory.Machine{}, inventory.Grant{}, ctx.Err()
}

// A lookup that takes long does not keep the packets that follow waiting.
func TestSlowLookupHoldsUpNoOther(t *testing.T) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	known := &fakeMachines{}
	s, _ := newServer(t, known, nil)
	held := heldMachines{known, make(chan string)}
	s.machines = held
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.serveDHCP(ctx, &dhcpConn{conn: conn, p4: ipv4.NewPacketConn(conn), raw: -1}) }()
	for n := range dhcpWorkers {
		mac := net.HardwareAddr{2, 0, 0, 0, 0, byte(n)}
		b := packet(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithHwAddr(mac)).ToBytes()
		if _, err := conn.WriteToUDPAddrPort(b, conn.LocalAddr().(*net.UDPAddr).AddrPort()); err != nil {
			t.Fatal(err)
		}
		if got := <-held.asked; got != mac.String() {
			t.Errorf("%s was looked up, not %s", got, mac)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
