package vyos

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

func TestClient(t *testing.T) {
	saved, changes := 0, []map[string]any{}
	relay := map[string]any{"server": "10.0.0.2"}
	e := serve(t, router(t, map[string]any{"service": map[string]any{"dhcp-relay": relay}}, &saved, &changes))
	key := inventory.NewSecret("k3y")
	got, err := Client{}.Configuration(t.Context(), e, key, "service", "dhcp-relay")
	require.NoError(t, err)
	require.Equal(t, map[string]any{"server": "10.0.0.2"}, got)
	got, err = Client{}.Configuration(t.Context(), e, key)
	require.NoError(t, err)
	require.Contains(t, got, "service")
	got, err = Client{}.Configuration(t.Context(), e, key, "vpn")
	require.NoError(t, err)
	require.Empty(t, got)
	_, err = Client{}.Configuration(t.Context(), e, inventory.NewSecret("other"))
	require.ErrorIs(t, err, inventory.ErrRefused)
	require.NotContains(t, err.Error(), "other")

	servers, err := Client{}.RelayServers(t.Context(), e, key)
	require.NoError(t, err)
	require.Equal(t, []string{"10.0.0.2"}, servers)
	relay["server"] = []any{"10.0.0.2", "10.0.0.3"}
	servers, err = Client{}.RelayServers(t.Context(), e, key)
	require.NoError(t, err)
	require.Equal(t, []string{"10.0.0.2", "10.0.0.3"}, servers)

	require.NoError(t, Client{}.SetRelayServer(t.Context(), e, key, "10.0.0.3", true))
	require.NoError(t, Client{}.SetRelayServer(t.Context(), e, key, "10.0.0.2", false))
	require.Equal(t, 2, saved)
	require.Equal(t, []map[string]any{
		{"op": "set", "path": []any{"service", "dhcp-relay", "server", "10.0.0.3"}},
		{"op": "delete", "path": []any{"service", "dhcp-relay", "server", "10.0.0.2"}},
	}, changes)
	err = Client{}.configure(t.Context(), e, key, "set", []string{"bad"})
	require.ErrorIs(t, err, inventory.ErrInvalid)
	require.ErrorContains(t, err, "is not valid")
	require.Equal(t, 2, saved, "a commit that failed is not saved")

	for body, want := range map[string]error{"<html>": inventory.ErrInvalid} {
		e := serve(t, say(200, body))
		_, err := Client{}.Configuration(t.Context(), e, key)
		require.ErrorIs(t, err, want)
	}
	e = serve(t, say(502, "<html>"))
	_, err = Client{}.Configuration(t.Context(), e, key)
	require.ErrorIs(t, err, inventory.ErrUnreachable)
}
