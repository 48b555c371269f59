package siterole

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ingotmetal/ingot/internal/secrets/keypin"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	token     = "0123456789abcdef0123456789abcdef"
	siteText  = "all that the site is"
	startAt   = int64(7) // site epoch of the source
	temporals = "temporal.db"
)

var (
	errKilled = errors.New("killed")
	errCut    = errors.New("the link is cut")
)

func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	x := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, x, x, key.Public(), key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// world has two hosts and a link between them. After a kill, a host has only the state
// in its directory.
type world struct {
	t         *testing.T
	src, dst  string // data directories
	keys      string // key file of the source
	cert      tls.Certificate
	server    *httptest.Server
	peer      inventory.Peer
	speaking  speakers
	mu        sync.Mutex
	target    *Target // nil = its process is dead
	cut       bool
	fault     func(r *http.Request) fault
	requests  []string
	reached   func(step string) error
	source    *Source // of the last life
	copies    int
	spoilOnce bool // the copy fails
}

// speakers records which servers answer machines, and whether both ever do.
type speakers struct {
	mu  sync.Mutex
	who map[string]bool
	bad string
}

func (s *speakers) set(name string, speaks bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.who == nil {
		s.who = map[string]bool{}
	}
	s.who[name] = speaks
	if s.who["source"] && s.who["target"] {
		s.bad = "source and target speak"
	}
}

func (s *speakers) now() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range []string{"source", "target"} {
		if s.who[name] {
			out = append(out, name)
		}
	}
	return out
}

// Faults of a request.
type fault int

const (
	pass fault = iota
	loseRequest
	loseAnswer
	halfBody
	killBefore // the target is killed before it handles the request
	killAfter  // the target is killed after it has handled the request, before the answer
)

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, src: t.TempDir(), dst: t.TempDir(), keys: filepath.Join(t.TempDir(), "keys.json"), cert: certificate(t)}
	require.NoError(t, os.WriteFile(w.keys, []byte(`{"version":1,"keys":{}}`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(w.src, temporals), []byte("runs"), 0o600))
	f, err := Open(w.dst)
	require.NoError(t, err)
	sum := sha256.Sum256([]byte(token))
	_, err = f.Change(func(s *Site) error {
		s.Role, s.Name, s.Source = Standby, "dst", &Giver{TokenSHA256: hex.EncodeToString(sum[:])}
		return nil
	})
	require.NoError(t, err)
	w.server = httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		target := w.target
		w.mu.Unlock()
		if target == nil {
			panic(http.ErrAbortHandler)
		}
		target.Handler().ServeHTTP(rw, r)
	}))
	w.server.TLS = ServerTLS(certificate(t))
	w.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	w.server.StartTLS()
	t.Cleanup(w.server.Close)
	w.peer = inventory.Peer{Name: "dst", URL: w.server.URL, Fingerprint: keypin.Of(w.server.Certificate())}
	w.startTarget()
	c, err := NewClient(w.peer, w.cert, token)
	require.NoError(t, err)
	_, err = c.Pair(t.Context(), "src")
	require.NoError(t, err)
	g, err := Open(w.src)
	require.NoError(t, err)
	_, err = g.Change(func(s *Site) error { s.Peers = append(s.Peers, w.peer); return nil })
	require.NoError(t, err)
	return w
}

// startTarget begins a life of the target, with the state on its disk.
func (w *world) startTarget() {
	w.t.Helper()
	f, err := Open(w.dst)
	require.NoError(w.t, err)
	if f.Site().Role == Active {
		w.speaking.set("target", true)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.target = &Target{
		File: f, Steps: targetSteps{w}, Program: "test", Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Activated: func() { w.speaking.set("target", true) },
	}
}

func (w *world) killTarget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.target = nil
	w.speaking.set("target", false)
}

type targetSteps struct{ *world }

func (d targetSteps) Check(context.Context) (int64, []string) { return 1 << 40, nil }
func (d targetSteps) Receive(_ context.Context, id string, epoch int64, r io.Reader) (map[string]string, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	return nil, os.WriteFile(filepath.Join(d.dst, "staged"), fmt.Appendf(nil, "%s %d %s", id, epoch, b), 0o600)
}

