package inventory

import (
	"maps"
	"net/netip"
	"net/url"
	"slices"
)

// Drivers of BMC.
const (
	DriverIPMI    = "ipmi"
	DriverAMT     = "amt" // Intel Active Management Technology
	DriverRedfish = "redfish"
	DriverRPC     = "rpc"  // requests to a service of the operator
	DriverExec    = "exec" // commands from the server's configuration
	DriverWOL     = "wol"  // wake-on-LAN switches the machine on; an operator switches it off
	DriverManual  = "manual"
)

// Capabilities are the abilities and requirements of a BMC driver.
type Capabilities struct {
	// Manual: an operator presses the power button, at least to switch the machine off. Wakes: the driver can switch the
	// machine on, but not off.
	Manual, Wakes bool

	NeedsHost, NeedsUser, NeedsPassword bool
	Port                                int // default port; 0 = none
	ClearPort                           int // port without TLS, tried after Port if no port is configured; 0 = none
	MaxUser, MaxPassword                int // maximum length of user and password in bytes; 0 = no limit
	// Shared: one host may switch many machines, so the host alone does not identify a BMC.
	Shared bool
	// Relayed: requests go to BMC.ConsumerURL. BMC.Host is only the name of the BMC in these requests.
	Relayed bool

	// Soft: the driver can also shut the system down gracefully, and reset a machine.
	Soft bool
	// BootDevice: the driver can set the device of the next boot. Persistent: it can set the device of all boots. EFI: it
	// can choose between UEFI and BIOS.
	BootDevice, Persistent, EFI bool
	// BlindBoot: the driver cannot read back which boot device is set.
	BlindBoot bool
	// HTTPBoot: the driver can select UEFI HTTP boot as the boot device. Media: the driver can insert an image into a virtual CD drive.
	HTTPBoot, Media bool
	// Inspects: the driver can read versions, Secure Boot and sensors.
	Inspects bool
	// ResetByCycle: the driver resets a machine by switching it off and on, because these two can be verified and a reset cannot.
	ResetByCycle bool
	// ResetsBMC: the driver can restart the controller.
	ResetsBMC bool
	// RotatesPassword: the driver can change the password of the BMC's user.
	RotatesPassword bool
	// SelfTest: a BMC may accept a request without carrying it out, and the driver can test whether the BMC does so.
	SelfTest bool

	// check adds the problems that are specific to this driver; nil = there are none.
	check func(ps *Problems, b BMC)
}

// drivers are the capabilities of each driver, by its name.
var drivers = map[string]Capabilities{
	DriverIPMI: {
		NeedsHost: true, NeedsPassword: true, Port: 623, MaxUser: 16, MaxPassword: 20,
		Soft: true, BootDevice: true, Persistent: true, EFI: true, ResetsBMC: true,
	},
	DriverAMT: {
		NeedsHost: true, NeedsUser: true, NeedsPassword: true, Port: 16993, ClearPort: 16992, MaxUser: 16, MaxPassword: 32,
		Soft: true, BootDevice: true, SelfTest: true,
	},
	DriverRPC: {
		NeedsHost: true, NeedsPassword: true, Relayed: true, Soft: true, BootDevice: true, Persistent: true, EFI: true, BlindBoot: true,
		ResetByCycle: true, check: checkRPC,
	},
	DriverExec:   {Shared: true, check: checkCommand},
	DriverWOL:    {Manual: true, Wakes: true, Port: 9, check: checkWOL},
	DriverManual: {Manual: true},
	DriverRedfish: {
		NeedsHost: true, NeedsUser: true, NeedsPassword: true, Port: 443,
		Soft: true, BootDevice: true, Persistent: true, EFI: true, ResetsBMC: true, HTTPBoot: true, Media: true, Inspects: true,
		ResetByCycle: true, RotatesPassword: true,
	},
}

// Drivers lists the drivers, sorted.
func Drivers() []string { return slices.Sorted(maps.Keys(drivers)) }

// KnownDriver reports whether a driver has that name.
func KnownDriver(name string) bool {
	_, ok := drivers[name]
	return ok
}

