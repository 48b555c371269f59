package importfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// hardwareDocument is a Hardware of tinkerbell.org/v1alpha1. Fields that are not imported have the type any; see
// ignoredHardware.
type hardwareDocument struct {
	typeMeta
	Spec hardwareSpec `json:"spec"`
}

type hardwareSpec struct {
	BMCRef     *reference          `json:"bmcRef"`
	Disks      []hardwareDisk      `json:"disks"`
	Interfaces []hardwareInterface `json:"interfaces"`
	Metadata   *hardwareMetadata   `json:"metadata"`
	UserData   inventory.Secret    `json:"userData"`
	VendorData inventory.Secret    `json:"vendorData"`
}

type hardwareDisk struct {
	Device string `json:"device"`
}

type hardwareInterface struct {
	DHCP        *hardwareDHCP    `json:"dhcp"`
	DisableDHCP bool             `json:"disableDhcp"`
	Netboot     *hardwareNetboot `json:"netboot"`
}

type hardwareDHCP struct {
	MAC         string       `json:"mac"`
	Hostname    string       `json:"hostname"`
	DomainName  string       `json:"domain_name"`
	LeaseTime   *int64       `json:"lease_time"` // seconds
	NameServers []netip.Addr `json:"name_servers"`
	TimeServers []string     `json:"time_servers"`
	Arch        string       `json:"arch"`
	UEFI        bool         `json:"uefi"`
	IP          *hardwareIP  `json:"ip"`
	VLAN        vlanText     `json:"vlan_id"`
}

type hardwareIP struct {
	Address netip.Addr `json:"address"`
	Netmask string     `json:"netmask"`
	Gateway netip.Addr `json:"gateway"`
}

// vlanText is a VLAN ID that the document holds as a number or as text; 0 and "" mean untagged.
type vlanText int

// UnmarshalText implements encoding.TextUnmarshaler.
func (v *vlanText) UnmarshalText(b []byte) error {
	text := strings.TrimSpace(string(b))
	if text == "" {
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("reading VLAN %q: write a number from 1 to 4094", clip(text))
	}
	*v = vlanText(n)
	return nil
}

type hardwareNetboot struct {
	AllowPXE *bool         `json:"allowPXE"`
	OSIE     *hardwareOSIE `json:"osie"`
}

type hardwareOSIE struct {
	KernelParams []string `json:"kernelParams"`
}

type hardwareMetadata struct {
	Instance *hardwareInstance `json:"instance"`
}

type hardwareInstance struct {
	Hostname string           `json:"hostname"`
	Userdata inventory.Secret `json:"userdata"`
	SSHKeys  []string         `json:"ssh_keys"`
	Storage  any              `json:"storage"`
}

// Reasons that several ignored keys share.
const (
	stateOfRun   = "it is the state of a run, which opens and closes network boot itself"
	ownLoader    = "Ingot serves its own loader, boot script and agent"
	ownMetadata  = "the metadata service answers with the machine's own data"
	noHosting    = "it belongs to the hosting service that the format was made for"
	reservations = "the addresses are read from the interfaces"
)

