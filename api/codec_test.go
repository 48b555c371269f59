package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestS61CodecToken: the token of /codec opens those routes and no other. A session opens them to this server's pages and to
// the configured UI, to no other origin.
func TestS61CodecToken(t *testing.T) {
	s := newSite(t)
	ask := func(h ...header) int {
		return send(t, s.operator, http.MethodPost, "/codec/decode", []byte("{}"), h...).Code
	}
	for _, token := range []string{codecToken, adminToken} {
		require.Equal(t, http.StatusOK, ask(bearer(token)))
	}
	for _, h := range [][]header{nil, {bearer("")}, {bearer("wrong")}, {bearer(metricsToken)}, {{"Authorization", codecToken}}} {
		require.Equal(t, http.StatusUnauthorized, ask(h...), h)
	}
	require.Equal(t, http.StatusForbidden, ask(bearer(codecToken), header{"Host", "evil.example"}))

	cookie := header{"Cookie", s.session().String()}
	require.Equal(t, http.StatusOK, ask(cookie, header{"Origin", codecOrigin}))
	require.Equal(t, http.StatusOK, ask(cookie, header{"Origin", "http://127.0.0.1:8080"}))
	for _, origin := range []string{"https://evil.example", codecOrigin + ".evil.example", "null"} {
		require.Equal(t, http.StatusForbidden, ask(cookie, header{"Origin", origin}), origin)
	}

	for _, r := range routes(s.operator) {
		method, path, _ := strings.Cut(r, " ")
		if strings.HasPrefix(path, "/codec/") || path == "/healthz" || strings.HasPrefix(path, "/login") {
			continue
		}
		require.Equal(t, http.StatusUnauthorized, send(t, s.operator, method, path, nil, bearer(codecToken)).Code, r)
	}
}

// TestCodecPreflight (S61): a browser lets the configured UI, and no other page, send its request with the session.
func TestCodecPreflight(t *testing.T) {
	s := newSite(t)
	for origin, allowed := range map[string]string{codecOrigin: codecOrigin, "https://evil.example": "", "": ""} {
		rec := send(t, s.operator, http.MethodOptions, "/codec/decode", nil, header{"Origin", origin})
		require.Equal(t, http.StatusNoContent, rec.Code)
		require.Equal(t, allowed, rec.Header().Get("Access-Control-Allow-Origin"))
		require.Equal(t, allowed != "", rec.Header().Get("Access-Control-Allow-Credentials") == "true")
		require.Equal(t, "Origin", rec.Header().Get("Vary"))
	}
}
