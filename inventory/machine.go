package inventory

import (
	"encoding/json"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/text/human"
)

// A Machine is one piece of hardware that Ingot may provision.
type Machine struct {
	Name       string            `json:"name"`             // DNS-1123 label, unique, at most 63 characters
	Labels     map[string]string `json:"labels,omitempty"` // for selectors and templates
	Interfaces []Interface       `json:"interfaces"`
	// Network is the network of the installed system: several cards, bonds, VLANs. Default: derived from the interfaces.
	Network *SystemNetwork `json:"network,omitempty"`
	Disks   []DeclaredDisk `json:"disks,omitempty"`
	// Storage is how the action rootio lays out the disks.
	Storage *action.Storage `json:"storage,omitempty"`
	// DiskSelector chooses the disk to write. Without it, only a single fixed disk that is blank or was last written by Ingot
	// is chosen.
	DiskSelector *DiskSelector `json:"diskSelector,omitempty"`
	// ProtectedDisks are never written and never wiped, whatever a selector, a template or an operator chooses. Both server
	// and agent enforce this.
	ProtectedDisks []action.DiskID `json:"protectedDisks,omitempty"`
	// BMC is what switches the machine's power. Without it, an operator presses the power button.
	BMC      *BMC     `json:"bmc,omitempty"`
	Template string   `json:"template,omitempty"` // default for provisioning the machine
	Image    string   `json:"image,omitempty"`    // default for provisioning the machine
	SSHKeys  []string `json:"sshKeys,omitempty"`  // public keys that may log in to the installed system
	// BootFromDisk says how a client that boots over the network is made to boot from disk while no boot of the machine is allowed: ipxe-exit,
	// http-404 or ipxe-sanboot. Default: exit, or exit 1 on UEFI.
	BootFromDisk string `json:"bootFromDisk,omitempty"`
	// KernelArgs are added to the agent OS's kernel command line.
	KernelArgs []string `json:"kernelArgs,omitempty"`
	// UserData is the user's document for cloud-init or Ignition. It is a secret.
	//
	// A machine that was read from the store has an empty UserData and VendorData, and its Has fields are set. Only the store's method
	// UserData returns the contents.
	UserData Secret `json:"userData,omitzero"`
	// UserDataByAddress serves the user data to any request from the machine's address while the secrets window of a run is open. It is for
	// images that support only EC2 metadata. A host that takes over the address can read the user data.
	UserDataByAddress bool `json:"userDataByAddress,omitempty"`
	// VendorData is a further document for cloud-init, to which Ingot adds its own part. It is a secret.
	VendorData Secret `json:"vendorData,omitzero"`
	// HasUserData: userData is stored. In files, this field is allowed and ignored.
	HasUserData bool `json:"hasUserData,omitempty"`
	// HasVendorData: vendorData is stored. In files, this field is allowed and ignored.
	HasVendorData bool `json:"hasVendorData,omitempty"`
	// Standing is the result of the machine's decommissioning. A machine without it is in service. Storing a machine does not change its
	// Standing.
	Standing *Standing `json:"standing,omitempty"`
	// Installation is the run that wrote the machine's disks last; nil if none is known. Storing a machine does not change it.
	Installation *Installation `json:"-"`
	// Notes keeps fields of an import that Ingot ignores (allowPXE …).
	Notes map[string]string `json:"notes,omitempty"`
	// Version is raised by every change of the document and of its secrets. A document with a version replaces that version only.
	Version int64     `json:"version,omitempty"`
	Created time.Time `json:"created,omitzero"` // the server sets it
	Updated time.Time `json:"updated,omitzero"` // the server sets it
}

// States of a decommissioned machine.
const (
	// StandingAvailable: the machine's disks were wiped and read back, and its secrets were purged.
	StandingAvailable = "available"
	// StandingQuarantined: the wipe or the purge could not be verified. No run
	// writes to the machine until an operator releases it.
	StandingQuarantined = "quarantined"
)

// Standing is the result of a machine's decommissioning.
type Standing struct {
	State  string    `json:"state"`            // available | quarantined
	Reason string    `json:"reason,omitempty"` // why it is quarantined; for an available machine, a remark
	Run    string    `json:"run,omitempty"`    // the run that decommissioned it
	Since  time.Time `json:"since"`            // when the run ended
}

// Installed describes what is on a machine's disk according to the last run that wrote to it.
type Installed struct {
	Run string `json:"run"` // id of the run

	// Type, Template, Image, State, Evidence and NoSystem come from the run's record. They are empty if the record was deleted.

	Type     string    `json:"type,omitempty"`     // of the workflow
	Template string    `json:"template,omitempty"` // that the run carried out
	Image    string    `json:"image,omitempty"`    // that the run wrote
	State    string    `json:"state,omitempty"`    // how the run ended
	Evidence string    `json:"evidence,omitempty"` // see Workflow
	NoSystem bool      `json:"noSystem,omitempty"` // the run wrote no system
	At       time.Time `json:"at"`                 // when the run began to write; if no disk was recorded, when the run ended
}

