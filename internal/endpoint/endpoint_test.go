package endpoint

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// serve starts a TLS server and returns how to reach it by its fingerprint.
func serve(t *testing.T, h http.HandlerFunc) (inventory.Endpoint, *httptest.Server) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return inventory.Endpoint{URL: s.URL, Fingerprint: fmt.Sprintf("sha256:%x", sha256.Sum256(s.Certificate().RawSubjectPublicKeyInfo))}, s
}

func caOf(s *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

func say(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// Who answers must be the one that was meant.
func TestTrust(t *testing.T) {
	e, s := serve(t, say(200, "pong"))
	for name, c := range map[string]struct {
		e    inventory.Endpoint
		want error
	}{
		"pinned":        {e, nil},
		"by CA":         {inventory.Endpoint{URL: s.URL, CA: caOf(s)}, nil},
		"insecure":      {inventory.Endpoint{URL: s.URL, Insecure: true}, nil},
		"another pin":   {inventory.Endpoint{URL: s.URL, Fingerprint: fmt.Sprintf("sha256:%064d", 1)}, inventory.ErrRefused},
		"another CA":    {inventory.Endpoint{URL: s.URL, CA: newCA(t).text}, inventory.ErrRefused},
		"nothing said":  {inventory.Endpoint{URL: s.URL}, inventory.ErrRefused},
		"too much said": {inventory.Endpoint{URL: s.URL, Insecure: true, CA: caOf(s)}, inventory.ErrInvalid},
		"half a pin":    {inventory.Endpoint{URL: s.URL, Fingerprint: "sha256:00"}, inventory.ErrInvalid},
		"no CA":         {inventory.Endpoint{URL: s.URL, CA: "x"}, inventory.ErrInvalid},
		"plain":         {inventory.Endpoint{URL: "http://127.0.0.1:1"}, inventory.ErrInvalid},
		"nobody":        {inventory.Endpoint{URL: "https://127.0.0.1:1", Insecure: true}, inventory.ErrUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			err := Harvester{}.Ping(t.Context(), c.e)
			if c.want == nil {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, c.want)
			}
		})
	}
}

// TestS17ANameGainsNothing: a name that leads to this host reaches nothing of it.
func TestS17ANameGainsNothing(t *testing.T) {
	asked := false
	e, _ := serve(t, func(http.ResponseWriter, *http.Request) { asked = true })
	e.URL = strings.Replace(e.URL, "127.0.0.1", "localhost", 1)
	require.ErrorContains(t, Harvester{}.Ping(t.Context(), e), "is this host itself")
	require.False(t, asked)
}

func TestStatuses(t *testing.T) {
	for status, want := range map[int]error{
		401: inventory.ErrRefused, 403: inventory.ErrRefused, 400: inventory.ErrInvalid, 404: inventory.ErrUnreachable,
		302: inventory.ErrUnreachable, 429: inventory.ErrUnreachable, 500: inventory.ErrUnreachable, 503: inventory.ErrUnreachable,
	} {
		e, _ := serve(t, say(status, "no"))
		require.ErrorIs(t, Harvester{}.Cluster(t.Context(), e), want, "%d", status)
	}
	e, _ := serve(t, say(200, "rancher"))
	require.ErrorIs(t, Harvester{}.Ping(t.Context(), e), inventory.ErrUnreachable)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, Harvester{}.Ping(ctx, e), context.Canceled)
}

// router is a VyOS of the documented protocol.
func router(t *testing.T, tree map[string]any, saved *int, changes *[]map[string]any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, http.MethodPost, r.Method)
		if r.FormValue("key") != "k3y" {
			say(http.StatusUnauthorized, `{"success":false,"error":"Valid API key is required","data":null}`)(w, r)
			return
		}
		data := []byte(r.FormValue("data"))
		switch r.URL.Path {
		case "/retrieve":
			var q struct {
				Op   string
				Path []string
			}
			require.NoError(t, json.Unmarshal(data, &q))
			require.Equal(t, "showConfig", q.Op)
			require.NotNil(t, q.Path)
			at := tree
			for _, p := range q.Path {
				next, ok := at[p].(map[string]any)
				if !ok {
					say(http.StatusBadRequest, `{"success":false,"error":"Configuration under specified path is empty\n","data":null}`)(w, r)
					return
				}
				at = next
			}
			require.NoError(t, json.NewEncoder(w).Encode(map[string]any{"success": true, "data": at, "error": nil}))
		case "/configure":
			var list []map[string]any
			require.NoError(t, json.Unmarshal(data, &list))
			if fmt.Sprint(list[0]["path"]) == "[bad]" {
				say(http.StatusBadRequest, `{"success":false,"error":"Configuration path: [bad] is not valid\n","data":null}`)(w, r)
				return
			}
			*changes = append(*changes, list...)
			say(200, `{"success":true,"data":null,"error":null}`)(w, r)
		case "/config-file":
			*saved++
			say(200, `{"success":true,"data":"Saving configuration to '/config/config.boot'...","error":null}`)(w, r)
		}
	}
}

