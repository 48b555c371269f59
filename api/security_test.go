package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
	"github.com/ingotmetal/ingot/lab/fakesite"
)

func (s *site) claim(h action.Hello) *httptest.ResponseRecorder {
	return send(s.T, s.agent, http.MethodPost, "/agent/v1/claim", h)
}

// TestS1OneClaimPerBoot: nothing is given before a boot is allowed, to one of
// several who ask at once, and after the window has closed.
func TestS1OneClaimPerBoot(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	free := inventory.Owner{Machine: "m1", Run: "r0", Epoch: 1}
	require.Equal(t, http.StatusNotFound, s.claim(s.hello(free, 1, nonceA)).Code, "no run holds the machine")
	g, err := s.Store.Grants.TakeGrant(t.Context(), "m1", "r0", "machine/m1", false)
	require.NoError(t, err)
	for boot := range 3 {
		require.Equal(t, http.StatusNotFound, s.claim(s.hello(g.Owner, boot, nonceA)).Code, "no boot was allowed")
	}
	require.NoError(t, s.Store.Grants.EndGrant(t.Context(), g.Owner))

	o := s.Arm("m1", "r1")
	var wait sync.WaitGroup
	answers := make([]*httptest.ResponseRecorder, 8)
	for i := range answers {
		wait.Go(func() { answers[i] = s.claim(s.hello(o, 1, fmt.Sprintf("%032x", i+1))) })
	}
	wait.Wait()
	counts := map[int]int{}
	for _, a := range answers {
		counts[a.Code]++
	}
	require.Equal(
		t,
		map[int]int{http.StatusOK: 1, http.StatusConflict: len(answers) - 1},
		counts,
		"one token, the others are told of the conflict",
	)
	require.Equal(t, 1, s.Events(inventory.EventFilter{Run: "r1"})[inventory.EventClaimConflict], "the run hears of it")

	s.AddMachine("m2", "52:54:00:00:00:0b")
	o = s.Arm("m2", "r2")
	h := s.hello(o, 1, nonceA)
	h.MAC = "52:54:00:00:00:0b"
	first := decode[action.Welcome](t, s.claim(h), http.StatusOK)
	require.Equal(t, first.Token, decode[action.Welcome](t, s.claim(h), http.StatusOK).Token, "a lost answer is given again")

	s.AddMachine("m3", "52:54:00:00:00:0c")
	o = s.Arm("m3", "r3")
	h = s.hello(o, 1, nonceA)
	h.MAC = "52:54:00:00:00:0c"
	s.Clock.Move(2 * time.Hour)
	require.Equal(t, http.StatusNotFound, s.claim(h).Code, "the window has closed")
}