func (d targetSteps) Discard(string) error {
	err := os.Remove(filepath.Join(d.dst, "staged"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (d targetSteps) Image(context.Context, inventory.Image) (ImageState, error) {
	return ImageState{}, nil
}

func (d targetSteps) SendImage(context.Context, inventory.Image, int64, io.Reader) (ImageState, error) {
	return ImageState{}, nil
}

type sourceSteps struct{ *world }

func (d sourceSteps) Copy(context.Context, string) (Copy, error) {
	d.copies++
	if d.spoilOnce {
		d.spoilOnce = false
		return Copy{}, errors.New("the disk is full")
	}
	sum := sha256.Sum256([]byte(siteText))
	return Copy{Digest: hex.EncodeToString(sum[:]), Size: int64(len(siteText)), Open: func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(siteText)), nil
	}}, nil
}

func (d sourceSteps) rename(from, to string) error {
	err := os.Rename(filepath.Join(d.src, from), filepath.Join(d.src, to))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
func (d sourceSteps) SetAside(string) error { return d.rename(temporals, temporals+".aside") }
func (d sourceSteps) PutBack(string) error  { return d.rename(temporals+".aside", temporals) }
func (d sourceSteps) Retire(m Mark) error   { return DestroyKeys(d.keys, m) }

// RoundTrip is the link.
func (w *world) wrap(rt http.RoundTripper) http.RoundTripper { return roundTrip{w, rt} }

type roundTrip struct {
	*world
	rt http.RoundTripper
}

// what returns the name of a request: state, prepare, activate or refuse.
func what(r *http.Request) string {
	switch p := r.URL.Path; {
	case strings.HasSuffix(p, "/activate"):
		return "activate"
	case strings.HasSuffix(p, "/refuse"):
		return "refuse"
	case r.Method == http.MethodPut:
		return "prepare"
	}
	return "state"
}

func (l roundTrip) RoundTrip(r *http.Request) (*http.Response, error) {
	l.mu.Lock()
	l.requests = append(l.requests, what(r))
	f, dead := pass, l.cut || l.target == nil
	if !dead && l.fault != nil {
		f = l.fault(r)
	}
	l.mu.Unlock()
	if dead || f == loseRequest {
		return nil, errCut
	}
	if f == killBefore {
		l.killTarget()
		return nil, errCut
	}
	if f == halfBody && r.Body != nil {
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(io.MultiReader(io.LimitReader(r.Body, 5), brokenReader{}))
	}
	resp, err := l.rt.RoundTrip(r)
	if err != nil || f == pass || f == halfBody {
		return resp, err
	}
	_ = resp.Body.Close() // the answer is lost
	if f == killAfter {
		l.killTarget()
	}
	return nil, errCut
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errCut }

// life runs one process of the source until it is killed, ctx ends, or its role is
// settled. With an id, it hands the site over.
func (w *world) life(ctx context.Context, id string) error {
	f, err := Open(w.src)
	if err != nil {
		return err
	}
	s := &Source{
		File: f, Steps: sourceSteps{w}, Log: slog.New(slog.DiscardHandler), Now: time.Now, Again: time.Millisecond,
		Dial: func(p inventory.Peer) (TargetAPI, error) {
			c, err := NewClient(p, w.cert, token)
			if err == nil {
				c.http.Transport = w.wrap(c.http.Transport)
			}
			return c, err
		},
		Reached: func(step string) error {
			if w.reached == nil {
				return nil
			}
			return w.reached(step)
		},
	}
	w.mu.Lock()
	w.source = s
	w.mu.Unlock()
	for {
		x := f.Site()
		switch x.Role {
		case HandingOver:
			if err := s.Resume(ctx); err != nil {
				return err
			}
		case Retired:
			return s.EnsureRetired()
		case Active:
			if err := s.Guard(ctx); err != nil {
				return err
			}
			if f.Site().Role != Active {
				continue
			}
			w.speaking.set("source", true)
			if id == "" || x.HandOver != nil && x.HandOver.ID == id {
				return nil
			}
			w.speaking.set("source", false)
			if err := s.HandOver(ctx, id, w.peer, max(startAt, x.Epoch)); err != nil {
				return err
			}
		}
	}
}

// waiting is a life of the source in the background.
type waiting struct {
	done   chan error
	cancel context.CancelFunc
}

func (w *world) begin(id string) *waiting {
	ctx, cancel := context.WithCancel(w.t.Context())
	x := &waiting{done: make(chan error, 1), cancel: cancel}
	w.mu.Lock()
	w.source = nil
	w.mu.Unlock()
	go func() { x.done <- w.life(ctx, id) }()
	return x
}

// until waits for a condition that another goroutine makes true.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for !cond() {
		select {
		case <-deadline:
			t.Fatalf("timeout while waiting for: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

// asks waits until the source asks the operator, and returns why.
func (w *world) asks(x *waiting) string {
	w.t.Helper()
	var why string
	until(w.t, "a question", func() bool {
		select {
		case err := <-x.done:
			w.t.Fatalf("it ended instead of asking: %v", err)
		default:
		}
		w.mu.Lock()
		s := w.source
		w.mu.Unlock()
		if s != nil {
			why, _ = s.Waiting()
		}
		return why != ""
	})
	return why
}

// settled restarts both servers and returns which one is the site.
func (w *world) settled(name string) string {
	w.t.Helper()
	w.mu.Lock()
	w.cut, w.fault, w.reached = false, nil, nil
	dead := w.target == nil
	w.mu.Unlock()
	if dead {
		w.startTarget()
	}
	w.speaking.set("source", false) // its process is dead
	require.NoError(w.t, w.life(w.t.Context(), ""), name)
	return w.judge(name)
}

// judge returns which server is the site, after checking that all files agree.
func (w *world) judge(name string) string {
	w.t.Helper()
	require.Empty(w.t, w.speaking.bad, name)
	now := w.speaking.now()
	require.Len(w.t, now, 1, name)
	f, err := Open(w.src)
	require.NoError(w.t, err)
	g, err := Open(w.dst)
	require.NoError(w.t, err)
	src, dst := f.Site(), g.Site()
	_, marked, err := ReadMark(w.keys)
	require.NoError(w.t, err)
	if now[0] == "target" {
		require.Equal(w.t, Retired, src.Role, name)
		require.Equal(w.t, "dst", src.Successor.Name, name)
		require.True(w.t, marked, name)
		require.Equal(w.t, Active, dst.Role, name)
		require.NotContains(w.t, dst.Refused, dst.Activated, name)
		staged, err := os.ReadFile(filepath.Join(w.dst, "staged"))
		require.NoError(w.t, err, name)
		require.Equal(w.t, fmt.Sprintf("%s %d %s", dst.Activated, dst.Epoch, siteText), string(staged), name)
		require.NoFileExists(w.t, filepath.Join(w.src, temporals), name)
		return "target"
	}
	require.Equal(w.t, Active, src.Role, name)
	require.False(w.t, marked, name)
	require.Equal(w.t, Standby, dst.Role, name)
	require.Nil(w.t, dst.Prepared, name)
	require.FileExists(w.t, filepath.Join(w.src, temporals), name)
	if src.HandOver != nil {
		require.Equal(w.t, Failed, src.HandOver.State, name)
		require.Contains(w.t, dst.Refused, src.HandOver.ID, name)
		require.Equal(w.t, startAt+2, src.Epoch, "no target of that hand-over can own it: %s", name)
	}
	return "source"
}

// S33: only the holder of the site epoch answers, before and after.
func TestHandOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var steps []string
	w.reached = func(step string) error { steps = append(steps, step); return nil }
	require.NoError(t, w.life(t.Context(), "h1"))
	require.Equal(t, []string{StepSilent, StepCopied, StepPrepared, StepSetAside, StepActive, StepRetired}, steps)
	require.Equal(t, "target", w.judge("whole"))
	g, err := Open(w.dst)
	require.NoError(t, err)
	require.Equal(t, startAt+1, g.Site().Epoch)
	require.True(t, g.Site().ReKey)
	require.NoError(t, w.life(t.Context(), "h2"), "a retired server hands nothing over")
	require.Equal(t, "target", w.judge("again"))
}

// TestKilledSource kills the source after each step. The link then works at once, or
// only after the source has asked the operator.
func TestKilledSource(t *testing.T) {
	t.Parallel()
	for _, step := range []string{StepSilent, StepCopied, StepPrepared, StepSetAside, StepActive, StepRetired} {
		for _, cut := range []bool{false, true} {
			name := fmt.Sprintf("%s, link cut %v", step, cut)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.reached = func(s string) error {
					if s == step {
						return errKilled
					}
					return nil
				}
				require.ErrorIs(t, w.life(t.Context(), "h1"), errKilled)
				if cut && step != StepRetired {
					w.cut = true
					x := w.begin("")
					require.Contains(t, w.asks(x), "only dst knows")
					speaks := w.speaking.now()
					if step == StepActive {
						require.Equal(t, []string{"target"}, speaks)
					} else {
						require.Empty(t, speaks, "no server answers until the operator decides")
					}
					x.cancel()
					require.ErrorIs(t, <-x.done, context.Canceled)
				}
				want := "source"
				if step == StepActive || step == StepRetired {
					want = "target"
				}
				require.Equal(t, want, w.settled(name))
			})
		}
	}
}

// TestFaultyLink drops each kind of request and of answer, once or until the source
// asks the operator, and kills the target or not.
func TestFaultyLink(t *testing.T) {
	t.Parallel()
	for _, request := range []string{"prepare", "activate"} {
		for f, label := range map[fault]string{loseRequest: "request lost", loseAnswer: "answer lost", halfBody: "cut in the middle", killBefore: "target killed before", killAfter: "target killed after"} {
			if request == "activate" && f == halfBody {
				continue
			}
			for _, times := range []int{1, 1000} {
				name := fmt.Sprintf("%s: %s, %d times", request, label, times)
				t.Run(name, func(t *testing.T) { t.Parallel(); faulty(t, name, request, f, times) })
			}
		}
	}
}

func faulty(t *testing.T, name, request string, f fault, times int) {
	w := newWorld(t)
	n := 0
	w.fault = func(r *http.Request) fault {
		if what(r) != request && n == 0 || n >= times {
			return pass
		}
		if n++; times > 1 && n > 1 {
			return loseRequest // the link stays cut
		}
		return f
	}
	x := w.begin("h1")
	silent := times > 1 || f == killBefore || f == killAfter
	if !silent {
		require.NoError(t, <-x.done, name)
		require.Equal(t, "target", w.judge(name), "sent again, it works")
		return
	}
	w.asks(x)
	committed := request == "activate" && (f == loseAnswer || f == killAfter)
	if f != killAfter && committed {
		require.Equal(t, []string{"target"}, w.speaking.now())
	} else {
		require.Empty(t, w.speaking.now())
	}
	// The source is killed as well, and both servers restart.
	x.cancel()
	require.ErrorIs(t, <-x.done, context.Canceled)
	want := "source"
	if committed {
		want = "target"
	}
	require.Equal(t, want, w.settled(name))
}

// TestLinkComesBack: a source that is not killed keeps asking until the target answers.
func TestLinkComesBack(t *testing.T) {
	t.Parallel()
	for _, f := range []fault{loseRequest, loseAnswer} {
		w := newWorld(t)
		hit := false
		w.fault = func(r *http.Request) fault {
			if what(r) == "activate" && !hit {
				hit = true
				return f
			}
			if hit {
				return loseRequest
			}
			return pass
		}
		x := w.begin("h1")
		w.asks(x)
		w.mu.Lock()
		w.fault = nil
		w.mu.Unlock()
		require.NoError(t, <-x.done)
		want := map[fault]string{loseRequest: "source", loseAnswer: "target"}[f]
		require.Equal(t, want, w.judge(want))
	}
}

// TestLateActivate: an activate request that arrives after the hand-over was taken back
// has no effect.
func TestLateActivate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.reached = func(s string) error {
		if s == StepSetAside {
			return errKilled
		}
		return nil
	}
	require.ErrorIs(t, w.life(t.Context(), "h1"), errKilled)
	require.Equal(t, "source", w.settled("taken back"))
	c, err := NewClient(w.peer, w.cert, token)
	require.NoError(t, err)
	_, err = c.Activate(t.Context(), "h1")
	require.ErrorIs(t, err, inventory.ErrConflict)
	_, err = c.Prepare(t.Context(), "h1", startAt, Copy{
		Digest: strings.Repeat("0", 64), Open: func() (io.ReadCloser, error) { return http.NoBody, nil },
	})
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.Equal(t, "source", w.judge("late"))
	// A new hand-over can succeed.
	require.NoError(t, w.life(t.Context(), "h2"))
	require.Equal(t, "target", w.judge("second"))
	g, err := Open(w.dst)
	require.NoError(t, err)
	require.Equal(t, startAt+3, g.Site().Epoch)
}

func TestCopyFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.spoilOnce = true
	require.NoError(t, w.life(t.Context(), "h1"))
	require.Equal(t, "source", w.judge("the disk is full"))
	f, err := Open(w.src)
	require.NoError(t, err)
	require.Contains(t, f.Site().HandOver.Why, "the disk is full")
}

// TestOperatorDecides: if the target is gone, the operator's decision makes the source
// answer again or retire.
func TestOperatorDecides(t *testing.T) {
	t.Parallel()
	for _, word := range []string{inventory.TakeOver, inventory.GiveUp} {
		w := newWorld(t)
		w.reached = func(s string) error {
			if s == StepSetAside {
				w.mu.Lock()
				w.cut = true
				w.mu.Unlock()
			}
			return nil
		}
		x := w.begin("h1")
		w.asks(x)
		require.NoError(t, w.source.Decide(t.Context(), word, ""))
		require.NoError(t, <-x.done)
		f, err := Open(w.src)
		require.NoError(t, err)
		s := f.Site()
		if word == inventory.TakeOver {
			require.Equal(t, []string{"source"}, w.speaking.now())
			require.Equal(t, startAt+2, s.Epoch)
			require.Empty(t, s.Peers, "it would be asked at the next start")
			require.NoError(t, w.life(t.Context(), ""), "the next start asks no peer")
			continue
		}
		require.Empty(t, w.speaking.now())
		require.Equal(t, Retired, s.Role)
		require.ErrorIs(t, w.source.Decide(t.Context(), word, ""), inventory.ErrConflict)
	}
}

