package kubernetes

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

func caOf(s *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

func say(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

const nodes = `[{"metadata":{"name":"b"},"status":{"conditions":[{"type":"MemoryPressure","status":"False"},{"type":"Ready","status":"True"}]}},
	{"metadata":{"name":"a"},"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}}]`

type authority struct {
	text string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newCA(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(
			1,
		),
		Subject:               pkix.Name{CommonName: "ca"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return authority{string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), cert, key}
}

func (a authority) client(t *testing.T) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(
			2,
		),
		Subject:     pkix.Name{CommonName: "admin"},
		NotBefore:   time.Now().Add(-time.Hour),
		NotAfter:    time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &k.PublicKey, a.key)
	require.NoError(t, err)
	b, err := x509.MarshalPKCS8PrivateKey(k)
	require.NoError(t, err)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	private := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: b})
	return string(certificate), string(private)
}

const manifest = `
apiVersion: v1
kind: Namespace
metadata: {name: ingot}
---
# nothing here
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: ingot
  namespace: ingot
spec: {replicas: 1}
`

// cluster is an API server that knows its clients by their certificates.
type cluster struct {
	*httptest.Server
	asked []string
	down  bool
}

func newCluster(t *testing.T, ca authority) *cluster {
	t.Helper()
	c := &cluster{}
	c.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) == 0 && r.Header.Get("Authorization") != "Bearer t0ken" {
			say(401, `{"kind":"Status","message":"Unauthorized"}`)(w, r)
			return
		}
		if r.Method != http.MethodGet {
			b, _ := io.ReadAll(r.Body)
			c.asked = append(c.asked, r.Method+" "+r.URL.Path)
			if r.Method == http.MethodPatch {
				require.Equal(t, "application/apply-patch+yaml", r.Header.Get("Content-Type"))
				require.Equal(t, "ingot", r.URL.Query().Get("fieldManager"))
				require.Contains(t, string(b), "apiVersion")
			}
		}
		switch {
		case r.URL.Path == "/readyz" && c.down:
			say(500, "[-]etcd failed")(w, r)
		case r.URL.Path == "/readyz":
			say(200, "ok")(w, r)
		case r.URL.Path == "/api/v1":
			say(
				200,
				`{"resources":[{"name":"namespaces","kind":"Namespace","namespaced":false},{"name":"namespaces/status","kind":"Namespace"}]}`,
			)(
				w,
				r,
			)
		case r.URL.Path == "/apis/apps/v1":
			say(200, `{"resources":[{"name":"deployments","kind":"Deployment","namespaced":true}]}`)(w, r)
		case r.URL.Path == "/api/v1/nodes":
			say(200, `{"items":`+nodes+`}`)(w, r)
		case r.Method == http.MethodDelete:
			say(404, `{"kind":"Status","message":"not found"}`)(w, r)
		case r.Method == http.MethodPatch:
			say(201, `{}`)(w, r)
		default:
			say(404, `{"kind":"Status","message":"the server could not find the requested resource"}`)(w, r)
		}
	}))
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	c.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool}
	c.Config.ErrorLog = log.New(io.Discard, "", 0)
	c.StartTLS()
	t.Cleanup(c.Close)
	return c
}

func kubeconfig(server, ca, user string) inventory.Secret {
	return inventory.NewSecret(fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: admin@lab
contexts: [{name: admin@lab, context: {cluster: lab, user: admin}}]
clusters: [{name: lab, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: admin, user: {%s}}]
`, server, base64.StdEncoding.EncodeToString([]byte(ca)), user))
}

func TestClient(t *testing.T) {
	ca := newCA(t)
	c := newCluster(t, ca)
	cert, key := ca.client(t)
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	admin := kubeconfig(c.URL, caOf(c.Server), "client-certificate-data: "+b64(cert)+", client-key-data: "+b64(key))
	token := kubeconfig(c.URL, caOf(c.Server), "token: t0ken")
	k := Client{}
	require.NoError(t, k.Ready(t.Context(), admin))
	require.NoError(t, k.Ready(t.Context(), token))
	c.down = true
	require.ErrorIs(t, k.Ready(t.Context(), admin), inventory.ErrUnreachable)
	require.ErrorIs(t, k.Ready(t.Context(), kubeconfig(c.URL, caOf(c.Server), "token: other")), inventory.ErrRefused)
	require.ErrorIs(t, k.Ready(t.Context(), kubeconfig(c.URL, newCA(t).text, "token: t0ken")), inventory.ErrRefused)

	got, err := k.Nodes(t.Context(), admin)
	require.NoError(t, err)
	require.Equal(t, []inventory.ClusterNode{{Name: "a"}, {Name: "b", Ready: true}}, got)

	names, err := k.Apply(t.Context(), admin, inventory.NewSecret(manifest))
	require.NoError(t, err)
	require.Equal(t, []string{"Namespace/ingot", "Deployment/ingot/ingot"}, names)
	require.Equal(t, []string{"PATCH /api/v1/namespaces/ingot", "PATCH /apis/apps/v1/namespaces/ingot/deployments/ingot"}, c.asked)
	c.asked = nil
	names, err = k.Delete(t.Context(), admin, inventory.NewSecret(manifest+"---\n{apiVersion: gone/v1, kind: Gone, metadata: {name: x}}"))
	require.NoError(t, err, "what is gone is not an error, nor is a kind that is")
	require.Equal(t, []string{"Deployment/ingot/ingot", "Namespace/ingot"}, names)

	c.asked = nil
	for _, bad := range []string{"{", "kind: Secret\nstringData: {token: hush}", manifest + "---\n\tx: hush"} {
		_, err = k.Apply(t.Context(), admin, inventory.NewSecret(bad))
		require.ErrorIs(t, err, inventory.ErrInvalid)
		require.NotContains(t, err.Error(), "hush")
		require.Empty(t, c.asked, "nothing is applied of a manifest that is wrong somewhere")
	}
	for _, bad := range []string{
		"", "{", "current-context: x", kubeconfig(c.URL, "", "token: x").Reveal(), kubeconfig(c.URL, caOf(c.Server), "").Reveal(),
		kubeconfig("http://127.0.0.1", caOf(c.Server), "token: x").Reveal(), kubeconfig(c.URL, caOf(c.Server), "client-certificate-data: "+b64(cert)+", client-key-data: "+b64(ca.text)).Reveal(),
	} {
		require.ErrorIs(t, k.Ready(t.Context(), inventory.NewSecret(bad)), inventory.ErrInvalid)
	}
	require.False(t, bytes.Contains(fmt.Appendf(nil, "%v %+v", admin, token), []byte("t0ken")))
}