func TestVyOS(t *testing.T) {
	saved, changes := 0, []map[string]any{}
	e, _ := serve(t, router(t, map[string]any{"service": map[string]any{"dhcp-relay": map[string]any{"server": "10.0.0.2"}}}, &saved, &changes))
	key := inventory.NewSecret("k3y")
	got, err := VyOS{}.Configuration(t.Context(), e, key, "service", "dhcp-relay")
	require.NoError(t, err)
	require.Equal(t, map[string]any{"server": "10.0.0.2"}, got)
	got, err = VyOS{}.Configuration(t.Context(), e, key)
	require.NoError(t, err)
	require.Contains(t, got, "service")
	got, err = VyOS{}.Configuration(t.Context(), e, key, "vpn")
	require.NoError(t, err)
	require.Empty(t, got)
	_, err = VyOS{}.Configuration(t.Context(), e, inventory.NewSecret("other"))
	require.ErrorIs(t, err, inventory.ErrRefused)
	require.NotContains(t, err.Error(), "other")

	require.NoError(t, VyOS{}.Configure(t.Context(), e, key,
		inventory.RouterCommand{Path: []string{"service", "dhcp-relay", "server", "10.0.0.3"}},
		inventory.RouterCommand{Delete: true, Path: []string{"service", "dhcp-relay", "server", "10.0.0.2"}}))
	require.Equal(t, 1, saved)
	require.Len(t, changes, 2)
	require.Equal(t, "delete", changes[1]["op"])
	err = VyOS{}.Configure(t.Context(), e, key, inventory.RouterCommand{Path: []string{"bad"}})
	require.ErrorIs(t, err, inventory.ErrInvalid)
	require.ErrorContains(t, err, "is not valid")
	require.Equal(t, 1, saved, "a commit that failed is not saved")

	for body, want := range map[string]error{"<html>": inventory.ErrInvalid} {
		e, _ := serve(t, say(200, body))
		_, err := VyOS{}.Configuration(t.Context(), e, key)
		require.ErrorIs(t, err, want)
	}
	e, _ = serve(t, say(502, "<html>"))
	_, err = VyOS{}.Configuration(t.Context(), e, key)
	require.ErrorIs(t, err, inventory.ErrUnreachable)
}

const nodes = `[{"metadata":{"name":"b"},"status":{"conditions":[{"type":"MemoryPressure","status":"False"},{"type":"Ready","status":"True"}]}},
	{"metadata":{"name":"a"},"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}}]`

func TestHarvesterNodes(t *testing.T) {
	tokens := map[string]bool{}
	e, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		token := r.Header.Get("Authorization")
		switch r.URL.Path {
		case "/v3-public/localProviders/local":
			require.Equal(t, "login", r.URL.Query().Get("action"))
			var q struct {
				Username, Password string
				TTL                int64
			}
			require.NoError(t, json.NewDecoder(r.Body).Decode(&q))
			require.Equal(t, int64(3_600_000), q.TTL, "milliseconds")
			if q.Username != "admin" || q.Password != "s3cret" {
				say(401, `{"type":"error","message":"authentication failed"}`)(w, r)
				return
			}
			tokens["Bearer token-x:y"] = true
			say(201, `{"token":"token-x:y"}`)(w, r)
		case "/v1/harvester/nodes":
			if !tokens[token] {
				say(401, "")(w, r)
				return
			}
			say(200, `{"type":"collection","data":`+nodes+`}`)(w, r)
		case "/v3/tokens":
			require.Equal(t, http.MethodPost, r.Method)
			require.Equal(t, "logout", r.URL.Query().Get("action"))
			if !tokens[token] {
				say(401, "")(w, r)
			}
			delete(tokens, token)
		}
	})
	token, err := Harvester{}.LogIn(t.Context(), e, "admin", inventory.NewSecret("s3cret"))
	require.NoError(t, err)
	require.NotContains(t, fmt.Sprintf("%v %+v %#v", token, token, token), "token-x")
	for range 2 {
		got, err := Harvester{}.Nodes(t.Context(), e, token)
		require.NoError(t, err)
		require.Equal(t, []inventory.ClusterNode{{Name: "a"}, {Name: "b", Ready: true}}, got)
	}
	require.NoError(t, Harvester{}.LogOut(t.Context(), e, token))
	require.Empty(t, tokens)
	_, err = Harvester{}.Nodes(t.Context(), e, token)
	require.ErrorIs(t, err, inventory.ErrRefused)
	require.NotContains(t, err.Error(), "token-x")
	_, err = Harvester{}.LogIn(t.Context(), e, "admin", inventory.NewSecret("wrong"))
	require.ErrorIs(t, err, inventory.ErrRefused)
	require.NotContains(t, err.Error(), "wrong")
}

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
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
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
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "admin"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &k.PublicKey, a.key)
	require.NoError(t, err)
	b, err := x509.MarshalPKCS8PrivateKey(k)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: b}))
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
			say(200, `{"resources":[{"name":"namespaces","kind":"Namespace","namespaced":false},{"name":"namespaces/status","kind":"Namespace"}]}`)(w, r)
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

func TestKubernetes(t *testing.T) {
	ca := newCA(t)
	c := newCluster(t, ca)
	cert, key := ca.client(t)
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	admin := kubeconfig(c.URL, caOf(c.Server), "client-certificate-data: "+b64(cert)+", client-key-data: "+b64(key))
	token := kubeconfig(c.URL, caOf(c.Server), "token: t0ken")
	k := Kubernetes{}
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
	require.NoError(t, err, "what is gone is no error, nor is a kind that is")
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
