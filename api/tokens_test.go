package api

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// token creates a named token and returns it.
func (s *site) token(name string, role inventory.Role) string {
	s.T.Helper()
	return decode[apitypes.NewToken](s.T, s.do(http.MethodPost, "/v1/tokens",
		map[string]any{"name": name, "role": role}), http.StatusCreated).Secret
}

// cookieOf opens a session by the form of the login page.
func (s *site) cookieOf(token string) header {
	s.T.Helper()
	rec := s.logIn(token)
	require.Equal(s.T, http.StatusSeeOther, rec.Code)
	c := rec.Result().Cookies()[0]
	return header{"Cookie", c.Name + "=" + c.Value}
}

func (s *site) logIn(token string) *httptest.ResponseRecorder {
	s.T.Helper()
	return send(s.T, s.operator, http.MethodPost, "/login", "token="+url.QueryEscape(token),
		header{"Content-Type", "application/x-www-form-urlencoded"}, ownOrigin)
}

var ownOrigin = header{"Origin", "http://127.0.0.1:8080"}

// neededRoles reads the roles that routes need from the golden list. Its rows without a role are open.
func neededRoles(t *testing.T) map[string]inventory.Role {
	t.Helper()
	b, err := os.ReadFile("testdata/routes-operator.txt")
	require.NoError(t, err)
	roles := map[string]inventory.Role{}
	for line := range strings.Lines(string(b)) {
		words := strings.Fields(line)
		if len(words) == 3 {
			roles[words[0]+" "+words[1]] = inventory.Role(words[2])
		}
	}
	return roles
}

// endingWriter cancels the request when the answer begins: an event stream would not end otherwise.
type endingWriter struct {
	*httptest.ResponseRecorder
	cancel context.CancelFunc
}

func (w endingWriter) WriteHeader(status int) { w.ResponseRecorder.WriteHeader(status); w.cancel() }

func (w endingWriter) Write(b []byte) (int, error) {
	defer w.cancel()
	return w.ResponseRecorder.Write(b)
}

// TestS37RolesOfRoutes tries every route with every role, by token and by session. What a role does not allow is refused
// before anything is read or stored.
func TestS37RolesOfRoutes(t *testing.T) {
	allows := map[inventory.Role]string{
		inventory.RoleRead: "read metrics", inventory.RoleOperate: "read metrics operate codec",
		inventory.RoleAdmin:   "read metrics operate codec backup admin",
		inventory.RoleMetrics: "metrics", inventory.RoleCodec: "codec", inventory.RoleBackup: "backup",
	}
	require.Len(t, inventory.Roles(), len(allows))
	needs := neededRoles(t)
	for role, list := range allows {
		s := newSite(t)
		token := s.token("tried", role)
		proofs := map[string]header{"token": bearer(token)}
		if list != string(role) {
			proofs["session"] = s.cookieOf(token)
		} else {
			require.Equal(t, http.StatusUnauthorized, s.logIn(token).Code, "the role %s opens no page", role)
		}
		for _, r := range routes(s.operator) {
			method, path, _ := strings.Cut(r, " ")
			need, hasRole := needs[r]
			if !hasRole || path == "/v1/logout" {
				continue
			}
			for how, proof := range proofs {
				ctx, cancel := context.WithCancel(t.Context())
				req := httptest.NewRequestWithContext(ctx, method, strings.NewReplacer("{name}", "none", "{run}", "none").Replace(path), nil)
				req.Host = "127.0.0.1:8080"
				req.Header.Set(proof.name, proof.value)
				req.Header.Set(ownOrigin.name, ownOrigin.value)
				req.Header.Set(keyHeader, `"`+how+`"`)
				rec := httptest.NewRecorder()
				s.operator.ServeHTTP(endingWriter{rec, cancel}, req)
				cancel()
				allowed := strings.Contains(" any "+list+" ", " "+string(need)+" ")
				require.NotEqual(t, http.StatusUnauthorized, rec.Code, "%s: %s by %s", r, role, how)
				require.Equal(t, !allowed, rec.Code == http.StatusForbidden, "%s: %s by %s: %d %s", r, role, how, rec.Code, rec.Body)
				if !allowed && method != http.MethodHead {
					require.Contains(t, rec.Body.String(), "needs the role "+string(need), r)
				}
			}
		}
		page := send(t, s.operator, http.MethodGet, "/", nil, bearer(token)).Code
		require.Equal(t, strings.HasPrefix(list, "read"), page == http.StatusOK, role)
	}
}

