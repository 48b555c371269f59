package inventory

import (
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/selector"
)

// maxSecret is the maximum size of user data and of vendor data, in bytes.
const maxSecret = 1 << 20

var (
	label     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	pathSafe  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}$`)
	macDigits = regexp.MustCompile(`^(?:([0-9a-f]{2}(?::[0-9a-f]{2}){5})|([0-9a-f]{2}(?:-[0-9a-f]{2}){5})|` +
		`([0-9a-f]{4}(?:\.[0-9a-f]{4}){2})|([0-9a-f]{12}))$`)
)

// architectures maps each accepted name of an architecture to the name that the inventory stores for it.
var architectures = map[string]string{
	"x86_64": "x86_64", "amd64": "x86_64", "x86-64": "x86_64", "X86_64": "x86_64",
	"aarch64": "aarch64", "arm64": "aarch64", "AARCH64": "aarch64",
}

// Architectures returns the accepted names of architectures, sorted. Canonical converts them to those that the inventory stores.
func Architectures() []string { return slices.Sorted(maps.Keys(architectures)) }

// DiskBoots returns the values that Machine.BootFromDisk may have, except "".
func DiskBoots() []string { return []string{"ipxe-exit", "http-404", "ipxe-sanboot"} }

// ParseMAC returns an Ethernet address in its canonical form: in lower case, with colons. It accepts aa:bb:cc:dd:ee:ff, aa-bb-cc-dd-ee-ff,
// aabb.ccdd.eeff and aabbccddeeff. For anything else, the error is ErrInvalid.
func ParseMAC(s string) (string, error) {
	low := strings.ToLower(s)
	if !macDigits.MatchString(low) {
		return "", fmt.Errorf("parsing MAC address %q: %w", s, ErrInvalid)
	}

	digits := strings.NewReplacer(":", "", "-", "", ".", "").Replace(low)
	b, err := hex.DecodeString(digits)
	return net.HardwareAddr(b).String(), err
}

// Canonical returns m with MACs, names and keywords in the form in which the inventory stores them. It does not change invalid values;
// Validate reports them. Canonical does not change what the pointers in the given m point to.
func Canonical(m Machine) Machine {
	m.Interfaces = slices.Clone(m.Interfaces)
	for n := range m.Interfaces {
		i := &m.Interfaces[n]
		if mac, err := ParseMAC(strings.TrimSpace(i.MAC)); err == nil {
			i.MAC = mac
		}

		i.Address, i.Gateway = i.Address.Unmap(), i.Gateway.Unmap()
		i.Hostname = strings.ToLower(strings.TrimSuffix(i.Hostname, "."))
		i.Domain = strings.ToLower(strings.Trim(i.Domain, "."))

		if arch, ok := architectures[i.Arch]; ok {
			i.Arch = arch
		}
	}

	if m.DiskSelector != nil {
		d := *m.DiskSelector
		d.ByID = strings.TrimPrefix(d.ByID, "/dev/disk/by-id/")
		m.DiskSelector = &d
	}

	if m.Network != nil {
		n := canonicalNetwork(*m.Network)
		m.Network = &n
	}
	if m.BMC != nil {
		b := *m.BMC
		b.Driver = strings.ToLower(b.Driver)
		if b.Driver == "" && b.Host == "" {
			b.Driver = DriverManual
		}

		b.Host, b.Fingerprint = strings.ToLower(b.Host), strings.ToLower(b.Fingerprint)
		if mac, err := ParseMAC(strings.TrimSpace(b.MAC)); err == nil {
			b.MAC = mac
		}
		if a, err := netip.ParseAddr(strings.Trim(b.Host, "[]")); err == nil {
			b.Host = a.Unmap().String()
		}

		m.BMC = &b
	}

	return m
}

// Validate returns all problems of m, which it first converts to the canonical form. It does not compare m with other machines: the store
// checks whether m has a value that only one machine may have.
func Validate(m Machine) Problems {
	var ps Problems
	m = Canonical(m)
	if !label.MatchString(m.Name) {
		ps.Add("name", "use up to 63 of a–z, 0–9 and -, beginning and ending with a letter or digit",
			"invalid machine name %q", m.Name)
	}

	for _, k := range slices.Sorted(maps.Keys(m.Labels)) {
		checkLabel(&ps, k, m.Labels[k])
	}
	if len(m.Interfaces) == 0 {
		ps.Add("interfaces", "add the interface from which the machine boots, with its MAC address", "there is no interface")
	}

	first := map[string]string{}
	for n, i := range m.Interfaces {
		field := fmt.Sprintf("interfaces[%d]", n)
		checkInterface(&ps, field, i)
		for what, v := range map[string]string{"mac": i.MAC, "address": i.Address.String()} {
			if v == "" || what == "address" && !i.Address.IsValid() {
				continue
			}

			if other, ok := first[what+v]; ok {
				ps.Add(field+"."+what, "remove one of the two", "%s is the %s of %s already", v, what, other)
				continue
			}
			first[what+v] = field
		}
	}

	for n, d := range m.Disks {
		if !strings.HasPrefix(d.Device, "/dev/") || path.Clean(d.Device) != d.Device || !plain(d.Device) ||
			strings.ContainsAny(d.Device, " '\"") {
			ps.Add(fmt.Sprintf("disks[%d].device", n), "give a path such as /dev/sda", "invalid device path %q", d.Device)
		}
		field := fmt.Sprintf("disks[%d]", n)
		checkDiskID(&ps, field, d.DiskID)
		for k, other := range m.Disks[:n] {
			if d.Device == other.Device || other.Is(action.Disk{Serial: d.Serial, WWN: d.WWN}) {
				ps.Add(field, "give each disk a path and a serial or wwn of its own", "it is the same disk as disks[%d]", k)
			}
		}
	}
	if m.DiskSelector != nil {
		checkSelector(&ps, *m.DiskSelector)
	}
	if m.Storage != nil {
		for _, p := range m.Storage.Problems() {
			ps.Add("storage."+p.Field, p.Remedy, "%s", p.What)
		}
	}

	checkProtected(&ps, m)
	if m.Network != nil {
		checkNetwork(&ps, m)
	}
	if m.BMC != nil {
		checkBMC(&ps, *m.BMC)
	}
	if m.Template != "" {
		checkPathSafe(&ps, "template", m.Template)
	}
	if m.Image != "" {
		checkPathSafe(&ps, "image", m.Image)
	}

	checkBoot(&ps, m)
	checkTexts(&ps, m)
	slices.SortStableFunc(ps, func(a, b Problem) int { return strings.Compare(a.Field, b.Field) })
	return ps
}

// checkBoot checks BootFromDisk and KernelArgs.
func checkBoot(ps *Problems, m Machine) {
	if m.BootFromDisk != "" && !slices.Contains(DiskBoots(), m.BootFromDisk) {
		ps.Add("bootFromDisk", "use ipxe-exit, http-404 or ipxe-sanboot, or leave it out",
			"unknown way to boot from disk %q", m.BootFromDisk)
	}

	for n, a := range m.KernelArgs {
		if why := ParameterProblem(a); why != "" {
			ps.Add(fmt.Sprintf("kernelArgs[%d]", n), "write one argument per entry, as the kernel reads it, or leave it out", "%q %s", a, why)
		}
	}
}

// checkTexts checks SSH keys, notes, user data and vendor data.
func checkTexts(ps *Problems, m Machine) {
	for n, k := range m.SSHKeys {
		if !plain(k) || len(strings.Fields(k)) < 2 {
			ps.Add(fmt.Sprintf("sshKeys[%d]", n), "give one public key on one line, such as: ssh-ed25519 AAAA… name",
				"invalid public SSH key")
		}
	}

	for field, s := range map[string]Secret{"userData": m.UserData, "vendorData": m.VendorData} {
		if n := len(s.Reveal()); n > maxSecret {
			ps.Add(field, "let cloud-init fetch large files by URL", "has %d bytes; at most %d are allowed", n, maxSecret)
		}
		if hasMark(s.Reveal()) {
			ps.Add(field, "save it as UTF-8 without a byte order mark",
				"begins with a byte order mark, which cloud-init does not recognize")
		}
	}

	for _, k := range slices.Sorted(maps.Keys(m.Notes)) {
		if !plain(k) || k == "" || len(k) > 253 || len(m.Notes[k]) > 4096 {
			ps.Add("notes", "use up to 253 printable ASCII characters for a name, and 4096 bytes for a note",
				"note %q is too long, or its name is invalid", k)
		}
	}
}

// hasMark reports whether doc is a cloud-init document that begins with a byte order mark. Some editors write such marks.
func hasMark(doc string) bool {
	rest, ok := strings.CutPrefix(doc, "\ufeff")
	start := strings.ToLower(strings.TrimSpace(rest[:min(len(rest), 64)]))
	return ok && slices.ContainsFunc([]string{"#", "content-type:", "mime-version:"},
		func(word string) bool { return strings.HasPrefix(start, word) }) ||
		strings.HasPrefix(doc, "\xff\xfe#\x00") || strings.HasPrefix(doc, "\xfe\xff\x00#") // UTF-16
}

func checkLabel(ps *Problems, k, v string) {
	field := "labels[" + k + "]"
	if !selector.IsKey(k) {
		ps.Add(field, selector.KeyRemedy, "invalid label name %q", k)
	}
	if !selector.IsValue(v) {
		ps.Add(field, selector.ValueRemedy, "invalid label value %q", v)
	}
}

func checkInterface(ps *Problems, field string, i Interface) {
	mac, err := ParseMAC(i.MAC)
	switch {
	case err != nil:
		ps.Add(field+".mac", macRemedy(i.MAC), "invalid MAC address %q", i.MAC)
	case mac == "00:00:00:00:00:00" || groupMAC(mac):
		ps.Add(
			field+".mac",
			"copy the MAC address from the machine",
			"%s cannot be the MAC address of an interface: it is a multicast or zero address",
			mac,
		)
	}

	checkAddress(ps, field, i)
	switch {
	case i.Hostname != "" && !dnsName(i.Hostname):
		ps.Add(field+".hostname", "use labels of a–z, 0–9 and -", "invalid host name %q", i.Hostname)
	case len(i.Hostname) > MaxHostname:
		ps.Add(field+".hostname", "shorten it, or move its end to domain", "the host name has %d characters; Linux allows %d",
			len(i.Hostname), MaxHostname)
	}
	if i.Domain != "" && !dnsName(i.Domain) {
		ps.Add(field+".domain", "use labels of a–z, 0–9 and -", "invalid domain %q", i.Domain)
	}

	for what, servers := range map[string][]netip.Addr{"nameservers": i.Nameservers, "timeServers": i.TimeServers} {
		for n, a := range servers {
			if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() {
				ps.Add(fmt.Sprintf("%s.%s[%d]", field, what, n), "give the address of a server", "invalid server address %s", a)
			}
		}
	}

	const longest = maxLeaseSeconds * int64(time.Second)
	switch {
	case i.LeaseTime < 0 || int64(i.LeaseTime) > longest:
		ps.Add(field+".leaseTime", "use a valid time, or leave it out for 7 days", "invalid lease time %s", i.LeaseTime)
	case time.Duration(i.LeaseTime)%time.Second != 0:
		ps.Add(field+".leaseTime", "give whole seconds, for example 1h", "invalid lease time %s", i.LeaseTime)
	}
	if i.VLAN < 0 || i.VLAN > 4094 {
		ps.Add(field+".vlan", "use 1–4094, or leave it out for untagged", "invalid VLAN %d", i.VLAN)
	}
	if _, known := architectures[i.Arch]; i.Arch != "" && !known {
		ps.Add(field+".arch", "use x86_64 or aarch64", "unknown architecture %q", i.Arch)
	}
	if i.Loader != "" && (!pathSafe.MatchString(i.Loader) || strings.Contains(i.Loader, "..")) {
		ps.Add(field+".loader", "name one of the loader files that are served, without a folder", "invalid file name %q",
			i.Loader)
	}
}

// MaxHostname is the maximum length of a host name on Linux, in characters (HOST_NAME_MAX).
const MaxHostname = 64

// macRemedy returns what the operator should do about the invalid MAC s. It recognizes addresses of InfiniBand, which has addresses of 8
// bytes (port) and 20 bytes (interface, RFC 4391 §9.1.1).
func macRemedy(s string) string {
	if b, err := hex.DecodeString(strings.NewReplacer(":", "", "-", "", ".", "").Replace(s)); err == nil && (len(b) == 8 || len(b) == 20) {
		return "enter the MAC of an Ethernet interface; this is an InfiniBand address, and InfiniBand is not supported"
	}
	return "write it as aa:bb:cc:dd:ee:ff"
}

func groupMAC(mac string) bool {
	b, err := hex.DecodeString(mac[:2])
	return err == nil && b[0]&1 == 1
}

func checkSelector(ps *Problems, d DiskSelector) {
	if d == (DiskSelector{}) {
		ps.Add("diskSelector", "name serial, wwn, byID, model or a size, or leave the selector out", "the selector is empty")
	}

	for field, v := range map[string]string{"serial": d.Serial, "wwn": d.WWN, "byID": d.ByID, "model": d.Model} {
		if !plain(v) || len(v) > 256 || field == "byID" && strings.Contains(v, "/") {
			ps.Add("diskSelector."+field, "copy it from: ingot machine disks", "%q cannot be a disk's %s", v, field)
		}
	}
	if d.MinSize < 0 || d.MaxSize < 0 {
		ps.Add("diskSelector.minSize", "write for example 500GB, or a number of bytes", "a size cannot be negative")
	}
	if d.MaxSize > 0 && d.MinSize > d.MaxSize {
		ps.Add("diskSelector.maxSize", "make it at least minSize", "minSize is %d bytes, which is more than maxSize, %d bytes", d.MinSize,
			d.MaxSize)
	}
}

// checkProtected checks the list of disks to which Ingot must never write. It also adds a problem if the disk selector can select only a
// protected disk, because every run would have to ask an operator then.
func checkProtected(ps *Problems, m Machine) {
	for n, id := range m.ProtectedDisks {
		field := fmt.Sprintf("protectedDisks[%d]", n)
		if id == (action.DiskID{}) {
			ps.Add(field, "give serial or wwn", "the entry names no disk")
		}

		checkDiskID(ps, field, id)
		if s := m.DiskSelector; s != nil && id.Is(action.Disk{Serial: s.Serial, WWN: s.WWN}) {
			ps.Add("diskSelector", "select another disk, or take it out of protectedDisks",
				"the selector selects a protected disk")
		}
	}
}

func checkDiskID(ps *Problems, field string, id action.DiskID) {
	for what, v := range map[string]string{"serial": id.Serial, "wwn": id.WWN} {
		if !plain(v) || len(v) > 256 {
			ps.Add(field+"."+what, "copy it from: ingot machine disks", "%q cannot be a disk's %s", v, what)
		}
	}
}

// hostName reports whether s is an IP address or a name to which a program can connect. Such a text never looks like an option of a
// command.
func hostName(s string) bool {
	if a, err := netip.ParseAddr(s); err == nil {
		return !a.IsUnspecified() && !a.IsMulticast() && (a.Zone() == "" || pathSafe.MatchString(a.Zone()))
	}
	return dnsName(s)
}

// dnsName reports whether s consists of DNS-1123 labels in lower case, separated by dots.
func dnsName(s string) bool {
	return len(s) <= 253 && !slices.ContainsFunc(strings.Split(s, "."), func(part string) bool { return !label.MatchString(part) })
}

// plain reports whether s consists of printable ASCII and spaces.
func plain(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

func checkPathSafe(ps *Problems, field, name string) {
	if !pathSafe.MatchString(name) || strings.Contains(name, "..") {
		ps.Add(field, "use up to 128 letters, digits, . _ + and -, beginning with a letter or digit", "invalid name %q",
			name)
	}
}

// SafeNameRule is the part of an error message that says which names SafeName accepts.
const SafeNameRule = "lower-case letters, digits, dots, dashes and underscores, at most 128"

var safeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,126}[a-z0-9])?$`)

// SafeName reports whether name can be used as one element of a path or URL.
func SafeName(name string) bool { return safeName.MatchString(name) && !strings.Contains(name, "..") }

// ValidateImageName returns the problems of an image's name. URLs and boot scripts contain the name. It must not look like a digest,
// because a URL may contain an image's digest in place of its name.
func ValidateImageName(name string) (ps Problems) {
	if !SafeName(name) || IsDigest(name) {
		ps.Add("name", "use up to 128 lower-case letters, digits and . _ -, beginning and ending with a letter or digit",
			"invalid image name %q", name)
	}
	return ps
}

// ValidateImageUse returns the problems of the field Use of an image.
func ValidateImageUse(use string) (ps Problems) {
	if use != "" && use != UseInstaller && use != UseContainer {
		ps.Add("use", "leave it out for a disk image", "invalid use %q; must be %s or %s", use, UseInstaller, UseContainer)
	}
	return ps
}
