package e2e

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver "sqlite3"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestFullDisk fills the disk of the data directory while two machines are being installed: first
// everything except the reserve, with which the first installation completes although the server is
// killed; then the reserve, too. When space is available again, the second installation completes,
// and nothing was lost.
func TestFullDisk(t *testing.T) {
	runInTurn(t, 29, 4)
	ctx := needLab(t)
	s := smallSite(ctx, t, 192<<20, "reserve_mib: 32\n")
	data := filepath.Join(s.dir, "state/ingot")
	s.template(ctx, t, "writes", writesTemplate)
	require.True(t, s.space(ctx, t).Reserve.Held)
	late := s.bare(ctx, t, "late", 3)
	first, second := s.writing(ctx, t, "first", 1), s.writing(ctx, t, "second", 2)

	more, err := s.Fill(data, 0)
	require.NoError(t, err)
	s.awaitSpace(ctx, t, "the reserve is in use", func(d apitypes.SpaceStatus) bool { return !d.Reserve.Held })
	require.True(t, s.space(ctx, t).Low)
	t.Log("the disk is full, and the reserve is in use")
	for what, try := range map[string]func() error{
		"a new run":  func() error { _, err := s.Provision(ctx, first.input(late.Name)); return err },
		"an inspect": func() error { return s.REST(ctx, http.MethodPost, "/v1/machines/late/inspect", nil, nil) },
		"an upload":  func() error { return s.REST(ctx, http.MethodPut, "/v1/images/some", "bytes", nil) },
	} {
		err := try()
		require.ErrorContains(t, err, "507 Insufficient Storage", what)
		require.ErrorContains(t, err, "ingot image prune", what)
		t.Logf("%s: %v", what, err)
	}
	require.Contains(t, s.must(ctx, t, "status"), "the disk was full, so the reserved space is in use")
	findings, err := s.CLI(ctx, "doctor")
	require.Error(t, err)
	require.Contains(t, findings, "the reserve of 32.0 MiB was released because the disk was full")
	for _, arm := range []bool{true, false} {
		require.NoError(t, s.REST(ctx, http.MethodPost, "/v1/machines/late/netboot", map[string]any{"arm": arm}, nil),
			"an operator may arm, and disarm above all")
	}

	s.Kill()
	require.NoError(t, s.Start(ctx), "a server starts on the reserve")
	require.False(t, s.space(ctx, t).Reserve.Held)
	first.image.letGo()
	first.right(ctx, t, s)
	t.Log("the first machine was installed on the reserve, over a kill of the server")

	all, err := s.Fill(filepath.Join(data, "temporal"), 0)
	require.NoError(t, err)
	// Writes first use the space in the existing write-ahead logs: wait until both databases
	// refuse.
	s.exhaust(ctx, t)
	_, err = late.Arguments(ctx)
	require.ErrorIs(t, err, ErrNotArmed, "machines are answered all the same")
	second.image.letGo()
	until(ctx, t, "the agent's report is refused with 507", func() bool { return strings.Contains(second.log(t, s), "507") })
	t.Log("nothing can be written any more; the agent keeps its report")
	n, err := s.KillRole(lab.RoleTemporal)
	require.NoError(t, err)
	require.Equal(t, 1, n, "it lived through all of this")
	until(ctx, t, "the next Temporal is started", func() bool { return strings.Contains(s.said(t), "temporal server is not running") })

	require.NoError(t, all())
	require.NoError(t, more())
	second.right(ctx, t, s)
	s.awaitSpace(ctx, t, "the reserve is held again", func(d apitypes.SpaceStatus) bool { return d.Reserve.Held && !d.Low })
	run, err := s.Provision(ctx, first.input(late.Name))
	require.NoError(t, err, "new runs are taken again")
	s.of(ctx, t, run, func(w inventory.Workflow) bool { return w.Phase == inventory.PhasePower })
	for line := range strings.Lines(s.said(t)) {
		if strings.Contains(line, "temporal server is not running") {
			t.Log(strings.TrimSpace(line))
		}
	}
	t.Logf("Temporal said %d times that its disk is full, and was started again %d times",
		strings.Count(s.said(t), "(13)"), strings.Count(s.said(t), "temporal server is not running"))

	require.Equal(t, 1, strings.Count(s.said(t), "the disk is full: the reserve is released"), "said once, by the first server")
	s.Stop()
	for _, file := range []string{"ingot.db", "temporal/temporal.db"} {
		require.Equal(t, "ok", integrity(t, filepath.Join(data, file)), file)
	}
}

const writesTemplate = `version: "0.1"
name: writes
tasks:
- name: t
  worker: "{{.device_1}}"
  actions:
  - {name: write, image: image2disk, timeout: 600, environment: {IMG_URL: "{{.url}}", IMG_SHA256: "{{.sum}}", DEST_DISK: /dev/vda}}
  - {name: "off", image: poweroff, timeout: 60}
`