// ignoredHardware maps each ignored key of a Hardware to the reason why it is not imported.
var ignoredHardware = map[string]string{
	"metadata.namespace":                              "an inventory has no namespaces",
	"spec.agentID":                                    "an agent is identified by the MAC address that it boots from",
	"spec.auto":                                       "machines are accepted by an operator: ingot machine accept",
	"spec.references":                                 "a template cannot refer to other objects; give the value in the hardware map",
	"spec.resources":                                  "machines are chosen by labels",
	"spec.tinkVersion":                                "it is the version of Tinkerbell, not of Ingot",
	"spec.interfaces[].isoboot":                       "to boot by virtual media, write bootPath: [media] into the machine's bmc",
	"spec.interfaces[].netboot.allowPXE":              stateOfRun,
	"spec.interfaces[].netboot.allowWorkflow":         stateOfRun,
	"spec.interfaces[].netboot.ipxe":                  ownLoader,
	"spec.interfaces[].netboot.pxelinux":              ownLoader,
	"spec.interfaces[].netboot.rpi":                   ownLoader,
	"spec.interfaces[].netboot.osie.baseURL":          ownLoader,
	"spec.interfaces[].netboot.osie.kernel":           ownLoader,
	"spec.interfaces[].netboot.osie.initrd":           ownLoader,
	"spec.interfaces[].dhcp.iface_name":               "the agent finds the interface by its MAC address",
	"spec.interfaces[].dhcp.ip.family":                "the address itself shows the family",
	"spec.interfaces[].dhcp.classless_static_routes":  "DHCP sends only the gateway; put other routes into user data",
	"spec.interfaces[].dhcp.tftp_server_name":         ownLoader,
	"spec.interfaces[].dhcp.boot_file_name":           ownLoader,
	"spec.metadata.state":                             stateOfRun,
	"spec.metadata.bonding_mode":                      noHosting,
	"spec.metadata.manufacturer":                      noHosting,
	"spec.metadata.facility":                          noHosting,
	"spec.metadata.custom":                            noHosting,
	"spec.metadata.instance.id":                       ownMetadata,
	"spec.metadata.instance.state":                    stateOfRun,
	"spec.metadata.instance.allow_pxe":                stateOfRun,
	"spec.metadata.instance.rescue":                   stateOfRun,
	"spec.metadata.instance.always_pxe":               stateOfRun,
	"spec.metadata.instance.ipxe_script_url":          ownLoader,
	"spec.metadata.instance.network_ready":            stateOfRun,
	"spec.metadata.instance.operating_system":         "choose an image with ingot image catalog, and name it as image: in the machine",
	"spec.metadata.instance.operating_system_version": "choose an image with ingot image catalog, and name it as image: in the machine",
	"spec.metadata.instance.ips":                      reservations,
	"spec.metadata.instance.ip_addresses":             reservations,
	"spec.metadata.instance.crypted_root_password":    "put the password into user data, which is stored encrypted",
	"spec.metadata.instance.tags":                     "a tag has no value; give the machine labels instead",
}

// hardware holds the machine of a Hardware document whose reference to a BMC is not resolved yet.
type hardware struct {
	object
	machine inventory.Machine
	bmc     *reference
	// controller is the key, in bmcs.controllers, of the BMC that the same document describes; "" if it describes none.
	controller string
	fieldOf    func(field string) string
}

// readHardware reads a Hardware document.
func (r *machines) readHardware(o object) {
	var d hardwareDocument
	if !r.found.decode(o, &d, ignoredHardware) {
		return
	}

	m := r.newMachine(o, d.Metadata.Labels)
	for _, x := range d.Spec.Disks {
		addDisk(&m, x.Device)
	}
	r.interfaces(o, &m, d.Spec.Interfaces)
	if x := d.Spec.Metadata; x != nil && x.Instance != nil {
		r.fillInstance(o, &m, *x.Instance)
		if !d.Spec.UserData.IsZero() && !x.Instance.Userdata.IsZero() {
			r.found.ignore(o, "spec.metadata.instance.userdata", "spec.userData comes first")
		}
	}
	if !d.Spec.UserData.IsZero() {
		m.UserData = d.Spec.UserData
	}
	m.VendorData = d.Spec.VendorData
	r.hardware = append(r.hardware, hardware{o, m, d.Spec.BMCRef, "", hardwareField})
}

// newMachine returns a machine with the name and labels of a document.
func (r *machines) newMachine(o object, labels map[string]string) inventory.Machine {
	m := inventory.Machine{Labels: r.labels(o, labels)}
	var cut bool
	if m.Name, cut = shortName(o.name); cut {
		r.found.ignore(o, "metadata.name", "a machine's name is a single DNS label: "+m.Name)
	}
	return m
}

