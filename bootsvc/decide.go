package bootsvc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// A Class is what kind of client asks.
type Class string

// Classes of clients.
const (
	ClassNone Class = ""     // an operating system, or the agent
	ClassPXE  Class = "pxe"  // firmware, by TFTP (option 60 PXEClient)
	ClassHTTP Class = "http" // firmware, by HTTP (option 60 HTTPClient)
	ClassIPXE Class = "ipxe" // iPXE (option 77)
)

// Architectures of option 93 that have a loader.
const (
	ArchBIOS     = 0
	ArchUEFIEBC  = 7 // RFC 4578 and IANA disagree on 7 and 9: both are x64
	ArchUEFI     = 9
	ArchHTTPx86  = 15
	ArchHTTP     = 16
	ArchHTTPEBC  = 17
	ArchHTTPBIOS = 20
	ArchUnknown  = -1 // not said
)

// Request is what is known of who asks.
type Request struct {
	// MAC and Address: one of them names the interface. A request that names
	// no MAC is judged by its source address, which is the reservation.
	MAC     string
	Address netip.Addr
	Class   Class
	Arch    int // option 93, ArchUnknown if not said
}

// A Verdict is what Decide says about netboot.
type Verdict string

// Verdicts.
const (
	Unknown   Verdict = "unknown"   // no such machine: silence, or 404
	Agent     Verdict = "agent"     // boot the agent OS, with a claim
	Installer Verdict = "installer" // boot the installer of the run's plan
	Rescue    Verdict = "rescue"    // boot the agent OS, for a person; it carries nothing out
	Disk      Verdict = "disk"      // not armed: boot from disk
	Hold      Verdict = "hold"      // not armed, and the disk is half written: wait at the loader
	Never     Verdict = "never"     // this interface is not for netboot
)

// Methods of sending a client to its disk, as Machine.BootFromDisk names
// them. MethodDefault is MethodExit, and no boot file for iPXE in DHCP.
const (
	MethodDefault = ""
	MethodExit    = "ipxe-exit"
	Method404     = "http-404"
	MethodSanboot = "ipxe-sanboot"
)

// Decision is the answer to a Request. It holds no secret.
type Decision struct {
	Verdict   Verdict             `json:"verdict"`
	Machine   string              `json:"machine,omitempty"`
	Interface inventory.Interface `json:"interface,omitzero"`
	// Address: DHCP answers with the reservation.
	Address bool `json:"address"`
	// Loader is the file that firmware is given, "" = none.
	Loader string `json:"loader,omitempty"`
	// Script: iPXE is given a script.
	Script bool `json:"script"`
	// Spent: the boot's claim was redeemed, so that this is a reboot.
	Spent bool `json:"spent,omitempty"`
	// Method is how a client is sent to its disk.
	Method string `json:"method,omitempty"`
	// Owner and Boot: whose boot this is, if a grant is held.
	Owner inventory.Owner `json:"-"`
	Boot  int             `json:"-"`
	// Reasons say why, in order.
	Reasons []string `json:"reasons"`
}

// Armed tells whether boot assets (loader, kernel, initramfs) are served.
func (d Decision) Armed() bool {
	return d.Verdict == Agent || d.Verdict == Installer || d.Verdict == Rescue
}

// ServesLoader tells whether a boot loader is served. Its script says what follows.
func (d Decision) ServesLoader() bool { return d.Armed() || d.Verdict == Hold }

func (d *Decision) because(format string, args ...any) {
	d.Reasons = append(d.Reasons, fmt.Sprintf(format, args...))
}

