package talos

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ingotmetal/ingot/inventory"
)

// node is a Talos node: what it answers, and how often it was bootstrapped.
type node struct {
	machine.UnimplementedMachineServiceServer
	bootstraps int
	fail       error
	kubeconfig []byte
}

func (n *node) Version(context.Context, *emptypb.Empty) (*machine.VersionResponse, error) {
	return &machine.VersionResponse{Messages: []*machine.Version{{Version: &machine.VersionInfo{Tag: "v1.13.0"}}}}, n.fail
}

func (n *node) Bootstrap(context.Context, *machine.BootstrapRequest) (*machine.BootstrapResponse, error) {
	if n.fail != nil {
		return nil, n.fail
	}
	if n.bootstraps++; n.bootstraps > 1 {
		return nil, status.Error(codes.AlreadyExists, "etcd data directory is not empty")
	}
	return &machine.BootstrapResponse{}, nil
}

func (n *node) Kubeconfig(_ *emptypb.Empty, s machine.MachineService_KubeconfigServer) error {
	for b := range chunks(n.kubeconfig, 100) {
		if err := s.Send(&common.Data{Bytes: b}); err != nil {
			return err
		}
	}
	return n.fail
}

func chunks(b []byte, size int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			n := min(size, len(b))
			if !yield(b[:n]) {
				return
			}
			b = b[n:]
		}
	}
}

// pki is the authority of a Talos cluster, with Talos' own way of writing keys.
type pki struct {
	cert *x509.Certificate
	key  ed25519.PrivateKey
	pem  []byte
}

func newPKI(t *testing.T) pki {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(
			1,
		),
		Subject:               pkix.Name{Organization: []string{"talos"}},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, pub, key)
	require.NoError(t, err)
	c, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	return pki{c, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (p pki) leaf(t *testing.T, org string, use x509.ExtKeyUsage) (cert, key []byte) {
	t.Helper()
	pub, k, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(
			2,
		),
		Subject:     pkix.Name{Organization: []string{org}},
		NotBefore:   time.Now().Add(-time.Hour),
		NotAfter:    time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{use},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, p.cert, pub, p.key)
	require.NoError(t, err)
	b, err := x509.MarshalPKCS8PrivateKey(k)
	require.NoError(t, err)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return certificate, pem.EncodeToMemory(&pem.Block{Type: "ED25519 PRIVATE KEY", Bytes: b})
}

func (p pki) talosconfig(t *testing.T) inventory.Secret {
	t.Helper()
	cert, key := p.leaf(t, "os:admin", x509.ExtKeyUsageClientAuth)
	b64 := base64.StdEncoding.EncodeToString
	return inventory.NewSecret(
		fmt.Sprintf(
			"context: lab\ncontexts:\n  lab:\n    endpoints: [10.0.0.9]\n    ca: %s\n    crt: %s\n    key: %s\n",
			b64(p.pem),
			b64(cert),
			b64(key),
		),
	)
}

// start serves the node and returns its address.
func start(t *testing.T, p pki, n *node) string {
	t.Helper()
	cert, key := p.leaf(t, "node", x509.ExtKeyUsageServerAuth)
	pair, err := tls.X509KeyPair(cert, bytes.ReplaceAll(key, []byte("ED25519 "), nil))
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(p.cert)
	s := grpc.NewServer(
		grpc.Creds(
			credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}),
		),
	)
	machine.RegisterMachineServiceServer(s, n)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		require.NoError(t, <-done)
	})
	return l.Addr().String()
}

func packed(t *testing.T, name, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text)), Typeflag: tar.TypeReg}))
	_, err := w.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, z.Close())
	return b.Bytes()
}

func TestNode(t *testing.T) {
	p := newPKI(t)
	text := "apiVersion: v1\n" + strings.Repeat("# a kubeconfig\n", 40)
	n := &node{kubeconfig: packed(t, "kubeconfig", text)}
	address, conf := start(t, p, n), p.talosconfig(t)
	c := Client{}
	v, err := c.Version(t.Context(), address, conf)
	require.NoError(t, err)
	require.Equal(t, "v1.13.0", v)
	already, err := c.Bootstrap(t.Context(), address, conf)
	require.NoError(t, err)
	require.False(t, already)
	already, err = c.Bootstrap(t.Context(), address, conf)
	require.NoError(t, err)
	require.True(t, already)
	k, err := c.Kubeconfig(t.Context(), address, conf, "")
	require.NoError(t, err)
	require.Equal(t, text, k.Reveal())

	n.kubeconfig = packed(t, "kubeconfig", "clusters: [{name: lab, cluster: {server: 'https://lab:6443', certificate-authority-data: eA==}}]")
	k, err = c.Kubeconfig(t.Context(), address, conf, "https://10.0.0.9:6443")
	require.NoError(t, err)
	require.Contains(t, k.Reveal(), "server: https://10.0.0.9:6443")
	require.Contains(t, k.Reveal(), "certificate-authority-data: eA==")

	n.kubeconfig = packed(t, "other", "x")
	_, err = c.Kubeconfig(t.Context(), address, conf, "")
	require.ErrorIs(t, err, inventory.ErrInvalid)

	for code, want := range map[codes.Code]error{
		codes.PermissionDenied: inventory.ErrRefused, codes.Unavailable: inventory.ErrUnreachable,
		codes.FailedPrecondition: inventory.ErrUnreachable, codes.Unimplemented: inventory.ErrInvalid,
	} {
		n.fail = status.Error(code, "because")
		_, err = c.Version(t.Context(), address, conf)
		require.ErrorIs(t, err, want)
		_, err = c.Bootstrap(t.Context(), address, conf)
		require.ErrorIs(t, err, want)
		require.ErrorContains(t, err, "because")
	}
}

// A node that was not wiped has the authority of another cluster: no waiting helps.
func TestAnotherCluster(t *testing.T) {
	address := start(t, newPKI(t), &node{})
	_, err := Client{}.Version(t.Context(), address, newPKI(t).talosconfig(t))
	require.ErrorIs(t, err, inventory.ErrRefused)
}

func TestNoServerThere(t *testing.T) {
	_, err := Client{}.Version(t.Context(), "127.0.0.1:1", newPKI(t).talosconfig(t))
	require.ErrorIs(t, err, inventory.ErrUnreachable)
}

func TestTalosconfig(t *testing.T) {
	good := newPKI(t).talosconfig(t).Reveal()
	for _, bad := range []string{"", "{", "context: x", strings.Replace(good, "crt: ", "crt: Zm9v", 1), strings.Replace(good, "context: lab", "context: other", 1), "context: lab\ncontexts: {lab: {ca: hush!}}"} {
		_, err := Client{}.Version(t.Context(), "127.0.0.1:1", inventory.NewSecret(bad))
		require.ErrorIs(t, err, inventory.ErrInvalid)
		require.NotContains(t, err.Error(), "hush")
	}
	_, err := Client{}.Version(t.Context(), "127.0.0.1", inventory.NewSecret(good))
	require.ErrorIs(t, err, inventory.ErrInvalid)
}
