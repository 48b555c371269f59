package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
	"github.com/ingotmetal/ingot/lab/webhook"
)

const secret = "whsec_Q0FOQVJZ+CANARY+0123456789abcdefghij/w=="

var key, _ = ParseSecret(secret)

// receiver is a test webhook that accepts notices on request.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	answer func(n int) int // status of the nth request, from 1
	got    []inventory.Notice
	bodies []string
	taken  chan inventory.Notice
	bad    []error
}

func newReceiver(t *testing.T, answer func(n int) int) *receiver {
	t.Helper()
	r := &receiver{answer: answer, taken: make(chan inventory.Notice, 5000)}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		err = webhook.Verify(key, q.Header, body, time.Now(), time.Minute)
	}
	var n inventory.Notice
	if err == nil {
		err = json.Unmarshal(body, &n)
	}
	if err == nil && (q.Method != http.MethodPost || q.Header.Get(HeaderID) != n.ID || n.ID == "") {
		err = fmt.Errorf("%s with id %q for %q", q.Method, q.Header.Get(HeaderID), n.ID)
	}
	if err != nil {
		r.bad = append(r.bad, err)
	}
	r.got, r.bodies = append(r.got, n), append(r.bodies, string(body))
	status := http.StatusNoContent
	if r.answer != nil {
		status = r.answer(len(r.got))
	}
	if status >= 300 && status < 400 {
		w.Header().Set("Location", r.URL+"/elsewhere")
	}
	w.WriteHeader(status)
	if status < 300 {
		r.taken <- n
	}
}

func (r *receiver) await(t *testing.T) inventory.Notice {
	t.Helper()
	select {
	case n := <-r.taken:
		return n
	case <-time.After(30 * time.Second):
		t.Fatal("no notice came")
	}
	return inventory.Notice{}
}

// testClock is one that tests move.
type testClock struct {
	mu sync.Mutex
	at time.Time
}

func (c *testClock) now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.at }

func (c *testClock) add(d time.Duration) { c.mu.Lock(); defer c.mu.Unlock(); c.at = c.at.Add(d) }

type site struct {
	t     *testing.T
	file  string
	clock *testClock
	store *sqlite.Store
	log   *bytes.Buffer
	cfg   Config
}

func newSite(t *testing.T, to string, events ...string) *site {
	t.Helper()
	dir := t.TempDir()
	s := &site{t: t, file: filepath.Join(dir, "ingot.db"), clock: &testClock{at: time.Now()}, log: &bytes.Buffer{}}
	file := filepath.Join(dir, "secret")
	require.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	s.cfg = Config{
		URL:        to,
		SecretFile: file,
		Server:     "nas",
		Version:    "1",
		Log:        slog.New(slog.NewTextHandler(s.log, nil)),
		Now:        s.clock.now,
		Look:       5 * time.Millisecond,
	}
	s.open(events...)
	return s
}

// open opens the inventory, as a server that starts does.
func (s *site) open(events ...string) {
	s.t.Helper()
	var err error
	s.store, err = sqlite.Open(s.t.Context(), s.file, nil, sqlite.WithNotices(events...), sqlite.WithClock(s.clock.now))
	require.NoError(s.t, err)
	s.cfg.Outbox = s.store.Notices
	s.t.Cleanup(func() { _ = s.store.Close() }) // twice is harmless
}

// run delivers until the returned function is called.
func (s *site) run() (stop func()) {
	s.t.Helper()
	sender, err := New(s.cfg)
	require.NoError(s.t, err)
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() { done <- sender.Run(ctx) }()
	return func() {
		cancel()
		require.ErrorIs(s.t, <-done, context.Canceled)
	}
}

func waiting(run, question string) inventory.Workflow {
	return inventory.Workflow{
		Run:      run,
		ID:       "machine/node-1",
		Type:     "Provision",
		Machine:  "node-1",
		State:    inventory.StateRunning,
		Phase:    inventory.PhaseWaiting,
		By:       "alice",
		Seq:      3,
		Message:  "two disks match",
		Next:     "ingot workflow decide node-1 --question " + question + " --choice retry",
		Question: &inventory.Question{ID: question, Text: "two disks\n match\x1b[2J", Choices: []string{"retry", "abort"}},
	}
}

