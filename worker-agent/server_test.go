package agent

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/action"
)

// deadline ends a test that hangs.
const deadline = 60 * time.Second

// fakeServer is a server whose answers are scripted.
type fakeServer struct {
	t    *testing.T
	http *httptest.Server
	pin  string

	mu       sync.Mutex
	hellos   []action.Hello
	offer    []action.Assignment // each is offered until its key is reported
	reports  []action.Result
	beats    []action.Heartbeat
	orders   action.Orders
	polls    int
	gone     string // reason of the 410 that answers all requests after the claim
	refuse   int    // status of all answers after the claim
	refused  int    // number of such answers
	onClaim  func(w http.ResponseWriter, n int) bool
	onReport func(w http.ResponseWriter, n int) bool // called after the report was stored
	signer   ed25519.PrivateKey
	// sign converts an offered assignment before it is sent; nil signs it.
	sign      func(action.Assignment) action.Assignment
	onWelcome func(n int) any
	files     http.HandlerFunc // under /agent/v1/images/
	changed   chan struct{}
}

func newFakeServer(t *testing.T) *fakeServer {
	t.Helper()
	s := &fakeServer{t: t, changed: make(chan struct{}), signer: ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /agent/v1/claim", s.claim)
	mux.HandleFunc("GET /agent/v1/next", s.next)
	mux.HandleFunc("POST /agent/v1/report", s.report)
	mux.HandleFunc("POST /agent/v1/heartbeat", s.heartbeat)
	mux.HandleFunc("GET /agent/v1/images/{name}", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer token" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		s.files(w, r)
	})
	s.http = httptest.NewUnstartedServer(mux)
	s.http.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.http.StartTLS()
	t.Cleanup(s.http.Close)
	s.pin = fmt.Sprintf("sha256:%x", sha256.Sum256(s.http.Certificate().RawSubjectPublicKeyInfo))
	return s
}

// update changes the script and wakes waiting requests.
func (s *fakeServer) update(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// locked calls f with the lock held.
func (s *fakeServer) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// wait returns when cond, called with the lock held, returns true.
func (s *fakeServer) wait(what string, cond func() bool) {
	s.t.Helper()
	timer := time.NewTimer(deadline)
	defer timer.Stop()
	for {
		s.mu.Lock()
		ok, changed := cond(), s.changed
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			s.t.Fatalf("timed out waiting for %s", what)
		}
	}
}

func hangUp(w http.ResponseWriter) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_ = c.Close()
	}
}

func (s *fakeServer) answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		s.t.Logf("answering: %v", err)
	}
}

func (s *fakeServer) claim(w http.ResponseWriter, r *http.Request) {
	var h action.Hello
	if err := json.NewDecoder(r.Body).Decode(&h); err != nil {
		s.t.Errorf("reading a hello: %v", err)
	}
	var n int
	s.update(func() { s.hellos = append(s.hellos, h); n = len(s.hellos) })
	if s.onClaim != nil && s.onClaim(w, n) {
		return
	}
	if s.onWelcome != nil {
		s.answer(w, s.onWelcome(n))
		return
	}
	s.answer(w, action.Welcome{
		Protocol: action.Protocol, Token: "token", Run: "run", Epoch: 7, Boot: 1, Heartbeat: 1,
		Time: time.Unix(1700000000, 0),
	})
}

// over counts a request and answers it if the script ends the run or refuses.
func (s *fakeServer) over(w http.ResponseWriter, r *http.Request) bool {
	if r.Header.Get("Authorization") != "Bearer token" {
		s.t.Errorf("%s came without its token", r.URL.Path)
	}
	s.mu.Lock()
	gone, refuse := s.gone, s.refuse
	s.mu.Unlock()
	if gone != "" {
		w.WriteHeader(http.StatusGone)
		s.answer(w, action.Farewell{Reason: gone})
		return true
	}
	if refuse != 0 {
		s.update(func() { s.refused++ })
		w.WriteHeader(refuse)
		return true
	}
	return false
}

