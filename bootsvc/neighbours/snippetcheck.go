package neighbours

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ingotmetal/ingot/bootsvc/wire"
)

// SnippetDifferences compares the server's answers to ProbeSnippet with the answers that Snippet would configure. It
// accepts any of ports for HTTP, and any of files; the usual port and files come first. It returns one text for each
// kind of client that gets something else; it skips kinds as which the probe did not ask. uefi reports whether UEFI
// PXE gets something else.
func (f ForeignServer) SnippetDifferences(address netip.Addr, ports []int, files []BootFiles) (texts []string, uefi bool) {
	for n, c := range probeClients {
		a, asked := f.ByClient[c.name]
		want := c.wanted(address, ports, files)
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

// wanted returns all results of bootSource that are accepted for this kind of client: with any of the ports, and with
// any of files.
func (c probeClient) wanted(address netip.Addr, ports []int, files []BootFiles) (out []string) {
	for _, f := range files {
		switch {
		case c.kind == wire.ClassIPXE:
			out = append(out, c.wantedURLs(address, ports, f.Script)...)
		case c.kind == wire.ClassHTTP:
			out = append(out, c.wantedURLs(address, ports, f.HTTP)...)
		case c.arch == wire.ArchBIOS:
			out = append(out, BootOffer{BootFile: f.BIOS, Next: address}.bootSource(c))
		default:
			out = append(out, BootOffer{BootFile: f.UEFI, Next: address}.bootSource(c))
		}
	}
	return out
}

// wantedURLs returns the accepted results of bootSource for a file that is fetched by HTTP from this path.
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

// bootSource returns, as text, the parts of an answer that a client uses: the file and, for TFTP, its server. Firmware
// that boots by HTTP ignores an answer without the class HTTPClient.
func (o BootOffer) bootSource(c probeClient) string {
	text := strconv.Quote(o.BootFile)
	switch {
	case c.kind == wire.ClassPXE && !o.Next.IsValid():
		text += " without a next server"
	case c.kind == wire.ClassPXE:
		text += " of " + o.Next.String()
	case c.kind == wire.ClassHTTP && !strings.HasPrefix(o.Class, "HTTPClient"):
		text += " without option 60 (HTTPClient)"
	}
	return text
}