// TestS37RolesComeBeforeKeys: a request that a role does not allow stores nothing under its Idempotency-Key, and tokens do
// not share their keys.
func TestS37RolesComeBeforeKeys(t *testing.T) {
	s := newSite(t)
	reader, alice, bob := s.token("reader", inventory.RoleRead), s.token("alice", inventory.RoleOperate), s.token("bob", inventory.RoleOperate)
	add := func(token, name string) int {
		return send(t, s.operator, http.MethodPost, "/v1/machines",
			`{"machines":[{"name":"`+name+`","interfaces":[{"mac":"52:54:00:00:01:`+name[1:]+`"}]}]}`, bearer(token), header{keyHeader, `"k"`}).Code
	}
	require.Equal(t, http.StatusForbidden, add(reader, "m01"))
	require.Equal(t, http.StatusCreated, add(alice, "m02"))
	require.Equal(t, http.StatusUnprocessableEntity, add(alice, "m03"), "a key is for one request")
	require.Equal(t, http.StatusCreated, add(bob, "m04"))

	require.Equal(t, http.StatusNoContent, s.do(http.MethodDelete, "/v1/tokens/alice", nil).Code)
	require.Equal(t, http.StatusCreated, add(s.token("alice", inventory.RoleOperate), "m05"), "another token with the same name")
}

// TestS37TokensEnd: a token, its sessions and its login links end when it is revoked or replaced, and when it expires.
func TestS37TokensEnd(t *testing.T) {
	for how, end := range map[string]func(s *site){
		"revoked":  func(s *site) { s.do(http.MethodDelete, "/v1/tokens/alice", nil) },
		"expired":  func(s *site) { s.Clock.Move(time.Hour) },
		"replaced": func(s *site) { s.do(http.MethodPost, "/v1/tokens", `{"name":"alice","role":"operate","replace":true}`) },
	} {
		s := newSite(t)
		token := decode[apitypes.NewToken](t, s.do(http.MethodPost, "/v1/tokens", `{"name":"alice","role":"operate","for":"1h"}`), 201).Secret
		cookie := s.cookieOf(token)
		link, err := url.Parse(decode[loginLink](t, send(t, s.operator, http.MethodPost, "/v1/login-links", nil, bearer(token)), 201).URL)
		require.NoError(t, err)
		get := func(h header) int { return send(t, s.operator, http.MethodGet, "/v1/machines", nil, h).Code }
		require.Equal(t, http.StatusOK, get(bearer(token)))
		require.Equal(t, http.StatusOK, get(cookie))

		end(s)
		require.Equal(t, http.StatusUnauthorized, get(bearer(token)), how)
		require.Equal(t, http.StatusUnauthorized, get(cookie), how)
		require.Equal(t, http.StatusNotFound, send(t, s.operator, http.MethodGet, link.Path, nil).Code, how)
	}
}

// TestS37LinksHaveTheRoleOfTheirToken: a session that a login link opens is named after the token that made the link.
func TestS37LinksHaveTheRoleOfTheirToken(t *testing.T) {
	s := newSite(t)
	link := decode[loginLink](
		t,
		send(t, s.operator, http.MethodPost, "/v1/login-links", nil, bearer(s.token("alice", inventory.RoleOperate))),
		201,
	)
	u, err := url.Parse(link.URL)
	require.NoError(t, err)
	c := send(t, s.operator, http.MethodGet, u.Path, nil).Result().Cookies()[0]
	cookie := header{"Cookie", c.Name + "=" + c.Value}
	who := decode[inventory.Token](t, send(t, s.operator, http.MethodGet, "/v1/whoami", nil, cookie), 200)
	require.Equal(t, "alice", who.Name)
	require.Equal(t, inventory.RoleOperate, who.Role)
	require.Equal(t, http.StatusForbidden, send(t, s.operator, http.MethodGet, "/v1/tokens", nil, cookie).Code)

	s.do(http.MethodPost, "/v1/machines", `{"machines":[{"name":"m1","interfaces":[{"mac":"52:54:00:00:01:01"}]}]}`)
	require.Equal(t, http.StatusNoContent, send(t, s.operator, http.MethodDelete, "/v1/machines/m1", nil, cookie, ownOrigin).Code)
	events, err := s.Store.Events.Events(t.Context(), inventory.EventFilter{Machine: "m1"})
	require.NoError(t, err)
	require.NotEmpty(t, events)
	require.Equal(t, "alice", events[len(events)-1].By)
}

