package harvester

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// serve starts a TLS server and returns how to reach it by its fingerprint.
func serve(t *testing.T, h http.HandlerFunc) inventory.Endpoint {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return inventory.Endpoint{URL: s.URL, Fingerprint: fmt.Sprintf("sha256:%x", sha256.Sum256(s.Certificate().RawSubjectPublicKeyInfo))}
}

func say(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func TestReady(t *testing.T) {
	for status, want := range map[int]error{
		200: nil, 401: inventory.ErrRefused, 400: inventory.ErrInvalid,
		404: inventory.ErrUnreachable, // the ingress is up before Harvester
		503: inventory.ErrUnreachable,
	} {
		e := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/ping" {
				say(200, "pong")(w, r)
				return
			}
			require.Equal(t, "/v1/harvester/cluster/local", r.URL.Path)
			say(status, "{}")(w, r)
		})
		require.ErrorIs(t, Client{}.Ready(t.Context(), e), want, "%d", status)
	}
	require.ErrorIs(t, Client{}.Ready(t.Context(), serve(t, say(200, "rancher"))), inventory.ErrUnreachable)
}

const nodes = `[{"metadata":{"name":"b"},"status":{"conditions":[{"type":"MemoryPressure","status":"False"},{"type":"Ready","status":"True"}]}},
	{"metadata":{"name":"a"},"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}}]`

func TestNodes(t *testing.T) {
	tokens := map[string]bool{}
	e := serve(t, func(w http.ResponseWriter, r *http.Request) {
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
	token, err := Client{}.LogIn(t.Context(), e, "admin", inventory.NewSecret("s3cret"))
	require.NoError(t, err)
	require.NotContains(t, fmt.Sprintf("%v %+v %#v", token, token, token), "token-x")
	for range 2 {
		got, err := Client{}.Nodes(t.Context(), e, token)
		require.NoError(t, err)
		require.Equal(t, []inventory.ClusterNode{{Name: "a"}, {Name: "b", Ready: true}}, got)
	}
	require.NoError(t, Client{}.LogOut(t.Context(), e, token))
	require.Empty(t, tokens)
	_, err = Client{}.Nodes(t.Context(), e, token)
	require.ErrorIs(t, err, inventory.ErrRefused)
	require.NotContains(t, err.Error(), "token-x")
	_, err = Client{}.LogIn(t.Context(), e, "admin", inventory.NewSecret("wrong"))
	require.ErrorIs(t, err, inventory.ErrRefused)
	require.NotContains(t, err.Error(), "wrong")
}
