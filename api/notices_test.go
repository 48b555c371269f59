package api

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/stretchr/testify/require"
)

func TestNotices(t *testing.T) {
	c := checking(newSite(t))
	rec := c.op(503, "POST", "/v1/notices/test", nil)
	require.Contains(t, rec.Body.String(), "notify.url")
	rec = c.op(200, "GET", "/v1/status", nil)
	require.NotContains(t, rec.Body.String(), "notify")

	taken := errors.New("the receiver answers 403 Forbidden")
	c = checking(newSite(t, func(cfg *siteConfig) {
		cfg.TestNotice = func(context.Context, string) (string, error) { return "n1", taken }
		cfg.Status = func(context.Context) StatusExtra {
			return StatusExtra{Notify: &apitypes.NotifyStatus{Receiver: "https://example.com", Waiting: 2, Oldest: time.Now(), Error: "403"}}
		}
	}))
	rec = c.op(503, "POST", "/v1/notices/test", nil)
	require.Contains(t, rec.Body.String(), "403")
	rec = c.op(200, "GET", "/v1/status", nil)
	require.Contains(t, rec.Body.String(), `"receiver":"https://example.com"`)
	taken = nil
	rec = c.op(200, "POST", "/v1/notices/test", nil)
	require.JSONEq(t, `{"id":"n1"}`, rec.Body.String())
}

// TestReady: anyone may ask whether the server is ready, and gets no more than the name of a part.
func TestReady(t *testing.T) {
	silent := ""
	c := checking(newSite(t, func(cfg *siteConfig) { cfg.Silent = func() string { return silent } }))
	c.op(200, "GET", "/readyz", nil)
	silent = "inventory"
	rec := c.op(503, "GET", "/readyz", nil)
	require.Contains(t, rec.Body.String(), "inventory: no answer")
	require.Equal(t, 200, c.op(200, "GET", "/healthz", nil).Code)
}
