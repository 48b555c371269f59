package server

import (
	"crypto/sha256"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// TestMetricsOfAServer: a server that has not begun to run shows its metrics, to a token with that role and to no stranger.
func TestMetricsOfAServer(t *testing.T) {
	s := testServer(t, testConfig(t))
	get := func(token string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
		r.Host = "127.0.0.1:8080"
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		s.api.Handler().ServeHTTP(w, r)
		return w
	}
	require.Equal(t, http.StatusUnauthorized, get("").Code)
	require.Equal(t, http.StatusUnauthorized, get("x"+s.secrets.token).Code)

	token := "test-token-of-metrics"
	require.NoError(t, s.records.store.Tokens.AddToken(
		t.Context(), inventory.Token{ID: "1", Name: "prometheus", Role: inventory.RoleMetrics}, sha256.Sum256([]byte(token)), false))
	w := get(token)
	require.Equal(t, http.StatusOK, w.Code)
	text := w.Body.String()
	for _, line := range []string{
		`ingot_build_info{version="test"} 1`, `ingot_temporal_up 0`, `ingot_inventory_intact 1`, `ingot_machines{standing="in-service"} 0`,
	} {
		require.Contains(t, text, "\n"+line+"\n")
	}
	require.NotContains(t, text, `_success{collector="runs"} 0`)
	require.NotContains(t, text, s.secrets.token)
	require.NotContains(t, text, "ingot_dhcp_packets", "no machine is answered")
}
