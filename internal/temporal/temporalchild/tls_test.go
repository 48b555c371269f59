package temporalchild

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// newIdentity creates a file in the same way as ingot serve.
func newIdentity(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{ServerName}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := append(
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	file := filepath.Join(t.TempDir(), "identity.pem")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// The probe that detects a hung server presents the certificate. Without it, a working server would
// count as hung and be killed.
func TestProbeShowsTheCertificate(t *testing.T) {
	t.Parallel()
	identity := newIdentity(t)
	c, err := ClientTLS(identity)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: c.Certificates, ClientCAs: c.RootCAs, ClientAuth: tls.RequireAndVerifyClientCert,
	})))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	at := func(identity string) Server { return Server{Frontend: l.Addr().String(), Identity: identity} }
	if err := probe(testContext(t), at(identity)); err != nil {
		t.Errorf("with the certificate: %v", err)
	}
	if err := probe(testContext(t), at("")); err == nil {
		t.Error("the server answers without TLS")
	}
	if err := probe(testContext(t), at(newIdentity(t))); err == nil {
		t.Error("the server answers with another certificate")
	}
	if err := probe(testContext(t), at(filepath.Join(t.TempDir(), "none"))); err == nil {
		t.Error("without the file there is no error")
	}
}
