package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/doctor"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
)

// dhcpSetup is a DHCP mode of Ingot, with another DHCP server or none.
type dhcpSetup struct {
	name    string
	mode    inventory.DHCPMode
	program lab.DHCPProgram // "" = none
}

var dhcpSetups = []dhcpSetup{
	{"reservation", inventory.DHCPReservation, ""},
	{"proxy with dnsmasq", inventory.DHCPProxy, lab.Dnsmasq},
	{"proxy with Kea", inventory.DHCPProxy, lab.Kea},
	{"off with ISC dhcpd", inventory.DHCPOff, lab.ISC},
}

// dhcpSite starts a site in that mode, with the other server and the relay to those that answer. With
// secureBoot, the other server is configured for Secure Boot (docs/booting.md).
func dhcpSite(ctx context.Context, t *testing.T, setup dhcpSetup, secureBoot bool) *Site {
	t.Helper()
	s, err := NewSite(ctx, Options{
		Root: "..", Dir: keepDir(t),
		Netboot: fmt.Sprintf("  dhcp: {%s: %s}\n  relays: [%s, %s]", lab.ServerInterface, setup.mode, lab.DirectGateway, lab.RelayedGateway),
	})
	require.NoError(t, err)
	s.keep(t)
	require.NoError(t, setup.startOther(ctx, t, s, secureBoot))
	return s
}

// startOther starts the other server, if the mode has one, and lets the relay pass requests to those that answer.
func (setup dhcpSetup) startOther(ctx context.Context, t *testing.T, s *Site, secureBoot bool) error {
	t.Helper()
	if setup.program == "" {
		return nil
	}
	extra := ""
	if secureBoot { // GRUB reads its TFTP server from the answer that gives the address
		extra = map[lab.DHCPProgram]string{
			lab.Dnsmasq: "dhcp-boot=,," + lab.ServerAddress + "\n", lab.Kea: `"next-server": "` + lab.ServerAddress + `"`,
		}[setup.program]
	}
	relays := []string{lab.ServerAddress, lab.OtherDHCPAddress}
	if setup.mode == inventory.DHCPOff {
		extra = s.must(
			ctx,
			t,
			"dhcp",
			"snippet",
			string(setup.program),
			"--address",
			lab.ServerAddress,
			fmt.Sprintf("--secure-boot=%t", secureBoot),
		)
		relays = relays[1:]
	}
	return errors.Join(s.StartDHCP(ctx, setup.program, extra), s.SetRelays(relays...))
}

// loaderArgs are kernel parameters with characters that loaders and shells know. Each loader hands them on as they are.
var loaderArgs = []string{"acpi_osi=!", "memmap=12M$1G", "mitigations=auto;nosmt", "lab.a=*", "lab.b=(a)|[b]&~^?", "-lab", "lab.c=a||b&&c"}

// addTo adds a machine to a site in that mode. Its addresses are the other server's choice.
func (setup dhcpSetup) addTo(ctx context.Context, s *Site, spec lab.Spec) (*lab.Machine, error) {
	return s.Add(ctx, spec, func(doc map[string]any) {
		doc["kernelArgs"] = loaderArgs
		doc["image"], doc["diskSelector"] = "mini", map[string]any{"serial": "DISK-" + spec.Name}
		if spec.Firmware == lab.UEFISecure {
			doc["interfaces"].([]any)[0].(map[string]any)["loader"] = inventory.LoaderShim
		}
		if spec.Redfish != "" {
			doc["bmc"].(map[string]any)["bootPath"] = []string{"media"}
		}
		if setup.mode != inventory.DHCPReservation {
			dropAddress(doc)
		}
	})
}

// dropAddress removes the address from a machine's document: another server gives it.
func dropAddress(doc map[string]any) {
	nic := doc["interfaces"].([]any)[0].(map[string]any)
	for _, key := range []string{"address", "netmask", "gateway", "nameservers"} {
		delete(nic, key)
	}
}

// A dhcpCell is a firmware and its way to the server, or virtual media in place of the firmware's network boot.
type dhcpCell struct {
	firmware lab.Firmware
	vlan     int
}

// virtualMedia means a UEFI machine that a Redfish BMC boots from its virtual CD drive.
const virtualMedia lab.Firmware = "virtual media"

// spec returns the machine of a cell.
func (c dhcpCell) spec(name string) lab.Spec {
	if c.firmware == virtualMedia {
		return lab.Spec{Name: name, Firmware: lab.UEFI, VLAN: c.vlan, Controller: lab.ControllerRedfish, Redfish: lab.RedfishSupermicro}
	}
	return lab.Spec{Name: name, Firmware: c.firmware, VLAN: c.vlan}
}

func (c dhcpCell) String() string {
	way := "direct"
	if c.vlan == lab.RelayedVLAN {
		way = "relayed"
	}
	return string(c.firmware) + " " + way
}

