package template

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/inventory"
)

// A field is a value that templates can read. It has a name in Go's style and one in JSON's style.
type field[T any] struct {
	goName, jsonName string
	text             string // description for docs/templates.md; "" if the value has fields, which are described instead
	value            func(T) any
}

// top are the values at the top level of the data, except device_1, device_2 ….
var top = []field[Data]{
	{"machine", "", "name of the machine", func(d Data) any { return d.Machine.Name }},
	{"image", "", "", Data.image},
	{"images_url", "", "where this server serves images; add / and an image's name", func(d Data) any { return d.ImagesURL }},
	{
		"boot_url", "", "where the images of this boot are served, for an installer's kernel parameters; ends with a slash",
		constant(inventory.RefBootURL),
	},
	{"documents_url", "", "where the run's documents are served; ends with a slash", constant(inventory.RefDocumentsURL)},
	{
		"webhook_url", "", "where an installer reports its end; add SUCCEEDED or FAILED",
		constant(inventory.RefWebhookURL),
	},
	{"metadata_url", "", "cloud-init's seedfrom for this run", constant(inventory.RefMetadataURL)},
	{"phone_home_url", "", "where the installed system reports that it is up", constant(inventory.RefPhoneHomeURL)},
	{"nonce", "", "the secret that the installed system sends when it phones home", constant(inventory.RefNonce)},
	{"user_data", "", "the machine's user-data", constant(inventory.RefUserData)},
	{"vendor_data", "", "the machine's vendor-data", constant(inventory.RefVendorData)},
	{"netplan", "", "the network of the installed system, as a file of netplan (JSON, which is YAML)", func(d Data) any {
		return string(cloudinit.Netplan(d.Machine))
	}},
	{"networkd", "", "the same as files of systemd-networkd: contents by file name", func(d Data) any {
		return cloudinit.Networkd(d.Machine)
	}},
	{"Hardware", "", "", func(d Data) any { return d.hardware(true) }},
	{"hardware", "", "", func(d Data) any { return d.hardware(false) }},
}

func constant(text string) func(Data) any { return func(Data) any { return text } }

// imageFields are the fields of .image.
var imageFields = []field[Data]{
	{"name", "", "name of the image", func(d Data) any { return d.Image.Name }},
	{"url", "", "where the agent fetches the image", func(d Data) any { return d.ImageURL }},
	{"sha256", "", "digest of the file as it is served", func(d Data) any { return d.Image.SHA256 }},
	{"format", "", "raw, gz, zst …", func(d Data) any { return d.Image.Format }},
}

// image returns the value of .image; nil if the run has no image.
func (d Data) image() any {
	if d.Image == nil {
		return nil
	}
	return fill(true, imageFields, d)
}

// fill returns the values of the fields in rows, by their names. The values are those of the object from.
func fill[T any](n naming, rows []field[T], from T) map[string]any {
	out := map[string]any{}
	for _, f := range rows {
		out[n.of(f.goName, f.jsonName)] = f.value(from)
	}
	return out
}

// values returns the data that a template reads. The result contains only maps, lists and simple values, so that the template cannot call
// methods. Names below Hardware and hardware are the Go and JSON names of Tinkerbell's Hardware (v1alpha1).
func (d Data) values() (map[string]any, error) {
	v, reserved := map[string]any{}, map[string]bool{"references": true}
	for _, f := range top {
		reserved[f.goName] = true
		if x := f.value(d); x != nil {
			v[f.goName] = x
		}
	}

	n := 0
	for _, i := range d.Machine.Interfaces {
		if !i.DisableNetboot && len(d.Others) == 0 { // with other machines, only the hardware map says which machine a device is
			n++
			v[fmt.Sprintf("device_%d", n)] = i.MAC
		}
	}

	var problems inventory.Problems
	for k, x := range d.HardwareMap {
		if reserved[k] {
			problems.Add("hardwareMap."+k, "choose another name", "the template's own data already has this name")
			continue
		}
		v[k] = x
	}

	for _, ref := range refs {
		if strings.Contains(texts(d.Machine, d), ref) {
			problems.Add("machine."+d.Machine.Name, "", "a value contains %q, which is reserved for a secret", ref)
		}
	}
	return v, problems.Err()
}

// texts joins all texts in m and d that an operator may have written.
func texts(m inventory.Machine, d Data) string {
	m.UserData, m.VendorData = inventory.Secret{}, inventory.Secret{}
	b, err := json.Marshal([]any{m, d.Image, d.ImageURL, d.ImagesURL, d.HardwareMap})
	if err != nil {
		return ""
	}
	return string(b)
}