// TestS2TokensAreBoundAndHashed: tokens have 256 bits, only their hash is in the database,
// and each is valid for one machine and one run.
func TestS2TokensAreBoundAndHashed(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	s.AddMachine("m2", "52:54:00:00:00:0b")
	o1, o2 := s.Arm("m1", "r1"), s.Arm("m2", "r2")
	w1 := s.welcome(o1, nonceA)
	h := s.hello(o2, 1, nonceA)
	h.MAC = "52:54:00:00:00:0b"
	w2 := decode[action.Welcome](t, s.claim(h), http.StatusOK)
	raw, err := base64.RawURLEncoding.DecodeString(w1.Token)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(raw)*8, 256)
	require.NotEqual(t, w1.Token, w2.Token)

	k := s.Assign(o2)
	require.Equal(
		t,
		http.StatusNoContent,
		send(t, s.agent, http.MethodGet, "/agent/v1/next?wait=0", nil, bearer(w1.Token)).Code,
		"another machine's work",
	)
	forged := action.Result{Key: k, ID: "x", State: action.Success}
	require.NotEqual(t, http.StatusNoContent, send(t, s.agent, http.MethodPost, "/agent/v1/report", forged, bearer(w1.Token)).Code)
	require.Zero(t, s.Events(inventory.EventFilter{Run: "r2"})[inventory.EventActionDone], "another machine's result")
	require.Equal(t, http.StatusOK, send(t, s.agent, http.MethodGet, "/agent/v1/next?wait=0", nil, bearer(w2.Token)).Code)

	require.NoError(t, s.Store.Grants.EndGrant(t.Context(), o1))
	s.Arm("m1", "r3")
	for _, r := range [][2]string{{http.MethodGet, "/agent/v1/next"}, {http.MethodPost, "/agent/v1/heartbeat"}, {http.MethodPost, "/agent/v1/report"}, {http.MethodGet, "/agent/v1/images/x"}, {http.MethodGet, "/agent/v1/runtime"}} {
		require.Equal(t, http.StatusGone, send(t, s.agent, r[0], r[1], "{}", bearer(w1.Token)).Code, "replay in the next run: %s", r[1])
	}

	copyOf := filepath.Join(t.TempDir(), "copy.db")
	require.NoError(t, s.Store.Backup(t.Context(), copyOf))
	dump, err := os.ReadFile(copyOf)
	require.NoError(t, err)
	sum := sha256.Sum256([]byte(w2.Token))
	require.True(t, bytes.Contains(dump, sum[:]), "the hash is there")
	for _, form := range [][]byte{[]byte(w1.Token), []byte(w2.Token), raw, []byte(hex.EncodeToString(raw))} {
		require.False(t, bytes.Contains(dump, form), "a token is there")
	}
}

// questions writes down what is asked of the store.
type questions struct {
	Store
	asked []string
}

func (q *questions) Grant(ctx context.Context, machine string) (inventory.Grant, error) {
	q.asked = append(q.asked, "grant")
	return q.Store.Grant(ctx, machine)
}

func (q *questions) Machine(ctx context.Context, name string) (inventory.Machine, error) {
	q.asked = append(q.asked, "machine")
	return q.Store.Machine(ctx, name)
}

func (q *questions) Redeem(ctx context.Context, r inventory.Redemption) (inventory.Agent, error) {
	q.asked = append(q.asked, "redeem")
	return q.Store.Redeem(ctx, r)
}

func (q *questions) AgentByToken(ctx context.Context, sum []byte) (inventory.Agent, error) {
	q.asked = append(q.asked, "agent")
	return q.Store.AgentByToken(ctx, sum)
}

// TestS3AgentRoutesTellNobodyWhatIsArmed: without a claim or token, a client gets the same
// bytes after the same queries, whether or not the machine exists, a run holds it and its
// boot is open.
func TestS3AgentRoutesTellNobodyWhatIsArmed(t *testing.T) {
	s := newSite(t)
	for n, name := range []string{"never", "held", "armed", "closed", "spent"} {
		s.AddMachine(name, fmt.Sprintf("52:54:00:00:00:%02x", 10+n))
	}
	_, err := s.Store.Grants.TakeGrant(t.Context(), "held", "r1", "machine/held", false)
	require.NoError(t, err)
	s.Arm("armed", "r2")
	closed := s.Arm("closed", "r3")
	require.NoError(t, s.Store.Grants.CloseNetboot(t.Context(), closed))
	spent := s.Arm("spent", "r4")
	h := s.hello(spent, 1, nonceA)
	h.MAC = "52:54:00:00:00:0e"
	decode[action.Welcome](t, s.claim(h), http.StatusOK)
	q := &questions{Store: s.cfg.Store}
	s.restart(func(c *siteConfig) { c.Store = q })

	type seen struct {
		status       int
		header, body string
		asked        string
	}
	look := func(method, path string, in any, hs ...header) seen {
		q.asked = nil
		rec := send(t, s.agent, method, path, in, hs...)
		return seen{rec.Code, fmt.Sprint(rec.Header()), rec.Body.String(), strings.Join(q.asked, ", ")}
	}
	hello := func(name string) action.Hello {
		h := s.hello(inventory.Owner{Machine: name, Run: "guess", Epoch: 1}, 1, nonceB)
		return h
	}
	want := look(http.MethodPost, "/agent/v1/claim", hello("nobody"))
	require.Equal(t, http.StatusNotFound, want.status)
	require.Equal(t, "grant", want.asked)
	for _, name := range []string{"never", "held", "armed", "closed", "spent", "", "../x"} {
		require.Equal(t, want, look(http.MethodPost, "/agent/v1/claim", hello(name)), name)
	}
	// A wrong protocol or hardware is told only to who holds the claim.
	for _, name := range []string{"nobody", "armed"} {
		h := hello(name)
		h.Protocol, h.MAC = 99, "02:00:00:00:00:99"
		require.Equal(
			t,
			look(http.MethodPost, "/agent/v1/claim", func() action.Hello { x := h; x.Machine = "nobody"; return x }()),
			look(http.MethodPost, "/agent/v1/claim", h),
			name,
		)
	}
	require.Equal(t, http.StatusCreated, s.do(http.MethodPut, "/v1/images/debian-12", "text").Code)
	guess := bearer(base64.RawURLEncoding.EncodeToString(make([]byte, 32)))
	for _, r := range [][3]string{
		{http.MethodGet, "/agent/v1/images/debian-12", "/agent/v1/images/none"}, {http.MethodGet, "/agent/v1/next", "/agent/v1/next?wait=30s"},
	} {
		require.Equal(t, look(r[0], r[1], nil, guess), look(r[0], r[2], nil, guess))
	}
}

