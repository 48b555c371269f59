package neighbours

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
	"github.com/insomniacslk/dhcp/iana"

	"github.com/ingotmetal/ingot/bootsvc/wire"
)

// ForeignServer is a DHCP server that answered a probe.
type ForeignServer struct {
	Server  netip.Addr // option 54, or siaddr
	Offered netip.Addr // invalid = the server is a proxy, which offers no address
	Proxy   bool
	BootOffer
	// ByClient holds the server's answers, by the name of the probeClient; nil means that it did not answer. A kind of
	// client as which the probe did not ask has no entry.
	ByClient map[string]*BootOffer
}

// BootOffer is the boot information of an answer.
type BootOffer struct {
	BootFile string     // shortened, printable ASCII
	Next     netip.Addr // siaddr: the TFTP server with BootFile
	Class    string     // option 60; shortened, printable ASCII
}

// probeWait is how long a probe waits for answers after each of its two DISCOVERs. dnsmasq pings the address first,
// and therefore answers the first DISCOVER only after 3 seconds.
const probeWait = 2 * time.Second

// ProbeDHCP sends DISCOVERs with a random MAC on the interface and returns each server that answers within 4 seconds.
// It takes no lease. It finds an Ingot server only if that server has discovery on, because otherwise Ingot does not
// answer unknown MACs. It needs CAP_NET_RAW.
func ProbeDHCP(ctx context.Context, iface string) ([]ForeignServer, error) {
	return probeAs(ctx, iface, probeClients[:1])
}

// ProbeSnippet does what ProbeDHCP does, and then asks the found servers as each other kind of client for which
// Snippet has a boot file. This takes up to 4 seconds per kind.
func ProbeSnippet(ctx context.Context, iface string) ([]ForeignServer, error) {
	return probeAs(ctx, iface, probeClients)
}

// probeAs sends DISCOVERs as each kind of client in clients. It returns the servers that answer the first kind, with
// their answers to every kind.
func probeAs(ctx context.Context, iface string, clients []probeClient) ([]ForeignServer, error) {
	conn, err := nclient4.NewRawUDPConn(iface, dhcpv4.ClientPort)
	if err != nil {
		return nil, fmt.Errorf("probing for DHCP servers on %q: %w", iface, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	found, err := askAs(ctx, conn, clients)
	if err != nil {
		return found, fmt.Errorf("probing for DHCP servers on %q: %w", iface, err)
	}
	return found, nil
}

// askAs does what probeAs does, on an open socket. With an error, it also returns the servers found so far.
func askAs(ctx context.Context, conn net.PacketConn, clients []probeClient) (found []ForeignServer, err error) {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac) // crypto/rand.Read never fails
	mac[0] = mac[0]&^1 | 2

	for n, c := range clients { // one after another: while a server works on one DISCOVER of a client, it may drop the next one
		p, err := c.newDiscover(mac)
		if err != nil {
			return found, fmt.Errorf("building a DISCOVER: %w", err)
		}
		answers, err := askServers(ctx, conn, p, found)
		if n == 0 {
			found = slices.Clone(answers)
		}
		for i := range found {
			found[i].note(c, answers, err == nil)
		}
		if err != nil || len(found) == 0 {
			return found, err
		}
	}
	return found, nil
}

// note stores the answer of f to the client c, if answers contains one. Otherwise, if complete is true, note stores
// that f did not answer c.
func (f *ForeignServer) note(c probeClient, answers []ForeignServer, complete bool) {
	at := f.indexIn(answers)
	if at < 0 && !complete {
		return
	}
	if f.ByClient == nil {
		f.ByClient = map[string]*BootOffer{}
	}
	f.ByClient[c.name] = nil
	if at >= 0 {
		f.ByClient[c.name] = &answers[at].BootOffer
	}
}

// indexIn returns the index of f in servers, or -1.
func (f *ForeignServer) indexIn(servers []ForeignServer) int {
	return slices.IndexFunc(servers, func(x ForeignServer) bool { return x.Server == f.Server })
}

// askServers broadcasts p twice and returns the servers that answer. If known is not empty, it returns as soon as
// every known server has answered.
func askServers(ctx context.Context, conn net.PacketConn, p *dhcpv4.DHCPv4, known []ForeignServer) (found []ForeignServer, err error) {
	isMissing := func(x ForeignServer) bool { return x.indexIn(found) < 0 }
	buf := make([]byte, wire.MaxDatagram)
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
			if f, ok := parseOffer(buf[:n], p.TransactionID); ok && isMissing(f) {
				found = append(found, f)
			}
			if len(known) > 0 && !slices.ContainsFunc(known, isMissing) {
				return found, nil
			}
		}
	}
	return found, nil
}

