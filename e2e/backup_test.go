package e2e

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	_ "github.com/mattn/go-sqlite3" // the driver "sqlite3" of the inventory
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the driver "sqlite" of Temporal

	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/backup/dbcopy"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestBackupAndRestore backs a server up during installations, lets them end, and restores the
// backup on another host: a separate network namespace with another address, another network and
// separate directories. All data is restored, and nothing from before the backup continues: no BMC
// is written to, every machine is told to boot from its disk, earlier agents are told to hold, and
// the runs ask an operator. Then the machines are installed again from the restored server. Their
// firmware is simulated; the agent is the real one.
func TestBackupAndRestore(t *testing.T) {
	runInTurn(t, 14, 6)
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	s, err := NewSite(ctx, Options{Root: "..", Programs: programs(), Dir: keepDir(t), Home: true, Namespace: lab.Seed, RelayOnly: true})
	require.NoError(t, err)
	s.keep(t)
	o, err := NewSite(ctx, Options{Root: "..", Programs: programs(), Lab: s.Lab, Name: "another-host", NoStart: true})
	require.NoError(t, err)
	o.keep(t)
	s.must(ctx, t, "image", "add", "sim", image.Zst)
	passphrase := filepath.Join(s.dir, "passphrase")
	require.NoError(t, os.WriteFile(passphrase, []byte("correct horse battery\n"), 0o600))

	// One machine is held before its agent, with its window open; one before its installed system;
	// and the agent of a third one has an action to carry out.
	machines, gates := map[string]*lab.Machine{}, map[string]*lab.Gate{}
	for name, stage := range map[string]lab.Stage{"booting": lab.StageAgent, "leaving": lab.StageDisk} {
		gates[name] = lab.NewGate(stage)
		machines[name], err = s.Add(ctx, lab.Spec{Name: name, Firmware: lab.Simulated, Agent: "../bin/worker-agent", Stage: gates[name].Stage},
			func(doc map[string]any) { doc["image"], doc["template"] = "sim", "image" })
		require.NoError(t, err)
		s.must(ctx, t, "machine", "provision", name)
	}
	s.template(ctx, t, "idle", `version: "0.1"
name: idle
tasks:
- name: install
  worker: "{{.device_1}}"
  actions:
  - {name: wait, image: noop, timeout: 300}
`)
	agent := s.bare(ctx, t, "acting", 7)
	_, args := s.begun(ctx, t, agent, contract.ProvisionInput{Template: "idle"})
	a, err := agent.Redeem(ctx, args, Nonce())
	require.NoError(t, err)
	welcome, err := a.Welcome()
	require.NoError(t, err)
	agent.Use(welcome.Token)
	_, err = agent.Next(ctx)
	require.NoError(t, err)
	for _, g := range gates {
		require.NoError(t, g.Reached(ctx))
	}
	phases := map[string]string{}
	for _, name := range []string{"booting", "leaving", "acting"} {
		w, err := s.Workflow(ctx, name)
		require.NoError(t, err)
		phases[name] = w.Phase
	}
	t.Logf("backed up in: %v", phases)

	first, second := filepath.Join(s.dir, "first.tar"), filepath.Join(s.dir, "second.tar")
	began := time.Now()
	s.must(ctx, t, "backup", "--to", first, "--images", "--passphrase-file", passphrase)
	t.Logf("backup in %.1f s", time.Since(began).Seconds())
	for _, g := range gates {
		g.Open()
	}
	for name := range machines {
		s.ended(ctx, t, name, inventory.StateSuccess)
	}
	out := s.must(ctx, t, "backup", "--to", second, "--without-key")
	require.Contains(t, out, "not in the backup")
	out = s.must(ctx, t, "backup", "verify", first)
	t.Log(out)

	// The host is lost. The other one has only its own configuration; the router's relay is changed
	// to it.
	s.Stop()
	require.NoError(t, s.SetRelays(lab.TargetAddress))
	require.NotEqual(t, s.Address, o.Address)
	require.NotEqual(t, s.Namespace, o.Namespace)
	before := o.tree(t)
	require.Len(t, before, 4, "etc, its configuration, and no state")
	for file, says := range map[string]string{
		s.damaged(t, first): "is damaged", s.cut(t, first): "is damaged", s.mixed(t, first, second): "was changed",
	} {
		_, err := o.CLI(ctx, "restore", file, "--yes", "--passphrase-file", passphrase)
		require.ErrorContains(t, err, says, file)
		require.Equal(t, before, o.tree(t), "%s was refused and changed something", file)
	}
	wrong := filepath.Join(s.dir, "wrong")
	require.NoError(t, os.WriteFile(wrong, []byte("correct horse batterx\n"), 0o600))
	before = o.tree(t)
	_, err = o.CLI(ctx, "restore", first, "--yes", "--passphrase-file", wrong)
	require.ErrorContains(t, err, "passphrase")
	require.Equal(t, before, o.tree(t), "a wrong passphrase changed something")

	touched := map[string][]any{}
	for name, m := range machines {
		touched[name] = []any{m.PowerOns(), m.Resets(), m.PowerState(), m.NextBoot(), m.Writers(), digestOf(t, m.DiskPath()), m.BMC().Told()}
		require.Contains(t, m.BMC().Told(), "power 1", "its BMC's log of before")
	}
	out = o.must(ctx, t, "restore", first, "--yes", "--passphrase-file", passphrase)
	t.Log(out)
	_, err = o.CLI(ctx, "restore", first, "--yes", "--passphrase-file", passphrase)
	require.ErrorContains(t, err, "not empty")
	o.same(ctx, t, first)
	images, err := filepath.Glob(filepath.Join(s.data(), "images", "*"))
	require.NoError(t, err)
	require.NotEmpty(t, images)
	for _, file := range images {
		require.Equal(t, digestOf(t, file), digestOf(t, filepath.Join(o.data(), "images", filepath.Base(file))), file)
	}
	restored := time.Now()
	require.NoError(t, o.Start(ctx))

	for _, name := range []string{"booting", "leaving", "acting"} {
		w, err := o.Follow(ctx, name, func(w inventory.Workflow) bool { return w.Phase == inventory.PhaseWaiting })
		require.NoError(t, err)
		require.NotNil(t, w.Question)
		require.Contains(t, w.Question.Text, "the server was restored", name)
		require.Equal(t, []string{contract.Abort}, w.Question.Choices)
	}
	t.Logf("all runs had asked %.1f s after the start", time.Since(restored).Seconds())
	status := o.must(ctx, t, "status")
	require.Equal(t, 3, strings.Count(status, "its run began before the restore"), status)
	for name, m := range machines {
		_, err := o.Simulate(name, m.Spec().MAC).Arguments(ctx)
		require.ErrorIs(t, err, ErrNotArmed, "%s is answered with more than its disk", name)
		o.closed(ctx, t, name)
	}
	// This is how the agent from before behaves if the address moves with the server: it knows the
	// key.
	agent = o.Simulate("acting", agent.MAC)
	agent.meet(map[string]string{"server": "https://" + o.Address + ":7443", "pin": args["pin"]})
	agent.Use(welcome.Token)
	for path, method := range map[string]string{"/agent/v1/next": http.MethodGet, "/agent/v1/heartbeat": http.MethodPost} {
		a, err := agent.Ask(ctx, method, path, map[string]any{})
		require.NoError(t, err)
		require.Equal(t, http.StatusUnauthorized, a.Status, "an agent of before is to hold: %s", a)
	}
	for _, name := range []string{"booting", "leaving", "acting"} {
		o.must(ctx, t, "workflow", "decide", name, "--choice", "abort")
		_, err := o.Follow(ctx, name, func(w inventory.Workflow) bool { return w.State == inventory.StateFailed })
		require.NoError(t, err)
		o.untouched(ctx, t, name, restored)
	}
	for name, m := range machines {
		require.Equal(t, touched[name],
			[]any{m.PowerOns(), m.Resets(), m.PowerState(), m.NextBoot(), m.Writers(), digestOf(t, m.DiskPath()), m.BMC().Told()},
			"%s was touched", name)
	}

	// The backup knows which run wrote the first disk. The second disk was written after the
	// backup, so the run asks about it.
	for name := range machines {
		o.must(ctx, t, "machine", "reprovision", name, "--yes")
	}
	w, err := o.Follow(ctx, "booting", func(w inventory.Workflow) bool { return w.Phase == inventory.PhaseWaiting })
	require.NoError(t, err)
	require.Contains(t, w.Question.Text, "which Ingot did not write")
	o.must(ctx, t, "workflow", "decide", "booting", "--choice", contract.Retry, "--disk-serial", machines["booting"].Spec().DiskSerial)
	for name, m := range machines {
		w := o.ended(ctx, t, name, inventory.StateSuccess)
		require.Equal(t, touched[name][0].(int)+1, m.PowerOns(), name)
		require.Greater(t, w.Epoch, int64(1), "epochs only ever grow")
		o.closed(ctx, t, name)
	}
	a, err = agent.Ask(ctx, http.MethodGet, "/agent/v1/next", nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusUnauthorized, a.Status, "no run has taken its machine since: %s", a)
	require.NotContains(t, o.must(ctx, t, "status"), "its run began before the restore")
}