// TestS4NoHeaderNamesTheCaller: headers with an address do not change how an operator's or
// agent's request is handled.
func TestS4NoHeaderNamesTheCaller(t *testing.T) {
	s := newSite(t)
	for _, name := range []string{"X-Forwarded-For", "Forwarded", "X-Real-Ip", "X-Forwarded-Host", "X-Appengine-Remote-Addr", "Cf-Connecting-Ip"} {
		for _, value := range []string{"127.0.0.1", "::1", "10.0.0.1"} {
			require.Equal(t, http.StatusUnauthorized, send(t, s.operator, http.MethodGet, "/v1/machines", nil, header{name, value}).Code, name)
			require.Equal(t, http.StatusUnauthorized, send(t, s.agent, http.MethodGet, "/agent/v1/next", nil, header{name, value}).Code, name)
			require.Equal(
				t,
				http.StatusForbidden,
				send(t, s.operator, http.MethodGet, "/healthz", nil, header{name, value}, header{"Host", "evil.example"}).Code,
				name,
			)
		}
	}
}

// nameserver answers on loopback: the addresses of each name in turn, one per
// question.
func nameserver(t *testing.T, names map[string][]string) *net.Resolver {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0") //nolint:noctx // a test's own socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pc.Close()) })
	go func() {
		asked := map[string]int{}
		buf := make([]byte, 1500)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m.Response, m.Authoritative, m.Additionals = true, true, nil
			addrs := names[strings.TrimSuffix(q.Name.String(), ".")]
			if q.Type == dnsmessage.TypeA && len(addrs) > 0 {
				text := addrs[asked[q.Name.String()]%len(addrs)]
				asked[q.Name.String()]++
				for one := range strings.SplitSeq(text, ",") {
					a := netip.MustParseAddr(one)
					m.Answers = append(m.Answers, dnsmessage.Resource{
						Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}, Body: &dnsmessage.AResource{A: a.As4()},
					})
				}
			}
			if b, err := m.Pack(); err == nil {
				_, _ = pc.WriteTo(b, from) // the resolver asks again
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", pc.LocalAddr().String())
	}}
}