// dhcpCells are the cells of a setup: all, or those that the short form runs.
func dhcpCells(setup dhcpSetup) (out []dhcpCell) {
	if !*full {
		return map[string][]dhcpCell{
			"reservation":        {{lab.UEFISecure, lab.DirectVLAN}},
			"proxy with dnsmasq": {{lab.UEFIHTTP, lab.DirectVLAN}},
			"off with ISC dhcpd": {{lab.BIOS, lab.RelayedVLAN}},
		}[setup.name]
	}
	for _, firmware := range []lab.Firmware{lab.BIOS, lab.UEFI, lab.UEFIHTTP, virtualMedia, lab.UEFISecure} {
		out = append(out, dhcpCell{firmware, lab.DirectVLAN}, dhcpCell{firmware, lab.RelayedVLAN})
	}
	return out
}

// TestDHCPModes installs a machine in each mode of DHCP: a cell for each firmware, each way to the
// server and each other server. The long form writes the table of docs/booting.md.
func TestDHCPModes(t *testing.T) {
	runInTurn(t, 150, 9)
	done := map[dhcpCell]map[string]string{}
	for _, setup := range dhcpSetups {
		for _, secureBoot := range []bool{false, true} { // the other server of mode off names one loader to all
			cells := slices.DeleteFunc(dhcpCells(setup), func(c dhcpCell) bool { return (c.firmware == lab.UEFISecure) != secureBoot })
			if len(cells) == 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s, Secure Boot %t", setup.name, secureBoot), func(t *testing.T) {
				ctx := needLab(t)
				s := dhcpSite(ctx, t, setup, secureBoot)
				s.must(ctx, t, "image", "add", "mini", mini(ctx, t).Zst)
				for n, cell := range cells {
					if done[cell] == nil {
						done[cell] = map[string]string{}
					}
					done[cell][setup.name] = "fails"
					t.Run(cell.String(), func(t *testing.T) {
						took := installCell(ctx, t, s, setup, cell.spec(fmt.Sprintf("cell-%d", n)))
						done[cell][setup.name] = fmt.Sprintf("%.0f s", took.Seconds())
					})
				}
			})
		}
	}
	if *full {
		writeDHCPTable(t, done)
	}
}

// installCell installs a machine, sees its system run, and returns how long that took.
func installCell(ctx context.Context, t *testing.T, s *Site, setup dhcpSetup, spec lab.Spec) time.Duration {
	t.Helper()
	begun := time.Now()
	m, err := setup.addTo(ctx, s, spec)
	require.NoError(t, err)
	s.must(ctx, t, "machine", "provision", spec.Name, "--wait")
	s.ended(ctx, t, spec.Name, inventory.StateSuccess)
	s.closed(ctx, t, spec.Name)
	_, err = m.WaitSerial(ctx, "LAB-MINI-BOOTED")
	require.NoError(t, err)
	took := time.Since(begun)

	console, err := m.Serial()
	require.NoError(t, err)
	require.Contains(t, console, " panic=30 "+strings.Join(loaderArgs, " "), "the agent's kernel prints its command line")
	if spec.Firmware == lab.UEFISecure {
		require.Contains(t, console, "secureboot: Secure boot enabled")
	}
	require.NoError(t, m.PowerOff(ctx))
	return took
}

// writeDHCPTable writes what cells reached into the table of docs/booting.md, between its markers. A cell that
// was not run (go test -run) keeps its text.
func writeDHCPTable(t *testing.T, done map[dhcpCell]map[string]string) {
	t.Helper()
	const page = "../docs/booting.md"
	head, table, tail := cutWritten(t, page, "TestDHCPModes")
	before := map[string][]string{}
	for line := range strings.Lines(table) {
		fields := strings.Split(line, "|")
		before[strings.TrimSpace(fields[min(1, len(fields)-1)])] = fields[min(2, len(fields)):]
	}

	var b strings.Builder
	b.WriteString("| firmware, way |")
	for _, setup := range dhcpSetups {
		b.WriteString(" " + setup.name + " |")
	}
	b.WriteString("\n|---" + strings.Repeat("|---", len(dhcpSetups)) + "|\n")
	for _, cell := range dhcpCells(dhcpSetups[0]) {
		b.WriteString("| " + cell.String() + " |")
		for n, setup := range dhcpSetups {
			text, old := done[cell][setup.name], before[cell.String()]
			if text == "" && n < len(old) {
				text = strings.TrimSpace(old[n])
			}
			b.WriteString(" " + cmp.Or(text, "not run") + " |")
		}
		b.WriteString("\n")
	}
	require.NoError(t, os.WriteFile(page, []byte(head+b.String()+tail), 0o644))
}

