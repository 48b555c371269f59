// Package keypin identifies the key of a certificate by a digest, the pin. A peer that pins a key needs no certificate
// authority, and the names and dates of the certificate do not matter.
package keypin

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"strings"
)

// Of returns the pin of a certificate's key: "sha256:" and the hexadecimal digest of its SubjectPublicKeyInfo.
func Of(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Matches reports whether pin is the pin of the certificate's key, in constant time. Upper-case digits match, too.
func Matches(c *x509.Certificate, pin string) bool {
	return subtle.ConstantTimeCompare([]byte(Of(c)), []byte(strings.ToLower(pin))) == 1
}

// ClientTLS returns the TLS configuration of a client that accepts only a server with the pinned key, whatever names and dates its
// certificate has. With any other server, the handshake fails with the error that refuse returns for that server's pin.
func ClientTLS(pin string, refuse func(other string) error) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection compares the key
		VerifyConnection: func(s tls.ConnectionState) error {
			if c := s.PeerCertificates[0]; !Matches(c, pin) {
				return refuse(Of(c))
			}
			return nil
		},
	}
}
