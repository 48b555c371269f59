package talos

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"

	"github.com/ingotmetal/ingot/internal/systems/endpoint"
	"github.com/ingotmetal/ingot/inventory"
)

// apiPort is the port of the Talos API.
const apiPort = 50000

// probeTimeout limits one probe.
const probeTimeout = 10 * time.Second

// Provable returns nil if Probe can recognise a node that was installed with the configuration, otherwise the reason why it cannot.
func (Document) Provable(contents []byte) error {
	_, err := authorityOf(contents)
	return err
}

// Probe returns a text that describes the proof if the Talos API at the address shows a certificate of the authority in the configuration
// (machine.ca), because then the node runs with that configuration. Otherwise the error is ErrUnreachable. Before the installation, Talos
// runs in memory and does not serve this API; in maintenance mode, its certificate is self-signed.
func (Document) Probe(ctx context.Context, dial endpoint.Dialer, address netip.Addr, contents []byte) (string, error) {
	authority, err := authorityOf(contents)
	if err != nil {
		return "", err
	}
	at := netip.AddrPortFrom(address, apiPort).String()
	if err := checkAuthority(ctx, dial, at, authority); err != nil {
		return "", fmt.Errorf("%w: %w", err, inventory.ErrUnreachable)
	}
	return "the Talos API at " + at + " has a certificate of the authority in this run's configuration", nil
}

// authorityOf returns the certificate authority of a configuration.
func authorityOf(contents []byte) (*x509.CertPool, error) {
	c, err := configloader.NewFromBytes(contents)
	if err != nil {
		return nil, fmt.Errorf("reading the Talos machine configuration: %w", loadProblems(err))
	}
	if raw := c.RawV1Alpha1(); raw == nil || raw.MachineConfig == nil {
		return nil, fmt.Errorf("reading the Talos machine configuration: machine is missing: %w", inventory.ErrInvalid)
	}
	pool := x509.NewCertPool()
	if ca := c.Machine().Security().IssuingCA(); ca == nil || !pool.AppendCertsFromPEM(ca.Crt) {
		return nil, fmt.Errorf("reading the Talos machine configuration: machine.ca contains no certificate: %w", inventory.ErrInvalid)
	}
	return pool, nil
}

// errShown ends the TLS handshake as soon as it is known that the authority has issued the certificate.
var errShown = errors.New("the authority has issued the certificate")

// checkAuthority returns nil if the TLS server at the address shows a certificate of the authority. It sends no
// request, and it ignores the name in the certificate.
func checkAuthority(ctx context.Context, dial endpoint.Dialer, address string, authority *x509.CertPool) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	conn, err := dial(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // only a handshake was sent

	var shown error
	err = tls.Client(conn, &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // the chain is verified below, against this one authority
		VerifyConnection: func(s tls.ConnectionState) error {
			opts := x509.VerifyOptions{
				Roots: authority, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			}
			for _, c := range s.PeerCertificates[1:] {
				opts.Intermediates.AddCert(c)
			}
			if _, shown = s.PeerCertificates[0].Verify(opts); shown == nil {
				shown = errShown
			}
			return shown
		},
	}).HandshakeContext(ctx)
	if errors.Is(shown, errShown) {
		return nil // the certificate suffices: the server may refuse this client
	}
	return cmp.Or(shown, err, errors.New("the server sent no certificate"))
}