// TestS17FetchJudgesWhatItDials: names that resolve to internal addresses, at the first or
// second query, are not dialed; nor are redirects and other schemes.
func TestS17FetchJudgesWhatItDials(t *testing.T) {
	var dialled atomic.Int64
	inside := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	inside.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			dialled.Add(1)
		}
	}
	t.Cleanup(inside.Close)
	_, port, err := net.SplitHostPort(inside.Listener.Addr().String())
	require.NoError(t, err)
	to := ""
	outside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) }))
	t.Cleanup(outside.Close)

	s := newSite(t, func(c *siteConfig) {
		c.FetchHosts = []string{"127.0.0.1", "listed.test"}
		c.Resolver = nameserver(t, map[string][]string{
			"loopback.test": {
				"127.0.0.1",
			},
			"loopback2.test": {"127.8.8.8"},
			"link.test":      {"169.254.169.254"},
			"private.test":   {"10.0.0.1"},
			"zero.test":      {"0.0.0.0"},
			"both.test":      {"0.0.0.0,127.0.0.1"},
			"rebinding.test": {"127.0.0.1", "169.254.169.254"},
			"listed.test":    {"127.0.0.1"},
		})
	})
	fetch := func(u string) string {
		t.Helper()
		a := decode[answer](t, s.do(http.MethodPost, "/v1/images", map[string]string{"name": "x", "url": u}), http.StatusBadRequest)
		require.Empty(t, s.files(), u)
		return a.Error
	}
	for _, name := range []string{"loopback.test", "loopback2.test", "link.test", "private.test", "zero.test", "both.test", "rebinding.test", "rebinding.test", "listed.test"} {
		require.Contains(t, fetch("https://"+name+":"+port+"/image"), " is a", name)
		to = "https://" + name + ":" + port + "/image"
		require.Contains(t, fetch(outside.URL+"/image"), " is a", "redirect to %s", name)
	}
	for _, u := range []string{
		"file:///etc/passwd", "file:///dev/zero", "/dev/zero", "/proc/self/environ", "http://loopback.test/", "ftp://127.0.0.1/", "gopher://127.0.0.1/", "data:text/plain,x",
		"https:///etc/passwd", "https://169.254.169.254/", "https://[::1]:" + port + "/", "https://[::ffff:169.254.169.254]/", "https://0x7f000001:" + port + "/", "https://[fe80::1%25eth0]/", "jar:https://x/",
	} {
		require.NotEmpty(t, fetch(u), u)
		to = u
		require.NotEmpty(t, fetch(outside.URL+"/image"), "redirect to %s", u)
	}
	// Without TLS, anyone on the way could change the image: only a listed host may serve it so.
	const plain = `downloads by http from "loopback.test" are not allowed`
	require.Contains(t, fetch("http://loopback.test/"), plain)
	to = "http://loopback.test/"
	require.Contains(t, fetch(outside.URL+"/image"), plain, "a redirect")
	require.Zero(t, dialled.Load(), "the inside was dialled")
}

// TestS17AddressesThatMayBeDialled is the table of internal addresses.
func TestS17AddressesThatMayBeDialled(t *testing.T) {
	s := newSite(t, func(c *siteConfig) { c.FetchHosts = []string{"mirror.lan", "127.0.0.1"} }).api.images.fetcher
	public := []string{"1.1.1.1", "93.184.216.34", "2606:2800:220:1::1"}
	private := []string{"10.0.0.1", "172.16.0.1", "192.168.1.1", "fd00::1"}
	never := []string{
		"127.0.0.1",
		"127.1.2.3",
		"::1",
		"0.0.0.0",
		"0.1.2.3",
		"::",
		"169.254.169.254",
		"fe80::1",
		"224.0.0.1",
		"ff02::1",
		"255.255.255.255",
		"240.0.0.1",
		"100.64.0.1",
		"198.18.0.1",
		"::ffff:127.0.0.1",
		"::ffff:169.254.169.254",
		"::ffff:100.64.0.1",
		"::127.0.0.1",
		"64:ff9b::7f00:1",
		"2002:7f00:1::",
		"2001:0:1::",
		"192.0.0.8",
		"fec0::1",
	}
	for host, may := range map[string][]string{"example.com": public, "mirror.lan": append(slices.Clone(public), private...)} {
		for _, a := range slices.Concat(public, private, never) {
			err := s.checkAddress(host)("tcp", net.JoinHostPort(a, "443"), nil)
			require.Equal(t, slices.Contains(may, a), err == nil, "%s at %s: %v", host, a, err)
		}
	}
	require.NoError(t, s.checkAddress("127.0.0.1")("tcp", "127.0.0.1:80", nil), "an address that is listed as such")
	require.Error(t, s.checkAddress("127.0.0.2")("tcp", "127.0.0.2:80", nil))
}

