package bmc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/ingotmetal/ingot/internal/secrets/keypin"

	"github.com/ingotmetal/ingot/inventory"
)

// errUntrusted means that no password was sent, because the BMC's certificate is not trusted.
var errUntrusted = errors.New("the BMC's certificate is not trusted")

// errStranger means that the certificate's key is not the known key. errUnsigned means that no authority has signed the
// certificate, although an authority had signed the BMC's first certificate.
var (
	errStranger = errors.New("its key differs from the stored one")
	errUnsigned = errors.New("a known authority signed the BMC's first certificate, but not the present one")
)

// signed is stored instead of a key if an authority of the system has signed the BMC's first certificate.
const signed = "authority"

// tlsConfig returns a TLS configuration that checks the certificate of b. If b has a fingerprint, the certificate's key
// must match it. Otherwise, with InsecureTLS, nothing is checked. Otherwise the certificate must be signed by one of
// Config.Authorities or, if that field is nil, by an authority of the system. If Config.Authorities is nil and there is
// a KeyStore, an unsigned certificate is accepted too, if it has the key of the BMC's first certificate (security S27).
// name is the BMC's host in the inventory.
func (d *Driver) tlsConfig(name string, b inventory.BMC) *tls.Config {
	inventoried := b
	inventoried.Host = name
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name, InsecureSkipVerify: true} // VerifyConnection does the verification
	c.VerifyConnection = func(s tls.ConnectionState) error {
		switch {
		case b.Fingerprint != "":
			return sameKey(s.PeerCertificates[0], b.Fingerprint)
		case b.InsecureTLS:
			return nil
		}
		chain := x509.VerifyOptions{DNSName: name, Roots: d.cfg.Authorities, Intermediates: x509.NewCertPool()}
		for _, c := range s.PeerCertificates[1:] {
			chain.Intermediates.AddCert(c)
		}
		_, err := s.PeerCertificates[0].Verify(chain)
		if d.cfg.Authorities != nil || d.cfg.Keys == nil {
			return err
		}
		return d.firstUse(inventoried.KeyAddress(), s.PeerCertificates[0], err)
	}
	return c
}

// firstUse compares the certificate c with what was stored when Ingot first connected to the BMC at address. untrusted
// is the error of the verification against the system's authorities; nil = one of them has signed c.
func (d *Driver) firstUse(address string, c *x509.Certificate, untrusted error) error {
	key := keypin.Of(c)
	if untrusted == nil {
		key = signed
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestTime)
	defer cancel()
	known, err := d.cfg.Keys.KnownBMCKey(ctx, address, key)
	switch {
	case err != nil || untrusted == nil:
		return err
	case known == signed:
		return fmt.Errorf("%w: %w", errUnsigned, untrusted)
	}
	return sameKey(c, known)
}

func sameKey(c *x509.Certificate, known string) error {
	if !keypin.Matches(c, known) {
		return errStranger
	}
	return nil
}

// judgeTLS returns the error for a connection that failed because of the BMC's certificate. It returns nil if err has
// another cause.
func judgeTLS(err error) error {
	var invalid *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var expired x509.CertificateInvalidError
	switch {
	case errors.Is(err, errUnsigned):
		return fmt.Errorf("%w (%w), so no password was sent: another device may pretend to be the BMC; if its "+
			"certificate was replaced, pin the new key as bmc.fingerprint, or run: ingot bmc forget-key: %w", errUntrusted, err,
			inventory.ErrRefused)
	case errors.Is(err, errStranger):
		return fmt.Errorf("%w (%w), so no password was sent: another device may pretend to be the "+
			"BMC; if its certificate was replaced, correct bmc.fingerprint, or run: ingot bmc forget-key: %w", errUntrusted, errStranger,
			inventory.ErrRefused)
	case errors.As(err, &invalid), errors.As(err, &authority), errors.As(err, &host), errors.As(err, &expired):
		return fmt.Errorf("%w (%w), so no password was sent; pin the certificate's key as bmc.fingerprint, or set "+
			"the authority that signed the certificate as bmc.ca_file in the server's configuration: %w", errUntrusted, err, inventory.ErrRefused)
	}
	return nil
}