// TestOffBesideISC: another DHCP server always names the loader, and the machine boots from the
// network first. It is installed once, and then boots from its disk, also while Ingot is stopped and
// after a run that failed.
func TestOffBesideISC(t *testing.T) {
	runInTurn(t, 200, 9)
	setup := dhcpSetups[3]
	// Behind a relay, GRUB starts what is on the disk. In the server's own network shim is refused before that.
	for _, cell := range []dhcpCell{{lab.BIOS, lab.DirectVLAN}, {lab.UEFI, lab.DirectVLAN}, {lab.UEFISecure, lab.RelayedVLAN}} {
		t.Run(string(cell.firmware), func(t *testing.T) {
			ctx := needLab(t)
			s := dhcpSite(ctx, t, setup, cell.firmware == lab.UEFISecure)
			s.must(ctx, t, "image", "add", "mini", mini(ctx, t).Zst)
			spec := cell.spec("net")
			spec.Order = lab.NetworkFirst
			m, err := setup.addTo(ctx, s, spec)
			require.NoError(t, err)
			s.must(ctx, t, "machine", "provision", "net", "--wait")
			s.ended(ctx, t, "net", inventory.StateSuccess)
			// Three power-cycles, the second of them while Ingot is stopped.
			bootsItsDisk := func() {
				t.Helper()
				for n := range 3 {
					if n == 1 {
						s.Stop()
					}
					require.NoError(t, m.PowerCycle(ctx))
					_, err := m.WaitSerial(ctx, "LAB-MINI-BOOTED")
					require.NoError(t, err)
					if n == 1 {
						require.NoError(t, s.Start(ctx))
					}
				}
			}
			bootsItsDisk()

			// A run that fails: the file system of the partition is another one.
			s.template(ctx, t, "fails", `version: "0.1"
name: fails
tasks:
- name: install
  worker: "{{.device_1}}"
  actions:
  - name: write
    image: quay.io/tinkerbell/actions/writefile:v1.0.0
    timeout: 60
    environment: {DEST_DISK: /dev/vda1, FS_TYPE: btrfs, DEST_PATH: /file, CONTENTS: text, UID: "0", GID: "0", MODE: "0600", DIRMODE: "0700"}
`)
			out, err := s.CLI(ctx, "machine", "provision", "net", "--template", "fails", "--yes", "--wait")
			require.Error(t, err, out)
			s.ended(ctx, t, "net", inventory.StateFailed)
			s.closed(ctx, t, "net")
			bootsItsDisk()

			var list struct{ Items []inventory.Workflow }
			require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/workflows?machine=net", nil, &list))
			require.Len(t, list.Items, 2, "no machine reinstalls itself")
		})
	}
}

// TestSnippets: the DHCP servers of Debian accept what `ingot dhcp snippet` prints for them, and answer each client
// as `ingot doctor` expects.
func TestSnippets(t *testing.T) {
	runInTurn(t, 13, 9)
	ctx := needLab(t)
	for _, program := range []lab.DHCPProgram{lab.ISC, lab.Kea, lab.Dnsmasq} {
		t.Run(string(program), func(t *testing.T) {
			l, err := lab.New(ctx, lab.Options{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, l.Close()) })
			loader := map[lab.DHCPProgram]string{lab.Kea: inventory.LoaderShim, lab.Dnsmasq: inventory.LoaderIPXEShim}[program]
			files, err := bootsvc.SnippetFiles(loader)
			require.NoError(t, err)
			text, err := neighbours.Snippet(string(program), netip.MustParseAddr(lab.ServerAddress), "http://"+lab.ServerAddress, files[0])
			require.NoError(t, err)
			if program == lab.Kea {
				_, text, _ = strings.Cut(text, "\n") // the comment
			}
			require.NoError(t, l.StartDHCP(ctx, program, text))

			dir := t.TempDir()
			file := filepath.Join(dir, "ingot.yaml")
			require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "data_dir: %s\nnetboot: {interfaces: [%s], dhcp: {%[2]s: off}}\n",
				dir, lab.ServerInterface), 0o600))
			var found []doctor.Finding
			require.NoError(t, l.InNamespace(lab.Server, func() error {
				found = doctor.Run(ctx, client.Lookup{ConfigFile: file}, true)
				return nil
			}))
			require.Equal(t, map[string]string{
				inventory.LoaderShim: "shimx64.efi", inventory.LoaderIPXEShim: "snponly-shim.efi", "": "snponly.efi",
			}[loader], bootFileFor(ctx, t, l, 0, 6, 0, 7), "a client that lists UEFI IA32 and x64")

			found = slices.DeleteFunc(found, func(f doctor.Finding) bool { return f.What != "foreign DHCP" })
			require.Equal(t, []doctor.Finding{{
				State: doctor.StateOK, What: "foreign DHCP",
				Text: lab.OtherDHCPAddress + " assigns addresses on " + lab.ServerInterface + ", and sends machines to Ingot",
			}}, found)
		})
	}
}

// bootFileFor returns the boot file that a UEFI client is offered in the server's network which lists these architectures
// in option 93.
func bootFileFor(ctx context.Context, t *testing.T, l *lab.Lab, archs ...byte) (file string) {
	t.Helper()
	require.NoError(t, l.InNamespace(lab.Server, func() error {
		c, err := nclient4.New(lab.ServerInterface, nclient4.WithTimeout(2*time.Second), nclient4.WithRetry(3))
		if err != nil {
			return err
		}
		offer, err := c.DiscoverOffer(ctx, dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00006:UNDI:003016")),
			dhcpv4.WithGeneric(dhcpv4.OptionClientSystemArchitectureType, archs))
		if err == nil {
			file = offer.BootFileName
		}
		return errors.Join(err, c.Close())
	}))
	return file
}