// Decide says whether m may netboot at now, with what and why. DHCP, TFTP,
// HTTP and Why all ask it and nothing else. A zero m is a machine that nobody
// knows. It is pure.
func Decide(m inventory.Machine, g inventory.Grant, r Request, now time.Time) Decision {
	d := Decision{Verdict: Unknown}
	if m.Name == "" {
		d.because("no machine of the inventory has this MAC or address")
		return d
	}
	ok := false
	if r.MAC != "" {
		d.Interface, ok = m.InterfaceByMAC(r.MAC)
	} else {
		for _, i := range m.Interfaces {
			if i.Address.IsValid() && i.Address == r.Address {
				d.Interface, ok = i, true
				break
			}
		}
	}
	if !ok {
		d.because("machine %s has no interface with this MAC or address", m.Name)
		return d
	}
	d.Machine, d.Verdict, d.Method = m.Name, Disk, m.BootFromDisk
	d.because("MAC %s is machine %s", d.Interface.MAC, m.Name)
	switch {
	case d.Interface.DisableDHCP:
		d.because("DHCP is disabled for this interface: no address")
	case !d.Interface.Address.Is4():
		d.because("no IPv4 address is reserved for this interface: no address")
	default:
		d.Address = true
		d.because("address %s is reserved for it", d.Interface.Address)
	}
	if g.Run != "" && g.Machine == m.Name { // a grant of another machine cannot arm this one, whoever mixed them up
		d.Owner, d.Boot, d.Spent = g.Owner, g.Boot, g.Spent
	}
	who := "run " + g.Run
	if g.Person() {
		who = g.Run[len("person:"):] + " (a person)"
	}
	switch {
	case d.Interface.DisableNetboot:
		d.Verdict = Never
		d.because("netboot is disabled for this interface")
		return d
	case d.Owner.Run == "":
		d.because("not armed: no run and no person holds the machine")
	case g.Spent:
		d.because("not armed: boot %d of %s is spent (its claim was redeemed, or its last payload delivered)", g.Boot, who)
	case g.Boot == 0:
		d.because("not armed: %s holds the machine but has not allowed a boot", who)
	case !g.NetbootOpen(now):
		d.because("not armed: the netboot window of %s closed at %s", who, g.NetbootUntil.UTC().Format(time.RFC3339))
	case g.Person():
		d.Verdict = Rescue
		d.because("armed by %s until %s: the agent OS, which carries nothing out", who, g.NetbootUntil.UTC().Format(time.RFC3339))
	case g.Installer:
		d.Verdict = Installer
		d.because("armed: %s allows boot %d, of its installer, until %s", who, g.Boot, g.NetbootUntil.UTC().Format(time.RFC3339))
	default:
		d.Verdict = Agent
		d.because("armed: %s allows boot %d until %s", who, g.Boot, g.NetbootUntil.UTC().Format(time.RFC3339))
	}
	if d.Verdict == Disk && d.Owner.Run != "" && g.Acting {
		// The agent is gone. Its boot is not repeated, and what it has left of a
		// system must not be booted: the run is about to start the machine again.
		d.Verdict = Hold
		d.because("not sent to its disk: the actions of %s are not done, and the disk may hold half a system; the machine waits at its loader until the run goes on", who)
	}
	if d.Verdict == Disk {
		// No boot file is what makes most firmware go on soonest. A client that
		// is iPXE already gets a script where the machine's method asks for one.
		switch d.Method {
		case MethodExit, MethodSanboot:
			d.Script = r.Class == ClassIPXE
			d.because("boot from disk by %s", d.Method)
		case Method404:
			d.because("boot from disk: no boot file, 404 for the script")
		default:
			d.because("boot from disk: no boot file, the script says exit (exit 1 on UEFI)")
		}
		return d
	}
	switch r.Class {
	case ClassNone:
		d.because("the client does not ask for a boot file")
	case ClassIPXE:
		d.Script = true
		d.because("the client is iPXE: the boot script")
	case ClassPXE, ClassHTTP:
		d.Loader = loader(d.Interface, r.Arch)
		if d.Loader == "" {
			d.because("no loader for architecture %s: set the interface's loader", archName(r.Arch))
		} else {
			d.because("the client is firmware (%s): loader %s", archName(r.Arch), d.Loader)
		}
	}
	return d
}