// addDisk adds a declared disk. If it is the first one and its path identifies a disk, it also becomes the disk to write.
func addDisk(m *inventory.Machine, device string) {
	if id, ok := strings.CutPrefix(device, byID); ok && len(m.Disks) == 0 {
		m.DiskSelector = &inventory.DiskSelector{ByID: id}
	}
	m.Disks = append(m.Disks, inventory.DeclaredDisk{Device: device})
}

// labels returns the labels that the machine gets; nil if there are none. It records labels of Tinkerbell's Cluster API
// provider as ignored.
func (r *machines) labels(o object, labels map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range labels {
		if strings.HasPrefix(k, "v1alpha1.tinkerbell.org/") {
			r.found.ignore(o, "metadata.labels", k+": a Cluster API provider owns the machine; Ingot does not import the ownership")
			continue
		}
		out[k] = v
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// fillInstance copies the fields of spec.metadata.instance to m.
func (r *machines) fillInstance(o object, m *inventory.Machine, x hardwareInstance) {
	if len(m.Interfaces) > 0 && m.Interfaces[0].Hostname == "" {
		m.Interfaces[0].Hostname = x.Hostname
	}
	if len(x.SSHKeys) > 0 {
		m.SSHKeys = x.SSHKeys
	}
	m.UserData = x.Userdata

	if x.Storage == nil {
		return
	}
	storage, err := readStorage(x.Storage)
	if err != nil {
		r.found.ignore(
			o,
			"spec.metadata.instance.storage",
			fmt.Sprintf("rootio cannot create this storage: %v; an image with its own partitions needs no storage", err),
		)
		return
	}
	if !reflect.DeepEqual(storage, action.Storage{}) {
		m.Storage = &storage
	}
}

// readStorage converts a decoded storage. It returns an error if the action rootio cannot create that storage on any machine.
func readStorage(value any) (action.Storage, error) {
	b, err := json.Marshal(value)
	if err != nil {
		return action.Storage{}, err
	}
	s, err := action.ParseStorage(string(b))
	if err != nil {
		return s, err
	}
	var errs []error
	for _, p := range s.Problems() {
		errs = append(errs, errors.New(p.String()))
	}
	return s, errors.Join(errs...)
}

// interfaces adds spec.interfaces to m. If several interfaces have network boot, only the first of them keeps it.
func (r *machines) interfaces(o object, m *inventory.Machine, all []hardwareInterface) {
	booting := -1
	for n, x := range all {
		field := fmt.Sprintf("spec.interfaces[%d]", n)
		i := inventory.Interface{DisableDHCP: x.DisableDHCP}
		if x.DHCP != nil {
			r.dhcp(o, &i, field+".dhcp", *x.DHCP)
		}

		if b := x.Netboot; b != nil {
			if booting >= 0 {
				r.found.ignore(o, field+".netboot", fmt.Sprintf("a machine boots from only one interface, here the first: %s", all[booting].mac()))
			} else {
				booting = n
				m.Notes = map[string]string{"allowPXE": strconv.FormatBool(b.AllowPXE != nil && *b.AllowPXE)}
				if b.OSIE != nil {
					m.KernelArgs = b.OSIE.KernelParams
				}
			}
		}
		m.Interfaces = append(m.Interfaces, i)
	}
	for n := range m.Interfaces {
		m.Interfaces[n].DisableNetboot = booting >= 0 && n != booting
	}
}

func (x hardwareInterface) mac() string {
	if x.DHCP == nil {
		return ""
	}
	return x.DHCP.MAC
}

// dhcp copies the DHCP reservation x to the interface i.
func (r *machines) dhcp(o object, i *inventory.Interface, field string, x hardwareDHCP) {
	i.MAC, i.Hostname, i.Domain = x.MAC, x.Hostname, x.DomainName
	i.Arch, i.UEFI, i.VLAN = x.Arch, x.UEFI, int(x.VLAN)
	if len(x.NameServers) > 0 {
		i.Nameservers = x.NameServers
	}
	i.LeaseTime = r.lease(o, field+".lease_time", x.LeaseTime)
	i.TimeServers = r.timeServers(o, field+".time_servers", x.TimeServers)
	if ip := x.IP; ip != nil {
		if ip.Address.Is6() && !ip.Address.Is4In6() {
			r.found.ignore(o, field+".ip", "DHCP gives only IPv4 addresses")
			return
		}
		i.Address, i.Netmask, i.Gateway = ip.Address, ip.Netmask, ip.Gateway
	}
}

// lease converts a lease time in seconds. It returns 0 for nil. For an impossible time it also returns 0, and adds a problem.
func (r *machines) lease(o object, field string, seconds *int64) inventory.Lease {
	const most = 1<<32 - 1 // RFC 2131: 32 bits
	switch {
	case seconds == nil:
		return 0
	case *seconds < 0 || *seconds > most:
		r.found.add(o.doc, field, "leave the key out for a lease of 7 days", "invalid lease of %d seconds", *seconds)
		return 0
	}
	return inventory.Lease(time.Duration(*seconds) * time.Second)
}

// timeServers returns the addresses in texts. It records host names as ignored, because DHCP sends only addresses.
func (r *machines) timeServers(o object, field string, texts []string) (out []netip.Addr) {
	for n, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a)
		} else {
			r.found.ignore(o, fmt.Sprintf("%s[%d]", field, n), "DHCP sends addresses of time servers, not names")
		}
	}
	return out
}

