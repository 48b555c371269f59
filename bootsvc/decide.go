package bootsvc

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/internal/images/sbat"
	"github.com/ingotmetal/ingot/inventory"
)

// Request is what the server knows about a client when it asks.
type Request struct {
	// MAC or Address identifies the interface. Without a MAC, the source address must be the interface's reserved
	// address.
	MAC     string
	Address netip.Addr
	Class   wire.Class
	Arch    int // the first value of option 93 that has a loader, or else the first value; ArchUnknown without option 93
	// Loader is the loader for interfaces that set none, in the form of inventory.Interface.Loader; "" = by architecture.
	Loader string
	// Brief omits Reasons from the decision: formatting them takes longer than deciding.
	Brief bool
}

// Verdict is what a machine may boot.
type Verdict string

// Verdicts.
const (
	Unknown   Verdict = "unknown"   // no such machine: no answer, or 404
	Agent     Verdict = "agent"     // boot the agent OS, with a claim
	Installer Verdict = "installer" // boot the installer of the run's plan
	Rescue    Verdict = "rescue"    // boot the agent OS without assignments, for an operator
	Disk      Verdict = "disk"      // not armed: boot from disk
	Hold      Verdict = "hold"      // not armed, and the disk may be half written: wait at the loader
	Discover  Verdict = "discover"  // unknown, with discovery on: boot the agent OS, which only reports the hardware
	Never     Verdict = "never"     // netboot is disabled for this interface
)

// Ways to send a client to its disk, the values of Machine.BootFromDisk. With MethodDefault, DHCP gives iPXE no boot
// file; its script is the same as for MethodExit.
const (
	MethodDefault = ""
	MethodExit    = "ipxe-exit"
	Method404     = "http-404"
	MethodSanboot = "ipxe-sanboot"
)

// Decision is the answer to a Request. It contains no secret.
type Decision struct {
	Verdict   Verdict             `json:"verdict"`
	Machine   string              `json:"machine,omitempty"`
	Interface inventory.Interface `json:"interface,omitzero"`
	// Address reports whether DHCP answers with the reserved address.
	Address bool `json:"address"`
	// Loader is the boot file for firmware; "" = none.
	Loader string `json:"loader,omitempty"`
	// Script reports whether iPXE gets a script.
	Script bool `json:"script"`
	// Spent reports that the current boot is already used: its claim was redeemed, or its last payload was delivered. A
	// further request is therefore a reboot.
	Spent bool `json:"spent,omitempty"`
	// Method is the way in which a client is sent to its disk.
	Method string `json:"method,omitempty"`
	// Owner and Boot are copied from the machine's grant, if it is owned.
	Owner inventory.Owner `json:"-"`
	Boot  int             `json:"-"`
	// Reasons explain the decision, in order.
	Reasons []string `json:"reasons"`

	brief bool // Reasons are omitted
}

// holder returns the machine of d and the run that owns it; without an owner, only the machine.
func (d Decision) holder() inventory.Owner {
	return inventory.Owner{Machine: d.Machine, Run: d.Owner.Run, Epoch: d.Owner.Epoch}
}

// event returns an event of the machine of d.
func (d Decision) event(kind, message string) inventory.Event {
	return newEvent(d.holder(), d.Boot, kind, message)
}

// newEvent returns an event of the machine o.Machine in this boot of the run o.Run.
func newEvent(o inventory.Owner, boot int, kind, message string) inventory.Event {
	return inventory.Event{Machine: o.Machine, Run: o.Run, Epoch: o.Epoch, Boot: boot, Kind: kind, Message: message}
}

// logKeys returns the log attributes of the machine of d, and of the run that owns it, if any.
func (d Decision) logKeys() []any { return d.holder().LogKeys(d.Boot) }

// Armed reports whether the machine has an open boot, so loader, kernel and initramfs are served.
func (d Decision) Armed() bool {
	return d.Verdict == Agent || d.Verdict == Installer || d.Verdict == Rescue
}

// ServesLoader reports whether a boot loader is served. The script of that loader decides what the machine does next.
func (d Decision) ServesLoader() bool {
	return d.Armed() || d.Verdict == Hold || d.Verdict == Discover
}

// servesAgent reports whether kernel and initramfs are served.
func (d Decision) servesAgent() bool { return d.Armed() || d.Verdict == Discover }

func (d *Decision) because(format string, args ...any) {
	if d.brief {
		return
	}
	d.Reasons = append(d.Reasons, fmt.Sprintf(format, args...))
}