// TestDecisionAfterTheAnswer: a decision on a question that has been answered is refused at once.
func TestDecisionAfterTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Source
		s.question.open("um760 is silent", time.Now(), nil) // and the peers are being asked, so no decision is awaited
		decided := make(chan error, 1)
		go func() { decided <- s.Decide(t.Context(), inventory.TakeOver, "") }()
		synctest.Wait()
		s.question.close()
		require.ErrorIs(t, <-decided, inventory.ErrConflict)
	})
}

// TestGiveUpNamesThePeer: a server with several peers retires in favor of the peer that
// the question is about, not of the first one in the list.
func TestGiveUpNamesThePeer(t *testing.T) {
	t.Parallel()
	gone := func(name string) inventory.Peer {
		return inventory.Peer{Name: name, URL: "https://127.0.0.1:1", Fingerprint: "sha256:" + strings.Repeat("0", 64)}
	}
	with := func(w *world, peers ...inventory.Peer) {
		f, err := Open(w.src)
		require.NoError(t, err)
		_, err = f.Change(func(s *Site) error { s.Peers = peers; return nil })
		require.NoError(t, err)
	}
	retired := func(w *world, to string) {
		f, err := Open(w.src)
		require.NoError(t, err)
		require.Equal(t, Retired, f.Site().Role)
		require.Equal(t, to, f.Site().Successor.Name)
		m, marked, err := ReadMark(w.keys)
		require.NoError(t, err)
		require.True(t, marked)
		require.Equal(t, to, m.Retired.To.Name)
		require.Empty(t, w.speaking.now())
	}

	// The first peer answers as a standby; the other does not answer.
	w := newWorld(t)
	with(w, w.peer, gone("other"))
	x := w.begin("")
	require.Contains(t, w.asks(x), "peer other may run the site")
	require.ErrorContains(t, w.source.Decide(t.Context(), inventory.GiveUp, "dst"), "is not about peer")
	require.NoError(t, w.source.Decide(t.Context(), inventory.GiveUp, ""))
	require.NoError(t, <-x.done)
	retired(w, "other")

	// Neither answers: the operator must name one.
	w = newWorld(t)
	with(w, gone("first"), gone("other"))
	x = w.begin("")
	why := w.asks(x)
	require.Contains(t, why, "peer first")
	require.Contains(t, why, "peer other")
	err := w.source.Decide(t.Context(), inventory.GiveUp, "")
	require.ErrorIs(t, err, inventory.ErrInvalid)
	require.ErrorContains(t, err, "first, other")
	require.NoError(t, w.source.Decide(t.Context(), inventory.GiveUp, "other"))
	require.NoError(t, <-x.done)
	retired(w, "other")

	// The first peer does not answer, and the second has prepared a hand-over that this
	// copy has no record of. The question is about the second.
	w = newWorld(t)
	old := t.TempDir()
	w.reached = func(s string) error {
		if s == StepPrepared {
			return errKilled
		}
		return nil
	}
	require.NoError(t, os.CopyFS(old, os.DirFS(w.src)))
	require.ErrorIs(t, w.life(t.Context(), "h1"), errKilled)
	w.src = old
	with(w, gone("first"), w.peer)
	x = w.begin("")
	why = w.asks(x)
	require.Contains(t, why, "hand-over h1 to dst is in progress")
	require.Contains(t, why, "peer first may run the site", "taking over says that it is off, too")
	require.NoError(t, w.source.Decide(t.Context(), inventory.GiveUp, ""))
	require.NoError(t, <-x.done)
	retired(w, "dst")
}