// addHardware adds the machine of h, with the BMC that its document describes or refers to.
func (r *machines) addHardware(h hardware) {
	if c, ok := r.bmcs.controllers[h.controller]; ok && r.bmcs.use(c, h.object) {
		h.machine.BMC = &c.bmc
	}
	if h.bmc != nil {
		if key, ok := find(r.bmcs.controllers, *h.bmc, h.object); ok {
			c := r.bmcs.controllers[key]
			b := c.bmc
			if r.bmcs.use(c, h.object) {
				h.machine.BMC = &b
			}
		} else {
			r.found.ignore(h.object, "spec.bmcRef", "the files hold no Machine "+clip(h.bmc.Name)+
				": an operator switches the power until the machine has a BMC")
		}
	}
	m := r.validate(h.object, h.machine, h.fieldOf)
	r.add(m)
}

// dhcpFields translates the fields of inventory.Interface to paths in a Hardware document.
var dhcpFields = strings.NewReplacer(
	".mac", ".dhcp.mac", ".address", ".dhcp.ip.address", ".netmask", ".dhcp.ip.netmask", ".gateway", ".dhcp.ip.gateway",
	".hostname", ".dhcp.hostname", ".domain", ".dhcp.domain_name", ".nameservers", ".dhcp.name_servers",
	".timeServers", ".dhcp.time_servers", ".leaseTime", ".dhcp.lease_time", ".vlan", ".dhcp.vlan_id",
	".arch", ".dhcp.arch", ".uefi", ".dhcp.uefi", ".disableDHCP", ".disableDhcp",
)

// hardwareField translates a field of inventory.Machine to its path in a Hardware document.
func hardwareField(field string) string {
	first, _, _ := strings.Cut(field, ".")
	first, _, _ = strings.Cut(first, "[")
	rest := strings.TrimPrefix(field, first)
	switch first {
	case "name":
		return "metadata.name"
	case "labels":
		return "metadata.labels" + rest
	case "interfaces":
		return "spec.interfaces" + dhcpFields.Replace(rest)
	case "sshKeys":
		return "spec.metadata.instance.ssh_keys" + rest
	case "storage":
		return "spec.metadata.instance." + field
	case "kernelArgs":
		return "spec.interfaces"
	case "diskSelector":
		return "spec.disks[0].device"
	case "bmc":
		return "spec.bmcRef"
	}
	return "spec." + field
}
