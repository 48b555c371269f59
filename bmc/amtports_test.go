package bmc

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/internal/secrets/keypin"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	vlab "github.com/ingotmetal/ingot/lab"
)

// portsBench is an AMT whose ports a test opens and closes.
type portsBench struct {
	*Driver
	t    *testing.T
	amt  *vlab.AMT
	keys *keys
	bmc  inventory.BMC
	now  time.Time
}

func newPortsBench(t *testing.T) *portsBench {
	t.Helper()
	b := &portsBench{
		t: t, amt: vlab.NewAMT(&chassis{power: vlab.Off}, "admin", canary), keys: &keys{known: map[string]string{}}, now: time.Now(),
		bmc: inventory.BMC{Driver: inventory.DriverAMT, Host: "127.0.0.28", User: "admin"},
	}
	b.restart()
	return b
}

// restart starts another process with the same store.
func (b *portsBench) restart() {
	b.Driver = New(Config{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, PerMinute: 100_000, Keys: b.keys})
	b.cfg.now = func() time.Time { return b.now }
}

// open opens the port without TLS, or with a certificate that with TLS.
func (b *portsBench) open(certificate *tls.Certificate) *httptest.Server {
	s := httptest.NewUnstartedServer(b.amt)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	require.NoError(b.t, s.Listener.Close())
	port := vlab.AMTPort
	if certificate != nil {
		port, s.TLS = vlab.AMTTLSPort, &tls.Config{Certificates: []tls.Certificate{*certificate}}
	}
	var err error
	s.Listener, err = net.Listen("tcp", net.JoinHostPort(b.bmc.Host, strconv.Itoa(port)))
	require.NoError(b.t, err)
	if certificate != nil {
		s.StartTLS()
	} else {
		s.Start()
	}
	b.t.Cleanup(s.Close)
	return s
}

func (b *portsBench) check(endpoint string) {
	b.t.Helper()
	r, err := b.Check(b.t.Context(), b.bmc, password())
	require.NoError(b.t, err)
	require.Equal(b.t, endpoint, r.Endpoint)
	b.amt.Calls()
}

func (b *portsBench) fails(kind error, texts ...string) {
	b.t.Helper()
	_, err := b.Check(b.t.Context(), b.bmc, password())
	require.ErrorIs(b.t, err, kind)
	for _, text := range texts {
		require.ErrorContains(b.t, err, text)
	}
	require.Empty(b.t, b.amt.Calls())
}

const (
	amtClear = "http://127.0.0.28:16992"
	amtTLS   = "https://127.0.0.28:16993"
)

// TestS27AMTPorts: without a port, AMT is asked by TLS and then without it, but never without it after TLS was used.
func TestS27AMTPorts(t *testing.T) {
	own, err := issue(nil)
	require.NoError(t, err)
	b := newPortsBench(t)
	b.fails(inventory.ErrUnreachable, "port 16993 (TLS)", "port 16992 (without TLS)")

	clearPort := b.open(nil)
	b.check(amtClear)
	secure := b.open(&own)
	b.check(amtClear) // it is asked there first for an hour
	b.now = b.now.Add(clearFor)
	b.check(amtTLS)
	require.Len(t, b.keys.known, 1)

	secure.Close()
	for range 2 {
		b.fails(
			inventory.ErrUnreachable,
			"port 16992 (without TLS): this port is not used, because the TLS key of this BMC is stored; to delete that key: ingot bmc forget-key",
		)
		b.restart()
	}
	clear(b.keys.known)
	b.check(amtClear)

	b.restart()
	b.cfg.Authorities = x509.NewCertPool()
	b.fails(inventory.ErrUnreachable, "bmc.ca_file", "bmc.port")
	clearPort.Close()
}

// TestS27AMTNewFirmware: AMT 16.1 and later, whose port without TLS is off.
func TestS27AMTNewFirmware(t *testing.T) {
	own, err := issue(nil)
	require.NoError(t, err)
	b := newPortsBench(t)
	secure := b.open(&own)
	b.check(amtTLS)
	require.Equal(t, keypin.Of(own.Leaf), b.keys.known["127.0.0.28:16993"])

	// Another device takes its place, and answers without TLS, too.
	secure.Close()
	other, err := issue(nil)
	require.NoError(t, err)
	b.open(&other)
	b.open(nil)
	b.fails(inventory.ErrRefused, "its key differs from the stored one", "no password was sent")
	pinned := b.bmc
	pinned.Fingerprint = keypin.Of(own.Leaf)
	clear(b.keys.known)
	b.bmc = pinned
	b.fails(inventory.ErrRefused, "its key differs from the stored one")
	require.Zero(t, b.amt.Refused())
}