// TestS37StartsNameTheirAuthor: what is started with a token has its name.
func TestS37StartsNameTheirAuthor(t *testing.T) {
	var logged bytes.Buffer
	s := newSite(t, func(c *siteConfig) { c.Log = slog.New(slog.NewTextHandler(&logged, nil)) })
	alice := bearer(s.token("alice", inventory.RoleOperate))
	s.AddMachine("m1", mac)
	require.NoError(t, s.Store.Templates.PutTemplate(t.Context(), inventory.Template{Name: "empty", Source: oneAction}, "test"))
	require.Equal(t, http.StatusAccepted, send(t, s.operator, http.MethodPost, "/v1/machines/m1/inspect", nil, alice).Code)
	require.Equal(t, http.StatusAccepted, send(t, s.operator, http.MethodPost, "/v1/recover",
		`{"name":"flood","machines":["m1"],"template":"empty"}`, alice).Code)
	events, err := s.Store.Events.Events(t.Context(), inventory.EventFilter{Machine: "m1"})
	require.NoError(t, err)
	last := events[len(events)-1]
	require.Equal(t, "started Inspect", last.Message)
	require.Equal(t, "alice", last.By)
	require.NotEmpty(t, last.Run)
	require.Contains(t, logged.String(), `msg=started operation=recover/flood`)
	require.Equal(t, 2, strings.Count(logged.String(), "by=alice"))
}

// TestS37PeersAreForAdministrators: no other role sees the addresses of peers.
func TestS37PeersAreForAdministrators(t *testing.T) {
	s := newSite(t, func(c *siteConfig) { c.Site = peered{} })
	for _, path := range []string{"/v1/site", "/v1/status"} {
		require.Contains(t, s.do(http.MethodGet, path, nil).Body.String(), "peer.example", path)
		for _, role := range []inventory.Role{inventory.RoleRead, inventory.RoleOperate} {
			rec := send(t, s.operator, http.MethodGet, path, nil, bearer(s.token(strings.ReplaceAll(path[1:], "/", "-")+"-"+string(role), role)))
			require.Equal(t, http.StatusOK, rec.Code)
			require.NotContains(t, rec.Body.String(), "peer.example", path)
		}
	}
}

// peered is a site with a peer.
type peered struct{ Site }

func (peered) SiteStatus(context.Context) (inventory.SiteStatus, error) {
	return inventory.SiteStatus{Role: "active", Peers: []inventory.Peer{{Name: "p", URL: "https://peer.example:7444"}}}, nil
}

// TestS37RevokedTokenEndsRequests: an event stream and an upload of a token that is revoked end, though their client does not
// end them.
func TestS37RevokedTokenEndsRequests(t *testing.T) {
	s := newSite(t)
	server := httptest.NewServer(s.operator)
	defer server.Close()
	token := s.token("alice", inventory.RoleOperate)
	request := func(method, path string, body io.Reader, proof header) *http.Request {
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, body)
		require.NoError(t, err)
		r.Header.Set(proof.name, proof.value)
		return r
	}
	for _, proof := range []header{bearer(token), s.cookieOf(token)} {
		stream, err := server.Client().Do(request(http.MethodGet, "/v1/events/stream", nil, proof))
		require.NoError(t, err)
		defer stream.Body.Close()
		require.Equal(t, http.StatusOK, stream.StatusCode)
		lines := bufio.NewReader(stream.Body)
		_, err = lines.ReadString('\n')
		require.NoError(t, err)
		defer func() {
			_, _ = io.Copy(io.Discard, lines) // returns when the server ends the stream, in mid answer
		}()
	}
	upload, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	defer upload.Close()
	_, err = fmt.Fprintf(upload, "PUT /v1/images/endless HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nAuthorization: Bearer %s\r\n"+
		"Content-Length: 1000000\r\n\r\nthe first bytes", token)
	require.NoError(t, err)

	require.Equal(t, http.StatusNoContent, s.do(http.MethodDelete, "/v1/tokens/alice", nil).Code)
	_, err = io.Copy(io.Discard, upload) // returns when the server closes the connection
	require.NoError(t, err)
}

