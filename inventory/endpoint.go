package inventory

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
)

// Endpoint is the address of an installed system's API, and how its certificate is verified. A fresh system has a self-signed certificate,
// so one of CA, Fingerprint and Insecure may be set, but no more. If none is set, the certificate must be of an authority that this host
// trusts.
type Endpoint struct {
	URL string `json:"url"` // https://10.10.20.1; see BaseProblem
	// CA is the certificate authority, in PEM.
	CA string `json:"ca,omitempty"`
	// Fingerprint is "sha256:" and the digest of the SubjectPublicKeyInfo of the
	// server's certificate, in hex.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Insecure trusts any certificate. It is for probes that send no secret, to systems whose certificate cannot be known in advance.
	Insecure bool `json:"insecure,omitempty"`
}

// BaseProblem returns why base cannot be the base URL of an installed system's API, or "" if it can be one. The rule is the same for VyOS,
// Kubernetes and Harvester: requests contain keys, passwords or tokens, so the URL must be https.
func BaseProblem(base string) string {
	u, err := url.Parse(base)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "":
		return "is not a URL with a host"
	case u.Scheme != "https":
		return "is not https"
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "must contain only a host, a port and a path"
	}
	return ""
}

// HostProblem returns why host, an address or a name, cannot be the address of an installed system, or "" if it can be one. It refuses this
// host itself, and link-local addresses, which any neighbor may have (security S17). The addresses of a name are checked by MayDial at each
// connection.
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
		return "is a link-local, multicast or broadcast address"
	}
	return ""
}

// MayDial checks the address (IP:PORT) to which the name host was resolved. If HostProblem would refuse the IP, the error is ErrInvalid. If
// host is itself an address, MayDial returns nil, because HostProblem has checked it when it was entered.
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

// PinProblem returns why fingerprint is not valid as Endpoint.Fingerprint, or "" if it is valid.
func PinProblem(fingerprint string) string {
	digits, prefixed := strings.CutPrefix(fingerprint, "sha256:")
	if b, err := hex.DecodeString(digits); err != nil || !prefixed || len(b) != sha256.Size {
		return "must be sha256: and 64 hexadecimal digits"
	}
	return ""
}

// ClusterNode is one node in the list of a cluster.
type ClusterNode struct {
	Name  string `json:"name"`
	Ready bool   `json:"ready"`
}