func TestDeliversSigned(t *testing.T) {
	r := newReceiver(t, nil)
	s := newSite(t, r.URL)
	require.NoError(t, s.store.Workflows.PutWorkflow(t.Context(), waiting("r1", "1.bind.1")))
	stop := s.run()
	defer stop()
	n := r.await(t)
	require.Equal(t, inventory.NoticeWaiting, n.Event)
	require.Equal(
		t,
		[]string{"node-1", "Provision", "machine/node-1", "r1", "alice", "1.bind.1"},
		[]string{n.Machine, n.WorkflowType, n.Workflow, n.Run, n.By, n.Question},
	)
	require.Equal(t, "two disks match[2J", n.Text, "one line, nothing that moves a cursor")
	require.Equal(t, []string{"retry", "abort"}, n.Choices)
	require.Contains(t, n.Next, "ingot workflow decide")
	require.Empty(t, r.bad)
	var body map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.bodies[0]), &body))
	require.Equal(t, "nas", body["server"])
	require.Equal(t, inventory.NoticeWaiting, body["type"], "as Standard Webhooks name it")
	require.NotEmpty(t, body["timestamp"])
}

// Which notices are sent, and which are not sent twice.
func TestEvents(t *testing.T) {
	r := newReceiver(t, nil)
	s := newSite(t, r.URL)
	put := func(w inventory.Workflow) {
		t.Helper()
		require.NoError(t, s.store.Workflows.PutWorkflow(t.Context(), w))
	}
	w := waiting("r1", "1.bind.1")
	w.Phase, w.Question, w.Seq = inventory.PhasePlan, nil, 1
	w.Next = ""
	put(w)
	put(waiting("r1", "1.bind.1"))
	put(waiting("r1", "1.bind.1")) // the same once more
	late := w
	put(late) // older than the current one
	again := waiting("r1", "1.bind.2")
	again.Seq = 4
	put(again)
	button := again
	button.Phase, button.Question, button.Next, button.Seq, button.Message = inventory.PhasePower, nil, "power it on", 5, "power the machine on now"
	put(button)
	button.Seq = 6
	put(button)
	power := waiting("r1", "1.power.1.1")
	power.Seq = 7
	put(power)
	over := power
	over.State, over.Phase, over.Question, over.Next, over.Seq, over.Message = inventory.StateFailed, inventory.PhaseFailed, nil, "", 8, "BMC unreachable"
	put(over)
	put(over)
	for run, state := range map[string]string{"r2": inventory.StateCancelled, "r3": inventory.StateSuccess} {
		fine := over
		fine.Run, fine.State = run, state
		put(fine)
	}
	weak := over
	weak.Run, weak.State, weak.Evidence = "r4", inventory.StateSuccess, inventory.EvidenceWeak
	put(weak)
	weak.Seq++
	put(weak)
	o := inventory.Operation{Run: "o1", ID: "recover/all", Type: "Recover", Name: "all", State: inventory.StateRunning, Step: "x", Seq: 1}
	require.NoError(t, s.store.Operations.PutOperation(t.Context(), o))
	o.Seq, o.Question = 2, &inventory.Question{ID: "0.x.1", Text: "go on?"}
	require.NoError(t, s.store.Operations.PutOperation(t.Context(), o))
	require.NoError(t, s.store.Operations.PutOperation(t.Context(), o))
	o.Seq, o.Question, o.State, o.Message = 3, nil, inventory.StateTimeout, "too late"
	require.NoError(t, s.store.Operations.PutOperation(t.Context(), o))

	stop := s.run()
	var got []string
	ids := map[string]bool{}
	for range 8 {
		n := r.await(t)
		got = append(got, strings.TrimSpace(n.Run+" "+n.Event+" "+n.Question))
		ids[n.ID] = true
	}
	require.Equal(t, []string{
		"r1 waiting-for-operator 1.bind.1",
		"r1 waiting-for-operator 1.bind.2",
		"r1 waiting-for-operator",
		"r1 bmc-given-up 1.power.1.1",
		"r1 failed",
		"r4 weak-evidence",
		"o1 waiting-for-operator 0.x.1",
		"o1 failed",
	}, got)
	require.Len(t, ids, 8)
	require.Eventually(t, func() bool {
		counts, err := s.store.Notices.Notices(t.Context())
		return err == nil && counts.Waiting == 0 && !counts.Sent.IsZero()
	}, 30*time.Second, 5*time.Millisecond)
	stop()
	require.Len(t, r.got, 8)
}

