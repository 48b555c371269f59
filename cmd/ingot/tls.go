package main

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
	"time"
)

// loadOrMakeCert returns the certificate kept in file (key and certificate,
// PEM, mode 0600); it makes a self-signed one if there is none. Peers pin its
// public key, so that its names and dates do not matter. The embedded Temporal
// server and its clients show it to each other.
func loadOrMakeCert(file string) (tls.Certificate, error) {
	b, err := os.ReadFile(file)
	if err == nil {
		cert, err := tls.X509KeyPair(b, b)
		if err != nil {
			return cert, fmt.Errorf("certificate %q: %w", file, err)
		}
		return cert, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return tls.Certificate{}, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return tls.Certificate{}, err
	}
	t := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "ingot"}, DNSNames: []string{"ingot", "localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		// A machine without a battery believes in 1970 until its agent was told the time.
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	out := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	if err := writePrivate(file, out); err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(out, out)
}

// pin is how peers name the certificate's key: sha256:<hex of the digest of
// its SubjectPublicKeyInfo>.
func pin(cert tls.Certificate) (string, error) {
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(leaf.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// writePrivate writes a file that only its owner may read, whole or not at
// all, and never over an existing one.
func writePrivate(file string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if _, err = tmp.Write(b); err == nil {
		err = tmp.Sync()
	}
	if e := tmp.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return os.Link(tmp.Name(), file) // CreateTemp has made it 0600; Link refuses an existing name
}
