package api

import (
	"bytes"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// S22: the user, the password and the query of an image's address reach the server that they are for, and no other: not where
// it redirects, not an answer of the API and not the log.
func TestS22FetchKeepsCredentials(t *testing.T) {
	var first, second http.Header
	mirror := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		second = r.Header.Clone()
		_, _ = w.Write([]byte("text")) // the client asked for it
	}))
	var err error
	mirror.Listener, err = net.Listen("tcp", "127.0.0.2:0")
	require.NoError(t, err)
	mirror.Start()
	t.Cleanup(mirror.Close)
	publisher := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first = r.Header.Clone()
		if r.URL.Query().Get("token") != "s3cret" {
			http.Error(w, "which token?", http.StatusForbidden)
			return
		}
		http.Redirect(w, r, mirror.URL+"/image", http.StatusFound)
	}))
	t.Cleanup(publisher.Close)

	log := new(bytes.Buffer)
	s := newSite(t, func(c *siteConfig) {
		c.FetchHosts, c.Log = []string{"127.0.0.1", "127.0.0.2"}, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	address := strings.Replace(publisher.URL, "http://", "http://user:geheim@", 1)
	answer := s.do(http.MethodPost, "/v1/images", map[string]string{
		"name": "debian-12", "url": address + "/image?token=s3cret", "sha256": sumOf("text"),
	})
	require.Equal(t, publisher.URL+"/image", decode[inventory.Image](t, answer, http.StatusCreated).URL)
	require.True(t, strings.HasPrefix(first.Get("Authorization"), "Basic "))
	require.NotNil(t, second)
	for _, name := range []string{"Authorization", "Cookie", "Referer"} {
		require.Empty(t, second.Get(name), name)
	}

	said := answer.Body.String() + log.String()
	for _, failing := range []string{
		address + "/image?token=geheim",
		address + "/image?token=s3cret#geheim",         // which has another digest
		"http://user:geheim@127.0.0.1:1/?token=s3cret", // which does not answer
	} {
		refused := s.do(http.MethodPost, "/v1/images", map[string]string{"name": "other", "url": failing, "sha256": sumOf("other")})
		require.Equal(t, http.StatusBadRequest, refused.Code)
		said += refused.Body.String()
	}
	for _, path := range []string{"/v1/images", "/v1/images/debian-12"} {
		list := s.do(http.MethodGet, path, nil)
		require.Equal(t, http.StatusOK, list.Code, path)
		said += list.Body.String()
	}
	said += log.String()
	for _, secret := range []string{"geheim", "s3cret"} {
		require.NotContains(t, said, secret)
	}
}
