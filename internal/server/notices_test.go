package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/observe/notify"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/webhook"
)

// The server as it is configured: a run that waits for an operator is told of,
// signed, and the status says so; neither secret nor the URL's path is shown.
func TestS25ServerTellsSomebody(t *testing.T) {
	const secret, token = "whsec_Q0FOQVJZ+CANARY+0123456789abcdefghij/w==", "CANARY-token"
	key, err := notify.ParseSecret(secret)
	require.NoError(t, err)
	took := make(chan inventory.Notice, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var n inventory.Notice
		if err != nil || webhook.Verify(key, r.Header, body, time.Now(), time.Minute) != nil || json.Unmarshal(body, &n) != nil {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		took <- n
	}))
	defer receiver.Close()
	cfg := testConfig(t)
	cfg.Notify.URL, cfg.Notify.SecretFile = receiver.URL+"/"+token, filepath.Join(t.TempDir(), "secret")
	var log bytes.Buffer
	s, err := startWith(t, cfg, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	defer func() { require.NoError(t, s.records.store.Close()) }()

	r := s.post(t, "/v1/notices/test", "")
	require.Equal(t, http.StatusServiceUnavailable, r.Code, "there is no secret yet: %s", r.Body)
	require.NoError(t, os.WriteFile(cfg.Notify.SecretFile, []byte(secret), 0o600))
	r = s.post(t, "/v1/notices/test", "")
	require.Equal(t, http.StatusOK, r.Code, "%s", r.Body)
	test := <-took
	require.Equal(t, inventory.NoticeTest+" by admin", test.Event+" by "+test.By)

	require.NoError(t, s.records.store.Workflows.PutWorkflow(t.Context(), inventory.Workflow{
		Run: "r1", ID: "machine/m1", Machine: "m1", State: inventory.StateRunning, Phase: inventory.PhaseWaiting,
		Question: &inventory.Question{ID: "1.bind.1", Text: "which disk?"},
	}))
	st := s.status(t.Context()).Notify
	require.Equal(t, 1, st.Waiting)
	require.Equal(t, receiver.URL, st.Receiver)

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.notices.sender.Run(ctx) }()
	require.Equal(t, "1.bind.1", (<-took).Question)
	require.Eventually(
		t,
		func() bool { st := s.notices.status(t.Context()); return st.Waiting == 0 && !st.Sent.IsZero() },
		30*time.Second,
		10*time.Millisecond,
	)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.NotContains(t, fmt.Sprint(st, log.String(), r.Body), "CANARY")
}

func TestNoNoticesByDefault(t *testing.T) {
	s := testServer(t, testConfig(t))
	require.Equal(t, http.StatusServiceUnavailable, s.post(t, "/v1/notices/test", "").Code)
	require.Nil(t, s.status(t.Context()).Notify)
	require.Nil(t, s.notices.sender)
}

// The waiting notices of a server with a target are given up on one without a target,
// and leaves an event, once.
func TestNoticesWithoutATargetAreClosed(t *testing.T) {
	cfg := testConfig(t)
	cfg.Notify.URL, cfg.Notify.SecretFile = "https://example.com/x", filepath.Join(t.TempDir(), "secret")
	s, err := startWith(t, cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.NoError(t, s.records.store.Workflows.PutWorkflow(t.Context(), inventory.Workflow{
		Run: "r1", ID: "machine/m1", Machine: "m1", State: inventory.StateRunning, Phase: inventory.PhaseWaiting,
		Question: &inventory.Question{ID: "1.bind.1", Text: "which disk?"},
	}))
	require.NoError(t, s.records.store.Operations.PutOperation(t.Context(), inventory.Operation{
		Run: "r2", ID: "migrate/x", Name: "x", State: inventory.StateRunning, Question: &inventory.Question{ID: "drain.1", Text: "wait on?"},
	}))
	require.Equal(t, 2, s.notices.status(t.Context()).Waiting)
	require.NoError(t, s.records.store.Close())

	cfg.Notify.URL = ""
	for range 2 {
		s, err = startWith(t, cfg, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		n, err := s.records.store.Notices.Notices(t.Context())
		require.NoError(t, err)
		require.Zero(t, n.Waiting)
		require.Equal(t, 2, n.Dropped)
		told := 0
		for run, text := range map[string]string{"r1": "which disk?", "r2": "wait on?"} {
			events, err := s.records.store.Events.Events(t.Context(), inventory.EventFilter{Run: run})
			require.NoError(t, err)
			for _, e := range events {
				if e.Kind == inventory.EventOperator {
					require.Contains(t, e.Message, "no notice of waiting-for-operator was sent (notify.url is not set on this server): "+text)
					told++
				}
			}
		}
		require.Equal(t, 2, told)
		require.NoError(t, s.records.store.Close())
	}
}
