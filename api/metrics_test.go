package api

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// TestS60MetricsToken: a token with the role metrics, or a verified client certificate, opens /metrics; so do operators' tokens.
// Only that role and the certificate may name the server by any IP address. TestS37RolesOfRoutes tests that the role opens
// nothing else.
func TestS60MetricsToken(t *testing.T) {
	s := newSite(t)
	metricsToken := s.token("prometheus", inventory.RoleMetrics)
	for _, token := range []string{metricsToken, adminToken} {
		rec := send(t, s.operator, http.MethodGet, "/metrics", nil, bearer(token))
		require.Equal(t, http.StatusOK, rec.Code)
		require.Equal(t, "ingot_up 1\n", rec.Body.String())
	}
	for _, h := range [][]header{nil, {bearer("")}, {bearer("wrong")}, {{"Authorization", metricsToken}}, {{"Authorization", "Basic " + metricsToken}}} {
		require.Equal(t, http.StatusUnauthorized, send(t, s.operator, http.MethodGet, "/metrics", nil, h...).Code, h)
	}
	require.Equal(t, http.StatusForbidden,
		send(t, s.operator, http.MethodGet, "/metrics", nil, bearer(metricsToken), header{"Host", "evil.example"}).Code)

	byCertificate := func(host, path string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Host, r.TLS = host, &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}
		rec := httptest.NewRecorder()
		s.operator.ServeHTTP(rec, r)
		return rec.Code
	}
	unverified := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	unverified.Host, unverified.TLS = "127.0.0.1:8080", &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}
	rec := httptest.NewRecorder()
	s.operator.ServeHTTP(rec, unverified)
	require.Equal(t, http.StatusUnauthorized, rec.Code)
	require.Equal(t, http.StatusOK, byCertificate("127.0.0.1:8080", "/metrics"))
	require.Equal(t, http.StatusUnauthorized, byCertificate("127.0.0.1:8080", "/v1/status"))

	for _, node := range []string{"192.0.2.7:8080", "192.0.2.7", "[2001:db8::7]:8080"} { // as the Prometheus operator names it
		get := func(path string, h header) int {
			return send(t, s.operator, http.MethodGet, path, nil, header{"Host", node}, h).Code
		}
		require.Equal(t, http.StatusOK, get("/metrics", bearer(metricsToken)), node)
		require.Equal(t, http.StatusForbidden, get("/metrics", bearer("wrong")), node)
		require.Equal(t, http.StatusForbidden, get("/metrics", bearer(adminToken)), node)
		require.Equal(t, http.StatusForbidden, get("/metrics", bearer("")), node)
		require.Equal(t, http.StatusForbidden, get("/v1/status", bearer(metricsToken)), node)
		require.Equal(t, http.StatusOK, byCertificate(node, "/metrics"), node)
		require.Equal(t, http.StatusForbidden, byCertificate(node, "/v1/status"), node)
	}
	require.Equal(t, http.StatusForbidden, byCertificate("evil.example:8080", "/metrics"))
}