// System reports whether the run has installed a complete system. If the run has no record, System assumes that it has.
func (i *Installed) System() bool {
	return i != nil && (i.State == StateSuccess || i.State == "") && i.Type != TypeDecommission && !i.NoSystem
}

// MayBeSystem reports whether the disk may contain a system: either the run has installed a system, or it has written something else and an
// earlier system may still be there.
func (i *Installed) MayBeSystem() bool { return i.System() || i != nil && i.NoSystem }

// An Installation is the run that wrote a machine's disks last. Boot is the number of the boot whose agent wrote them.
type Installation struct {
	Owner
	Boot int
}

// Quarantined reports whether no run may write to m.
func (m Machine) Quarantined() bool {
	return m.Standing != nil && m.Standing.State == StandingQuarantined
}

// Protects reports whether d must never be written.
func (m Machine) Protects(d action.Disk) bool {
	return slices.ContainsFunc(m.ProtectedDisks, func(id action.DiskID) bool { return id.Is(d) })
}

// Netboot returns the machine's first netboot interface. The MAC of this interface identifies the machine in templates ({{.device_1}}) and
// boot scripts.
func (m Machine) Netboot() (Interface, bool) {
	return m.first(func(i Interface) bool { return !i.DisableNetboot })
}

// InterfaceByMAC returns the interface with that MAC. mac must be in canonical form.
func (m Machine) InterfaceByMAC(mac string) (Interface, bool) {
	return m.first(func(i Interface) bool { return i.MAC == mac })
}

// IsWorker reports whether a template's text worker means this machine: it is the machine's name, or the MAC of one of its interfaces, in
// any notation with colons or hyphens.
func (m Machine) IsWorker(worker string) bool {
	if worker == m.Name {
		return true
	}
	_, ok := m.InterfaceByMAC(strings.ToLower(strings.ReplaceAll(worker, "-", ":")))
	return ok
}

// first returns the first interface for which wanted returns true. If there is none, it returns false.
func (m Machine) first(wanted func(Interface) bool) (Interface, bool) {
	if n := slices.IndexFunc(m.Interfaces, wanted); n >= 0 {
		return m.Interfaces[n], true
	}
	return Interface{}, false
}

// An Interface is a network interface of a machine, with the address that is reserved for it.
type Interface struct {
	MAC string `json:"mac"` // stored in lower case with colons
	// Address is the address that DHCP reserves. In a file, 10.0.0.11/24 also sets the netmask.
	Address        netip.Addr   `json:"address,omitzero"`
	Netmask        string       `json:"netmask,omitempty"`        // dotted quad
	Gateway        netip.Addr   `json:"gateway,omitzero"`         // default gateway
	OnLink         bool         `json:"onLink,omitempty"`         // the gateway may lie outside of the subnet
	Hostname       string       `json:"hostname,omitempty"`       // default: the name of the machine
	Domain         string       `json:"domain,omitempty"`         // domain of the host name, and search domain
	Nameservers    []netip.Addr `json:"nameservers,omitempty"`    // DNS servers
	TimeServers    []netip.Addr `json:"timeServers,omitempty"`    // NTP servers
	LeaseTime      Lease        `json:"leaseTime,omitempty"`      // lease time of DHCP, such as 24h; 0 = 7 days
	VLAN           int          `json:"vlan,omitempty"`           // 1–4094, 0 = untagged
	Arch           string       `json:"arch,omitempty"`           // x86_64 (default) | aarch64
	UEFI           bool         `json:"uefi,omitempty"`           // the firmware boots by UEFI
	DisableDHCP    bool         `json:"disableDHCP,omitempty"`    // DHCP is never answered
	DisableNetboot bool         `json:"disableNetboot,omitempty"` // no boot file is offered
	Loader         string       `json:"loader,omitempty"`         // replaces the architecture's loader; shim, ipxe-shim: for Secure Boot
}

// Values of Interface.Loader for booting UEFI x64 while Secure Boot is on. BIOS clients still get the loader for BIOS.
const (
	LoaderShim     = "shim"      // Debian's shim, GRUB and signed kernel, over TFTP
	LoaderIPXEShim = "ipxe-shim" // the signed shim and iPXE of the iPXE project
)

// SecureLoaders returns the values of Interface.Loader that are not the name of a file.
func SecureLoaders() []string { return []string{LoaderShim, LoaderIPXEShim} }