func (s *fakeServer) next(w http.ResponseWriter, r *http.Request) {
	s.update(func() { s.polls++ })
	if r.URL.Query().Get("wait") == "" {
		s.t.Error("a poll without wait")
	}
	for {
		if s.over(w, r) {
			return
		}
		s.mu.Lock()
		var as *action.Assignment
		if len(s.offer) > 0 {
			first := s.offer[0]
			as = &first
		}
		changed := s.changed
		s.mu.Unlock()
		if as != nil {
			sign := s.sign
			if sign == nil {
				sign = s.signed
			}
			s.answer(w, sign(*as))
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// signed returns as, signed with the key that the boot script named.
func (s *fakeServer) signed(as action.Assignment) action.Assignment {
	return s.order(action.Order{Machine: "m1", Boot: 1, Plan: "plan", Assignment: as})
}

// order returns o's assignment with the signed o in it.
func (s *fakeServer) order(o action.Order) action.Assignment {
	if o.Run == "" {
		o.Run = "run"
	}
	signed, err := action.Sign(s.signer, o)
	if err != nil {
		s.t.Errorf("signing: %v", err)
	}
	o.Signed = signed
	return o.Assignment
}

func (s *fakeServer) report(w http.ResponseWriter, r *http.Request) {
	if s.over(w, r) {
		return
	}
	var res action.Result
	if err := json.NewDecoder(r.Body).Decode(&res); err != nil {
		s.t.Errorf("reading a report: %v", err)
	}
	var n int
	s.update(func() {
		s.reports = append(s.reports, res)
		n = len(s.reports)
		if len(s.offer) > 0 && s.offer[0].Key == res.Key {
			s.offer = s.offer[1:]
		}
	})
	if s.onReport != nil && s.onReport(w, n) {
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *fakeServer) heartbeat(w http.ResponseWriter, r *http.Request) {
	if s.over(w, r) {
		return
	}
	var h action.Heartbeat
	if err := json.NewDecoder(r.Body).Decode(&h); err != nil {
		s.t.Errorf("reading a heartbeat: %v", err)
	}
	var o action.Orders
	s.update(func() { s.beats = append(s.beats, h); o = s.orders })
	s.answer(w, o)
}

// give offers a native action with env to the agent, as action n.
func (s *fakeServer) give(n int, native string, disk *action.Disk, env map[string]string) action.Key {
	key := action.Key{Epoch: 7, Action: n, Attempt: 1}
	s.update(func() {
		s.offer = append(s.offer, action.Assignment{
			Key: key, Run: "run", Disk: disk, DiskAlias: "/dev/alias",
			Action: action.Action{Name: native, Image: native, Environment: env, Timeout: 600},
		})
	})
	return key
}

// result waits for the report for key.
func (s *fakeServer) result(key action.Key) action.Result {
	s.t.Helper()
	var res action.Result
	s.wait("the report on "+key.String(), func() bool {
		for _, r := range s.reports {
			if r.Key == key {
				res = r
				return true
			}
		}
		return false
	})
	return res
}

// fakeHost records how the machine left.
type fakeHost struct {
	mu    sync.Mutex
	clock time.Time
	went  []string
	onGo  func()
}

func (h *fakeHost) SetClock(t time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock = t
	return nil
}
func (h *fakeHost) Reboot() error   { return h.leave("reboot") }
func (h *fakeHost) PowerOff() error { return h.leave("poweroff") }

func (h *fakeHost) leave(how string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.onGo != nil {
		h.onGo()
	}
	h.went = append(h.went, how)
	return nil
}

// started is a running agent.
type started struct {
	t    *testing.T
	host *fakeHost
	done chan error
	stop context.CancelFunc
}

func (s *fakeServer) config() Config {
	return Config{
		Server: s.http.URL, Pin: s.pin, Machine: "m1", Claim: "c0ffee",
		PlanKey: action.FormatPlanKey(s.signer.Public().(ed25519.PublicKey)), MAC: "52:54:00:00:00:01", Backoff: 20 * time.Millisecond,
	}
}

// start starts an agent with cfg; it ends with the test.
func (s *fakeServer) start(cfg Config) *started {
	s.t.Helper()
	host := &fakeHost{}
	return s.startOn(cfg, host, host)
}

// startOn is start with another host; fake records how the machine left.
func (s *fakeServer) startOn(cfg Config, host Host, fake *fakeHost) *started {
	s.t.Helper()
	cfg.Host = host
	a, err := New(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &started{t: s.t, host: fake, done: make(chan error, 1), stop: cancel}
	go func() { r.done <- a.Run(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-r.done; err != nil && !errors.Is(err, context.Canceled) {
			s.t.Errorf("the agent ended with %v", err)
		}
	})
	return r
}

// ended waits for the agent's end and returns how the machine left.
func (r *started) ended() []string {
	r.t.Helper()
	select {
	case err := <-r.done:
		r.done <- err
		if err != nil {
			r.t.Fatalf("the agent ended with %v", err)
		}
	case <-time.After(deadline):
		r.t.Fatal("the agent did not end")
	}
	r.host.mu.Lock()
	defer r.host.mu.Unlock()
	return r.host.went
}
