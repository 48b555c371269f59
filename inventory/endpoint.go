package inventory

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
)

// Endpoint is where an installed system answers over TLS, and how it proves
// who it is. Systems that were installed a minute ago have certificates that
// they made themselves, so exactly one of CA, Fingerprint and Insecure says
// what is trusted; none of them means the authorities of this host.
type Endpoint struct {
	URL string `json:"url"` // https://10.10.20.1; see BaseProblem
	// CA is PEM.
	CA string `json:"ca,omitempty"`
	// Fingerprint is "sha256:" and the digest of the SubjectPublicKeyInfo of the
	// server's certificate, in hex.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Insecure trusts any certificate: for probes that carry no secret, where the
	// certificate cannot be known in advance.
	Insecure bool `json:"insecure,omitempty"`
}

// BaseProblem says what keeps base from being the base URL of such a system's
// API, "" if nothing does. This is the one rule for all of them, VyOS, Kubernetes
// and Harvester: keys, passwords and tokens travel there, so it is https.
func BaseProblem(base string) string {
	u, err := url.Parse(base)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "":
		return "is not an address"
	case u.Scheme != "https":
		return "is not https"
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "has more than a host, a port and a path"
	}
	return ""
}

// HostProblem says what keeps host, an address or a name, from being that of
// such a system, "" if nothing does. This host itself is refused, and so are
// link-local addresses, which any neighbour may have (security S17). Names are
// checked by their addresses when they are dialled: AddrProblem.
func HostProblem(host string) string {
	host = strings.ToLower(strings.Trim(host, "[]"))
	a, err := netip.ParseAddr(host)
	switch {
	case err == nil:
		return AddrProblem(a)
	case host == "localhost", strings.HasSuffix(host, ".localhost"):
		return "is this host itself"
	}
	return ""
}

// AddrProblem is HostProblem for an address.
func AddrProblem(a netip.Addr) string {
	switch a = a.Unmap(); {
	case a.IsLoopback(), a.IsUnspecified():
		return "is this host itself"
	case a.IsLinkLocalUnicast(), a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "is not the address of one system in a network"
	}
	return ""
}

// MayDial refuses, with ErrInvalid, to dial a system that was entered as host at
// the IP address and port to which the name resolved, if that address would have
// been refused itself. An address was checked when it was entered.
func MayDial(host, address string) error {
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return nil
	}

	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("dialling %q: %w: %w", host, err, ErrInvalid)
	}
	if what := AddrProblem(a.Addr()); what != "" {
		return fmt.Errorf("dialling %q: %s %s: %w", host, a.Addr(), what, ErrInvalid)
	}
	return nil
}

// PinProblem says what keeps fingerprint from being one of Endpoint, "" if
// nothing does.
func PinProblem(fingerprint string) string {
	digits, prefixed := strings.CutPrefix(fingerprint, "sha256:")
	if b, err := hex.DecodeString(digits); err != nil || !prefixed || len(b) != sha256.Size {
		return "is not sha256: and 64 hexadecimal digits"
	}
	return ""
}

// ClusterNode is a node as its cluster lists it.
type ClusterNode struct {
	Name  string `json:"name"`
	Ready bool   `json:"ready"`
}