// Split returns the fields that a file sets when it writes text as the value of key. An address with a prefix length sets address and, for
// IPv4, netmask. For any other text, Split returns nil.
func (Interface) Split(key, text string) map[string]string {
	p, err := netip.ParsePrefix(text)
	if key != "address" || err != nil {
		return nil
	}
	if !p.Addr().Is4() {
		return map[string]string{"address": p.Addr().String()}
	}
	return map[string]string{"address": p.Addr().String(), "netmask": net.IP(net.CIDRMask(p.Bits(), 32)).String()}
}

// MaskBits returns the prefix length of the netmask; ok is false if there is no valid netmask.
func (i Interface) MaskBits() (bits int, ok bool) {
	bits, size := net.IPMask(net.ParseIP(i.Netmask).To4()).Size()
	return bits, size == 32
}

// Subnet returns the reserved address with the prefix length of the netmask. If there is no valid netmask, the prefix length is 24.
func (i Interface) Subnet() netip.Prefix {
	if bits, ok := i.MaskBits(); ok {
		return netip.PrefixFrom(i.Address, bits)
	}
	return netip.PrefixFrom(i.Address, 24)
}

// RouterOnLink reports whether the gateway is reached without another router, even if the gateway is outside the subnet. This is so if
// OnLink is set, if the netmask leaves no room for a router, or if the gateway is link-local (RFC 3927, RFC 4291 §2.5.6).
func (i Interface) RouterOnLink() bool {
	bits, ok := i.MaskBits()
	return i.Gateway.IsValid() && (i.OnLink || i.Gateway.IsLinkLocalUnicast() || ok && bits == 32)
}

// Lease is the duration of a DHCP lease. It is written to JSON as text, "24h0m0s"; a number is read as seconds.
type Lease time.Duration

// maxLeaseSeconds is the longest lease that DHCP can express (32 bit, RFC 2131).
const maxLeaseSeconds = 1<<32 - 1

// String returns l as time.Duration writes it.
func (l Lease) String() string { return time.Duration(l).String() }

// MarshalJSON writes l as text.
func (l Lease) MarshalJSON() ([]byte, error) { return json.Marshal(l.String()) }

// UnmarshalJSON reads what MarshalJSON writes, and numbers.
func (l *Lease) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		text = string(b)
	}
	return l.UnmarshalText([]byte(text))
}

// UnmarshalText reads "24h" or a number of seconds.
func (l *Lease) UnmarshalText(b []byte) error {
	d, err := human.ParseDuration(string(b))
	if err != nil {
		return err
	}
	*l = Lease(d)
	return nil
}

// TextPattern returns the regular expression for a lease in a file.
func (*Lease) TextPattern() string { return human.DurationPattern }

// DeclaredDisk is a disk that templates refer to by Device, which may be another path in the running system. The first disk of a machine is
// the run's disk, which the disk selector chooses. Actions may use each other disk that has a serial number or a WWN.
type DeclaredDisk struct {
	Device string `json:"device"` // path that templates use, such as /dev/sda
	action.DiskID
}

// SecondDisk returns the disk at the path device that m declares in addition to the run's disk. If m declares this disk without a serial
// number or WWN, its DiskID is zero; if m does not declare it, ok is false.
func (m Machine) SecondDisk(device string) (d action.SecondDisk, ok bool) {
	for n, x := range m.Disks {
		if n > 0 && x.Device == device {
			return action.SecondDisk(x), true
		}
	}
	if m.Storage == nil {
		return d, false
	}
	for n, x := range m.Storage.Disks {
		if n > 0 && x.Device == device {
			return action.SecondDisk{Device: device, DiskID: x.DiskID}, true
		}
	}
	return d, false
}

// A DiskSelector selects a disk. All fields that are set must match.
type DiskSelector struct {
	Serial  string `json:"serial,omitempty"`  // serial number
	WWN     string `json:"wwn,omitempty"`     // World Wide Name
	ByID    string `json:"byID,omitempty"`    // name below /dev/disk/by-id
	Model   string `json:"model,omitempty"`   // as the disk reports it
	MinSize Size   `json:"minSize,omitempty"` // minimum size: 500GB, 1.5TiB, or a number of bytes
	MaxSize Size   `json:"maxSize,omitempty"` // largest size
}

// Seen is an unknown machine, by its MAC, that asked for an address.
type Seen struct {
	MAC    string    `json:"mac"`
	First  time.Time `json:"first"`
	Last   time.Time `json:"last"`
	Count  int64     `json:"count"`
	Giaddr string    `json:"giaddr,omitempty"`
	Class  string    `json:"class,omitempty"` // option 60, cleaned
	// Facts are what the agent on the unknown machine has reported; nil = nothing. See Discovery.
	Facts    *action.Facts `json:"facts,omitempty"`
	Reported time.Time     `json:"reported,omitzero"` // when Facts were reported
}
