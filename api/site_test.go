package api

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

const fingerprint = "sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

// peers is a server's own state machine.
type peers struct {
	st      inventory.SiteStatus
	added   []NewPeer
	removed []string
	words   []string
	err     error
}

func (p *peers) SiteStatus(context.Context) (inventory.SiteStatus, error) { return p.st, nil }
func (p *peers) AddPeer(_ context.Context, x inventory.Peer, token inventory.Secret) (inventory.Peer, error) {
	p.added = append(p.added, NewPeer{Peer: x, Token: token})
	return x, p.err
}

func (p *peers) RemovePeer(_ context.Context, name string) error {
	p.removed = append(p.removed, name)
	return p.err
}

func (p *peers) Decide(_ context.Context, word, peer string) error {
	p.words = append(p.words, strings.TrimSpace(word+" "+peer))
	return p.err
}

func TestPeers(t *testing.T) {
	p := &peers{
		st: inventory.SiteStatus{
			Role:  "active",
			Epoch: 1,
			Peers: []inventory.Peer{{Name: "um760", URL: "https://10.0.0.2:7444", Fingerprint: fingerprint}},
		},
	}
	s := newSite(t, func(c *siteConfig) { c.Site = p })
	c := checking(s)
	for _, path := range []string{"/v1/site", "/v1/peers", "/v1/status"} {
		c.op(http.StatusOK, http.MethodGet, path, nil)
	}
	good := map[string]any{"name": "um760", "url": "https://10.0.0.2:7444", "fingerprint": fingerprint, "token": "secret"}
	c.op(http.StatusCreated, http.MethodPost, "/v1/peers", good)
	require.Equal(t, "secret", p.added[0].Token.Reveal())
	for field, value := range map[string]string{"name": "UM 760", "fingerprint": "sha256:12", "token": ""} {
		bad := map[string]any{}
		for k, v := range good {
			bad[k] = v
		}
		bad[field] = value
		r := s.do(http.MethodPost, "/v1/peers", bad)
		require.Equal(t, http.StatusBadRequest, r.Code, field)
		require.Contains(t, r.Body.String(), `"field":"`+field+`"`)
		require.NotContains(t, r.Body.String(), "secret")
	}
	require.Len(t, p.added, 1)
	c.op(http.StatusNoContent, http.MethodDelete, "/v1/peers/um760", nil)
	c.op(http.StatusOK, http.MethodPost, "/v1/site/decide", map[string]string{"word": "take-over"})
	require.Equal(t, http.StatusBadRequest, s.do(http.MethodPost, "/v1/site/decide", map[string]string{"word": "perhaps"}).Code)
	require.Equal(t, []string{"take-over"}, p.words)

	r := s.do(http.MethodPost, "/v1/migrate", map[string]string{"target": "nobody"})
	require.Equal(t, http.StatusBadRequest, r.Code)
	require.Contains(t, r.Body.String(), `there is no peer \"nobody\"`)
	c.op(http.StatusAccepted, http.MethodPost, "/v1/migrate", map[string]string{"target": "um760"})
	r = s.do(http.MethodPost, "/v1/migrate", map[string]string{"target": "um760", "name": "again"})
	require.Equal(t, http.StatusConflict, r.Code)
	require.Contains(t, r.Body.String(), "migrate/um760 is already running")
}

func TestIntakeIsClosed(t *testing.T) {
	why := ""
	s := newSite(t, func(c *siteConfig) { c.Intake = func(context.Context) (string, error) { return why, nil } })
	require.Equal(
		t,
		http.StatusCreated,
		s.do(http.MethodPost, "/v1/machines", `{"machines":[{"name":"m1","interfaces":[{"mac":"52:54:00:00:00:0a"}]}]}`).Code,
	)
	why = "migrate/um760 moves this site to um760"
	r := s.do(http.MethodPost, "/v1/machines/m1/provision", map[string]any{})
	require.Equal(t, http.StatusServiceUnavailable, r.Code)
	require.NotEmpty(t, r.Header().Get("Retry-After"))
	require.Contains(t, r.Body.String(), why)
	why = ""
	require.NotEqual(t, http.StatusServiceUnavailable, s.do(http.MethodPost, "/v1/machines/m1/provision", map[string]any{}).Code)
}

