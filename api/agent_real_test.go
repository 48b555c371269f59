package api

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	agent "github.com/ingotmetal/ingot/worker-agent"
	"github.com/ingotmetal/ingot/worker-agent/disk"
)

// signs is a signed assignment of o's run, wiping the only disk.
func (s *site) signs(key ed25519.PrivateKey, o inventory.Owner, n int, change func(*action.Order)) action.Key {
	s.T.Helper()
	k := action.Key{Epoch: o.Epoch, Action: n, Attempt: 1}
	as := action.Assignment{
		Key: k, Run: o.Run, Disk: &action.Disk{Path: "/dev/sda", Serial: "S1", Size: 32 << 20}, DiskAlias: "/dev/sda",
		Action: action.Action{Name: "wipe", Image: action.Wipe, Timeout: 600, Environment: map[string]string{"BLOCK_DEVICE": "/dev/sda"}},
	}
	order := action.Order{Machine: o.Machine, Boot: 1, Plan: "p", Assignment: as}
	if change != nil {
		change(&order)
	}
	var err error
	as.Signed, err = action.Sign(key, order)
	require.NoError(s.T, err)
	require.NoError(s.T, s.Store.Assignments.Assign(s.T.Context(), inventory.Assignment{Owner: o, Boot: 1, Key: k, Payload: as}))
	return k
}

// result waits for the result of an attempt.
func (s *site) result(run string, k action.Key) action.Result {
	s.T.Helper()
	changed, cancel := s.Store.Changes.Subscribe()
	defer cancel()
	hung := time.After(time.Minute)
	for {
		r, err := s.Store.Assignments.Result(s.T.Context(), run, k)
		if err == nil {
			return r
		}
		require.ErrorIs(s.T, err, inventory.ErrNotFound)
		select {
		case <-changed:
		case <-hung:
			s.T.Fatalf("no result of %s", k)
		}
	}
}

// TestTheAgentItself: the agent and these handlers understand each other, from
// the claim to the farewell.
func TestTheAgentItself(t *testing.T) {
	s := newSite(t, func(c *siteConfig) { c.Heartbeat, c.Now = time.Second, time.Now })
	s.AddMachine("m1", mac)
	s.Clock.Move(time.Until(s.Clock.Now()))
	o := s.Arm("m1", "r1")
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	refused := make(chan struct{}, 1000)
	web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := &watched{ResponseWriter: w}
		s.agent.ServeHTTP(rec, r)
		if rec.code == http.StatusForbidden {
			refused <- struct{}{}
		}
	}))
	t.Cleanup(web.Close)

	file := filepath.Join(t.TempDir(), "disk")
	old := make([]byte, 32<<20)
	for i := range old {
		old[i] = 0xa5
	}
	require.NoError(t, os.WriteFile(file, old, 0o600))
	a, err := agent.New(agent.Config{
		Server: web.URL, Pin: fmt.Sprintf("sha256:%x", sha256.Sum256(web.Certificate().RawSubjectPublicKeyInfo)), Machine: "m1",
		Claim: inventory.Claim(s.cfg.ClaimKey, o, 1), MAC: mac, PlanKey: action.FormatPlanKey(public),
		Disks: disk.FileDisks{{Disk: action.Disk{Path: "/dev/sda", Serial: "S1"}, File: file}}, Backoff: 20 * time.Millisecond,
	})
	require.NoError(t, err)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() { ended <- a.Run(ctx) }()

	claimed := func() bool {
		g, err := s.Store.Grants.Grant(t.Context(), "m1")
		require.NoError(t, err)
		return g.Spent
	}
	changed, unsubscribe := s.Store.Changes.Subscribe()
	defer unsubscribe()
	for hung := time.After(time.Minute); !claimed(); {
		select {
		case <-changed:
		case <-hung:
			t.Fatal("no claim")
		}
	}
	for n, c := range []struct {
		forge func(*action.Order)
		text  string
	}{
		{func(o *action.Order) { o.Machine = "m2" }, `signed for machine "m2", but this is machine "m1"`},
		{func(o *action.Order) { o.Disk = &action.Disk{Path: "/dev/sda", Serial: "S2"} }, "differs from the assignment that came with it"},
		{func(o *action.Order) { o.Disk.Serial = "S2" }, "not found among the machine's disks"}, // in both
	} {
		r := s.result("r1", s.signs(private, o, n, c.forge))
		require.Equal(t, action.Failed, r.State)
		require.Contains(t, r.Message, c.text)
		got, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, old, got)
	}
	r := s.result("r1", s.signs(private, o, 3, nil))
	require.Equal(t, action.Success, r.State, r.Message)
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Zero(t, got[0])

	// A second agent comes: this one holds, until its run has ended.
	require.Equal(t, http.StatusConflict, send(t, s.agent, http.MethodPost, "/agent/v1/claim", s.hello(o, 1, nonceB)).Code)
	s.signs(private, o, 4, nil)
	for range 10 {
		select {
		case <-refused:
		case err := <-ended:
			t.Fatalf("the agent ended: %v", err)
		}
	}
	_, err = s.Store.Assignments.Result(t.Context(), "r1", action.Key{Epoch: o.Epoch, Action: 4, Attempt: 1})
	require.ErrorIs(t, err, inventory.ErrNotFound)
	require.NoError(t, s.Store.Grants.EndGrant(t.Context(), o))
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("the agent does not go")
	}
}

// watched remembers the status.
type watched struct {
	http.ResponseWriter
	code int
}

func (w *watched) WriteHeader(code int) { w.code = code; w.ResponseWriter.WriteHeader(code) }
func (w *watched) Unwrap() http.ResponseWriter {
	return w.ResponseWriter
}
