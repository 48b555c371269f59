package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// TestS61CodecToken: a token with the role codec gives access to /codec. With a session, only the pages of this server and of
// the configured UI get access. TestS37RolesOfRoutes tests that the role gives access to nothing else.
func TestS61CodecToken(t *testing.T) {
	s := newSite(t)
	codecToken := s.token("temporal", inventory.RoleCodec)
	ask := func(h ...header) int {
		return send(t, s.operator, http.MethodPost, "/codec/decode", []byte("{}"), h...).Code
	}
	for _, token := range []string{codecToken, adminToken} {
		require.Equal(t, http.StatusOK, ask(bearer(token)))
	}
	for _, h := range [][]header{nil, {bearer("")}, {bearer("wrong")}, {{"Authorization", codecToken}}} {
		require.Equal(t, http.StatusUnauthorized, ask(h...), h)
	}
	require.Equal(t, http.StatusForbidden, ask(bearer(codecToken), header{"Host", "evil.example"}))

	cookie := header{"Cookie", s.session().String()}
	require.Equal(t, http.StatusOK, ask(cookie, header{"Origin", codecOrigin}))
	require.Equal(t, http.StatusOK, ask(cookie, header{"Origin", "http://127.0.0.1:8080"}))
	for _, origin := range []string{"https://evil.example", codecOrigin + ".evil.example", "null"} {
		require.Equal(t, http.StatusForbidden, ask(cookie, header{"Origin", origin}), origin)
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