// BMC describes how to reach a machine's management controller, or how else its power is switched. Changing Driver, Host,
// Port, InsecureTLS, Fingerprint, Command or ConsumerURL clears the stored password.
type BMC struct {
	Driver      string `json:"driver"`                // ipmi | redfish | amt | rpc | exec | wol | manual
	Host        string `json:"host,omitempty"`        // address or name
	Port        int    `json:"port,omitempty"`        // 0 = the driver's default
	User        string `json:"user,omitempty"`        // log-in name
	Password    Secret `json:"password,omitzero"`     // a secret: never shown again
	HasPassword bool   `json:"hasPassword,omitempty"` // a password is stored; files cannot set this field
	// CipherSuite of IPMI lanplus; default 17.
	//
	// The driver always passes a suite to ipmitool: otherwise ipmitool searches for one, which costs two log-ins and may run a command twice.
	CipherSuite string `json:"cipherSuite,omitempty"`
	InsecureTLS bool   `json:"insecureTLS,omitempty"` // any certificate is accepted
	SystemName  string `json:"systemName,omitempty"`  // id of the system, when Redfish lists several
	// Fingerprint pins the TLS key of drivers redfish, amt and rpc: sha256: and the hexadecimal digest of the key's
	// SubjectPublicKeyInfo.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Command is the name of an entry under power.commands in the server's configuration, for driver exec. The commands themselves are only in
	// the configuration.
	Command string `json:"command,omitempty"`
	// ConsumerURL is where driver rpc sends its requests: http://10.0.9.41:8090/path. The requests are signed with the password. They contain
	// the host as the name of the BMC.
	ConsumerURL string `json:"consumerURL,omitempty"`
	// MAC is the address of the network interface that driver wol wakes; default: the MAC of the first netboot interface. The magic packet is
	// sent to the host; default: the broadcast address of the machine's subnet.
	MAC string `json:"mac,omitempty"`
	// BootPath lists ways to boot the machine: pxe, http (UEFI HTTP boot) and media (virtual media). If the machine does not answer after a
	// boot, the next way in the list is used. Default: pxe. http and media need Redfish.
	BootPath []string `json:"bootPath,omitempty"`
	// Machine is the name of the machine. Broadcast is where driver wol sends the magic packet if Host is empty. Both are set
	// by Machine.Controller and never stored.
	Machine   string     `json:"-"`
	Broadcast netip.Addr `json:"-"`
}

// Capabilities returns the capabilities of b's driver. If b is nil or has no driver, the result is for DriverManual. If the driver is
// unknown, the result is zero.
func (b *BMC) Capabilities() Capabilities {
	if b == nil || b.Driver == "" {
		return drivers[DriverManual]
	}
	return drivers[b.Driver]
}

// Manual reports whether an operator presses the power button, at least to switch the machine off.
func (b *BMC) Manual() bool { return b.Capabilities().Manual }

// Wakes reports whether the machine can be switched on without an operator, but
// not off.
func (b *BMC) Wakes() bool { return b.Capabilities().Wakes }

// ListenPort returns the configured port of the controller, or the driver's default.
func (b *BMC) ListenPort() int {
	if b.Port != 0 {
		return b.Port
	}
	return b.Capabilities().Port
}

// OwnPort returns the port that distinguishes b from other BMCs of the same host. The driver's default ports with and without TLS count as
// the same port.
func (b *BMC) OwnPort() int {
	if can := b.Capabilities(); b.Port == 0 || b.Port == can.ClearPort {
		return can.Port
	}
	return b.Port
}

// Controller returns the BMC of m or, if m has none, a BMC with DriverManual. In the result, Machine is set, and for driver wol also MAC
// and Broadcast.
func (m Machine) Controller() BMC {
	b := BMC{Driver: DriverManual}
	if m.BMC != nil {
		b = *m.BMC
	}

	b.Machine = m.Name
	if !b.Wakes() {
		return b
	}

	nic, _ := m.Netboot()
	if b.MAC == "" {
		b.MAC = nic.MAC
	} else if i, ok := m.InterfaceByMAC(b.MAC); ok {
		nic = i
	}

	b.Broadcast = broadcast(nic)
	return b
}

// broadcast returns the broadcast address of i's subnet, or 255.255.255.255
// when i has no reservation.
func broadcast(i Interface) netip.Addr {
	bits, ok := maskBits(i.Netmask)
	if !ok || !i.Address.Is4() || bits > 30 {
		return netip.AddrFrom4([4]byte{255, 255, 255, 255})
	}
	a := i.Address.As4()
	for n := bits; n < 32; n++ {
		a[n/8] |= 0x80 >> (n % 8)
	}
	return netip.AddrFrom4(a)
}

// The values of BootPath.
const (
	PathPXE   = "pxe"
	PathHTTP  = "http"
	PathMedia = "media"
)

// Path returns the way to boot the machine after n boots that it did not answer.
func (b *BMC) Path(n int) string {
	if b == nil || len(b.BootPath) == 0 {
		return PathPXE
	}
	return b.BootPath[min(n, len(b.BootPath)-1)]
}

// DialHost returns the host to which connections are made; "" if there is none.
func (b *BMC) DialHost() string {
	if b.Manual() && !b.Wakes() {
		return ""
	}
	if u, err := url.Parse(b.ConsumerURL); err == nil && b.Capabilities().Relayed {
		return u.Hostname()
	}
	return b.Host
}

// Address returns the host of b; "" if b is manual. Operations on BMCs with the same address run one after the other.
func (b *BMC) Address() string {
	if b.Manual() {
		return ""
	}
	return b.Host
}