// Decide returns whether m may netboot at now, with what and why. DHCP, TFTP, HTTP and Why all use it. The zero m
// means an unknown machine. Decide is pure: the same arguments give the same decision.
func Decide(m inventory.Machine, g inventory.Grant, r Request, now time.Time) Decision {
	d := Decision{Verdict: Unknown, brief: r.Brief}
	if !d.findInterface(m, r) {
		return d
	}
	d.decideAddress()
	d.decideVerdict(g, now)
	switch d.Verdict {
	case Never:
	case Disk:
		d.chooseDiskMethod(r.Class)
	default:
		d.chooseBootFile(r)
	}
	return d
}

// findInterface sets the machine of d, and its interface that sent r. It returns false if m is unknown or has no such
// interface.
func (d *Decision) findInterface(m inventory.Machine, r Request) bool {
	if m.Name == "" {
		d.because("no machine of the inventory has this MAC or address")
		return false
	}
	asks := func(i inventory.Interface) bool { return i.Address.IsValid() && i.Address == r.Address }
	found := false
	if r.MAC != "" {
		d.Interface, found = m.InterfaceByMAC(r.MAC)
	} else if n := slices.IndexFunc(m.Interfaces, asks); n >= 0 {
		d.Interface, found = m.Interfaces[n], true
	}
	if !found {
		d.because("machine %s has no interface with this MAC or address", m.Name)
		return false
	}
	d.Machine, d.Verdict, d.Method = m.Name, Disk, m.BootFromDisk
	d.Interface.Loader = cmp.Or(d.Interface.Loader, r.Loader)
	d.because("MAC %s belongs to machine %s", d.Interface.MAC, m.Name)
	return true
}

func (d *Decision) decideAddress() {
	switch {
	case d.Interface.DisableDHCP:
		d.because("DHCP is disabled for this interface: no address")
	case !d.Interface.Address.Is4():
		d.because("no IPv4 address is reserved for this interface: no address")
	default:
		d.Address = true
		d.because("address %s is reserved for this interface", d.Interface.Address)
	}
}

// decideVerdict sets the verdict: what the grant allows the machine to boot.
func (d *Decision) decideVerdict(g inventory.Grant, now time.Time) {
	if g.Run != "" && g.Machine == d.Machine { // a grant for another machine never arms this one
		d.Owner, d.Boot, d.Spent = g.Owner, g.Boot, g.Spent
	}
	var holder, until string
	if !d.brief {
		holder, until = describeHolder(g), g.NetbootUntil.UTC().Format(time.RFC3339)
	}
	switch {
	case d.Interface.DisableNetboot:
		d.Verdict = Never
		d.because("netboot is disabled for this interface")
		return
	case d.Owner.Run == "":
		d.because("not armed: no run and no operator holds the machine")
	case g.Spent:
		d.because("not armed: boot %d of %s is spent: the agent redeemed its claim, or the installer's last payload was delivered",
			g.Boot, holder)
	case g.Boot == 0:
		d.because("not armed: %s holds the machine but has not allowed a boot", holder)
	case !g.NetbootOpen(now):
		d.because("not armed: the netboot window of %s closed at %s", holder, until)
	case g.ByOperator():
		d.Verdict = Rescue
		d.because("armed by %s until %s: the agent OS boots and gets no assignments", holder, until)
	case g.Installer:
		d.Verdict = Installer
		d.because("armed: %s allows boot %d, which starts the installer, until %s", holder, g.Boot, until)
	default:
		d.Verdict = Agent
		d.because("armed: %s allows boot %d until %s", holder, g.Boot, until)
	}

	if d.Verdict == Disk && d.Owner.Run != "" && g.Acting {
		// The agent has stopped, and the run will restart the machine. Until the restart, the machine must boot neither the
		// agent again nor the incomplete system on its disk.
		d.Verdict = Hold
		d.because("not booted from disk: the actions of %s are not finished, and the disk may hold an incomplete system; "+
			"the machine waits at its loader until the run continues", holder)
	}
}

// describeHolder names the run or the operator that holds the grant, for Reasons.
func describeHolder(g inventory.Grant) string {
	if g.ByOperator() {
		return strings.TrimPrefix(g.Run, inventory.OperatorPrefix) + " (an operator)"
	}
	return "run " + g.Run
}

// chooseDiskMethod decides how a client is sent to its disk. Most firmware boots from disk fastest if it gets no boot
// file. iPXE gets a script if the machine's method needs one.
func (d *Decision) chooseDiskMethod(c wire.Class) {
	switch d.Method {
	case MethodExit, MethodSanboot:
		d.Script = c == wire.ClassIPXE
		d.because("boot from disk by %s", d.Method)
	case Method404:
		d.because("boot from disk: no boot file; HTTP 404 for the script")
	default:
		d.because("boot from disk: no boot file; the script ends with exit (exit 1 on UEFI)")
	}
}