// TestS17BMCHostsAreJudgedWhenTheyAreEntered names the field; what a name
// leads to is judged at each dial (package bmc).
func TestS17BMCHostsAreJudgedWhenTheyAreEntered(t *testing.T) {
	s := newSite(t, func(c *siteConfig) {
		c.CheckBMCHost = func(host string) error {
			if strings.HasPrefix(host, "127.") {
				return fmt.Errorf("%s lies in no network: %w", host, inventory.ErrInvalid)
			}
			return nil
		}
	})
	push := func(host string) *httptest.ResponseRecorder {
		m := machine("m1", mac)
		m.BMC = &inventory.BMC{Driver: inventory.DriverIPMI, Host: host, User: "admin"}
		return s.do(http.MethodPost, "/v1/machines", map[string]any{"machines": []any{m}, "replace": true})
	}
	relayed := machine("m2", "52:54:00:00:00:02")
	relayed.BMC = &inventory.BMC{Driver: inventory.DriverRPC, Host: "rack1-node2", ConsumerURL: "http://127.0.0.1/rpc"}
	answered := s.do(http.MethodPost, "/v1/machines", map[string]any{"machines": []any{relayed}})
	problems := decode[answer](t, answered, http.StatusBadRequest).Problems
	require.Contains(t, fmt.Sprint(problems), "bmc.consumerURL", "what is dialled there")

	require.Equal(t, http.StatusCreated, push("10.0.0.9").Code)
	a := decode[answer](t, push("127.0.0.1"), http.StatusBadRequest)
	require.Len(t, a.Problems, 1)
	require.Equal(t, "bmc.host", a.Problems[0].Field)
	require.Contains(t, a.Problems[0].Remedy, "bmc.networks")
	m, err := s.Store.Machines.Machine(t.Context(), "m1")
	require.NoError(t, err)
	require.Equal(t, "10.0.0.9", m.BMC.Host, "nothing was changed")
}

// TestS14KernelArgumentsAreRefusedByName: what could end a line, start a
// command or expand is refused when it is entered, with the field that holds
// it.
func TestS14KernelArgumentsAreRefusedByName(t *testing.T) {
	s := newSite(t)
	for _, bad := range []string{"a\nb", "a\rb", ";", "&&", "||", "#!ipxe", "${x}", `a"b`, "a'b", "a b", "a\\b", "", "--", "init=/bin/sh", "ingot.claim=0", "initrd=x", "ä"} {
		m := machine("m1", mac)
		m.KernelArgs = []string{"quiet", bad}
		a := decode[answer](t, s.do(http.MethodPost, "/v1/machines", map[string]any{"machines": []any{m}}), http.StatusBadRequest)
		require.Len(t, a.Problems, 1, bad)
		require.Equal(t, "kernelArgs[1]", a.Problems[0].Field, bad)
		require.NotEmpty(t, a.Problems[0].Remedy)
	}
	for _, bad := range []string{"node\n1", "node;1", "${node}", "a b", "a||b", "-a", "A", "node1#!"} {
		require.Equal(
			t,
			http.StatusBadRequest,
			s.do(http.MethodPost, "/v1/machines", map[string]any{"machines": []any{machine(bad, mac)}}).Code,
			bad,
		)
	}
}

