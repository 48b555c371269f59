package temporalserver_test

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/internal/backup/dbcopy"
	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
	"github.com/ingotmetal/ingot/internal/temporal/temporalfile"
)

// TestBackupOfARunningServer copies the database while runs are being started. A second server on
// the copy is the same cluster and has the same runs.
func TestBackupOfARunningServer(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t)
	s, stop := supervise(t, cfg)
	to := filepath.Join(t.TempDir(), "copy.db")
	first := await(t, s)
	c := dial(t, s, cfg)
	start := func(id string) string {
		run, err := c.ExecuteWorkflow(testContext(t), client.StartWorkflowOptions{ID: id, TaskQueue: "nobody"}, "Waits")
		if err != nil {
			t.Fatal(err)
		}
		return run.GetRunID()
	}
	open := start("machine/a")
	start("machine/b")
	if err := c.TerminateWorkflow(testContext(t), "machine/b", "", "over"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Backup(testContext(t), to, "backup-1") }()
	started := 0
	for backing := true; backing; started++ {
		start("later/" + strconv.Itoa(started))
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			backing = false
		default:
		}
	}
	t.Logf("%d runs were started during the backup", started)
	if st, err := os.Stat(to); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the copy: %v %v", st, err)
	}
	if err := s.Backup(testContext(t), to, "backup-2"); err == nil {
		t.Error("an existing file was overwritten")
	}
	stop()
	if err := s.Backup(testContext(t), to+"2", "backup-3"); err == nil {
		t.Error("a server that is not running made a backup")
	}

	held, err := temporalfile.ReadCopy(testContext(t), to)
	if err != nil {
		t.Fatal(err)
	}
	if held.ID != "backup-1" || held.Cluster != first.ClusterID || held.Tables["executions"].Rows == 0 {
		t.Errorf("the copy holds %+v", held)
	}
	found := false
	for _, r := range held.Open {
		found = found || r == temporalfile.OpenRun{Workflow: "machine/a", Run: open}
		if r.Workflow == "machine/b" {
			t.Error("a finished run is open in the copy")
		}
	}
	if !found {
		t.Errorf("the open run %s is not among %v", open, held.Open)
	}

	if err := temporalfile.Adopt(testContext(t), to); err != nil {
		t.Fatal(err)
	}
	plain, err := temporalfile.ReadCopy(testContext(t), to)
	if err != nil || plain.ID != "" {
		t.Errorf("after adoption: %q %v", plain.ID, err)
	}
	delete(held.Tables, "ingot_backup")
	if err := dbcopy.Differ(held.Tables, plain.Tables); err != nil {
		t.Error(err)
	}
	cfg.File = to
	s, _ = supervise(t, cfg)
	if again := await(t, s); again.ClusterID != first.ClusterID {
		t.Errorf("the copy is cluster %s, the original %s", again.ClusterID, first.ClusterID)
	}
	d, err := dial(t, s, cfg).DescribeWorkflowExecution(testContext(t), "machine/a", open)
	if err != nil || d.GetWorkflowExecutionInfo().GetCloseTime() != nil {
		t.Errorf("the run in the copy: %v %v", d, err)
	}
}

func TestReadCopyRefuses(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := temporalfile.ReadCopy(t.Context(), file); err == nil {
		t.Error("an empty file passed")
	}
	newer(t, file)
	_, err := temporalfile.ReadCopy(t.Context(), file)
	var f *temporalchild.Failure
	if !errors.As(err, &f) || !strings.Contains(f.Message, "supports schemas only up to") {
		t.Errorf("a newer schema: %v", err)
	}
}

// newer gives file a schema newer than any known one.
func newer(t *testing.T, file string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+file)
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.Exec("CREATE TABLE some (x); PRAGMA user_version = 999901")
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}