// tree returns the files of the site's configuration and state, with digests.
func (s *Site) tree(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, top := range []string{"etc", "state"} {
		err := filepath.WalkDir(filepath.Join(s.dir, top), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) || err == nil && d.IsDir() {
				out[path] = fmt.Sprint(err == nil)
				return nil
			}
			if err == nil {
				out[path] = digestOf(t, path)
			}
			return err
		})
		require.NoError(t, err)
	}
	return out
}

func digestOf(t *testing.T, file string) string {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	h := sha256.New()
	_, err = io.Copy(h, f)
	require.NoError(t, errors.Join(err, f.Close()))
	return hex.EncodeToString(h.Sum(nil))
}

// damaged returns the archive with one flipped bit in its middle.
func (s *Site) damaged(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	b[len(b)/2] ^= 0x10
	to := filepath.Join(s.dir, "damaged.tar")
	require.NoError(t, os.WriteFile(to, b, 0o600))
	return to
}

func (s *Site) cut(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	to := filepath.Join(s.dir, "cut.tar")
	require.NoError(t, os.WriteFile(to, b[:len(b)*9/10], 0o600))
	return to
}

// unpack returns the archive's manifest and its parts.
func (s *Site) unpack(t *testing.T, file string) (backup.Manifest, map[string]string) {
	t.Helper()
	dir, paths := t.TempDir(), map[string]string{}
	f, err := os.Open(file)
	require.NoError(t, err)
	m, _, err := backup.Read(f, func(_ backup.Manifest, p backup.Part, r io.Reader) error {
		b, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		paths[p.Name] = filepath.Join(dir, strings.ReplaceAll(p.Name, "/", "_"))
		return os.WriteFile(paths[p.Name], b, 0o600)
	})
	require.NoError(t, errors.Join(err, f.Close()))
	return m, paths
}

