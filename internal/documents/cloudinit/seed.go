// Package cloudinit builds the documents that cloud-init reads: meta-data,
// user-data, vendor-data and network-config. The metadata server serves them
// and the configdrive action writes them to a CIDATA volume; both must say
// the same, so both come from here.
//
// Every value is encoded, never concatenated: the YAML documents are JSON,
// which is a subset of YAML.
package cloudinit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// CloudConfig is the first line by which cloud-init knows a cloud-config.
const CloudConfig = "#cloud-config\n"

// InstanceID returns the instance id of m's system: it names the run that wrote
// the disk, and the boot of its agent. cloud-init does its once-per-instance work
// again when the id is another one. So a system that boots half finished, because
// its agent died, does not use up the id of the one that the next agent finishes.
// And the id of a running system stays: only a run that writes to the disk
// changes it, and no BMC job or inspection does.
//
// A machine without such a boot has an id made of its name.
func InstanceID(m inventory.Machine) string {
	i := m.Installation
	if i == nil {
		return "i-" + m.Name
	}
	return fmt.Sprintf("i-%s-%s-%d-%d", m.Name, i.Run[:min(8, len(i.Run))], i.Epoch, i.Boot)
}

// Hostname returns the name that m's system is given: the hostname of its
// netboot interface, or the machine's name.
func Hostname(m inventory.Machine) string {
	if i, ok := m.Netboot(); ok && i.Hostname != "" {
		return i.Hostname
	}
	return m.Name
}

// FQDN returns Hostname with the domain of the netboot interface, if any. It is without the domain if Linux could not take
// both as its host name, as some distributions' cloud-init sets it: the system would then stay "localhost".
func FQDN(m inventory.Machine) string {
	name := Hostname(m)
	if i, ok := m.Netboot(); ok && i.Domain != "" && !strings.Contains(name, ".") &&
		len(name)+1+len(i.Domain) <= inventory.MaxHostname {
		return name + "." + i.Domain
	}
	return name
}

// MetaData returns NoCloud's meta-data; instanceID "" is InstanceID(m).
func MetaData(m inventory.Machine, instanceID string) []byte {
	if instanceID == "" {
		instanceID = InstanceID(m)
	}
	doc := struct {
		InstanceID    string   `json:"instance-id"`
		LocalHostname string   `json:"local-hostname"`
		PublicKeys    []string `json:"public-keys,omitempty"`
	}{instanceID, FQDN(m), m.SSHKeys}
	return encode(doc)
}

// UserData returns m's user-data unchanged, or an empty cloud-config: NoCloud
// ignores a seed without user-data. It reveals a secret.
func UserData(m inventory.Machine) []byte {
	if m.UserData.IsZero() {
		return []byte(CloudConfig + "{}\n")
	}
	return []byte(m.UserData.Reveal())
}

// VendorData returns the vendor-data of m: a cloud-config that phones home to
// phoneHomeURL ("" = not), after m's own vendor-data if there is some. Ours
// comes last because cloud-init lets the later part of vendor-data win, and
// the run waits for this call. The user's user-data still wins over both. It
// reveals a secret.
func VendorData(m inventory.Machine, phoneHomeURL string) []byte {
	ours := phoneHome(phoneHomeURL)
	switch {
	case m.VendorData.IsZero():
		return ours
	case phoneHomeURL == "":
		return []byte(m.VendorData.Reveal())
	}
	return multipart([]byte(m.VendorData.Reveal()), ours)
}

// PhoneHomeURL returns where the installed system of o's run reports: below
// base, the metadata server's URL without a slash at its end. The nonce in it
// is derived from key.
func PhoneHomeURL(base string, key []byte, o inventory.Owner) string {
	return base + "/phone-home/" + o.Machine + "/" + inventory.Nonce(key, o)
}

// URL returns NoCloud's seedfrom of o's run, with the slash at its end that
// old versions want. The EC2 tree of the same run is next to it: give
// cloud-init's Ec2 the URL without "nocloud/".
func URL(base string, key []byte, o inventory.Owner) string {
	return base + "/c/" + o.Machine + "/" + inventory.Capability(key, o) + "/nocloud/"
}

// DocumentsURL returns where the documents of o's run lie, with a slash at its
// end: add the name of one.
func DocumentsURL(base string, key []byte, o inventory.Owner) string {
	return base + "/c/" + o.Machine + "/" + inventory.Capability(key, o) + "/documents/"
}

// WebhookURL returns where the installer of o's run reports, with a slash at
// its end: add SUCCEEDED or FAILED.
func WebhookURL(base string, key []byte, o inventory.Owner) string {
	return base + "/c/" + o.Machine + "/" + inventory.Capability(key, o) + "/webhook/"
}

// Reference returns the value of one of the inventory's references in o's
// run, if it is made of the run alone: user-data, vendor-data and the address
// of a boot's images are not.
func Reference(ref, base string, key []byte, o inventory.Owner) (value string, ok bool) {
	switch ref {
	case inventory.RefNonce:
		return inventory.Nonce(key, o), true
	case inventory.RefPhoneHomeURL:
		return PhoneHomeURL(base, key, o), true
	case inventory.RefMetadataURL:
		return URL(base, key, o), true
	case inventory.RefDocumentsURL:
		return DocumentsURL(base, key, o), true
	case inventory.RefWebhookURL:
		return WebhookURL(base, key, o), true
	}

	return "", false
}

// phoneHomeTries is how often cloud-init calls at the most, with 3 s between
// two calls (cc_phone_home): for six minutes where calls are refused, longer
// where no one answers at all. cloud-init's own 10 tries end after 27 s, in
// which a server that is being restarted or moved would lose the evidence that
// the run waits for. Nothing but the end of cloud-final waits with it.
const phoneHomeTries = 120

func phoneHome(url string) []byte {
	type call struct {
		URL   string   `json:"url"`
		Post  []string `json:"post"`
		Tries int      `json:"tries"`
	}

	doc := map[string]call{}
	if url != "" {
		doc["phone_home"] = call{url, []string{"instance_id", "hostname", "fqdn"}, phoneHomeTries}
	}

	return append([]byte(CloudConfig), encode(doc)...)
}

// Prefix returns i's address with the length of its netmask. Without a valid
// netmask it is a host route (/32, /128).
func Prefix(i inventory.Interface) netip.Prefix {
	if bits, ok := i.MaskBits(); ok && i.Address.Is4() {
		return netip.PrefixFrom(i.Address, bits)
	}
	return netip.PrefixFrom(i.Address, i.Address.BitLen())
}

// encode returns v as indented JSON with a line feed; it cannot fail for the
// types of this package.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		panic(err) // a type of this package that JSON cannot hold: a bug, not an input
	}
	return b.Bytes()
}
