package bootsvc

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
)

// ForeignServer is a DHCP server that answered a probe.
type ForeignServer struct {
	Server   netip.Addr // option 54, or the packet's siaddr
	Offered  netip.Addr // invalid = a proxy, which offers no address
	BootFile string     // shortened, printable ASCII
	Next     netip.Addr // siaddr: where BootFile is
	Class    string     // option 60, as BootFile
	Proxy    bool
	// ByClient are its answers by the name of the client that asked (ProbeSnippet).
	ByClient map[string]ForeignServer
}

// probeWait is how long a probe waits for answers after each of two DISCOVERs. dnsmasq answers the first one after 3
// seconds, in which it pings the address.
const probeWait = 2 * time.Second

// ProbeDHCP sends DISCOVERs with a random MAC on the interface and returns the
// servers that answer, each once, within 4 seconds. It takes no lease. It does not
// find Ingot, which does not answer unknown MACs, except where discovery is on. It needs CAP_NET_RAW.
func ProbeDHCP(ctx context.Context, iface string) ([]ForeignServer, error) {
	return probeAs(ctx, iface, snippetClients[:1])
}

// ProbeSnippet is ProbeDHCP, and asks the servers that it finds as each other client of Snippet, too. A
// server that does not answer a client takes 4 seconds more.
func ProbeSnippet(ctx context.Context, iface string) ([]ForeignServer, error) {
	return probeAs(ctx, iface, snippetClients)
}

// probeAs returns the servers that answer the first of clients, with their answers to all.
func probeAs(ctx context.Context, iface string, clients []snippetClient) (found []ForeignServer, err error) {
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

	for n, c := range clients { // one after another: a server may drop a client's second DISCOVER while it works on the first
		p, err := c.discover(mac)
		if err != nil {
			return found, fmt.Errorf("building a DISCOVER: %w", err)
		}
		answers, err := askServers(ctx, conn, p, len(found))
		if n == 0 {
			found = answers
		}
		for i := range found {
			if at := slices.IndexFunc(answers, func(a ForeignServer) bool { return a.Server == found[i].Server }); at >= 0 {
				if found[i].ByClient == nil {
					found[i].ByClient = map[string]ForeignServer{}
				}
				found[i].ByClient[c.name] = answers[at]
			}
		}
		if err != nil {
			return found, fmt.Errorf("probing for DHCP servers on %q: %w", iface, err)
		}
		if len(found) == 0 {
			break
		}
	}
	return found, nil
}

// askServers broadcasts p twice and returns the servers that answer. It does not wait for more than enough
// servers; 0 = for all.
func askServers(ctx context.Context, conn net.PacketConn, p *dhcpv4.DHCPv4, enough int) (found []ForeignServer, err error) {
	buf := make([]byte, maxDatagram)
	for range 2 {
		if _, err := conn.WriteTo(p.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ServerPort}); err != nil {
			return found, err
		}
		if err := conn.SetReadDeadline(time.Now().Add(probeWait)); err != nil {
			return found, err
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
				return found, err
			}
			f, ok := offer(buf[:n], p.TransactionID)
			if ok && !slices.ContainsFunc(found, func(x ForeignServer) bool { return x.Server == f.Server }) {
				found = append(found, f)
			}
			if len(found) == enough && enough > 0 {
				return found, nil
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
		BootFile: clean(p.BootFileName), Next: addr4(p.ServerIPAddr), Class: clean(p.ClassIdentifier()),
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
