package talos

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// newAuthority makes a certificate authority and a server's certificate of it.
func newAuthority(t *testing.T, name string) (ca []byte, server tls.Certificate) {
	t.Helper()
	cert := func(of *x509.Certificate, by *ecdsa.PrivateKey, tmpl *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		now := time.Now()
		tmpl.SerialNumber = big.NewInt(now.UnixNano())
		tmpl.NotBefore, tmpl.NotAfter = now.Add(-time.Hour), now.Add(time.Hour)
		if of == nil {
			of, by = tmpl, key
		}
		der, err := x509.CreateCertificate(rand.Reader, tmpl, of, &key.PublicKey, by)
		require.NoError(t, err)
		c, err := x509.ParseCertificate(der)
		require.NoError(t, err)
		return c, key
	}
	root, rootKey := cert(
		nil,
		nil,
		&x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign},
	)
	leaf, leafKey := cert(
		root,
		rootKey,
		&x509.Certificate{
			Subject:     pkix.Name{CommonName: "node"},
			IPAddresses: []net.IP{net.IPv4(10, 0, 0, 9)},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		},
	)
	certificate := tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: leafKey}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Raw}), certificate
}

// TestProbe: the Talos API proves the run's system by its authority alone. Talos
// in maintenance mode, another cluster and another server do not.
func TestProbe(t *testing.T) {
	ours, ourServer := newAuthority(t, "ours")
	_, foreign := newAuthority(t, "ours") // the name proves nothing
	document := []byte(strings.Replace(example(t), caLine(t), "crt: "+base64.StdEncoding.EncodeToString(ours), 1))
	require.NoError(t, Document{}.Provable(document))
	probe := func(dial func(context.Context, string, string) (net.Conn, error)) error {
		_, err := Document{}.Probe(t.Context(), dial, netip.MustParseAddr("10.0.0.9"), document)
		return err
	}
	serve := func(cfg *tls.Config) func(context.Context, string, string) (net.Conn, error) {
		l, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.(*tls.Conn).HandshakeContext(t.Context()) // the client ends it
				_ = c.Close()
			}
		}()
		return func(ctx context.Context, network, address string) (net.Conn, error) {
			require.Equal(t, "10.0.0.9:50000", address)
			return (&net.Dialer{}).DialContext(ctx, network, l.Addr().String())
		}
	}

	for _, auth := range []tls.ClientAuthType{tls.NoClientCert, tls.RequireAnyClientCert} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			require.NoError(t, probe(serve(&tls.Config{
				Certificates: []tls.Certificate{ourServer}, ClientAuth: auth, MinVersion: version, MaxVersion: version,
			})))
		}
	}
	err := probe(serve(&tls.Config{Certificates: []tls.Certificate{foreign}, MinVersion: tls.VersionTLS12}))
	require.ErrorContains(t, err, "certificate")
	require.ErrorIs(t, err, inventory.ErrUnreachable)
	err = probe(func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("refused") })
	require.ErrorContains(t, err, "refused")
	require.ErrorIs(t, err, inventory.ErrUnreachable)
}

// caLine is the line of machine.ca.crt in the example.
func caLine(t *testing.T) string {
	t.Helper()
	_, rest, ok := strings.Cut(example(t), "    ca:\n        ")
	require.True(t, ok)
	line, _, _ := strings.Cut(rest, "\n")
	require.True(t, strings.HasPrefix(line, "crt: "), line)
	return line
}

func TestProvable(t *testing.T) {
	document := example(t)
	require.NoError(t, Document{}.Provable([]byte(document)))
	for _, bad := range []string{"", "a: b", "machine: [", document[:200]} {
		err := Document{}.Provable([]byte(bad))
		require.Error(t, err, "%q", bad)
		require.NotErrorIs(t, err, inventory.ErrUnreachable)
	}
}
