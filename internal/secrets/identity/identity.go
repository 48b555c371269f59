// Package identity makes and reads the files by which a server is known: its
// certificates, their fingerprints and its tokens.
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
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/secrets/keypin"

	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/inventory"
)

// Authorities reads a file of certificates of authorities, in PEM. A file without one is inventory.ErrInvalid.
func Authorities(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate in PEM: %w", file, inventory.ErrInvalid)
	}
	return pool, nil
}

// Names of certificate files. They are next to the key file of the site.
const (
	AgentFile    = "agent.pem"    // shown to agents
	OperatorFile = "operator.pem" // shown to operators, beyond loopback
	PeerFile     = "site.pem"     // shown to other servers
)

// LoadCertificate returns the certificate in file (key and certificate, PEM,
// mode 0600). It makes a self-signed one if there is none. Peers pin the public
// key, so names and dates do not matter. The embedded Temporal server and its
// clients show such a certificate to each other.
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

// newCertificate returns a new key and its self-signed certificate, PEM.
func newCertificate() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}

	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}

	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "ingot"},
		DNSNames:     []string{"ingot", "localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		// The clock of a machine without a battery is at 1970 until its agent gets the time.
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

// Pin returns the fingerprint of the certificate's key.
func Pin(cert tls.Certificate) (string, error) {
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		return "", err
	}
	return keypin.Of(leaf), nil
}

// Digest returns the SHA-256 of b in hex. A server stores this of a token that
// another server keeps.
func Digest[T ~string | ~[]byte](b T) string {
	sum := sha256.Sum256([]byte(b))
	return hex.EncodeToString(sum[:])
}

// NewToken returns a random token with a newline, as token files hold it.
func NewToken() []byte {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never returns an error: it ends the program instead
	return []byte(hex.EncodeToString(raw[:]) + "\n")
}

// LoadKeyPair reads a certificate, and its key from a file that no one else may read.
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

// minToken is the least length of a token, characters.
const minToken = 32

// LoadToken returns the token in file. It makes one if there is none.
func LoadToken(file string) (string, error) {
	if err := CreateFile(file, NewToken()); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return ReadToken(file)
}

// ReadToken returns the token in file. One that is too short is
// inventory.ErrInvalid.
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

// CreateFile writes a new file that only its owner may read, in a directory that is made if it is missing. It never writes over an
// existing file: that is fs.ErrExist.
func CreateFile(file string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		return err
	}
	return durablefile.Create(file, b)
}