// TestPeerThatIsTheSiteIsBelieved: a server retires if a peer is the site, even if an
// earlier peer in the list does not answer.
func TestPeerThatIsTheSiteIsBelieved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := t.TempDir()
	require.NoError(t, os.CopyFS(old, os.DirFS(w.src)))
	require.NoError(t, w.life(t.Context(), "h1"))
	w.src = old
	f, err := Open(old)
	require.NoError(t, err)
	_, err = f.Change(func(s *Site) error {
		s.Peers = []inventory.Peer{{Name: "gone", URL: "https://127.0.0.1:1", Fingerprint: "sha256:" + strings.Repeat("0", 64)}, w.peer}
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, w.life(t.Context(), ""))
	f, err = Open(old)
	require.NoError(t, err)
	require.Equal(t, Retired, f.Site().Role)
	require.Equal(t, "dst", f.Site().Successor.Name)
}

// TestTakeOverByTarget: the source fails after the site was prepared.
func TestTakeOverByTarget(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.ErrorIs(t, w.target.TakeOver("anna"), inventory.ErrConflict, "nothing is prepared")
	w.reached = func(s string) error {
		if s == StepPrepared {
			return errKilled
		}
		return nil
	}
	require.ErrorIs(t, w.life(t.Context(), "h1"), errKilled)
	require.NoError(t, w.target.TakeOver("anna"))
	require.Equal(t, []string{"target"}, w.speaking.now())
	// The source comes back: it finds out that the site has moved, and retires.
	w.reached = nil
	require.NoError(t, w.life(t.Context(), ""))
	require.Equal(t, []string{"target"}, w.speaking.now())
	f, err := Open(w.src)
	require.NoError(t, err)
	require.Equal(t, Retired, f.Site().Role)
}

