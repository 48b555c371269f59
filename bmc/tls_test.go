package bmc

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/internal/secrets/keypin"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	vlab "github.com/ingotmetal/ingot/lab"
)

// authority is a certificate authority of the system, for all tests of this package.
var authority tls.Certificate

// TestMain makes the system trust authority: crypto/x509 reads SSL_CERT_FILE once in a process.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "")
		if err == nil {
			defer os.RemoveAll(dir)
			authority, err = issue(nil)
		}
		file := filepath.Join(dir, "ca.pem")
		if err == nil {
			err = os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate[0]}), 0o600)
		}
		if err == nil {
			err = os.Setenv("SSL_CERT_FILE", file)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// amtAddress is the address of AMT with TLS, whose port cannot be chosen.
const amtAddress = "127.0.0.27"

// issue returns a certificate of other addresses, or else of 127.0.0.1 and amtAddress, that by signed, or one that signed itself.
func issue(by *tls.Certificate, other ...net.IP) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "bmc"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(amtAddress)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: by == nil, BasicConstraintsValid: true,
	}
	if len(other) > 0 {
		c.IPAddresses = other
	}
	parent, signer := c, any(key)
	if by != nil {
		parent, signer = by.Leaf, by.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}

// TestS27Authority: where an authority signed a BMC's certificate at the first use, a certificate that
// none signed is refused until the operator forgets it. With bmc.ca_file there is no first use.
func TestS27Authority(t *testing.T) {
	amt := vlab.NewAMT(&chassis{power: vlab.Off}, "admin", canary)
	fish := vlab.NewRedfish(&chassis{power: vlab.Off}, vlab.RedfishHPE, "admin", canary)
	for driver, x := range map[string]struct {
		service http.Handler
		calls   func() []string
	}{
		inventory.DriverAMT: {amt, amt.Calls}, inventory.DriverRedfish: {fish, fish.Calls},
	} {
		t.Run(driver, func(t *testing.T) {
			ctx := t.Context()
			shown := atomic.Pointer[tls.Certificate]{}
			s := httptest.NewUnstartedServer(x.service)
			s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
			s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				return &tls.Config{Certificates: []tls.Certificate{*shown.Load()}}, nil
			}}
			if driver == inventory.DriverAMT {
				require.NoError(t, s.Listener.Close())
				var err error
				s.Listener, err = net.Listen("tcp", net.JoinHostPort(amtAddress, strconv.Itoa(vlab.AMTTLSPort)))
				require.NoError(t, err)
			}
			s.StartTLS()
			t.Cleanup(s.Close)
			show := func(by *tls.Certificate) {
				c, err := issue(by)
				require.NoError(t, err)
				shown.Store(&c)
			}
			b := newRedfishBench(t, vlab.RedfishHPE)
			to := at(t, s.URL)
			to.Driver, to.User = driver, "admin"
			refused := func(why string) {
				t.Helper()
				x.calls()
				_, err := b.State(ctx, to, password())
				require.ErrorIs(t, err, inventory.ErrRefused, why)
				require.ErrorContains(t, err, "no password was sent", why)
				require.Empty(t, x.calls(), why)
			}

			for range 2 {
				show(&authority)
				_, err := b.State(ctx, to, password())
				require.NoError(t, err, "another key, also signed by the authority")
			}
			show(nil)
			refused("an authority had signed the one of the first use")
			clear(b.keys.known) // ingot bmc forget-key
			_, err := b.State(ctx, to, password())
			require.NoError(t, err)
			show(nil)
			refused("another key than at first")

			clear(b.keys.known)
			b.cfg.Authorities = x509.NewCertPool()
			b.cfg.Authorities.AddCert(authority.Leaf)
			refused("bmc.ca_file")
			elsewhere, err := issue(&authority, net.IPv4(127, 0, 0, 9))
			require.NoError(t, err)
			shown.Store(&elsewhere)
			refused("the certificate of another host")
			require.Empty(t, b.keys.known)
			pinned := to
			pinned.Fingerprint = keypin.Of(shown.Load().Leaf)
			_, err = b.State(ctx, pinned, password())
			require.NoError(t, err)
			show(&authority)
			_, err = b.State(ctx, to, password())
			require.NoError(t, err)
		})
	}
}
