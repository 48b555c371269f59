package bootsvc

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/insomniacslk/dhcp/iana"
)

// ForeignServer is a DHCP server that answered a probe.
type ForeignServer struct {
	Server   netip.Addr `json:"server"`            // option 54, or the packet's siaddr
	Offered  netip.Addr `json:"offered,omitzero"`  // invalid = a proxy, which offers no address
	BootFile string     `json:"bootFile,omitzero"` // shortened, printable ASCII
	Next     netip.Addr `json:"next,omitzero"`     // siaddr: where BootFile is
	Proxy    bool       `json:"proxy,omitempty"`
}

// probeWait is how long ProbeDHCP waits for answers after each of two DISCOVERs.
const probeWait = 1500 * time.Millisecond

// Ours reports whether the server sends UEFI machines to the Ingot server at an address, as
// Snippet says.
func (f ForeignServer) Ours(self netip.Addr) bool { return f.BootFile == loaderUEFI && f.Next == self }

// ProbeDHCP sends DISCOVERs with a random MAC on the interface and returns the
// servers that answer, each once, within 3 seconds. It takes no lease. It does not
// find Ingot, which does not answer unknown MACs, except where discovery is on. It needs CAP_NET_RAW.
func ProbeDHCP(ctx context.Context, iface string) ([]ForeignServer, error) {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac) // never fails (crypto/rand)
	mac[0] = mac[0]&^1 | 2
	conn, err := nclient4.NewRawUDPConn(iface, dhcpv4.ClientPort)
	if err != nil {
		return nil, fmt.Errorf("probing for DHCP servers on %q: %w", iface, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	p, err := dhcpv4.NewDiscovery(mac, dhcpv4.WithBroadcast(true),
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00007:UNDI:003016")), // proxies answer no other client
		dhcpv4.WithOption(dhcpv4.OptClientArch(iana.EFI_X86_64)),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionTFTPServerName, dhcpv4.OptionBootfileName))
	if err != nil {
		return nil, fmt.Errorf("building a DISCOVER: %w", err)
	}
	var found []ForeignServer
	seen := map[netip.Addr]bool{}
	buf := make([]byte, maxDatagram)
	for range 2 {
		if _, err := conn.WriteTo(p.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ServerPort}); err != nil {
			return found, fmt.Errorf("sending a DISCOVER on %q: %w", iface, err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(probeWait)); err != nil {
			return found, fmt.Errorf("probing for DHCP servers on %q: %w", iface, err)
		}
		for {
			n, _, err := conn.ReadFrom(buf)
			if ctx.Err() != nil {
				return found, ctx.Err()
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return found, fmt.Errorf("probing for DHCP servers on %q: %w", iface, err)
			}
			if f, ok := offer(buf[:n], p.TransactionID); ok && !seen[f.Server] {
				seen[f.Server] = true
				found = append(found, f)
			}
		}
	}
	return found, nil
}

// offer parses an OFFER for the DISCOVER with that id. It returns false for any other
// packet.
func offer(b []byte, id dhcpv4.TransactionID) (ForeignServer, bool) {
	p, err := dhcpv4.FromBytes(b)
	if err != nil || p.OpCode != dhcpv4.OpcodeBootReply || p.TransactionID != id || p.MessageType() != dhcpv4.MessageTypeOffer {
		return ForeignServer{}, false
	}
	f := ForeignServer{
		Server: addr4(p.Options.Get(dhcpv4.OptionServerIdentifier)), Offered: addr4(p.YourIPAddr),
		BootFile: clean(p.BootFileName), Next: addr4(p.ServerIPAddr),
	}
	if !f.Server.IsValid() {
		f.Server = addr4(p.ServerIPAddr)
	}
	if f.BootFile == "" {
		f.BootFile = clean(p.BootFileNameOption())
	}
	f.Proxy = !f.Offered.IsValid()
	return f, f.Server.IsValid()
}