// TestS28NothingRawReachesABMC: the routes are TestS6RoutesPerListener's; the
// words that they take are few.
func TestS28NothingRawReachesABMC(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	for _, r := range append(routes(s.operator), routes(s.agent)...) {
		for _, word := range []string{"raw", "passthrough", "passthru", "exec", "shell", "sol", "console", "redfish", "vendor"} {
			require.NotContains(t, strings.ToLower(r), word)
		}
	}
	for _, task := range []string{
		`{"powerAction":"raw 0x06 0x01"}`, `{"powerAction":"on; raw"}`, `{"powerAction":"on","raw":"0x06"}`, `{"raw":["0x06","0x01"]}`, `{"command":"mc reset cold"}`,
		`{"bootDevice":{"device":"pxe options=x"}}`, `{"bootDevice":{"device":"pxe","raw":true}}`, `{"powerAction":"diag"}`, `{"powerAction":""}`, `{}`,
	} {
		rec := s.do(http.MethodPost, "/v1/bmc/jobs", `{"machine":"m1","tasks":[`+task+`]}`)
		require.Equal(t, http.StatusBadRequest, rec.Code, task)
	}
	for _, body := range []string{`{"power":"raw"}`, `{"state":"raw"}`, `{"power":"on","raw":"0x06"}`} {
		require.Equal(t, http.StatusBadRequest, s.do(http.MethodPost, "/v1/machines/m1/power", body).Code, body)
	}
	require.Empty(t, s.Temporal.Options, "nothing was started")
}

// TestS44AClaimIsUselessAfterItsUse: it is on a kernel command line, where
// everything that runs on the machine can read it, and on the wire.
func TestS44AClaimIsUselessAfterItsUse(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	o := s.Arm("m1", "r1")
	w := s.welcome(o, nonceA)
	require.Equal(t, http.StatusOK, send(t, s.agent, http.MethodPost, "/agent/v1/heartbeat", action.Heartbeat{}, bearer(w.Token)).Code)
	for _, nonce := range []string{nonceA, nonceB} {
		rec := s.claim(s.hello(o, 1, nonce))
		require.Equal(t, http.StatusConflict, rec.Code)
		require.NotContains(t, rec.Body.String(), w.Token)
	}
	claim := inventory.Claim(s.cfg.ClaimKey, o, 1)
	for _, text := range []string{claim, "Bearer " + claim} {
		require.Equal(t, http.StatusUnauthorized, send(t, s.agent, http.MethodGet, "/agent/v1/next", nil, bearer(text)).Code)
		require.Equal(t, http.StatusUnauthorized, send(t, s.operator, http.MethodGet, "/v1/machines", nil, bearer(text)).Code)
	}
	require.NoError(t, s.Store.Grants.EndGrant(t.Context(), o))
	require.Equal(t, http.StatusNotFound, s.claim(s.hello(o, 1, nonceB)).Code)
	next := s.Arm("m1", "r2")
	require.Equal(t, http.StatusNotFound, s.claim(s.hello(o, 1, nonceB)).Code, "in the next run")
	s.welcome(next, nonceB)
}

// TestS49Cookie is what a browser is told of the session.
func TestS49Cookie(t *testing.T) {
	for base, secure := range map[string]bool{"http://127.0.0.1:8080": false, "https://127.0.0.1:8080": true} {
		s := newSite(t, func(c *siteConfig) { c.BaseURL = base })
		link := decode[struct{ URL string }](t, s.do(http.MethodPost, "/v1/login-links", nil), http.StatusCreated)
		u, err := url.Parse(link.URL)
		require.NoError(t, err)
		c := send(t, s.operator, http.MethodGet, u.Path, nil).Result().Cookies()[0]
		require.True(t, c.HttpOnly)
		require.Equal(t, http.SameSiteStrictMode, c.SameSite)
		require.Equal(t, secure, c.Secure)
		require.Empty(t, c.Domain, "this host alone")
		require.Equal(t, "/", c.Path)
		require.NotContains(t, c.Value, adminToken)
	}
}