// TestQuiet is a server that is not the site.
func TestQuiet(t *testing.T) {
	p := &peers{st: inventory.SiteStatus{Role: "handing-over", Silent: "um760 does not tell", Peers: []inventory.Peer{}}}
	h := Quiet{
		Site:         p,
		TokenSHA256:  sha256.Sum256([]byte(adminToken)),
		AllowedHosts: []string{"localhost", "127.0.0.1"},
		Version:      "v0-test",
		Guard:        guard.New(slog.New(slog.DiscardHandler)),
		Log:          slog.New(slog.DiscardHandler),
	}.Handler()
	admin := header{"Authorization", "Bearer " + adminToken}
	require.Equal(t, http.StatusOK, send(t, h, http.MethodGet, "/healthz", nil).Code)
	require.Equal(t, http.StatusOK, send(t, h, http.MethodHead, "/healthz", nil).Code, "a load balancer's probe")
	require.Equal(t, http.StatusOK, send(t, h, http.MethodGet, "/readyz", nil).Code, "it is for operators")
	require.Equal(t, http.StatusForbidden, send(t, h, http.MethodGet, "/healthz", nil, header{"Host", "evil.example"}).Code)
	byAddress := header{"Host", "10.0.0.9:8080"}
	require.Equal(t, http.StatusServiceUnavailable, send(t, h, http.MethodGet, "/metrics", nil, byAddress).Code, "a scrape")
	require.Equal(t, http.StatusForbidden, send(t, h, http.MethodGet, "/", nil, byAddress).Code)
	for _, path := range []string{"/v1/status", "/v1/site"} {
		require.Equal(t, http.StatusUnauthorized, send(t, h, http.MethodGet, path, nil).Code, path)
		r := send(t, h, http.MethodGet, path, nil, admin)
		require.Equal(t, http.StatusOK, r.Code)
		require.Contains(t, r.Body.String(), "um760 does not tell")
	}
	r := send(t, h, http.MethodPost, "/v1/machines/m1/provision", map[string]any{}, admin)
	require.Equal(t, http.StatusServiceUnavailable, r.Code)
	require.NotEmpty(t, r.Header().Get("Retry-After"))
	require.Contains(t, r.Body.String(), "um760")
	require.NotContains(t, send(t, h, http.MethodGet, "/v1/machines", nil).Body.String(), "um760", "without the admin token")
	require.Equal(t, http.StatusUnauthorized, send(t, h, http.MethodPost, "/v1/site/decide", map[string]string{"word": "give-up"}).Code)
	require.Equal(
		t,
		http.StatusOK,
		send(t, h, http.MethodPost, "/v1/site/decide", map[string]string{"word": "give-up", "peer": "um760"}, admin).Code,
	)
	require.Equal(t, []string{"give-up um760"}, p.words)
	p.err = fmt.Errorf("no question is open: %w", inventory.ErrConflict)
	require.Equal(t, http.StatusConflict, send(t, h, http.MethodPost, "/v1/site/decide", map[string]string{"word": "take-over"}, admin).Code)

	p.st = inventory.SiteStatus{
		Role:      "retired",
		Successor: &inventory.Peer{Name: "um760", URL: "https://10.0.0.2:7444"},
		Peers:     []inventory.Peer{},
	}
	for _, path := range []string{"/", "/v1/machines", "/login/x"} {
		r := send(t, h, http.MethodGet, path, nil)
		require.Equal(t, http.StatusGone, r.Code, path)
		require.True(t, strings.Contains(r.Body.String(), "https://10.0.0.2:7444"), path)
	}
}