// smallSite returns a site whose state is on a separate disk of size bytes.
func smallSite(ctx context.Context, t *testing.T, size int64, top string) *Site {
	t.Helper()
	dir := keepDir(t)
	state := filepath.Join(dir, "state")
	require.NoError(t, os.Mkdir(state, 0o750))
	require.NoError(t, unix.Mount("tmpfs", state, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0750", size)))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(state, unix.MNT_DETACH)) })
	s, err := NewSite(ctx, Options{Root: "..", Dir: dir, Top: top})
	require.NoError(t, err)
	s.keep(t)
	return s
}

// space returns what the server reports about the disk of its data.
func (s *Site) space(ctx context.Context, t *testing.T) apitypes.SpaceStatus {
	t.Helper()
	var st apitypes.Status
	require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/status", nil, &st))
	require.NotEmpty(t, st.Space)
	require.NotNil(t, st.Space[0].Reserve)
	return st.Space[0]
}

func (s *Site) awaitSpace(ctx context.Context, t *testing.T, what string, so func(apitypes.SpaceStatus) bool) {
	t.Helper()
	until(ctx, t, what, func() bool { return so(s.space(ctx, t)) })
}

// said returns the server's log so far.
func (s *Site) said(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(s.log.Name())
	require.NoError(t, err)
	return string(b)
}

// installation is a run whose agent, an ordinary process, writes slowly.
type installation struct {
	m     *Simulated
	run   string
	file  string
	image *drip
}

// writing starts a run and waits until its agent writes.
func (s *Site) writing(ctx context.Context, t *testing.T, name string, n int) installation {
	t.Helper()
	i := installation{m: s.bare(ctx, t, name, n), file: s.blank(t, name, 64<<20), image: s.drip(ctx, t, 16<<20, time.Second)}
	run, args := s.begun(ctx, t, i.m, i.image.input())
	i.run = run
	s.boots(ctx, t, i.m, args, i.file)
	s.of(ctx, t, run, func(w inventory.Workflow) bool { return len(w.Actions) > 0 && w.Actions[0].Done > 0 })
	return i
}

// input returns the input for installing the same image on another machine.
func (i installation) input(machine string) contract.ProvisionInput {
	in := i.image.input()
	in.Machine = machine
	return in
}

// log returns the agent's log.
func (i installation) log(t *testing.T, s *Site) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.dir, i.m.Name+"-agent.log"))
	require.NoError(t, err)
	return string(b)
}

// right waits for the run's end and checks everything: the disk, and one report of each action.
func (i installation) right(ctx context.Context, t *testing.T, s *Site) {
	t.Helper()
	end := s.of(ctx, t, i.run, final)
	require.Equal(t, inventory.StateSuccess, end.State, end.Message)
	got, err := DigestOf(i.file, i.image.size)
	require.NoError(t, err)
	require.Equal(t, i.image.sum, got, "the disk holds the image, bit by bit")
	reports := s.eventsOfKind(ctx, t, i.run, inventory.EventActionDone)
	require.Len(t, reports, len(end.Actions))
	s.closed(ctx, t, i.m.Name)
}

// exhaust writes until both the inventory and Temporal refuse writes.
func (s *Site) exhaust(ctx context.Context, t *testing.T) {
	t.Helper()
	c, err := client.DialContext(ctx, client.Options{HostPort: s.Temporal})
	require.NoError(t, err)
	defer c.Close()
	load := bytes.Repeat([]byte("x"), 256<<10)
	n := 0
	until(ctx, t, "Temporal refuses a run", func() bool {
		n++
		one, cancel := context.WithTimeout(ctx, 15*time.Second)
		defer cancel()
		_, err = c.ExecuteWorkflow(one, client.StartWorkflowOptions{ID: fmt.Sprintf("filler-%d", n), TaskQueue: "nobody"}, "Nothing", load)
		return err != nil
	})
	t.Logf("Temporal took %d runs of 256 KiB, then: %v", n-1, err)
	n = 0
	until(ctx, t, "the inventory refuses a machine", func() bool {
		n++
		doc := map[string]any{
			"name":       fmt.Sprintf("filler-%d", n),
			"interfaces": []any{map[string]any{"mac": fmt.Sprintf("52:54:03:00:%02x:%02x", n>>8, n&0xff)}},
		}
		err = s.REST(ctx, http.MethodPost, "/v1/machines", map[string]any{"machines": []any{doc}}, nil)
		return err != nil
	})
	require.ErrorContains(t, err, "507")
	require.ErrorContains(t, err, "ingot image prune")
	t.Logf("the inventory: %v", err)
}

func integrity(t *testing.T, file string) (verdict string) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+file)
	require.NoError(t, err)
	err = db.QueryRow("PRAGMA integrity_check").Scan(&verdict)
	require.NoError(t, errors.Join(err, db.Close()))
	return verdict
}