// loader returns the loader of an architecture as option 93 names it.
//
// x64 UEFI gets snponly.efi: it uses the firmware's own driver, which has just
// proved that it works, and unlike ipxe.efi does not take the card away from
// the firmware. A machine whose firmware driver is bad names ipxe.efi.
func loader(i inventory.Interface, arch int) string {
	if i.Loader != "" {
		if !fileName(i.Loader) {
			return ""
		}
		return i.Loader
	}
	switch arch {
	case ArchBIOS, ArchHTTPBIOS:
		return "undionly.kpxe"
	case ArchUEFIEBC, ArchUEFI, ArchHTTPx86, ArchHTTP, ArchHTTPEBC:
		return "snponly.efi"
	case ArchUnknown: // very old ROMs do not say; the inventory knows
		switch {
		case i.Arch != "" && i.Arch != "x86_64":
			return ""
		case i.UEFI:
			return "snponly.efi"
		}
		return "undionly.kpxe"
	}
	return ""
}

func archName(arch int) string {
	names := map[int]string{
		ArchBIOS: "BIOS x86", 6: "UEFI IA32", ArchUEFIEBC: "UEFI x64", ArchUEFI: "UEFI x64", 10: "UEFI arm32", 11: "UEFI arm64",
		ArchHTTPx86: "UEFI x86 by HTTP", ArchHTTP: "UEFI x64 by HTTP", ArchHTTPEBC: "UEFI EBC by HTTP", 18: "UEFI arm32 by HTTP",
		19: "UEFI arm64 by HTTP", ArchHTTPBIOS: "BIOS by HTTP", ArchUnknown: "not said",
	}
	if n, ok := names[arch]; ok {
		return n
	}
	return fmt.Sprintf("%d", arch)
}

// lookup asks the inventory and decides. An error other than ErrNotFound
// means that nothing can be said; it is answered like an unknown machine.
func (s *Server) lookup(ctx context.Context, r Request) (inventory.Machine, inventory.Grant, Decision, error) {
	var m inventory.Machine
	var g inventory.Grant
	var err error
	if r.MAC != "" {
		m, g, err = s.machines.MachineByMAC(ctx, r.MAC)
	} else {
		m, g, err = s.machines.MachineByAddress(ctx, r.Address)
	}
	if err != nil {
		m, g = inventory.Machine{}, inventory.Grant{}
		if errors.Is(err, inventory.ErrNotFound) {
			err = nil
		}
	}
	return m, g, s.decide(m, g, r), err
}

// decide is Decide, except that a server without its key arms nobody: claims
// made with no key could be made by everybody.
func (s *Server) decide(m inventory.Machine, g inventory.Grant, r Request) Decision {
	keyless := len(s.cfg.ClaimKey) == 0
	if keyless {
		g.NetbootUntil = time.Time{}
	}
	d := Decide(m, g, r, s.now())
	if keyless && !d.Armed() {
		d.because("this server's key of claims is missing: nothing is armed (ingot doctor)")
	}
	return d
}

// Explanation is what `ingot why <mac>` prints.
type Explanation struct {
	MAC     string  `json:"mac"`
	Machine string  `json:"machine,omitempty"`
	Verdict Verdict `json:"verdict"`
	// Address is what DHCP gives, "" = no answer.
	Address string    `json:"address,omitempty"`
	Run     string    `json:"run,omitempty"`
	Epoch   int64     `json:"epoch,omitempty"`
	Boot    int       `json:"boot,omitempty"`
	Spent   bool      `json:"spent,omitempty"`
	Until   time.Time `json:"until,omitzero"`
	// Answers: what each kind of client would be given now.
	Answers []Answer `json:"answers,omitempty"`
	Reasons []string `json:"reasons"`
}

// Answer is what one kind of client is given.
type Answer struct {
	Client   string `json:"client"`
	BootFile string `json:"bootFile"` // "" = none
	Reason   string `json:"reason"`
}

