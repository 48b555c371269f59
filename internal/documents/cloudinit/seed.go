// Package cloudinit builds the documents that cloud-init reads: meta-data,
// user-data, vendor-data and network-config. The metadata server serves them
// and the configdrive action writes them to a CIDATA volume; the content must
// be the same, so both use this package.
//
// Every value is encoded, never concatenated: the YAML documents are JSON,
// which is a subset of YAML.
package cloudinit

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// CloudConfig is the first line of a cloud-config, by which cloud-init recognizes it.
const CloudConfig = "#cloud-config\n"

// InstanceID returns the instance id of m's installed system. The id is made of the run that wrote the disk and the boot of the agent
// in that run. cloud-init repeats its once-per-instance work when the id changes. If the agent dies and the half-written system
// boots, that system does some of this work. The next boot of the agent changes the id, so the finished system does all of the work.
// The id of a running system does not change: only a run that writes to the disk changes it, not a BMC job or an inspection.
//
// If no run is known to have written the disk, the id is made of the machine's name.
func InstanceID(m inventory.Machine) string {
	i := m.Installation
	if i == nil {
		return "i-" + m.Name
	}
	return fmt.Sprintf("i-%s-%s-%d-%d", m.Name, i.Run[:min(8, len(i.Run))], i.Epoch, i.Boot)
}

// Hostname returns the host name for m's installed system: the hostname of the netboot interface or, if that is empty, the machine's name.
func Hostname(m inventory.Machine) string {
	if i, ok := m.Netboot(); ok && i.Hostname != "" {
		return i.Hostname
	}
	return m.Name
}

// FQDN returns Hostname with the domain of the netboot interface, if any. It leaves the domain out if the result would
// be longer than a Linux host name may be: the cloud-init of some distributions sets the FQDN as the host name, and if
// that failed, the name would stay "localhost".
func FQDN(m inventory.Machine) string {
	name := Hostname(m)
	if i, ok := m.Netboot(); ok && i.Domain != "" && !strings.Contains(name, ".") &&
		len(name)+1+len(i.Domain) <= inventory.MaxHostname {
		return name + "." + i.Domain
	}
	return name
}

// MetaData returns the meta-data of NoCloud for m. If instanceID is "", InstanceID(m) is used.
func MetaData(m inventory.Machine, instanceID string) []byte {
	instanceID = cmp.Or(instanceID, InstanceID(m))
	doc := struct {
		InstanceID    string   `json:"instance-id"`
		LocalHostname string   `json:"local-hostname"`
		PublicKeys    []string `json:"public-keys,omitempty"`
	}{instanceID, FQDN(m), m.SSHKeys}
	return encode(doc)
}

// UserData returns m's user-data unchanged. Without user-data it returns an empty
// cloud-config, because NoCloud ignores a seed without user-data. The result is a secret.
func UserData(m inventory.Machine) []byte {
	if m.UserData.IsZero() {
		return []byte(CloudConfig + "{}\n")
	}
	return []byte(m.UserData.Reveal())
}

// VendorData returns m's vendor-data, followed by a cloud-config that phones home to phoneHomeURL ("": no
// phone-home). The phone-home comes last because in cloud-init a later part of vendor-data overrides an
// earlier one, and the run waits for the phone-home. User-data overrides both parts. The result is a secret.
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

// PhoneHomeURL returns the URL to which the installed system of o's run reports.
// base is the URL of the metadata server without a slash at its end; the nonce
// of the run is derived from key.
func PhoneHomeURL(base string, key []byte, o inventory.Owner) string {
	return base + "/phone-home/" + o.Machine + "/" + inventory.Nonce(key, o)
}

// URL returns the seedfrom URL of NoCloud for o's run. It ends with a slash, which old versions of cloud-init need.
// If "nocloud/" is removed from its end, it is the URL of the EC2 tree of the same run, for cloud-init's Ec2.
func URL(base string, key []byte, o inventory.Owner) string {
	return base + "/c/" + o.Machine + "/" + inventory.Capability(key, o) + "/nocloud/"
}

// DocumentsURL returns the URL of the documents of o's run. It ends with a slash:
// append the name of a document.
func DocumentsURL(base string, key []byte, o inventory.Owner) string {
	return base + "/c/" + o.Machine + "/" + inventory.Capability(key, o) + "/documents/"
}

// WebhookURL returns the URL to which the installer of o's run reports. It ends with
// a slash: append SUCCEEDED or FAILED.
func WebhookURL(base string, key []byte, o inventory.Owner) string {
	return base + "/c/" + o.Machine + "/" + inventory.Capability(key, o) + "/webhook/"
}

// Reference returns the value of ref, one of inventory.Ref…, in o's run. It
// returns false for references that need more than the run: user-data,
// vendor-data and the address of a boot's images.
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

// phoneHomeTries is the maximum number of calls by cloud-init, with 3 s between
// two calls (cc_phone_home): six minutes if connections are refused, longer if
// they time out. cloud-init's default of 10 tries ends after 27 s, which a restart
// or a move of the server may exceed; the run would then miss the call that it
// waits for. The tries delay only the end of cloud-final.
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

// Prefix returns i's address with the prefix length of its netmask. Without a valid netmask, and for IPv6, the prefix
// contains only this address (/32, /128).
func Prefix(i inventory.Interface) netip.Prefix {
	if bits, ok := i.MaskBits(); ok && i.Address.Is4() {
		return netip.PrefixFrom(i.Address, bits)
	}
	return netip.PrefixFrom(i.Address, i.Address.BitLen())
}

// encode returns v as indented JSON with a line feed at the end.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		panic(err) // this would be a bug, because every value of the types of this package can be encoded
	}
	return b.Bytes()
}
