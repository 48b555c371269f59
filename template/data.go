package template

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// values returns what the template sees. Maps and lists only: nothing that a
// template could call. The names under Hardware and hardware are those of
// Tinkerbell's Hardware (v1alpha1), in Go and in JSON.
func (d Data) values() (map[string]any, error) {
	m := d.Machine
	v := map[string]any{
		"machine":        m.Name,
		"Hardware":       d.hardware(true),
		"hardware":       d.hardware(false),
		"phone_home_url": inventory.RefPhoneHomeURL,
		"metadata_url":   inventory.RefMetadataURL,
		"nonce":          inventory.RefNonce,
		"user_data":      inventory.RefUserData,
		"vendor_data":    inventory.RefVendorData,
		"documents_url":  inventory.RefDocumentsURL,
		"webhook_url":    inventory.RefWebhookURL,
		"boot_url":       inventory.RefBootURL,
		"images_url":     d.ImagesURL,
	}

	reserved := map[string]bool{"image": true, "references": true}
	for k := range v {
		reserved[k] = true
	}
	n := 0
	for _, i := range m.Interfaces {
		if !i.DisableNetboot {
			n++
			v[fmt.Sprintf("device_%d", n)] = i.MAC
		}
	}

	if d.Image != nil {
		v["image"] = map[string]any{
			"name": d.Image.Name, "url": d.ImageURL, "sha256": d.Image.SHA256,
			"format": d.Image.Format,
		}
	}

	var problems inventory.Problems
	for k, x := range d.HardwareMap {
		if reserved[k] {
			problems.Add("hardwareMap."+k, "choose another name", "the name is taken by the template's own data")
			continue
		}
		v[k] = x
	}

	for _, ref := range refs {
		if strings.Contains(texts(m, d), ref) {
			problems.Add("machine."+m.Name, "", "a value holds %q, which stands for a secret", ref)
		}
	}
	return v, problems.Err()
}

// texts joins everything that people wrote about the machine.
func texts(m inventory.Machine, d Data) string {
	m.UserData, m.VendorData = inventory.Secret{}, inventory.Secret{}
	b, err := json.Marshal([]any{m, d.Image, d.ImageURL, d.ImagesURL, d.HardwareMap})
	if err != nil {
		return ""
	}
	return string(b)
}

// naming chooses between the Go and the JSON name of a field.
type naming bool

func (n naming) of(goName, jsonName string) string {
	if n {
		return goName
	}
	return jsonName
}

func (d Data) hardware(inGo bool) map[string]any {
	m, n := d.Machine, naming(inGo)
	disks := []any{}
	for _, x := range m.Disks {
		if inGo {
			disks = append(disks, x.Device)
		} else {
			disks = append(disks, map[string]any{"device": x.Device})
		}
	}

	interfaces := []any{}
	for _, i := range m.Interfaces {
		interfaces = append(interfaces, hardwareInterface(i, n))
	}
	hostname := m.Name
	if i, ok := m.Netboot(); ok && i.Hostname != "" {
		hostname = i.Hostname
	}

	keys := []any{}
	for _, k := range m.SSHKeys {
		keys = append(keys, k)
	}
	labels := map[string]any{}
	for k, v := range m.Labels {
		labels[k] = v
	}
	instance := map[string]any{
		n.of("ID", "id"): m.Name, n.of("Hostname", "hostname"): hostname, n.of("SSHKeys", "ssh_keys"): keys,
	}
	metadata := map[string]any{n.of("Instance", "instance"): instance}
	fields := map[string]any{
		n.of("Disks", "disks"):           disks,
		n.of("Interfaces", "interfaces"): interfaces,
		n.of("Metadata", "metadata"):     metadata,
		n.of("UserData", "userData"):     inventory.RefUserData,
		n.of("VendorData", "vendorData"): inventory.RefVendorData,
	}

	if inGo {
		fields["Hostname"], fields["Labels"] = hostname, labels
		return fields
	}

	// .hardware is the whole object as JSON has it; disks, interfaces and
	// hostname stand at its top, too, for short.
	return map[string]any{
		"metadata": map[string]any{"name": m.Name, "labels": labels},
		"spec":     fields, "disks": disks, "interfaces": interfaces, "hostname": hostname, "labels": labels,
	}
}

func hardwareInterface(i inventory.Interface, n naming) map[string]any {
	arch := i.Arch
	if arch == "" {
		arch = "x86_64"
	}
	return map[string]any{
		n.of("DHCP", "dhcp"): map[string]any{
			n.of("MAC", "mac"):                  i.MAC,
			n.of("Hostname", "hostname"):        i.Hostname,
			n.of("DomainName", "domain_name"):   i.Domain,
			n.of("Arch", "arch"):                arch,
			n.of("UEFI", "uefi"):                i.UEFI,
			n.of("LeaseTime", "lease_time"):     int64(time.Duration(i.LeaseTime).Seconds()),
			n.of("NameServers", "name_servers"): addresses(i.Nameservers),
			n.of("TimeServers", "time_servers"): addresses(i.TimeServers),
			n.of("VLANID", "vlan_id"):           vlan(i.VLAN),
			n.of("IP", "ip"): map[string]any{
				n.of("Address", "address"): address(i.Address), n.of("Netmask", "netmask"): i.Netmask,
				n.of("Gateway", "gateway"): address(i.Gateway),
			},
		},
	}
}

func address(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func addresses(as []netip.Addr) []any {
	out := []any{}
	for _, a := range as {
		out = append(out, a.String())
	}
	return out
}

func vlan(id int) string {
	if id == 0 {
		return ""
	}
	return fmt.Sprint(id)
}

// harmless replaces in place all that YAML could read as more than text, and
// reports whether there was anything.
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

// harmlessText keeps letters, digits and the marks that mean nothing to YAML
// inside a word; everything else becomes an x, byte for byte.
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

// placeholders returns data for a template about which nothing is known, with
// a text for every key that it uses, and tells which texts hold one.
func placeholders(keys map[string]int) (map[string]any, func(string) bool) {
	const mark = "734000" // such texts can stand for a number, too
	m := inventory.Machine{Name: mark + "1", SSHKeys: []string{mark + "2"}}
	for range 8 {
		m.Interfaces = append(m.Interfaces, inventory.Interface{
			MAC: "02:00:00:00:00:01", Address: netip.AddrFrom4([4]byte{192, 0, 2, 2}), Netmask: "255.255.255.0",
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
