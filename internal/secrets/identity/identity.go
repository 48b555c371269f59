// Package identity makes and reads the files that identify a server: its certificates, their fingerprints, and its tokens.
package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/secrets/keypin"

	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/inventory"
)

// Authorities returns the CA certificates in a PEM file, or inventory.ErrInvalid if it contains none.
func Authorities(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s contains no PEM certificate: %w", file, inventory.ErrInvalid)
	}
	return pool, nil
}

// Names of certificate files. They are next to the key file of the site.
const (
	AgentFile    = "agent.pem"    // presented to agents
	OperatorFile = "operator.pem" // presented to operators, except on loopback
	PeerFile     = "site.pem"     // presented to other servers
)

// LoadCertificate returns the certificate in file, which holds key and certificate in PEM with mode 0600. If the file does not exist,
// LoadCertificate creates a self-signed certificate there. Peers pin the public key, so the certificate's names and dates do not matter.
// The embedded Temporal server and its clients also use such a certificate.
func LoadCertificate(file string) (tls.Certificate, error) {
	b, err := durablefile.ReadPrivate(file)
	if errors.Is(err, fs.ErrNotExist) {
		if b, err = newCertificate(); err == nil {
			err = CreateFile(file, b)
		}
	}
	if err != nil {
		return tls.Certificate{}, err
	}

	cert, err := tls.X509KeyPair(b, b)
	if err != nil {
		return cert, fmt.Errorf("reading certificate %q: %w", file, err)
	}

	return cert, nil
}

// newCertificate returns a new key and its self-signed certificate in PEM.
func newCertificate() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}

	t := &x509.Certificate{ // without a SerialNumber, CreateCertificate chooses one
		Subject:     pkix.Name{CommonName: "ingot"},
		DNSNames:    []string{"ingot", "localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		// A machine whose clock has no battery starts in 1970, and must accept the certificate before its agent gets the time.
		NotBefore:             time.Unix(0, 0),
		NotAfter:              time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}

	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}

	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}

	return append(
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...,
	), nil
}

// Pin returns the fingerprint of the certificate's key; see [keypin.Of].
func Pin(cert tls.Certificate) (string, error) {
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		return "", err
	}
	return keypin.Of(leaf), nil
}

// Digest returns the SHA-256 of b in hex. A server that only checks a token stores its digest.
func Digest[T ~string | ~[]byte](b T) string {
	sum := sha256.Sum256([]byte(b))
	return hex.EncodeToString(sum[:])
}

// NewToken returns the content of a new token file: a random token and a newline.
func NewToken() []byte {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never returns an error: it crashes the program instead
	return []byte(hex.EncodeToString(raw[:]) + "\n")
}

// LoadKeyPair reads a certificate and its key. The key file must be private; see [durablefile.ReadPrivate].
func LoadKeyPair(certFile, keyFile string) (tls.Certificate, error) {
	cert, err := os.ReadFile(certFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := durablefile.ReadPrivate(keyFile)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("reading the key %s: %w", keyFile, err)
	}
	return tls.X509KeyPair(cert, key)
}

// minToken is the minimum length of a token in bytes.
const minToken = 32

// LoadToken returns the token in file. If the file does not exist, it creates a token first.
func LoadToken(file string) (string, error) {
	if err := CreateFile(file, NewToken()); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return ReadToken(file)
}

// ReadToken returns the token in file, or inventory.ErrInvalid if the token is too short.
func ReadToken(file string) (string, error) {
	b, err := durablefile.ReadPrivate(file)
	if err != nil {
		return "", fmt.Errorf("reading the token in %s: %w", file, err)
	}
	token := strings.TrimSpace(string(b))
	if len(token) < minToken {
		return "", fmt.Errorf("token in %q is shorter than %d characters: %w", file, minToken, inventory.ErrInvalid)
	}
	return token, nil
}

// CreateFile writes a new file with mode 0600, and creates its directory if needed. If the file exists, CreateFile
// returns fs.ErrExist and does not change it.
func CreateFile(file string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		return err
	}
	return durablefile.Create(file, b)
}
