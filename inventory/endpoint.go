package inventory

// Endpoint is where an installed system answers over TLS, and how it proves
// who it is. Systems that were installed a minute ago have certificates that
// they made themselves, so exactly one of CA, Fingerprint and Insecure says
// what is trusted; none of them means the authorities of this host.
type Endpoint struct {
	URL string `json:"url"` // https://10.10.20.1, without a path
	// CA is PEM.
	CA string `json:"ca,omitempty"`
	// Fingerprint is "sha256:" and the digest of the SubjectPublicKeyInfo of the
	// server's certificate, in hex.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Insecure trusts whoever answers: for probes that carry no secret, and
	// where nobody can know the certificate beforehand.
	Insecure bool `json:"insecure,omitempty"`
}

// RouterCommand is one change of a router's configuration.
type RouterCommand struct {
	Delete bool     `json:"delete,omitempty"` // instead of set
	Path   []string `json:"path"`             // service dhcp-relay server 10.0.0.2
}

// ClusterNode is a node as its cluster lists it.
type ClusterNode struct {
	Name  string `json:"name"`
	Ready bool   `json:"ready"`
}