// TestS50RetargetingABMCClearsItsPassword: the password is deleted, whatever part of the BMC's address changes. A ciphertext
// that was moved to another row of the database cannot be decrypted.
func TestS50RetargetingABMCClearsItsPassword(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ingot.db")
	store, err := sqlite.Open(t.Context(), path, keyring.New())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	s := newSite(t, func(c *siteConfig) { c.Store = fakesite.InventoryOf(store) })
	stored := inventory.BMC{
		Driver:      inventory.DriverIPMI,
		Host:        "10.0.9.1",
		User:        "admin",
		Password:    inventory.NewSecret("hunter2"),
		HasPassword: true,
	}
	put := func(name, mac string, b inventory.BMC) {
		t.Helper()
		doc := map[string]any{
			"driver":      b.Driver,
			"host":        b.Host,
			"port":        b.Port,
			"user":        b.User,
			"insecureTLS": b.InsecureTLS,
			"hasPassword": b.HasPassword,
		}
		if !b.Password.IsZero() {
			doc["password"] = b.Password.Reveal()
		}
		m := map[string]any{"name": name, "interfaces": []any{map[string]any{"mac": mac}}, "bmc": doc}
		decode[struct{}](t, s.do(http.MethodPost, "/v1/machines", map[string]any{"machines": []any{m}, "replace": true}), http.StatusCreated)
	}
	password := func(name string) string {
		t.Helper()
		p, err := store.BMCPasswords.BMCPassword(t.Context(), name)
		require.NoError(t, err)
		return p.Reveal()
	}
	for what, edit := range map[string]func(*inventory.BMC){
		"host": func(b *inventory.BMC) { b.Host = "10.0.9.2" },
		"port": func(b *inventory.BMC) { b.Port = 6230 },
		"TLS":  func(b *inventory.BMC) { b.InsecureTLS = true },
		"name": func(b *inventory.BMC) { b.Host = "recorder.example" },
	} {
		put("m1", mac, stored)
		require.Equal(t, "hunter2", password("m1"))
		kept := stored
		kept.Password, kept.User = inventory.Secret{}, "root"
		put("m1", mac, kept)
		require.Equal(t, "hunter2", password("m1"), "a user's name may change")
		edit(&kept)
		put("m1", mac, kept)
		require.Empty(t, password("m1"), what)
	}
	put("m1", mac, stored)
	other := stored
	other.Host, other.Password = "10.0.9.3", inventory.NewSecret("another")
	put("m2", "52:54:00:00:00:0b", other)
	db, err := sqlx.Open("sqlite3", path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	for what, change := range map[string]string{
		"another machine's": "UPDATE machine SET bmc_password = (SELECT bmc_password FROM machine WHERE name = 'm2') WHERE name = 'm1'",
		"another address":   `UPDATE machine SET doc = replace(doc, '10.0.9.3', '10.0.9.66') WHERE name = 'm2'`,
	} {
		_, err := db.ExecContext(t.Context(), change)
		require.NoError(t, err, what)
	}
	for _, name := range []string{"m1", "m2"} {
		_, err := store.BMCPasswords.BMCPassword(t.Context(), name)
		require.ErrorIs(t, err, inventory.ErrSealed, name)
	}
}

// TestS48ConflictsFillNoLog: a client that has read a boot script off the wire can
// claim it any number of times.
func TestS48ConflictsFillNoLog(t *testing.T) {
	var log bytes.Buffer
	s := newSite(t, func(c *siteConfig) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	s.AddMachine("m1", mac)
	o := s.Arm("m1", "r1")
	h := s.hello(o, 1, nonceA)
	h.MAC, h.Facts.NICs = "02:00:00:00:00:01", []action.NIC{{Name: "eth0", MAC: "02:00:00:00:00:01"}}
	for n := range 300 {
		h.Nonce = fmt.Sprintf("%032x", n)
		require.NotEqual(t, http.StatusOK, s.claim(h).Code)
	}
	n := strings.Count(log.String(), "\n")
	require.Positive(t, n)
	require.LessOrEqual(t, n, 60)
	require.Equal(t, 1, s.Events(inventory.EventFilter{Run: "r1"})[inventory.EventClaimConflict])
}
