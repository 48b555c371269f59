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
)

// A probeClient is a kind of client as which servers are asked, and to which Snippet names a boot file.
type probeClient struct {
	name, class string // class: option 60
	arch        int
	files       []string // by TFTP: one of them
	path        string   // by HTTP
}

// probeClients has UEFI PXE first: a proxy answers no client without a PXE class, and every snippet serves it.
var probeClients = []probeClient{
	{name: "UEFI PXE", class: "PXEClient:Arch:00007:UNDI:003016", arch: ArchUEFIEBC, files: []string{loaderUEFI, loaderShim}},
	{name: "UEFI PXE as architecture 9", class: "PXEClient:Arch:00009:UNDI:003016", arch: ArchUEFI, files: []string{loaderUEFI, loaderShim}},
	{name: "BIOS PXE", class: "PXEClient:Arch:00000:UNDI:002001", arch: ArchBIOS, files: []string{loaderBIOS}},
	{name: "UEFI HTTP", class: "HTTPClient:Arch:00016:UNDI:003001", arch: ArchHTTP, path: loaderPath},
	{name: "iPXE", class: "PXEClient:Arch:00007:UNDI:003010", arch: ArchUEFIEBC, path: scriptPath},
}

// newDiscover returns a DISCOVER of the client.
func (c probeClient) newDiscover(mac net.HardwareAddr) (*dhcpv4.DHCPv4, error) {
	p, err := dhcpv4.NewDiscovery(mac, dhcpv4.WithBroadcast(true),
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier(c.class)),
		dhcpv4.WithOption(dhcpv4.OptClientArch(iana.Arch(c.arch))),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionClassIdentifier,
			dhcpv4.OptionTFTPServerName, dhcpv4.OptionBootfileName))
	if err == nil && c.path == scriptPath {
		p.UpdateOption(dhcpv4.OptUserClass("iPXE"))
		p.UpdateOption(dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(ipxeOptions), []byte{noProxyDHCP, 1, 1}))
	}
	return p, err
}

// SnippetDifferences compares the answers of a server (ProbeSnippet) with what Snippet names for an address and one
// of the HTTP ports. It returns one text for each client that was asked and gets something else; uefi reports whether UEFI
// PXE is such a client.
func (f ForeignServer) SnippetDifferences(address netip.Addr, ports []int) (texts []string, uefi bool) {
	for n, c := range probeClients {
		a, asked := f.ByClient[c.name]
		want := c.wanted(address, ports)
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

// wanted returns the values of bootSource that are right for a client.
func (c probeClient) wanted(address netip.Addr, ports []int) (out []string) {
	for _, file := range c.files {
		out = append(out, BootOffer{BootFile: file, Next: address}.bootSource(c))
	}
	if c.path == "" {
		return out
	}
	for _, port := range ports {
		hosts := []string{net.JoinHostPort(address.String(), strconv.Itoa(port))}
		if port == 80 {
			hosts = append([]string{address.String()}, hosts...)
		}
		for _, host := range hosts {
			out = append(out, BootOffer{BootFile: "http://" + host + c.path, Class: "HTTPClient"}.bootSource(c))
		}
	}
	return out
}

// bootSource returns what a client takes of an answer: the file, and its server for TFTP. Firmware that boots by HTTP
// ignores an answer without its class.
func (o BootOffer) bootSource(c probeClient) string {
	text := strconv.Quote(o.BootFile)
	switch {
	case c.path == "" && !o.Next.IsValid():
		text += " without a next server"
	case c.path == "":
		text += " of " + o.Next.String()
	case c.path == loaderPath && !strings.HasPrefix(o.Class, "HTTPClient"):
		text += " without option 60, HTTPClient"
	}
	return text
}