// TestEndings: each kind of ending can be selected. A run sends one notice about its ending, of the most specific kind that is selected.
func TestEndings(t *testing.T) {
	ended := func(run, kind, state, evidence string) inventory.Workflow {
		return inventory.Workflow{
			Run: run, ID: "machine/node-1", Type: kind, Machine: "node-1", State: state, Phase: inventory.PhaseDone, Evidence: evidence,
			By: "alice",
		}
	}
	for _, c := range []struct {
		events []string
		want   []string
	}{
		{nil, []string{"weak weak-evidence"}},
		{[]string{inventory.NoticeInstalled}, []string{"installed installed", "weak installed"}},
		{[]string{inventory.NoticeDecommissioned, inventory.NoticeCancelled}, []string{"wiped decommissioned", "stopped cancelled"}},
		{[]string{inventory.NoticeSucceeded}, []string{
			"installed succeeded", "weak succeeded", "nothing succeeded", "wiped succeeded", "job succeeded", "recovery succeeded",
		}},
		{inventory.NoticeEvents(), []string{
			"installed installed", "weak weak-evidence", "nothing succeeded", "wiped decommissioned", "job succeeded", "stopped cancelled",
			"recovery succeeded",
		}},
	} {
		s := newSite(t, "http://127.0.0.1:1/", c.events...)
		nothing := ended("nothing", inventory.TypeProvision, inventory.StateSuccess, inventory.EvidenceWeak)
		nothing.Evidence, nothing.NoSystem = "talos", true
		for _, w := range []inventory.Workflow{
			ended("installed", inventory.TypeReprovision, inventory.StateSuccess, "phone-home"),
			ended("weak", inventory.TypeProvision, inventory.StateSuccess, inventory.EvidenceWeak), nothing,
			ended("wiped", inventory.TypeDecommission, inventory.StateSuccess, ""),
			ended("job", inventory.TypeBMCJob, inventory.StateSuccess, ""),
			ended("stopped", inventory.TypeProvision, inventory.StateCancelled, ""),
		} {
			require.NoError(t, s.store.Workflows.PutWorkflow(t.Context(), w))
			require.NoError(t, s.store.Workflows.PutWorkflow(t.Context(), w))
		}
		require.NoError(t, s.store.Operations.PutOperation(t.Context(), inventory.Operation{
			Run: "recovery", ID: "recover/all", Type: inventory.TypeRecover, Name: "all", State: inventory.StateSuccess, By: "alice",
		}))
		var got []string
		for range c.want {
			n, err := s.store.Notices.NextNotice(t.Context())
			require.NoError(t, err, "%v", c.events)
			require.Equal(t, "alice", n.By)
			got = append(got, n.Run+" "+n.Event)
			require.NoError(t, s.store.Notices.NoticeSent(t.Context(), n.ID))
		}
		require.Equal(t, c.want, got, "%v", c.events)
		_, err := s.store.Notices.NextNotice(t.Context())
		require.ErrorIs(t, err, inventory.ErrNotFound, "%v", c.events)
	}
}

