package bootsvc

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// A probeClient is a kind of client as which servers are asked, and to which Snippet names a boot file.
type probeClient struct {
	name  string
	kind  wire.Class
	class string // option 60
	arch  int
}

// probeClients has UEFI PXE first: a proxy answers no client without a PXE class, and every snippet serves it.
var probeClients = []probeClient{
	{"UEFI PXE", wire.ClassPXE, "PXEClient:Arch:00007:UNDI:003016", wire.ArchUEFIEBC},
	{"UEFI PXE as architecture 9", wire.ClassPXE, "PXEClient:Arch:00009:UNDI:003016", wire.ArchUEFI},
	{"BIOS PXE", wire.ClassPXE, "PXEClient:Arch:00000:UNDI:002001", wire.ArchBIOS},
	{"UEFI HTTP", wire.ClassHTTP, "HTTPClient:Arch:00016:UNDI:003001", wire.ArchHTTP},
	{"iPXE", wire.ClassIPXE, "PXEClient:Arch:00007:UNDI:003010", wire.ArchUEFIEBC},
}

// newDiscover returns a DISCOVER of the client.
func (c probeClient) newDiscover(mac net.HardwareAddr) (*dhcpv4.DHCPv4, error) {
	p, err := dhcpv4.NewDiscovery(mac, dhcpv4.WithBroadcast(true),
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier(c.class)),
		dhcpv4.WithOption(dhcpv4.OptClientArch(iana.Arch(c.arch))),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionClassIdentifier,
			dhcpv4.OptionTFTPServerName, dhcpv4.OptionBootfileName))
	if err == nil && c.kind == wire.ClassIPXE {
		p.UpdateOption(dhcpv4.OptUserClass("iPXE"))
		p.UpdateOption(dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(ipxeOptions), []byte{noProxyDHCP, 1, 1}))
	}
	return p, err
}

// SnippetDifferences compares the answers of a server (ProbeSnippet) with what Snippet names for an address, one of the
// HTTP ports and a loader; "" = any loader that Snippet knows. It returns one text for each client that was asked and gets
// something else; uefi reports whether UEFI PXE is such a client.
func (f ForeignServer) SnippetDifferences(address netip.Addr, ports []int, loader string) (texts []string, uefi bool) {
	loaders := []string{loader}
	if loader == "" {
		loaders = append(loaders, inventory.SecureLoaders()...)
	}
	for n, c := range probeClients {
		a, asked := f.ByClient[c.name]
		want := c.wanted(address, ports, loaders)
		if !asked || a != nil && slices.Contains(want, a.bootSource(c)) {
			continue
		}
		got := "no boot file"
		switch {
		case a == nil:
			got = "no answer"
		case a.BootFile != "":
			got = a.bootSource(c)
		}
		texts = append(texts, fmt.Sprintf("%s gets %s, not %s", c.name, got, want[0]))
		uefi = uefi || n == 0
	}
	return texts, uefi
}

// wanted returns the values of bootSource that are right for a client with one of the loaders.
func (c probeClient) wanted(address netip.Addr, ports []int, loaders []string) (out []string) {
	for _, loader := range loaders {
		pxe, http := snippetLoaders(loader)
		switch {
		case c.kind == wire.ClassIPXE:
			out = append(out, c.wantedURLs(address, ports, scriptPath)...)
		case c.kind == wire.ClassHTTP:
			out = append(out, c.wantedURLs(address, ports, loaderPath+http)...)
		case c.arch == wire.ArchBIOS:
			out = append(out, BootOffer{BootFile: loaderBIOS, Next: address}.bootSource(c))
		default:
			out = append(out, BootOffer{BootFile: pxe, Next: address}.bootSource(c))
		}
	}
	return out
}

// wantedURLs is wanted for a path by HTTP.
func (c probeClient) wantedURLs(address netip.Addr, ports []int, path string) (out []string) {
	for _, port := range ports {
		hosts := []string{net.JoinHostPort(address.String(), strconv.Itoa(port))}
		if port == 80 {
			hosts = append([]string{address.String()}, hosts...)
		}
		for _, host := range hosts {
			out = append(out, BootOffer{BootFile: "http://" + host + path, Class: "HTTPClient"}.bootSource(c))
		}
	}
	return out
}

// bootSource returns what a client takes of an answer: the file, and its server for TFTP. Firmware that boots by HTTP
// ignores an answer without its class.
func (o BootOffer) bootSource(c probeClient) string {
	text := strconv.Quote(o.BootFile)
	switch {
	case c.kind == wire.ClassPXE && !o.Next.IsValid():
		text += " without a next server"
	case c.kind == wire.ClassPXE:
		text += " of " + o.Next.String()
	case c.kind == wire.ClassHTTP && !strings.HasPrefix(o.Class, "HTTPClient"):
		text += " without option 60, HTTPClient"
	}
	return text
}
