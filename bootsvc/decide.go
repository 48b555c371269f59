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

// Request is what the server knows about a client that asks it for something.
type Request struct {
	// MAC or Address identifies the client's interface. If MAC is "", Address is the source address of the request,
	// which must be the reserved address of the interface.
	MAC     string
	Address netip.Addr
	Class   wire.Class
	Arch    int // option 93: its first value for which a loader exists, else its first value; ArchUnknown if it is missing
	// Loader is the loader for interfaces that set no loader, in the form of inventory.Interface.Loader; "" = choose it
	// by architecture.
	Loader string
	// Brief leaves Reasons out of the decision, because to format them takes longer than to decide.
	Brief bool
}

// Verdict is what a machine may boot.
type Verdict string

// Verdicts.
const (
	Unknown   Verdict = "unknown"   // the machine is not in the inventory: no DHCP answer, and 404 by HTTP
	Agent     Verdict = "agent"     // boot the agent OS, with a claim
	Installer Verdict = "installer" // boot the installer that the run's plan names
	Rescue    Verdict = "rescue"    // boot the agent OS for an operator; the agent gets no assignments
	Disk      Verdict = "disk"      // not armed: boot from disk
	Hold      Verdict = "hold"      // not armed, but the system on the disk may be incomplete: wait at the loader
	Discover  Verdict = "discover"  // not in the inventory, with discovery on: boot the agent OS, which only reports the hardware
	Never     Verdict = "never"     // this interface must never boot from the network
)

// Ways to send a client to its disk; they are the values of Machine.BootFromDisk. With MethodDefault, DHCP names no
// boot file to iPXE. If iPXE asks for a script all the same, it gets the same script as with MethodExit.
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
	// Address reports whether DHCP may assign the reserved address to the client.
	Address bool `json:"address"`
	// Loader is the boot file that firmware gets; "" = none.
	Loader string `json:"loader,omitempty"`
	// Script reports whether iPXE gets a script.
	Script bool `json:"script"`
	// Spent reports whether the current boot was already used: its claim was redeemed, or its last payload was
	// delivered. If the machine asks again after that, it has restarted.
	Spent bool `json:"spent,omitempty"`
	// Method is the way in which a client is sent to its disk.
	Method string `json:"method,omitempty"`
	// Owner and Boot are copied from the machine's grant. If nothing owns the machine, they are zero.
	Owner inventory.Owner `json:"-"`
	Boot  int             `json:"-"`
	// Reasons are sentences that explain the decision step by step.
	Reasons []string `json:"reasons"`

	brief bool // Reasons are omitted
}

// holder returns the machine of d and the run that owns it. If no run owns the machine, only the machine is set.
func (d Decision) holder() inventory.Owner {
	return inventory.Owner{Machine: d.Machine, Run: d.Owner.Run, Epoch: d.Owner.Epoch}
}

// event returns an event that is about the machine of d.
func (d Decision) event(kind, message string) inventory.Event {
	return newEvent(d.holder(), d.Boot, kind, message)
}

// newEvent returns an event about the machine and the run of o. boot is the number of the run's boot.
func newEvent(o inventory.Owner, boot int, kind, message string) inventory.Event {
	return inventory.Event{Machine: o.Machine, Run: o.Run, Epoch: o.Epoch, Boot: boot, Kind: kind, Message: message}
}

// logKeys returns log attributes for the machine of d and, if a run owns the machine, for that run.
func (d Decision) logKeys() []any { return d.holder().LogKeys(d.Boot) }

// Armed reports whether the machine has an open boot. If so, the loader, the kernel and the initramfs are served.
func (d Decision) Armed() bool {
	return d.Verdict == Agent || d.Verdict == Installer || d.Verdict == Rescue
}

// ServesLoader reports whether the machine may get a boot loader. What the machine does next is decided by the script
// that the loader then fetches.
func (d Decision) ServesLoader() bool {
	return d.Armed() || d.Verdict == Hold || d.Verdict == Discover
}

