package e2e

import (
	"context"
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestKilledAsAnOperatorDecides kills the server as soon as its record of a run shows that a question
// was answered. Whether the decision was stored or lost, the run afterwards asks the question in
// its record, and it can be answered. This takes a minute whenever the write of the record was
// interrupted.
func TestKilledAsAnOperatorDecides(t *testing.T) {
	runInTurn(t, 60, 1)
	ctx := needLab(t)
	s := site(ctx, t)
	w := s.askForDisk(ctx, t)
	run, machine := w.Run, w.Machine
	asks := func(not string) string {
		return s.of(ctx, t, run, func(w inventory.Workflow) bool { return w.Question != nil && w.Question.ID != not }).Question.ID
	}

	db, err := sql.Open("sqlite3", "file:"+filepath.Join(s.dir, "state/ingot/ingot.db")+"?mode=ro&_busy_timeout=10000")
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	record := func() (doc string) {
		require.NoError(t, db.QueryRowContext(ctx, "SELECT doc FROM workflow WHERE run = ?", run).Scan(&doc))
		return doc
	}

	const rounds = 3
	taken := 0
	for range rounds {
		asked := asks("")
		before := record()
		deciding, forget := context.WithCancel(ctx)
		decided := make(chan error, 1)
		go func() {
			decided <- s.decides(deciding, machine, contract.Decision{Question: asked, Choice: contract.Retry})
		}()
		for record() == before {
			require.NoError(t, ctx.Err())
			if len(decided) > 0 { // the record may be written after the answer
				require.NoError(t, <-decided)
				decided <- nil
			}
		}
		s.Kill()
		forget() // the client that decided may get no answer
		if err := <-decided; err != nil {
			t.Logf("the client that decided got: %v", err)
		}
		require.NoError(t, s.Start(ctx))
		var says, shows string
		until(ctx, t, "the run asks what its record shows", func() bool {
			says, shows = "", ""
			if q := s.asks(ctx, t, machine).Question; q != nil {
				says = q.ID
			}
			if _, doc, ok := strings.Cut(record(), `"question":{"id":"`); ok {
				shows, _, _ = strings.Cut(doc, `"`)
			}
			return says != "" && says == shows
		})
		if says != asked {
			taken++
		}
	}
	t.Logf("of %d decisions %d were taken", rounds, taken)

	last := asks("")
	require.NoError(t, s.decides(ctx, machine, contract.Decision{Question: last, Choice: contract.Abort}))
	w = s.of(ctx, t, run, final)
	require.Equal(t, inventory.StateFailed, w.State, w.Message)
	s.closed(ctx, t, machine)
}