// TestStaleCopy starts a copy of the source's data directory from before the migration,
// first with an unreachable target and then with a reachable one.
func TestStaleCopy(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"before", "prepared"} {
		w := newWorld(t)
		old := t.TempDir()
		require.NoError(t, os.CopyFS(old, os.DirFS(w.src)))
		w.reached = func(s string) error {
			if when == "prepared" && s == StepPrepared {
				return errKilled
			}
			return nil
		}
		err := w.life(t.Context(), "h1")
		w.src = old
		if when == "prepared" {
			require.ErrorIs(t, err, errKilled)
			x := w.begin("")
			require.Contains(t, w.asks(x), "is in progress, but this server has no record of that hand-over")
			require.Empty(t, w.speaking.now())
			x.cancel()
			require.ErrorIs(t, <-x.done, context.Canceled)
			continue
		}
		require.NoError(t, err)
		w.mu.Lock()
		w.cut = true
		w.mu.Unlock()
		x := w.begin("")
		require.Contains(t, w.asks(x), "may run the site by now, but does not answer")
		require.Equal(t, []string{"target"}, w.speaking.now())
		w.mu.Lock()
		w.cut = false
		w.mu.Unlock()
		require.NoError(t, <-x.done)
		f, err := Open(old)
		require.NoError(t, err)
		require.Equal(t, Retired, f.Site().Role)
		require.Equal(t, []string{"target"}, w.speaking.now())
	}
}

