package temporalserver_test

import (
	"compress/gzip"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
)

// oldFile creates a database of server 1.29.1 (schema 0.10, an earlier visibility schema). It has
// three finished runs machine/done-N, and machine/open, which has received one of the two signals
// that it waits for. No Ingot was ever released with that server: the identity was added by hand,
// and the stamp is set here.
func oldFile(t *testing.T, cfg temporalchild.Config, stamp int) {
	t.Helper()
	packed, err := os.Open("testdata/server-1.29.1.db.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = packed.Close() }() // opened only for reading
	r, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(cfg.File)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, r); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	// The timers for the file's retention of a day and for the server's cron jobs are in the past
	// now. Move them into the future, so that they do not fire during a test.
	const timers = "UPDATE timer_tasks SET visibility_timestamp = '2200' || substr(visibility_timestamp, 5)"
	if _, err := openDatabase(t, cfg.File).Exec(fmt.Sprintf("%s; PRAGMA user_version = %d", timers, stamp)); err != nil {
		t.Fatal(err)
	}
}

func backups(t *testing.T, cfg temporalchild.Config) []string {
	t.Helper()
	found, err := filepath.Glob(cfg.File + ".schema-*.backup")
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func execution(id string) *commonpb.WorkflowExecution {
	return &commonpb.WorkflowExecution{WorkflowId: id}
}

func number(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	if err := db.QueryRow(query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// listed returns the ids of the workflows that match a query.
func listed(t *testing.T, c client.Client, cfg temporalchild.Config, query string) []string {
	t.Helper()
	res, err := c.ListWorkflow(testContext(t), &workflowservice.ListWorkflowExecutionsRequest{Namespace: cfg.Namespace, Query: query})
	if err != nil {
		t.Fatalf("query %q: %v", query, err)
	}
	var ids []string
	for _, e := range res.GetExecutions() {
		ids = append(ids, e.GetExecution().GetWorkflowId())
	}
	slices.Sort(ids)
	return ids
}

// A file of server 1.29.1 with an open run is migrated: the run continues, every kind of query
// finds all runs, and the backup is the file before the migration.
func TestMigratesTheFileOfAnEarlierServer(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	oldFile(t, cfg, 1000)
	s, stop := supervise(t, cfg)
	await(t, s)
	c := dial(t, s, cfg)
	w := worker.New(c, "queue", worker.Options{WorkerStopTimeout: time.Second})
	w.RegisterWorkflowWithOptions(collect, workflow.RegisterOptions{Name: "Collect"})
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)

	for query, want := range map[string]string{
		`ExecutionStatus = "Completed"`:                     "[machine/done-0 machine/done-1 machine/done-2]",
		`ExecutionStatus = "Running"`:                       "[machine/open]",
		`IngotMachine = "open"`:                             "[machine/open]",
		`IngotMachine = "done-1" AND CloseTime IS NOT NULL`: "[machine/done-1]",
		// A column and a text index that 1.29.1 did not have.
		`TemporalReportedProblems IS NULL AND IngotMachine = "done-2"`: "[machine/done-2]",
		`BuildIds = "unversioned" AND ExecutionStatus = "Running"`:     "[machine/open]",
	} {
		if got := fmt.Sprint(listed(t, c, cfg, query)); got != want {
			t.Errorf("%s finds %s, want %s", query, got, want)
		}
	}
	ctx := testContext(t)
	run := c.GetWorkflow(ctx, "machine/open", "")
	if err := c.SignalWorkflow(ctx, "machine/open", "", "word", "after"); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := run.Get(ctx, &got); err != nil {
		t.Fatal(err)
	}
	if got != "before,after" {
		t.Errorf("the run that began under 1.29.1 returned %q", got)
	}
	// Schema 0.11 was made for this.
	fresh, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: "machine/new", TaskQueue: "queue"}, "Collect")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.TerminateWorkflow(ctx, fresh.GetID(), fresh.GetRunID(), "enough"); err != nil {
		t.Fatal(err)
	}
	w.Stop()
	stop()

	db := openDatabase(t, cfg.File)
	if got := number(t, db, "PRAGMA user_version"); got != 1101 {
		t.Errorf("the stamp is %d", got)
	}
	kept := backups(t, cfg)
	if len(kept) != 1 {
		t.Fatalf("the backups are %q, want one", kept)
	}
	old := openDatabase(t, kept[0])
	if got := number(t, old, "PRAGMA user_version"); got != 1000 {
		t.Errorf("the backup's stamp is %d", got)
	}
	if got := number(t, old, "SELECT count(*) FROM executions_visibility"); got != 6 { // including two of the server itself
		t.Errorf("the backup has %d runs", got)
	}
	info, err := os.Stat(kept[0])
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the backup is %s", info.Mode())
	}

	// The second start does not migrate.
	again, _ := supervise(t, cfg)
	await(t, again)
	if got := backups(t, cfg); len(got) != 1 {
		t.Errorf("the backups are %q", got)
	}
}

