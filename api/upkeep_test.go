package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

// spy remembers what runs were told.
type spy struct {
	client.Client
	events *[]workflows.Event
}

func (s spy) SignalWorkflow(ctx context.Context, id, run, name string, arg any) error {
	*s.events = append(*s.events, arg.(workflows.Event))
	return s.Client.SignalWorkflow(ctx, id, run, name, arg)
}

// TestHeldRunsAreTold: after a restore, an open run is told that it is held; a run whose
// record is final is canceled where Temporal's copy is a little older, and so is one that the
// inventory does not know, or that began after the backup; and the status names the runs that wait for an operator.
func TestHeldRunsAreTold(t *testing.T) {
	var events []workflows.Event
	held := []inventory.HeldRun{
		{Run: "r1", Workflow: "machine/m1", Machine: "m1"},
		{Run: "r2", Workflow: "machine/m2", Machine: "m2"},
		{Run: "r3", Workflow: "machine/m3", Machine: "m3"},
		{Run: "r4", Workflow: "machine/m4", Machine: "m4"},
		{Run: "r5", Workflow: "machine/m5", Machine: "m5", Later: true},
		{Run: "o1", Workflow: "recover/all"},
		{Run: "o2", Workflow: "recover/more"},
	}
	taken := time.Date(2026, 2, 28, 0, 0, 0, 0, time.UTC)
	s := newSite(t, func(c *siteConfig) {
		provider := c.Temporal
		c.Temporal = func() (client.Client, bool) {
			tc, ok := provider()
			return spy{tc, &events}, ok
		}
		c.Restored = func() inventory.Restore { return inventory.Restore{Backup: "b1", Taken: taken, Held: held} }
	})
	open := inventory.Workflow{
		Run:     "r1",
		ID:      "machine/m1",
		Machine: "m1",
		State:   inventory.StateRunning,
		Phase:   inventory.PhaseAction,
		Epoch:   4,
		Started: s.Clock.Now(),
	}
	require.NoError(t, s.Store.Workflows.PutWorkflow(t.Context(), open))
	require.NoError(
		t,
		s.Store.Workflows.PutWorkflow(
			t.Context(),
			inventory.Workflow{
				Run:     "r2",
				ID:      "machine/m2",
				Machine: "m2",
				State:   inventory.StateSuccess,
				Phase:   inventory.PhaseDone,
				Epoch:   1,
				Started: s.Clock.Now(),
			},
		),
	)
	later := inventory.Workflow{Run: "r5", ID: "machine/m5", Machine: "m5", State: inventory.StateRunning, Started: s.Clock.Now()}
	require.NoError(t, s.Store.Workflows.PutWorkflow(t.Context(), later))
	require.NoError(t, s.Store.Operations.PutOperation(t.Context(),
		inventory.Operation{Run: "its first execution", ID: "recover/all", State: inventory.StateRunning, Started: s.Clock.Now()}))
	for i, h := range held {
		if i != 2 { // Temporal does not know r3
			s.Temporal.Open(h.Workflow, h.Run)
		}
	}
	s.Temporal.Open("recover/all", "its first execution")
	require.NoError(t, s.engine.Reconciler.CheckRuns(t.Context()))
	require.Equal(t, []workflows.Event{{Kind: inventory.EventHeld, Epoch: 4}}, events)
	for run, cancels := range map[string]int{"r1": 0, "r2": 1, "r4": 1, "r5": 1, "o1": 0, "o2": 1} {
		require.Equal(t, cancels, s.Temporal.Runs[run].Cancels, run)
	}

	st, err := s.api.status.read(t.Context())
	require.NoError(t, err)
	require.Equal(t, &apitypes.RestoredStatus{Backup: "b1", Taken: taken, Held: []inventory.HeldRun{held[0], held[4]}}, st.Restored)

	for _, run := range []string{"r2", "r4", "r5", "o2"} {
		s.Temporal.End(run, enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED, nil)
	}
	open.State, open.Phase = inventory.StateFailed, inventory.PhaseFailed
	require.NoError(t, s.Store.Workflows.PutWorkflow(t.Context(), open))
	s.Temporal.End("r1", enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, nil)
	require.NoError(t, s.engine.Reconciler.CheckRuns(t.Context()))
	require.NoError(t, s.engine.Reconciler.CheckRuns(t.Context()))
	require.Equal(t, 1, s.Temporal.Runs["r2"].Cancels)
	require.Len(t, events, 1)
	st, err = s.api.status.read(t.Context())
	require.NoError(t, err)
	require.Empty(t, st.Restored.Held)
}

// TestStoreBackup (S37): a token with the role backup makes the server store a backup, and is told where it is.
func TestStoreBackup(t *testing.T) {
	calls := 0
	stored := apitypes.StoredBackup{ID: "b1", File: "/var/backups/ingot/b1.tar", SizeBytes: 7}
	s := newSite(t, func(c *siteConfig) {
		c.StoreBackup = func(context.Context) (apitypes.StoredBackup, error) {
			calls++
			return stored, nil
		}
	})
	token := bearer(s.token("timer", inventory.RoleBackup))
	w := send(t, s.operator, http.MethodPost, "/v1/backups", nil, token)
	require.Equal(t, http.StatusCreated, w.Code, w.Body)
	var answer apitypes.StoredBackup
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
	require.Equal(t, stored, answer)
	require.Equal(t, 1, calls)
	require.Equal(t, http.StatusServiceUnavailable, newSite(t).do(http.MethodPost, "/v1/backups", nil).Code)
}

// small is an archive of one word.
type small struct{ closed *bool }

func (small) ID() string { return "b1" }

func (a small) Close() error {
	*a.closed = true
	return nil
}

func (small) WriteTo(w io.Writer) (int64, error) {
	n, err := io.WriteString(w, "archive")
	return int64(n), err
}

func TestBackup(t *testing.T) {
	var asked []BackupRequest
	var closed bool
	var fails error
	s := newSite(t, func(c *siteConfig) {
		c.Backup = func(_ context.Context, q BackupRequest) (Archive, error) {
			asked = append(asked, q)
			return small{closed: &closed}, fails
		}
	})
	w := s.do(http.MethodPost, "/v1/backup", map[string]any{"passphrase": "correct horse battery", "images": true})
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, "archive", w.Body.String())
	require.Equal(t, "application/x-tar", w.Header().Get("Content-Type"))
	require.True(t, closed)
	require.Equal(t, []BackupRequest{{Passphrase: inventory.NewSecret("correct horse battery"), Images: true}}, asked)

	require.Equal(t, http.StatusOK, s.do(http.MethodPost, "/v1/backup", map[string]any{"withoutKey": true}).Code)
	for _, bad := range []map[string]any{{}, {"passphrase": "correct horse battery", "withoutKey": true}, {"password": "x"}} {
		require.Equal(t, http.StatusBadRequest, s.do(http.MethodPost, "/v1/backup", bad).Code, bad)
	}
	fails = inventory.ErrConflict
	require.Equal(t, http.StatusConflict, s.do(http.MethodPost, "/v1/backup", map[string]any{"withoutKey": true}).Code)
	require.Equal(t, http.StatusServiceUnavailable, newSite(t).do(http.MethodPost, "/v1/backup", map[string]any{"withoutKey": true}).Code)
	require.Equal(
		t,
		http.StatusUnauthorized,
		s.do(http.MethodPost, "/v1/backup", map[string]any{"withoutKey": true}, header{"Authorization", ""}).Code,
	)
}