func TestOnlyWhatIsAskedFor(t *testing.T) {
	r := newReceiver(t, nil)
	s := newSite(t, r.URL, inventory.NoticeWaiting)
	failed := inventory.Workflow{Run: "r0", ID: "machine/a", Machine: "a", State: inventory.StateFailed, Phase: inventory.PhaseFailed}
	require.NoError(t, s.store.Workflows.PutWorkflow(t.Context(), failed))
	require.NoError(t, s.store.Workflows.PutWorkflow(t.Context(), waiting("r1", "1.power.1.1")))
	defer s.run()()
	n := r.await(t)
	require.Equal(t, "r1 waiting-for-operator", n.Run+" "+n.Event, "a BMC that was given up waits for an operator, too")
	counts, err := s.store.Notices.Notices(t.Context())
	require.NoError(t, err)
	require.LessOrEqual(t, counts.Waiting, 1)
}

// If the receiver fails and the server restarts, the notice arrives in the end, under the id
// of the first attempt.
func TestAtLeastOnceOverRestarts(t *testing.T) {
	r := newReceiver(t, func(n int) int { return map[bool]int{true: 503, false: 200}[n <= 3] })
	s := newSite(t, r.URL)
	require.NoError(t, s.store.Workflows.PutWorkflow(t.Context(), waiting("r1", "1.bind.1")))
	attempts := func() int { r.mu.Lock(); defer r.mu.Unlock(); return len(r.got) }
	for n := 1; n <= 3; n++ {
		stop := s.run()
		require.Eventually(t, func() bool {
			counts, err := s.store.Notices.Notices(t.Context())
			_, next := s.store.Notices.NextNotice(t.Context())
			return err == nil && attempts() == n && counts.Waiting == 1 && strings.Contains(counts.Error, "503") &&
				errors.Is(next, inventory.ErrNotFound)
		}, 30*time.Second, 5*time.Millisecond)
		stop()
		require.NoError(t, s.store.Close())
		s.open()
		_, err := s.store.Notices.NextNotice(t.Context())
		require.ErrorIs(t, err, inventory.ErrNotFound, "not before its time")
		s.clock.add(pause(n - 1))
	}
	defer s.run()()
	last := r.await(t)
	require.Equal(t, 4, attempts())
	for _, n := range r.got {
		require.Equal(t, last.ID, n.ID)
	}
	require.Empty(t, r.bad)
}

// If the record of a sent notice is lost, the notice is sent again, and the receiver
// recognizes its id.
type forgetful struct {
	Outbox
	once sync.Once
}

func (f *forgetful) NoticeSent(ctx context.Context, id string) error {
	err := error(nil)
	f.once.Do(func() { err = inventory.ErrFull })
	if err != nil {
		return err
	}
	return f.Outbox.NoticeSent(ctx, id)
}

func TestSentTwiceRatherThanNever(t *testing.T) {
	r := newReceiver(t, nil)
	s := newSite(t, r.URL)
	require.NoError(t, s.store.Workflows.PutWorkflow(t.Context(), waiting("r1", "1.bind.1")))
	s.cfg.Outbox = &forgetful{Outbox: s.store.Notices}
	defer s.run()()
	require.Equal(t, r.await(t).ID, r.await(t).ID)
}

// An unavailable receiver must not fill the disk: the oldest notices are dropped, and that
// is reported.
func TestQueueIsBounded(t *testing.T) {
	s := newSite(t, "http://127.0.0.1:1/")
	for i := range 1010 {
		require.NoError(t, s.store.Workflows.PutWorkflow(t.Context(), waiting(fmt.Sprintf("r%04d", i), "1.bind.1")))
	}
	counts, err := s.store.Notices.Notices(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1000, counts.Waiting)
	require.Equal(t, 10, counts.Dropped)
	n, err := s.store.Notices.NextNotice(t.Context())
	require.NoError(t, err)
	require.Equal(t, "r0010", n.Run, "the oldest went")
}