// The file of an earlier start keeps its mode, its pragmas and its cluster id.
func TestFileOfAnEarlierStart(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	start := func() temporalchild.Server {
		s, stop := supervise(t, cfg)
		srv := await(t, s)
		stop()
		return srv
	}
	use := func(f func(db *sql.DB) error) {
		t.Helper()
		db, err := sql.Open("sqlite", "file:"+cfg.File)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f(db), db.Close()); err != nil {
			t.Fatal(err)
		}
	}
	check := func(pragma, want string) {
		t.Helper()
		var got string
		use(func(db *sql.DB) error { return db.QueryRow("PRAGMA " + pragma).Scan(&got) })
		if got != want {
			t.Errorf("%s is %s, want %s", pragma, got, want)
		}
	}
	before := start()
	info, err := os.Stat(cfg.File)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the database is %s, want it readable only by its owner", info.Mode())
	}
	for pragma, want := range map[string]string{"journal_mode": "wal", "auto_vacuum": "2", "user_version": "1101", "integrity_check": "ok"} {
		check(pragma, want)
	}

	if after := start(); after.ClusterID != before.ClusterID {
		t.Errorf("the cluster is %s, it was %s", after.ClusterID, before.ClusterID)
	}
	if got := backups(t, cfg); len(got) != 0 {
		t.Errorf("the backups are %q", got)
	}
}

// A migration that does not produce the schema of a new file changes nothing.
func TestFailedMigrationChangesNothing(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	oldFile(t, cfg, 900) // the file has schema 0.10: the script for 0.10 fails because its tables exist
	all := reports(t, cfg)
	if r := all[len(all)-1]; r.Failure == nil || !strings.Contains(r.Failure.Message, "nothing was changed") {
		t.Errorf("the report is %+v", r)
	}
	// The reports tell the parent which work takes so long, and when it is done.
	if len(all) != 3 || !strings.Contains(all[0].Busy.With, "from schema 900 to 1101") || all[1].Busy.With != "" {
		t.Errorf("the reports are %+v", all)
	}
	db := openDatabase(t, cfg.File)
	if got := number(t, db, "PRAGMA user_version"); got != 900 {
		t.Errorf("the stamp is %d", got)
	}
	if got := number(t, db, "SELECT count(*) FROM sqlite_master WHERE name = 'current_chasm_executions'"); got != 0 {
		t.Error("a part of the migration is in the file")
	}
}

func TestOldBackupsArePruned(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	for i := range 5 {
		oldFile(t, cfg, 900+i)
		if r := runChild(t, cfg); r.Failure == nil {
			t.Fatal("900 and so on cannot be migrated")
		}
	}
	got := backups(t, cfg)
	if len(got) != 3 || !strings.Contains(got[0], "schema-902.") {
		t.Errorf("the backups are %q, want those of 902, 903 and 904", got)
	}
}

// The pages of deleted histories are returned to the file system while the server runs.
func TestDeletedHistoriesShrinkTheFile(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	cfg.VacuumEvery = 50 * time.Millisecond
	s, _ := supervise(t, cfg)
	await(t, s)
	c := dial(t, s, cfg)
	ctx := testContext(t)
	load := strings.Repeat("x", 500<<10)
	for i := range 16 {
		id := fmt.Sprintf("big-%d", i)
		run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: id, TaskQueue: "nobody"}, "Big", load)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.TerminateWorkflow(ctx, id, run.GetRunID(), "enough"); err != nil {
			t.Fatal(err)
		}
	}
	db := openDatabase(t, cfg.File)
	full := number(t, db, "PRAGMA page_count")
	if full < 16*(500<<10)/4096 {
		t.Fatalf("the file has %d pages: the histories are not in it", full)
	}
	for i := range 16 {
		if _, err := c.WorkflowService().DeleteWorkflowExecution(ctx, &workflowservice.DeleteWorkflowExecutionRequest{
			Namespace: cfg.Namespace, WorkflowExecution: execution(fmt.Sprintf("big-%d", i)),
		}); err != nil {
			t.Fatal(err)
		}
	}
	for number(t, db, "PRAGMA page_count") > full/4 {
		select {
		case <-ctx.Done():
			t.Fatalf("the file had %d pages and has %d, %d of them free", full, number(t, db, "PRAGMA page_count"),
				number(t, db, "PRAGMA freelist_count"))
		case <-time.After(20 * time.Millisecond):
		}
	}
	// The write-ahead log is truncated after it has grown.
	info, err := os.Stat(cfg.File + "-wal")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err == nil && info.Size() > 24<<20 {
		t.Errorf("the write-ahead log has %d bytes", info.Size())
	}
}
