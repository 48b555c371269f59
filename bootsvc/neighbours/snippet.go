package neighbours

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/ingotmetal/ingot/inventory"
)

// BootFiles are the boot files that another DHCP server should name to machines.
type BootFiles struct {
	BIOS, UEFI   string // by TFTP
	HTTP, Script string // paths on the HTTP server: for UEFI HTTP boot, and for iPXE
	Secure       bool   // whether UEFI gets a loader for Secure Boot
}

// Snippet returns the configuration with which another DHCP server sends machines to this Ingot server. It is for
// networks on which Ingot's own DHCP is in mode off. server is one of SnippetServers; otherwise Snippet returns
// inventory.ErrInvalid. address is Ingot's TFTP server, and base is the URL of Ingot's HTTP server.
//
// The file names are the same for every machine at all times: Ingot refuses the files to a machine that is not armed.
func Snippet(server string, address netip.Addr, base string, files BootFiles) (string, error) {
	text, ok := snippets[server]
	if !ok {
		return "", inventory.Invalid("server", "write one of "+strings.Join(SnippetServers(), ", "), "unknown DHCP server %q", server)
	}
	if u, err := url.Parse(base); err != nil || u.Scheme != "http" || !hostForm.MatchString(u.Host) || u.Path != "" || !address.Is4() {
		return "", fmt.Errorf("writing a DHCP snippet for address %s and URL %q: %w", address, base, inventory.ErrInvalid)
	}
	note := oneIPXE
	if files.Secure {
		note = oneShim
	}

	var b strings.Builder
	err := template.Must(template.New(server).Parse(text)).Execute(&b, map[string]string{
		"Address": address.String(), "Script": base + files.Script, "HTTP": base + files.HTTP,
		"BIOS": files.BIOS, "UEFI": files.UEFI, "OneLoader": note, "KeaUEFI": keaUEFI,
	})
	return b.String(), err
}

var hostForm = regexp.MustCompile(`^[A-Za-z0-9.-]+(:[0-9]{1,5})?$`)

// keaUEFI is Kea's expression that tests whether UEFI x64 is among the first two values of option 93.
const keaUEFI = "substring(option[93].hex,0,2) == 0x0007 or substring(option[93].hex,0,2) == 0x0009 or " +
	"substring(option[93].hex,2,2) == 0x0007 or substring(option[93].hex,2,2) == 0x0009"

// SnippetServers returns the kinds of DHCP server for which there is a snippet, sorted.
func SnippetServers() []string { return slices.Sorted(maps.Keys(snippets)) }

// Notes for servers that name the same file to every client.
const (
	oneIPXE = `# This server names one file to every client: UEFI machines only, with iPXE 2.0 or later in Ingot's
# loader directory, which finds its script without DHCP.
`
	oneShim = `# This server names one file to every client: UEFI machines only.
`
)

var snippets = map[string]string{
	"isc": `# ISC DHCP: the top level of dhcpd.conf.
option ingot-architecture code 93 = unsigned integer 16;
next-server {{.Address}};
if exists user-class and option user-class = "iPXE" {
  filename "{{.Script}}";
} elsif substring(option vendor-class-identifier, 0, 10) = "HTTPClient" {
  option vendor-class-identifier "HTTPClient";
  filename "{{.HTTP}}";
} elsif substring(option ingot-architecture, 0, 2) = 00:07 or substring(option ingot-architecture, 0, 2) = 00:09
     or substring(option ingot-architecture, 2, 2) = 00:07 or substring(option ingot-architecture, 2, 2) = 00:09 {
  filename "{{.UEFI}}";
} elsif substring(option vendor-class-identifier, 0, 9) = "PXEClient" {
  filename "{{.BIOS}}";
}
`,
	"kea": `// Kea: members of "Dhcp4".
"client-classes": [
  {
    "name": "ingot-ipxe",
    "test": "option[77].hex == 'iPXE'",
    "boot-file-name": "{{.Script}}"
  },
  {
    "name": "ingot-http",
    "test": "not member('ingot-ipxe') and substring(option[60].hex,0,10) == 'HTTPClient'",
    "option-data": [{"name": "vendor-class-identifier", "data": "HTTPClient", "always-send": true}],
    "boot-file-name": "{{.HTTP}}"
  },
  {
    "name": "ingot-uefi",
    "test": "not member('ingot-ipxe') and ({{.KeaUEFI}})",
    "next-server": "{{.Address}}",
    "boot-file-name": "{{.UEFI}}"
  },
  {
    "name": "ingot-bios",
    "test": "not member('ingot-ipxe') and option[93].hex == 0x0000",
    "next-server": "{{.Address}}",
    "boot-file-name": "{{.BIOS}}"
  }
]
`,
	"dnsmasq": `# dnsmasq: dnsmasq.conf, or a file in dnsmasq.d.
dhcp-match=set:ipxe,175
dhcp-match=set:bios,option:client-arch,0
dhcp-match=set:uefi,option:client-arch,7
dhcp-match=set:uefi,option:client-arch,9
dhcp-vendorclass=set:http,HTTPClient
dhcp-option-force=tag:http,tag:!ipxe,60,HTTPClient
dhcp-boot=tag:ipxe,{{.Script}}
dhcp-boot=tag:http,tag:!ipxe,{{.HTTP}}
dhcp-boot=tag:uefi,tag:!ipxe,tag:!http,{{.UEFI}},,{{.Address}}
dhcp-boot=tag:bios,tag:!ipxe,tag:!http,{{.BIOS}},,{{.Address}}
`,
	"vyos": `# VyOS: configuration mode; replace NETWORK and SUBNET.
{{.OneLoader}}set service dhcp-server shared-network-name NETWORK subnet SUBNET option bootfile-server {{.Address}}
set service dhcp-server shared-network-name NETWORK subnet SUBNET option bootfile-name {{.UEFI}}
`,
	"mikrotik": `# MikroTik RouterOS; replace SUBNET.
{{.OneLoader}}/ip dhcp-server network set [find address=SUBNET] next-server={{.Address}} boot-file-name={{.UEFI}}
`,
	"unifi": `# UniFi Network: Settings, Networks, the network, DHCP Service Management, Network Boot.
{{.OneLoader}}Server    {{.Address}}
Filename  {{.UEFI}}
`,
}