func TestNoNotificationsWithoutATarget(t *testing.T) {
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "ingot.db"), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	require.NoError(t, store.Workflows.PutWorkflow(t.Context(), waiting("r1", "1.bind.1")))
	_, err = store.Notices.NextNotice(t.Context())
	require.ErrorIs(t, err, inventory.ErrNotFound)
}

func TestPauses(t *testing.T) {
	require.Equal(t, []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second}, []time.Duration{pause(0), pause(1), pause(2)})
	require.Equal(t, longestPause, pause(20))
	require.Equal(t, longestPause, pause(keepTrying))
}

// A notice that is never accepted is given up in the end, but not before.
func TestGivesUp(t *testing.T) {
	s := newSite(t, "http://127.0.0.1:1/")
	require.NoError(t, s.store.Workflows.PutWorkflow(t.Context(), waiting("r1", "1.bind.1")))
	sender, err := New(s.cfg)
	require.NoError(t, err)
	n := 0
	for ; n < 2*keepTrying; n++ {
		counts, err := s.store.Notices.Notices(t.Context())
		require.NoError(t, err)
		if counts.Waiting == 0 {
			require.Equal(t, 1, counts.Dropped)
			break
		}
		sender.next(t.Context())
		s.clock.add(longestPause)
	}
	require.Equal(t, keepTrying, n)
}

// S25: neither the secret, nor the token in the URL, nor anything of a
// machine's secrets is in a payload, a log, a status or an error.
func TestS25NothingSecretLeaves(t *testing.T) {
	const token = "CANARY-url-token"
	for name, answer := range map[string]int{"refused": 403, "redirected": 302, "gone": 0} {
		t.Run(name, func(t *testing.T) {
			r := newReceiver(t, func(int) int { return answer })
			if answer == 0 {
				r.Close()
			}
			s := newSite(t, r.URL+"/hook/"+token+"?key="+token)
			require.NoError(t, s.store.Workflows.PutWorkflow(t.Context(), waiting("r1", "1.bind.1")))
			sender, err := New(s.cfg)
			require.NoError(t, err)
			require.True(t, sender.next(t.Context()))
			_, err = sender.Test(t.Context(), "alice")
			require.Error(t, err)
			counts, countErr := s.store.Notices.Notices(t.Context())
			require.NoError(t, countErr)
			require.NotEmpty(t, counts.Error)
			seen := fmt.Sprint(s.log, counts, err, sender.Receiver(), r.bodies)
			require.NotContains(t, seen, "CANARY")
			require.Len(t, r.got, map[bool]int{true: 2, false: 0}[answer != 0], "a redirection is not followed")
		})
	}
}

// S64: a secret that others may use signs nothing.
func TestS64SecretOfNoticesIsPrivate(t *testing.T) {
	r := newReceiver(t, nil)
	s := newSite(t, r.URL)
	require.NoError(t, os.Chmod(s.cfg.SecretFile, 0o666))
	sender, err := New(s.cfg)
	if err == nil {
		_, err = sender.Test(t.Context(), "alice")
	}
	require.ErrorContains(t, err, "chmod 600")
	require.Empty(t, r.got)
}

func TestSecretFile(t *testing.T) {
	r := newReceiver(t, nil)
	s := newSite(t, r.URL)
	sender, err := New(s.cfg)
	require.NoError(t, err)
	_, err = sender.Test(t.Context(), "alice")
	require.NoError(t, err)
	require.Equal(t, inventory.NoticeTest, r.got[0].Event)
	require.Equal(t, "alice", r.got[0].By)
	require.NoError(t, os.WriteFile(s.cfg.SecretFile, []byte("short"), 0o600))
	_, err = sender.Test(t.Context(), "alice")
	require.ErrorContains(t, err, SecretRemedy)
	require.NoError(t, os.Remove(s.cfg.SecretFile))
	_, err = sender.Test(t.Context(), "alice")
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Len(t, r.got, 1, "nothing unsigned is sent")
}