func TestTokenRequestsAreChecked(t *testing.T) {
	c := checking(newSite(t))
	for _, q := range []string{
		`{"name":"Alice","role":"read"}`, `{"name":"","role":"read"}`, `{"name":"admin","role":"read"}`, `{"name":"a","role":"root"}`,
		`{"name":"a"}`, `{"name":"a","role":"read","for":"soon"}`, `{"name":"a","role":"read","for":"-1h"}`, `{"name":"a","role":"read","scope":"x"}`,
	} {
		c.op(400, "POST", "/v1/tokens", q)
	}
	c.op(201, "POST", "/v1/tokens", `{"name":"alice","role":"read","for":"24h"}`)
	c.op(409, "POST", "/v1/tokens", `{"name":"alice","role":"read"}`)
	list := c.op(200, "GET", "/v1/tokens", nil)
	require.NotContains(t, list.Body.String(), "ingot_", "the token itself is shown once")
	c.op(200, "GET", "/v1/whoami", nil)
	c.op(204, "POST", "/v1/tokens/alice/enable", nil)
	c.op(404, "POST", "/v1/tokens/bob/enable", nil)
	c.op(204, "DELETE", "/v1/tokens/alice", nil)
	c.op(404, "DELETE", "/v1/tokens/alice", nil)
}

// countingTokens counts how often a token is looked up.
type countingTokens struct {
	TokenStore
	lookups atomic.Int64
}

func (s *countingTokens) TokenOf(context.Context, inventory.TokenDigest) (inventory.Token, error) {
	s.lookups.Add(1)
	return inventory.Token{Name: "alice", Role: inventory.RoleOperate}, nil
}

// TestS37RechecksEnd: the token of a request is not looked up after the request, even if its handler has panicked.
func TestS37RechecksEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &countingTokens{}
		a := &access{tokens: store, admin: inventory.TokenDigest{1}}
		r := httpapi.NewRouter(slog.New(slog.DiscardHandler), nil)
		r.Use(a.endWithCaller)
		r.GET("/", func(*gin.Context) { time.Sleep(3 * recheckEvery / 2); panic(http.ErrAbortHandler) })
		require.Panics(t, func() {
			r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
		})
		require.EqualValues(t, 1, store.lookups.Load())
		time.Sleep(time.Hour)
		require.EqualValues(t, 1, store.lookups.Load())
	})
}

// TestS37BackupTokenGetsNoKeys: the keys of a backup, which include the admin token, are for administrators alone.
func TestS37BackupTokenGetsNoKeys(t *testing.T) {
	closed := false
	s := newSite(t, func(c *siteConfig) {
		c.Backup = func(context.Context, BackupRequest) (Archive, error) { return small{closed: &closed}, nil }
	})
	backup := func(role inventory.Role, body string) int {
		return send(t, s.operator, http.MethodPost, "/v1/backup", body, bearer(s.token("of-"+string(role), role))).Code
	}
	require.Equal(t, http.StatusForbidden, backup(inventory.RoleBackup, `{"passphrase":"correct horse battery"}`))
	require.Equal(t, http.StatusNoContent, s.do(http.MethodDelete, "/v1/tokens/of-backup", nil).Code)
	require.Equal(t, http.StatusOK, backup(inventory.RoleBackup, `{"withoutKey":true}`))
	require.Equal(t, http.StatusOK, backup(inventory.RoleAdmin, `{"passphrase":"correct horse battery"}`))
}

// TestS37OnlyAdminsMoveTheServer: Genesis and Migrate can hand the server over, with its keys. A token with the role operate
// decides about Recover alone.
func TestS37OnlyAdminsMoveTheServer(t *testing.T) {
	for kind, status := range map[string]int{
		inventory.TypeRecover: http.StatusOK, inventory.TypeTogether: http.StatusOK, inventory.TypeGenesis: http.StatusForbidden, inventory.TypeMigrate: http.StatusForbidden,
	} {
		s := newSite(t)
		s.operation("of/lab", kind)
		s.Temporal.Open("of/lab", "r1")
		alice := bearer(s.token("alice", inventory.RoleOperate))
		post := func(verb, body string) int {
			return send(t, s.operator, http.MethodPost, "/v1/operations/r1/"+verb, body, alice).Code
		}
		require.Equal(t, status, post("decide", `{"question":"router.1","choice":"retry"}`), kind)
		require.Equal(t, status == http.StatusForbidden, post("cancel", "") == http.StatusForbidden, kind)
		for _, r := range []string{"PUT /v1/genesis/lab", "POST /v1/genesis/lab/start", "POST /v1/genesis/lab/resume", "POST /v1/genesis/lab/cancel"} {
			method, path, _ := strings.Cut(r, " ")
			require.Equal(t, http.StatusForbidden, send(t, s.operator, method, path, "{}", alice).Code, r)
		}
	}
}