// parseOffer parses an OFFER with the transaction ID id. It returns false for any other packet.
func parseOffer(b []byte, id dhcpv4.TransactionID) (ForeignServer, bool) {
	p, err := dhcpv4.FromBytes(b)
	if err != nil || p.OpCode != dhcpv4.OpcodeBootReply || p.TransactionID != id || p.MessageType() != dhcpv4.MessageTypeOffer {
		return ForeignServer{}, false
	}
	f := ForeignServer{
		Server: wire.Addr4(p.Options.Get(dhcpv4.OptionServerIdentifier)), Offered: wire.Addr4(p.YourIPAddr),
		BootOffer: BootOffer{wire.ShortText(p.BootFileName), wire.Addr4(p.ServerIPAddr), wire.ShortText(p.ClassIdentifier())},
	}
	if !f.Server.IsValid() {
		f.Server = wire.Addr4(p.ServerIPAddr)
	}
	overload := p.Options.Get(dhcpv4.OptionOptionOverload)
	if f.BootFile == "" || len(overload) == 1 && overload[0]&1 != 0 { // the field file contains options (RFC 2132 §9.3)
		f.BootFile = wire.ShortText(p.BootFileNameOption())
	}
	f.Proxy = !f.Offered.IsValid()
	return f, f.Server.IsValid()
}

// A probeClient is a kind of client that a probe imitates, and for which Snippet has a boot file.
type probeClient struct {
	name  string
	kind  wire.Class
	class string // option 60
	arch  int
}

// probeClients begins with UEFI PXE: a proxy answers only clients of PXE class, and every snippet has a file for UEFI
// PXE.
var probeClients = []probeClient{
	{"UEFI PXE", wire.ClassPXE, "PXEClient:Arch:00007:UNDI:003016", wire.ArchUEFIEBC},
	{"UEFI PXE as architecture 9", wire.ClassPXE, "PXEClient:Arch:00009:UNDI:003016", wire.ArchUEFI},
	{"BIOS PXE", wire.ClassPXE, "PXEClient:Arch:00000:UNDI:002001", wire.ArchBIOS},
	{"UEFI HTTP", wire.ClassHTTP, "HTTPClient:Arch:00016:UNDI:003001", wire.ArchHTTP},
	{"iPXE", wire.ClassIPXE, "PXEClient:Arch:00007:UNDI:003010", wire.ArchUEFIEBC},
}

// newDiscover returns a DISCOVER that this kind of client would send from mac.
func (c probeClient) newDiscover(mac net.HardwareAddr) (*dhcpv4.DHCPv4, error) {
	p, err := dhcpv4.NewDiscovery(mac, dhcpv4.WithBroadcast(true),
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier(c.class)),
		dhcpv4.WithOption(dhcpv4.OptClientArch(iana.Arch(c.arch))),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionClassIdentifier,
			dhcpv4.OptionTFTPServerName, dhcpv4.OptionBootfileName))
	if err == nil && c.kind == wire.ClassIPXE {
		p.UpdateOption(dhcpv4.OptUserClass("iPXE"))
		p.UpdateOption(dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(wire.IPXEOptions), []byte{wire.NoProxyDHCP, 1, 1}))
	}
	return p, err
}