// mixed returns the first archive with the other's Temporal database and corrected digests. It was
// made without a key.
func (s *Site) mixed(t *testing.T, first, second string) string {
	t.Helper()
	m, paths := s.unpack(t, first)
	other, others := s.unpack(t, second)
	paths[backup.TemporalName], m.Temporal = others[backup.TemporalName], other.Temporal
	for i, p := range m.Parts {
		var err error
		m.Parts[i], err = backup.Describe(p.Name, paths[p.Name])
		require.NoError(t, err)
	}
	to := filepath.Join(s.dir, "mixed.tar")
	f, err := os.Create(to)
	require.NoError(t, err)
	require.NoError(t, errors.Join(backup.Write(f, m, paths, nil), f.Close()))
	return to
}

// same requires that the restored databases have the contents of the backup, except for the changes
// of the restore: no grant, no plan, an event for each run on hold, records of runs that any next record replaces, and
// other versions of the machines.
func (s *Site) same(ctx context.Context, t *testing.T, file string) {
	t.Helper()
	m, parts := s.unpack(t, file)
	read := func(driver, file string) dbcopy.Content {
		db, err := sql.Open(driver, "file:"+file+"?mode=ro&immutable=1")
		require.NoError(t, err)
		c, err := dbcopy.Read(ctx, db)
		require.NoError(t, errors.Join(err, db.Close()))
		return c
	}
	got, want := read("sqlite", filepath.Join(s.dir, "state/ingot/temporal/temporal.db")), m.Temporal.Tables
	delete(want, "ingot_backup")
	require.NoError(t, dbcopy.Differ(want, got))
	require.NotZero(t, got["executions"].Rows)
	got, want = read("sqlite3", filepath.Join(s.dir, "state/ingot/ingot.db")), m.Inventory.Tables
	require.Zero(t, got["grant_"].Rows)
	require.Equal(t, int64(3), want["grant_"].Rows)
	require.Zero(t, got["plan"].Rows)
	require.Equal(t, want["event"].Rows+3, got["event"].Rows)
	require.Equal(t, want["workflow"].Rows, got["workflow"].Rows)
	machines := func(file string) (all []string) {
		db, err := sql.Open("sqlite3", "file:"+file+"?mode=ro&immutable=1")
		require.NoError(t, err)
		err = sqlx.NewDb(db, "sqlite3").SelectContext(ctx, &all, `SELECT name || doc || quote(user_data) || quote(vendor_data) ||
			quote(bmc_password) FROM machine ORDER BY name`)
		require.NoError(t, errors.Join(err, db.Close()))
		return all
	}
	require.Equal(t, machines(parts[backup.InventoryName]), machines(filepath.Join(s.dir, "state/ingot/ingot.db")))
	for _, changed := range []string{"grant_", "plan", "event", "workflow", "meta", "sqlite_sequence", "machine"} {
		delete(got, changed)
		delete(want, changed)
	}
	require.NoError(t, dbcopy.Differ(want, got))
	t.Logf("equal: %d tables of Temporal, %d of the inventory", len(m.Temporal.Tables), len(want))
}

// untouched requires that nothing was done to the machine since then.
func (s *Site) untouched(ctx context.Context, t *testing.T, machine string, since time.Time) {
	t.Helper()
	var events struct{ Items []inventory.Event }
	require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/machines/"+machine+"/events", nil, &events))
	require.NotEmpty(t, events.Items)
	for _, e := range events.Items {
		switch e.Kind {
		case inventory.EventPower, inventory.EventGrant, inventory.EventArmed, inventory.EventAssigned, inventory.EventHello:
			require.True(t, e.At.Before(since), "%s: %s at %s, after the restore", machine, e.Kind, e.At)
		}
	}
}