// chooseBootFile sets the script or the loader for a client that boots from the network.
func (d *Decision) chooseBootFile(r Request) {
	switch r.Class {
	case wire.ClassNone:
		d.because("the client does not ask for a boot file")
	case wire.ClassIPXE:
		d.Script = true
		d.because("the client is iPXE: it gets the boot script")
	case wire.ClassPXE, wire.ClassHTTP:
		switch file := loaderFor(d.Interface, r.Arch); {
		case file == "" && r.Arch != wire.ArchUnknown && !isX86(d.Interface) && wire.HasLoader(r.Arch):
			d.because("no loader for %s, because the machine's document sets arch: %s; correct the document, or set the interface's loader",
				archName(r.Arch), d.Interface.Arch)
		case file == "":
			d.because("no loader for architecture %s: set the interface's loader", archName(r.Arch))
		case file == loaderShim && r.Class == wire.ClassHTTP:
			d.because("no loader by HTTP: Debian's signed GRUB, which shim starts, supports only TFTP; choose PXE (IPv4) in the firmware")
		case file == loaderShim && d.Verdict == Installer:
			d.because("no loader: shim can boot only the agent, but the plan boots an installer; " +
				"set another loader for the interface, for example snponly.efi, and switch Secure Boot off")
		default:
			d.Loader = file
			d.because("the client is firmware (%s): it gets loader %s", archName(r.Arch), d.Loader)
		}
	}
}

// The loaders of iPXE, and those for Secure Boot. sbat.Chain lists what a shim starts.
const (
	loaderBIOS     = "undionly.kpxe"
	loaderUEFI     = "snponly.efi"
	loaderIPXEShim = "snponly-shim.efi"
	loaderShim     = "shimx64.efi"
)

// SecureLoaderFiles returns the files that a UEFI x64 machine fetches if its loader is one of inventory.SecureLoaders,
// or nil for any other loader.
func SecureLoaderFiles(loader string) []string {
	switch loader {
	case inventory.LoaderShim:
		return sbat.Chain(loaderShim)
	case inventory.LoaderIPXEShim:
		return append(sbat.Chain(loaderIPXEShim), loaderShim) // the signed iPXE starts the kernel through it
	}
	return nil
}

// loaderFor returns the loader for an architecture (a value of option 93), or "" if there is none.
//
// x64 UEFI gets snponly.efi. It uses the firmware's network driver, which has just fetched the loader, and unlike
// ipxe.efi does not detach the firmware from the card. If the firmware's driver is faulty, set the interface's loader
// to ipxe.efi. If the interface's loader is one of inventory.SecureLoaders, UEFI gets its shim.
func loaderFor(i inventory.Interface, arch int) string {
	var uefi string
	switch {
	case i.Loader == "":
		uefi = loaderUEFI
	case i.Loader == inventory.LoaderShim:
		uefi = loaderShim
	case i.Loader == inventory.LoaderIPXEShim:
		uefi = loaderIPXEShim
	case isFileName(i.Loader):
		return i.Loader
	default:
		return ""
	}
	if !isX86(i) { // the ROM of a Raspberry Pi 4 sends architecture 0
		return ""
	}
	switch {
	case arch == wire.ArchBIOS, arch == wire.ArchHTTPBIOS:
		return loaderBIOS
	case arch == wire.ArchUnknown && !i.UEFI: // very old ROMs do not send option 93: rely on the inventory
		return loaderBIOS
	case arch == wire.ArchUnknown, wire.HasLoader(arch):
		return uefi
	}
	return ""
}

// isX86 reports whether the machine's architecture is x86_64 or not set. All loaders are for x86.
func isX86(i inventory.Interface) bool { return i.Arch == "" || i.Arch == "x86_64" }

func archName(arch int) string {
	names := map[int]string{
		wire.ArchBIOS: "BIOS x86", 6: "UEFI IA32", wire.ArchUEFIEBC: "UEFI x64", wire.ArchUEFI: "UEFI x64", 10: "UEFI arm32", 11: "UEFI arm64",
		21: "U-Boot arm32", 22: "U-Boot arm64", 41: "Raspberry Pi",
		wire.ArchHTTPx86: "UEFI x86 by HTTP", wire.ArchHTTP: "UEFI x64 by HTTP", wire.ArchHTTPEBC: "UEFI EBC by HTTP", 18: "UEFI arm32 by HTTP",
		19: "UEFI arm64 by HTTP", wire.ArchHTTPBIOS: "BIOS by HTTP", wire.ArchUnknown: "unknown architecture",
	}
	if n, ok := names[arch]; ok {
		return n
	}
	return fmt.Sprintf("%d", arch)
}