// TLS is verified: by the system's authorities, or by those of tls_ca alone.
func TestTLSIsVerified(t *testing.T) {
	r := newReceiver(t, nil)
	tls := httptest.NewTLSServer(r)
	defer tls.Close()
	tls.Config.ErrorLog = log.New(io.Discard, "", 0)
	s := newSite(t, tls.URL)
	sender, err := New(s.cfg)
	require.NoError(t, err)
	_, err = sender.Test(t.Context(), "alice")
	require.ErrorContains(t, err, "certificate")
	require.Empty(t, r.got)

	s.cfg.CAFile = filepath.Join(t.TempDir(), "ca.pem")
	_, err = New(s.cfg)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(s.cfg.CAFile, []byte("no"), 0o600))
	_, err = New(s.cfg)
	require.ErrorIs(t, err, inventory.ErrInvalid)
	require.NoError(t, os.WriteFile(s.cfg.CAFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tls.Certificate().Raw}), 0o600))
	sender, err = New(s.cfg)
	require.NoError(t, err)
	_, err = sender.Test(t.Context(), "alice")
	require.NoError(t, err)
}

func TestVerify(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	body := []byte(`{"id":"x"}`)
	h := http.Header{}
	h.Set(HeaderID, "x")
	h.Set(HeaderTimestamp, "1800000000")
	h.Set(HeaderSignature, Sign(key, "x", "1800000000", body))
	require.NoError(t, webhook.Verify(key, h, body, now.Add(time.Minute), 5*time.Minute))
	require.ErrorIs(t, webhook.Verify(key, h, body, now.Add(6*time.Minute), 5*time.Minute), inventory.ErrRefused)
	require.ErrorIs(t, webhook.Verify(key, h, []byte(`{"id":"y"}`), now, 5*time.Minute), inventory.ErrRefused)
	require.ErrorIs(t, webhook.Verify(key[1:], h, body, now, 5*time.Minute), inventory.ErrRefused)
	h.Set(HeaderID, "y")
	require.ErrorIs(t, webhook.Verify(key, h, body, now, 5*time.Minute), inventory.ErrRefused, "the id is signed, too")
	h.Set(HeaderID, "x")
	h.Set(HeaderTimestamp, "1800000001")
	require.ErrorIs(t, webhook.Verify(key, h, body, now, 5*time.Minute), inventory.ErrRefused, "the time is signed, too")
	h.Del(HeaderTimestamp)
	require.ErrorIs(t, webhook.Verify(key, h, body, now, 5*time.Minute), inventory.ErrInvalid)

	// The vector of the tests of Standard Webhooks' own libraries.
	const id, at, payload = "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", `{"test": 2432232314}`
	theirs, err := ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
	require.NoError(t, err)
	require.Equal(t, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", Sign(theirs, id, at, []byte(payload)))
}

// TestRecipe: the commands of the documentation make the secret and the signature.
func TestRecipe(t *testing.T) {
	page, err := os.ReadFile("../../../docs/configuration.md")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "secret")
	recipe := regexp.MustCompile(`(?m)^key=.*\n^printf .*\n`).FindString(string(page))
	require.NotEmpty(t, recipe)
	require.Contains(t, string(page), "`"+SecretRemedy+"`")
	c := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", strings.ReplaceAll(SecretRemedy+"\n"+recipe, "FILE", file))
	c.Env = append(os.Environ(), "webhook_id=x", "webhook_timestamp=1800000000", `body={"id":"x"}`)
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	made, err := os.ReadFile(file)
	require.NoError(t, err)
	key, err := ParseSecret(string(made))
	require.NoError(t, err)
	require.Equal(t, Sign(key, "x", "1800000000", []byte(`{"id":"x"}`)), "v1,"+strings.TrimSpace(string(out)))
}

func TestParseSecret(t *testing.T) {
	for _, bad := range []string{
		"", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS", "whsec_c2hvcnQ=",
		"whsec_" + strings.Repeat("QUFB", 22),
	} {
		_, err := ParseSecret(bad)
		require.ErrorIs(t, err, inventory.ErrInvalid, bad)
	}
}
