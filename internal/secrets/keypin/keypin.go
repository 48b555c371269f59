// Package keypin names the key of a certificate by its digest. Peers that pin a key need no authority, and the names and dates
// of the certificate do not matter.
package keypin

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"strings"
)

// Of returns the pin of a certificate's key: sha256: and the hexadecimal digest of its SubjectPublicKeyInfo.
func Of(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Matches reports whether pin names the certificate's key, in constant time. The case of the digits does not matter.
func Matches(c *x509.Certificate, pin string) bool {
	return subtle.ConstantTimeCompare([]byte(Of(c)), []byte(strings.ToLower(pin))) == 1
}

// ClientTLS returns the configuration of a client that accepts only a server with this key, whatever the names and dates of its
// certificate. The handshake with another server fails with the error that refuse returns for the pin of its key.
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