func TestGuardWithoutPeers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.src = t.TempDir()
	w.cut = true
	require.NoError(t, w.life(t.Context(), ""), "a single site asks no peer")
	require.Empty(t, w.requests)
	require.NoFileExists(t, filepath.Join(w.src, FileName))
}

// TestStrangers (S6): a wrong token and another key are refused.
func TestStrangers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, c := range map[string]struct {
		cert  tls.Certificate
		token string
		is    error
	}{
		"another key":   {certificate(t), token, ErrStranger},
		"another token": {w.cert, strings.Repeat("x", 32), ErrStranger},
		"no key":        {tls.Certificate{}, token, inventory.ErrUnreachable},
	} {
		client, err := NewClient(w.peer, c.cert, c.token)
		require.NoError(t, err)
		_, err = client.State(t.Context(), "")
		require.ErrorIs(t, err, c.is, name)
		_, err = client.Activate(t.Context(), "h1")
		require.ErrorIs(t, err, c.is, name)
		_, err = client.Pair(t.Context(), "thief")
		require.ErrorIs(t, err, c.is, "%s: the token is bound to the first key", name)
	}
	wrong := w.peer
	wrong.Fingerprint = "sha256:" + strings.Repeat("0", 64)
	client, err := NewClient(wrong, w.cert, token)
	require.NoError(t, err)
	_, err = client.State(t.Context(), "")
	require.ErrorIs(t, err, inventory.ErrUnreachable)
	require.ErrorContains(t, err, "is not the pinned key")
}

func TestUnreadableFileIsAnError(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "{", `{"format":2,"role":"active"}`, `{"format":1,"role":"king"}`} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, FileName), []byte(text), 0o600))
		_, err := Open(dir)
		require.Error(t, err, "%q", text)
	}
}

// S64: a key file that others may use is refused.
func TestMark(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys.json")
	_, marked, err := ReadMark(keys)
	require.NoError(t, err)
	require.False(t, marked)
	require.NoError(t, os.WriteFile(keys, []byte(`{"version":1,"keys":{"bmc":"AAAA"}}`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".keys.json-left"), []byte("of a crash"), 0o600))
	_, marked, err = ReadMark(keys)
	require.NoError(t, err)
	require.False(t, marked)
	require.NoError(t, os.Chmod(keys, 0o644))
	_, _, err = ReadMark(keys)
	require.ErrorContains(t, err, "chmod 600", "S64")
	require.NoError(t, os.Chmod(keys, 0o600))
	var m Mark
	m.Retired.To.Name, m.Retired.ID = "um760", "h1"
	for range 2 {
		require.NoError(t, DestroyKeys(keys, m))
		got, marked, err := ReadMark(keys)
		require.NoError(t, err)
		require.True(t, marked)
		require.Equal(t, m, got)
	}
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, names, 1)
}

// A change that returns an error changes nothing, not even a Site that was read before.
func TestRefusedChange(t *testing.T) {
	t.Parallel()
	f, err := Open(t.TempDir())
	require.NoError(t, err)
	_, err = f.Change(func(s *Site) error {
		s.Source, s.Peers, s.Refused = &Giver{Name: "nas"}, []inventory.Peer{{Name: "um760"}}, []string{"1"}
		s.Prepared = &Prepared{ID: "2", Files: map[string]string{"a": "b"}}
		return nil
	})
	require.NoError(t, err)
	before := f.Site()
	_, err = f.Change(func(s *Site) error {
		s.Source.Name, s.Peers[0].Name, s.Refused[0], s.Prepared.ID, s.Prepared.Files["a"] = "x", "x", "x", "x", "x"
		return errCut
	})
	require.ErrorIs(t, err, errCut)
	for _, s := range []Site{before, f.Site()} {
		require.Equal(t, "nas", s.Source.Name)
		require.Equal(t, "um760", s.Peers[0].Name)
		require.Equal(t, []string{"1"}, s.Refused)
		require.Equal(t, "2", s.Prepared.ID)
		require.Equal(t, map[string]string{"a": "b"}, s.Prepared.Files)
	}
}
