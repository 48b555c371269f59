package inventory

import (
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

var (
	cipherSuite = regexp.MustCompile(`^([1-9]|1[0-7])$`)
	fingerprint = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// checkBMC adds the problems of b to ps: missing fields that the driver needs, fields that the driver does not have, and invalid values.
func checkBMC(ps *Problems, b BMC) {
	can := b.Capabilities()
	switch {
	case !KnownDriver(b.Driver):
		ps.Add("bmc.driver", "use one of: "+strings.Join(Drivers(), ", "), "unknown driver %q", b.Driver)
	case can.NeedsHost && b.Host == "":
		ps.Add("bmc.host", "give its address or name", "the driver %s needs a host", b.Driver)
	}
	if can.check != nil {
		can.check(ps, b)
	}

	checkBootPath(ps, b.BootPath, can)
	checkDriverFields(ps, b)
	checkAddressOfBMC(ps, b)
	checkLogin(ps, b, can)
	if b.CipherSuite != "" && !cipherSuite.MatchString(b.CipherSuite) {
		ps.Add("bmc.cipherSuite", "leave it out for 17; 0 means no password and is refused", "unknown cipher suite %q",
			b.CipherSuite)
	}
	if b.SystemName != "" && (!plain(b.SystemName) || strings.ContainsAny(b.SystemName, "/?#%") ||
		strings.Trim(b.SystemName, ".") == "") {
		ps.Add("bmc.systemName", "give the system's id as Redfish lists it", "invalid system name %q", b.SystemName)
	}
}

func checkBootPath(ps *Problems, paths []string, can Capabilities) {
	for i, p := range paths {
		field := "bmc.bootPath[" + strconv.Itoa(i) + "]"
		switch {
		case slices.Contains(paths[:i], p):
			ps.Add(field, "remove it", "%s is in the list already", p)
		case p == PathHTTP && !can.HTTPBoot, p == PathMedia && !can.Media:
			ps.Add(field, "use the driver "+DriverRedfish+", or remove it", "the BMC's driver cannot boot by %s", p)
		case p != PathPXE && p != PathHTTP && p != PathMedia:
			ps.Add(field, "use pxe, http or media", "unknown boot path %q", p)
		}
	}
}

// checkDriverFields adds a problem for each field that is set although only other drivers use it. It also checks the fingerprint.
func checkDriverFields(ps *Problems, b BMC) {
	for _, x := range []struct{ field, value, driver string }{
		{"bmc.command", b.Command, DriverExec}, {"bmc.mac", b.MAC, DriverWOL}, {"bmc.consumerURL", b.ConsumerURL, DriverRPC},
	} {
		if x.value != "" && b.Driver != x.driver {
			ps.Add(x.field, "leave it out", "only the driver %s uses this field", x.driver)
		}
	}

	if b.Fingerprint != "" && b.Driver != DriverAMT && b.Driver != DriverRedfish && b.Driver != DriverRPC {
		ps.Add("bmc.fingerprint", "leave it out", "only the drivers %s, %s and %s use this field", DriverAMT, DriverRedfish, DriverRPC)
	}
	if b.Fingerprint != "" && !fingerprint.MatchString(b.Fingerprint) {
		ps.Add("bmc.fingerprint", "write sha256: and 64 hexadecimal digits", "invalid fingerprint of a key %q", b.Fingerprint)
	}
	if b.Fingerprint != "" && b.InsecureTLS {
		ps.Add("bmc.insecureTLS", "leave out one of the two",
			"insecureTLS accepts any key, but the fingerprint only one")
	}
}

func checkAddressOfBMC(ps *Problems, b BMC) {
	switch {
	case b.Host == "" || hostName(b.Host):
	case strings.Contains(b.Host, "@"):
		ps.Add("bmc.host", "move user and password to bmc.user and bmc.password", "contains a user name or password")
	default:
		ps.Add("bmc.host", "give an address or a name; the port goes into bmc.port", "invalid host %q", b.Host)
	}
	if b.Port < 0 || b.Port > 65535 {
		ps.Add("bmc.port", "use 1–65535, or leave it out for the default", "invalid port %d", b.Port)
	}
}

func checkLogin(ps *Problems, b BMC, can Capabilities) {
	if !plain(b.User) || len(b.User) > 64 || strings.HasPrefix(b.User, "-") {
		ps.Add("bmc.user", "give the BMC's user name, which does not begin with -", "invalid user name")
	}
	if can.NeedsUser && b.User == "" {
		ps.Add("bmc.user", "give the user name, usually admin", "the driver %s needs a user name", b.Driver)
	}
	if can.MaxUser > 0 && len(b.User) > can.MaxUser {
		ps.Add("bmc.user", "use a shorter one", "the driver %s allows user names of up to %d bytes", b.Driver, can.MaxUser)
	}

	password := b.Password.Reveal()
	if strings.ContainsAny(password, "\r\n\x00") {
		ps.Add("bmc.password", "remove the line break or zero byte", "a password must be one line")
	}
	if !utf8.ValidString(password) {
		ps.Add("bmc.password", "enter it as text", "a password must be UTF-8")
	}
	if can.MaxPassword > 0 && len(password) > can.MaxPassword {
		ps.Add("bmc.password", "use a shorter one", "the driver %s allows passwords of up to %d bytes", b.Driver,
			can.MaxPassword)
	}
}

// checkRPC checks the fields of driver rpc.
func checkRPC(ps *Problems, b BMC) {
	u, err := url.Parse(b.ConsumerURL)
	switch {
	case b.ConsumerURL == "":
		ps.Add("bmc.consumerURL", "give the URL of the service that switches the machine", "the driver %s needs a URL", b.Driver)
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Fragment != "":
		ps.Add("bmc.consumerURL", "write it as http://10.0.9.41:8090/path", "invalid URL")
	case u.User != nil:
		ps.Add("bmc.consumerURL", "remove user and password: requests are signed with bmc.password", "contains a user name or password")
	}
	if b.Port != 0 {
		ps.Add("bmc.port", "write the port into bmc.consumerURL", "the driver %s does not use this field", b.Driver)
	}
}

// checkCommand checks the field of driver exec.
func checkCommand(ps *Problems, b BMC) {
	if b.Command == "" {
		ps.Add("bmc.command", "name an entry under power.commands in the server's configuration",
			"the driver %s needs a command", b.Driver)
		return
	}
	checkPathSafe(ps, "bmc.command", b.Command)
}

// checkWOL checks the fields of driver wol: the MAC, and the host, which must be an IPv4 address. A log-in is a problem, because this
// driver has none.
func checkWOL(ps *Problems, b BMC) {
	if b.User != "" || !b.Password.IsZero() {
		ps.Add("bmc.user", "leave user and password out", "a magic packet carries no credentials")
	}
	if b.MAC != "" {
		if mac, err := ParseMAC(b.MAC); err != nil || groupMAC(mac) || mac == "00:00:00:00:00:00" {
			ps.Add("bmc.mac", macRemedy(b.MAC), "invalid MAC address %q, or the address of a group", b.MAC)
		}
	}

	if b.Host != "" && hostName(b.Host) { // otherwise, checkAddressOfBMC reports the host
		if a, err := netip.ParseAddr(b.Host); err != nil || !a.Is4() {
			ps.Add("bmc.host", "give an IPv4 address, usually the broadcast address of the machine's subnet, or leave it out",
				"invalid IPv4 address %q", b.Host)
		}
	}
}