// servesAgent reports whether the machine may get kernel and initramfs.
func (d Decision) servesAgent() bool { return d.Armed() || d.Verdict == Discover }

func (d *Decision) because(format string, args ...any) {
	if d.brief {
		return
	}
	d.Reasons = append(d.Reasons, fmt.Sprintf(format, args...))
}

// Decide decides whether the machine m may netboot at the time now, with what, and why. DHCP, TFTP, HTTP and Why all
// use it. If m is zero, the machine is unknown. Decide is pure: the same arguments give the same decision.
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

// findInterface sets in d the machine m, and the interface of m that has sent r. It returns false if m is unknown or
// has no such interface.
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

// decideVerdict sets d.Verdict, which is what the grant g allows the machine to boot.
func (d *Decision) decideVerdict(g inventory.Grant, now time.Time) {
	if g.Run != "" && g.Machine == d.Machine { // ignore a grant for another machine: it must never arm this machine
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
		// The agent has stopped, and the run will restart the machine. Until the restart, the machine must boot neither
		// the agent nor the incomplete system on its disk.
		d.Verdict = Hold
		d.because("not booted from disk: the actions of %s are not finished, and the disk may hold an incomplete system; "+
			"the machine waits at its loader until the run continues", holder)
	}
}

// describeHolder returns a text for Reasons that names the run or the operator that holds the grant.
func describeHolder(g inventory.Grant) string {
	if g.ByOperator() {
		return strings.TrimPrefix(g.Run, inventory.OperatorPrefix) + " (an operator)"
	}
	return "run " + g.Run
}

// chooseDiskMethod decides how a client is sent to its disk. Firmware gets no boot file, because most firmware then
// boots from disk fastest. iPXE gets a script if the machine's method needs a script.
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

// chooseBootFile decides which script or loader to give to a client that may boot from the network.
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

// File names of loaders: those of iPXE, and those for Secure Boot. sbat.Chain lists what a shim starts.
const (
	loaderBIOS     = "undionly.kpxe"
	loaderUEFI     = "snponly.efi"
	loaderIPXEShim = "snponly-shim.efi"
	loaderShim     = "shimx64.efi"
)

// SecureLoaderFiles returns the files that a UEFI x64 machine fetches if this loader is set for it. It returns nil
// unless loader is one of inventory.SecureLoaders.
func SecureLoaderFiles(loader string) []string {
	switch loader {
	case inventory.LoaderShim:
		return sbat.Chain(loaderShim)
	case inventory.LoaderIPXEShim:
		return append(sbat.Chain(loaderIPXEShim), loaderShim) // the signed iPXE starts the kernel through this second shim
	}
	return nil
}

// loaderFor returns the loader for the architecture arch, which is a value of option 93. It returns "" if there is no
// such loader.
//
// By default, x64 UEFI gets snponly.efi. This loader uses the firmware's network driver, which works because it has
// just fetched the loader. Unlike ipxe.efi, snponly.efi does not detach the firmware from the network card. If the
// firmware's driver is faulty, set the interface's loader to ipxe.efi. If the interface's loader is one of
// inventory.SecureLoaders, UEFI gets the shim of that loader.
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
	if !isX86(i) { // the firmware of a Raspberry Pi 4 sends architecture 0, as if it were BIOS x86
		return ""
	}
	switch {
	case arch == wire.ArchBIOS, arch == wire.ArchHTTPBIOS:
		return loaderBIOS
	case arch == wire.ArchUnknown && !i.UEFI: // very old ROMs do not send option 93: use the inventory's field UEFI
		return loaderBIOS
	case arch == wire.ArchUnknown, wire.HasLoader(arch):
		return uefi
	}
	return ""
}

// isX86 reports whether the architecture in the machine's document is x86_64 or missing. All loaders are for x86.
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