// Why explains what a machine would be answered now. The MAC may have any of
// the forms of ParseMAC; inventory.ErrInvalid: it has none of them. A MAC
// that nobody knows is explained, too.
func (s *Server) Why(ctx context.Context, mac string) (Explanation, error) {
	canonical, ok := ParseMAC(mac)
	if !ok {
		return Explanation{}, fmt.Errorf("reading MAC %q: %w", mac, inventory.ErrInvalid)
	}
	m, g, d, err := s.lookup(ctx, Request{MAC: canonical, Class: ClassNone, Arch: ArchUnknown})
	if err != nil {
		return Explanation{}, fmt.Errorf("looking up %q: %w", canonical, err)
	}
	e := Explanation{MAC: canonical, Machine: d.Machine, Verdict: d.Verdict, Reasons: d.Reasons}
	if d.Address {
		e.Address = d.Interface.Address.String()
	}
	if d.Owner.Run != "" {
		e.Run, e.Epoch, e.Boot, e.Spent, e.Until = g.Run, g.Epoch, g.Boot, g.Spent, g.NetbootUntil
	}
	if d.Verdict == Unknown {
		return e, nil
	}
	if d.ServesLoader() {
		e.Reasons = e.Reasons[:len(e.Reasons)-1] // "does not ask for a boot file" is of this call alone
	}
	if d.Verdict == Installer {
		e.Reasons = append(e.Reasons, s.installerReasons(ctx, d)...)
	}
	if d.Address {
		e.Reasons = append(e.Reasons, s.relays(d.Interface)...)
		n := s.network()
		if subnet, unserved := n.Unserved(d.Interface); unserved {
			e.Reasons = append(e.Reasons, "but "+n.Reason(subnet))
		}
	}
	for _, c := range []struct {
		name  string
		class Class
		arch  int
	}{{"BIOS PXE", ClassPXE, ArchBIOS}, {"UEFI PXE", ClassPXE, ArchUEFIEBC}, {"UEFI HTTP", ClassHTTP, ArchHTTP}, {"iPXE", ClassIPXE, ArchUnknown}} {
		d := s.decide(m, g, Request{MAC: canonical, Class: c.class, Arch: c.arch})
		file, why := s.bootFile(d, c.class)
		if why == "" {
			why = d.Reasons[len(d.Reasons)-1]
		}
		e.Answers = append(e.Answers, Answer{c.name, file, why})
	}
	return e, nil
}

// relays says which relays may ask for the reservation of i, where that is
// not any.
func (s *Server) relays(i inventory.Interface) []string {
	if len(s.cfg.Relays) == 0 {
		return nil
	}
	subnet := reservationPrefix(i, link{})
	var ours []string
	for _, r := range s.cfg.Relays {
		switch {
		case !r.Overlaps(subnet):
		case r.IsSingleIP():
			ours = append(ours, r.Addr().String())
		default:
			ours = append(ours, r.String())
		}
	}
	switch who := strings.Join(ours, ", "); {
	case len(ours) > 0 && s.cfg.RelayOnly:
		return []string{"DHCP is answered through a relay alone: " + who}
	case len(ours) > 0:
		return []string{"a relay may ask for it: " + who}
	}
	return nil
}

// network is what is known of where DHCP is answered.
func (s *Server) network() inventory.Network {
	return inventory.Network{Subnets: Subnets(s.cfg.Interfaces), Relays: s.cfg.Relays, On: len(s.cfg.Interfaces) > 0 || s.cfg.RelayOnly}
}

// Subnets returns the IPv4 subnets that interfaces have; one that does not exist
// has none.
func Subnets(interfaces []string) []netip.Prefix {
	var out []netip.Prefix
	for _, name := range interfaces {
		if i, err := net.InterfaceByName(name); err == nil {
			out = append(out, interfacePrefixes(i)...)
		}
	}
	return out
}

// bootFile returns the name or URL that DHCP hands out for d, and why there
// is none where Decide would have given one. What is not there is not handed
// out: every name must resolve.
func (s *Server) bootFile(d Decision, class Class) (file, why string) {
	switch {
	case !d.Address:
		return "", ""
	case d.Script:
		return s.Base() + "/ipxe/script/" + d.Interface.MAC + "/auto.ipxe", ""
	case d.Loader == "":
		return "", ""
	case s.cfg.LoaderDir == "":
		return "", fmt.Sprintf("there is no loader %s: netboot.loaders is not set", d.Loader)
	case !s.haveLoader(d.Loader):
		return "", fmt.Sprintf("loader %s is missing in %s", d.Loader, s.cfg.LoaderDir)
	case class == ClassHTTP:
		return s.Base() + "/ipxe/binary/" + strings.ReplaceAll(d.Interface.MAC, ":", "-") + "/" + d.Loader, ""
	}
	return d.Loader, ""
}