// naming says which name of a field to use: true means the Go name, false the JSON name.
type naming bool

func (n naming) of(goName, jsonName string) string {
	if n {
		return goName
	}
	return jsonName
}

// A view is a machine together with the choice between Go names and JSON names for its fields.
type view struct {
	inventory.Machine
	naming
}

// hardwareFields are the fields of .Hardware and of .hardware.spec.
var hardwareFields = []field[view]{
	{"Disks", "disks", "disks that the machine declares; below .Hardware their paths", view.disks},
	{"Interfaces", "interfaces", "", view.interfaces},
	{"Metadata", "metadata", "", func(v view) any {
		return map[string]any{v.of("Instance", "instance"): fill(v.naming, instanceFields, v.Machine)}
	}},
	{"UserData", "userData", "as .user_data", func(view) any { return inventory.RefUserData }},
	{"VendorData", "vendorData", "as .vendor_data", func(view) any { return inventory.RefVendorData }},
}

// instanceFields are the fields of .Hardware.Metadata.Instance.
var instanceFields = []field[inventory.Machine]{
	{"ID", "id", "name of the machine", func(m inventory.Machine) any { return m.Name }},
	{"Hostname", "hostname", "host name of the first interface for netboot, else the name of the machine", hostname},
	{"SSHKeys", "ssh_keys", "public SSH keys", func(m inventory.Machine) any { return list(m.SSHKeys, func(k string) any { return k }) }},
}

// dhcpFields are the fields of DHCP, which each interface in Hardware and hardware has.
var dhcpFields = []field[inventory.Interface]{
	{"MAC", "mac", "MAC address, in lower case with colons", func(i inventory.Interface) any { return i.MAC }},
	{"Hostname", "hostname", "host name", func(i inventory.Interface) any { return i.Hostname }},
	{"DomainName", "domain_name", "domain", func(i inventory.Interface) any { return i.Domain }},
	{"Arch", "arch", "x86_64 or aarch64", func(i inventory.Interface) any { return cmp.Or(i.Arch, "x86_64") }},
	{"UEFI", "uefi", "the machine boots by UEFI", func(i inventory.Interface) any { return i.UEFI }},
	{
		"LeaseTime", "lease_time", "seconds; 0 means 7 days",
		func(i inventory.Interface) any { return int64(time.Duration(i.LeaseTime).Seconds()) },
	},
	{"NameServers", "name_servers", "name servers", func(i inventory.Interface) any { return list(i.Nameservers, address) }},
	{"TimeServers", "time_servers", "time servers", func(i inventory.Interface) any { return list(i.TimeServers, address) }},
	{"VLANID", "vlan_id", "VLAN as text, empty for none", func(i inventory.Interface) any { return vlan(i.VLAN) }},
}

// ipFields are the fields of IP, which is part of DHCP (see dhcpFields).
var ipFields = []field[inventory.Interface]{
	{"Address", "address", "reserved address", func(i inventory.Interface) any { return address(i.Address) }},
	{"Netmask", "netmask", "as 255.255.255.0", func(i inventory.Interface) any { return i.Netmask }},
	{"Gateway", "gateway", "router", func(i inventory.Interface) any { return address(i.Gateway) }},
}

// hardware returns the value of .Hardware if inGo is true, and of .hardware otherwise.
func (d Data) hardware(inGo naming) map[string]any {
	v := view{d.Machine, inGo}
	fields := fill(inGo, hardwareFields, v)
	labels := map[string]any{}
	for k, x := range d.Machine.Labels {
		labels[k] = x
	}
	if inGo {
		fields["Hostname"], fields["Labels"] = hostname(d.Machine), labels
		return fields
	}

	// .hardware has the same structure as Tinkerbell's JSON object. To make expressions shorter, it also has disks, interfaces, hostname and
	// labels at the top level.
	return map[string]any{
		"metadata": map[string]any{"name": d.Machine.Name, "labels": labels}, "spec": fields,
		"disks": v.disks(), "interfaces": v.interfaces(), "hostname": hostname(d.Machine), "labels": labels,
	}
}

func (v view) disks() any {
	return list(v.Disks, func(d inventory.DeclaredDisk) any {
		if v.naming {
			return d.Device
		}
		return map[string]any{"device": d.Device}
	})
}

func (v view) interfaces() any {
	return list(v.Interfaces, func(i inventory.Interface) any {
		dhcp := fill(v.naming, dhcpFields, i)
		dhcp[v.of("IP", "ip")] = fill(v.naming, ipFields, i)
		return map[string]any{v.of("DHCP", "dhcp"): dhcp}
	})
}

func hostname(m inventory.Machine) any {
	if i, ok := m.Netboot(); ok && i.Hostname != "" {
		return i.Hostname
	}
	return m.Name
}

// list calls the function each with every element of from, and returns the results.
func list[T any](from []T, each func(T) any) []any {
	out := []any{}
	for _, x := range from {
		out = append(out, each(x))
	}
	return out
}

func address(a netip.Addr) any {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func vlan(id int) string {
	if id == 0 {
		return ""
	}
	return fmt.Sprint(id)
}

// harmless changes the texts in v: it replaces every character that YAML could interpret. It reports whether it has replaced any.
func harmless(v map[string]any) bool {
	changed := false
	var walk func(any) any
	walk = func(x any) any {
		switch x := x.(type) {
		case string:
			s := harmlessText(x)
			changed = changed || s != x
			return s
		case map[string]any:
			for k, e := range x {
				x[k] = walk(e)
			}
		case []any:
			for i, e := range x {
				x[i] = walk(e)
			}
		}
		return x
	}

	for k, x := range v {
		v[k] = walk(x)
	}
	return changed
}

// harmlessText returns s, in which "x" replaces every byte that could have a meaning in YAML at its position.
func harmlessText(s string) string {
	const alnum = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	b := []byte(s)
	for i, c := range b {
		allowed := alnum + "._/:@+=~%&?-"
		switch i {
		case 0:
			allowed = alnum + "/"
		case len(b) - 1:
			allowed = alnum + "._/+=~%-"
		}
		if !strings.ContainsRune(allowed, rune(c)) || c >= 0x80 {
			b[i] = 'x'
		}
	}

	return string(b)
}

// placeholders returns data with which a template can be checked without a machine. Every key that the template uses has a placeholder as
// its value. The returned function reports whether a text contains a placeholder.
func placeholders(keys map[string]int) (map[string]any, func(string) bool) {
	const mark = "734000" // a number, so that a placeholder is also valid where a number is expected
	m := inventory.Machine{Name: mark + "1", SSHKeys: []string{mark + "2"}}
	for n := range 8 { // different MACs, so that device_1 and device_2 are different workers
		m.Interfaces = append(m.Interfaces, inventory.Interface{
			MAC: fmt.Sprintf("02:00:00:00:00:%02x", n+1), Address: netip.AddrFrom4([4]byte{192, 0, 2, 2}), Netmask: "255.255.255.0",
			Gateway: netip.AddrFrom4([4]byte{192, 0, 2, 1}), Hostname: mark + "3",
		})
		m.Disks = append(m.Disks, inventory.DeclaredDisk{Device: DefaultDisk})
	}

	d := Data{
		Machine: m, Image: &inventory.Image{Name: mark + "4", SHA256: strings.Repeat("0", 64), Format: "raw"},
		ImageURL: "http://192.0.2.1/" + mark + "5", ImagesURL: "http://192.0.2.1/images",
	}
	v, err := d.values()
	if err != nil {
		v = map[string]any{}
	}

	n := 100
	for k := range keys {
		if _, known := v[k]; !known {
			n++
			v[k] = fmt.Sprintf("%s%d", mark, n)
		}
	}
	return v, func(s string) bool { return strings.Contains(s, mark) }
}

// Data is everything from which a template is rendered.
type Data struct {
	Machine inventory.Machine
	// Image is the value of .image. An action that writes an image and has no IMG_URL writes this image, too. nil = the machine has no image.
	Image *inventory.Image
	// ImageURL is the URL from which the agent fetches the file of Image.
	ImageURL string
	// ImagesURL is the base URL of all images, without a trailing slash.
	ImagesURL string
	// Images are the images of this server, by the URL from which the agent fetches them.
	Images map[string]inventory.Image
	// RequireDigest makes it a problem if no operator has declared the digest of an image (security S18).
	RequireDigest bool
	// UploadHosts are the hosts to which an action may send the content of a disk (security S59).
	UploadHosts []string
	// Containers are the digests of the images of containers, by reference.
	Containers map[action.ContainerReference]string
	// PrivilegedContainers are the digests of the images that may run as privileged containers.
	PrivilegedContainers []string
	// Memory is the size of the machine's memory in bytes; 0 if it is not known.
	Memory int64
	// HardwareMap contains additional values, by name, for the top level of the data, as in Tinkerbell.
	HardwareMap map[string]string
	// Others are the other machines that carry out the template together with Machine.
	Others []inventory.Machine
}
