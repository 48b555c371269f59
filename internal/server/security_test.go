package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/netserve/keptsocket"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// testConfig is the configuration of a server in a folder of its own.
func testConfig(t *testing.T) config.Config {
	t.Helper()
	dir := t.TempDir()
	cfg := config.Default()
	cfg.DataDir = filepath.Join(dir, "data")
	cfg.KeyFile = filepath.Join(dir, "etc", "keys.json")
	cfg.TokenFile = filepath.Join(dir, "etc", "token")
	cfg.Listen, cfg.MinFree = "127.0.0.1:0", 1
	require.NoError(t, os.MkdirAll(cfg.DataDir, 0o700))
	return cfg
}

// testServer makes a server that does not run: its handlers and its store are
// those of ingot serve.
func testServer(t *testing.T, cfg config.Config) *server {
	t.Helper()
	s, err := startWith(t, cfg, slog.New(slog.NewTextHandler(t.Output(), nil)))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.records.store.Close()) })
	return s
}

func testOptions(cfg config.Config) Options {
	return Options{
		Config: cfg, Version: "test", Log: slog.New(slog.DiscardHandler), Out: io.Discard,
		watchdog: keptsocket.NewWatchdog(slog.New(slog.DiscardHandler)),
	}
}

func startWith(t *testing.T, cfg config.Config, log *slog.Logger) (*server, error) {
	t.Helper()
	o := testOptions(cfg)
	o.Log = log
	h, err := newHost(o)
	if err != nil {
		return nil, err
	}
	return newServer(t.Context(), o, h)
}

func (s *server) post(t *testing.T, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body))
	r.Host = "127.0.0.1:8080"
	r.Header.Set("Authorization", "Bearer "+s.secrets.token)
	w := httptest.NewRecorder()
	s.api.Handler().ServeHTTP(w, r)
	return w
}

// secretsOf stores one secret of each kind for machine name.
func secretsOf(t *testing.T, s *sqlite.Store, name string, n int) {
	t.Helper()
	ctx := t.Context()
	require.NoError(t, s.Machines.PutMachines(ctx, []inventory.Machine{
		{
			Name:       name,
			Interfaces: []inventory.Interface{{MAC: fmt.Sprintf("52:54:00:00:00:%02x", n)}},
			UserData:   inventory.NewSecret("canary user " + name),
			VendorData: inventory.NewSecret("canary vendor " + name),
			BMC: &inventory.BMC{
				Driver:   inventory.DriverIPMI,
				Host:     fmt.Sprintf("10.0.9.%d", n),
				User:     "admin",
				Password: inventory.NewSecret("canary bmc " + name),
			},
		},
	}, true, "test"))
	require.NoError(
		t,
		s.Plans.PutPlan(ctx, inventory.Plan{Run: "run-" + name, Digest: "d", Actions: []action.Action{{Name: "canary plan " + name}}}),
	)
}

// readable reports whether every secret of machine name can be read.
func readable(t *testing.T, s *sqlite.Store, name string) {
	t.Helper()
	ctx := t.Context()
	user, vendor, err := s.Machines.UserData(ctx, name)
	require.NoError(t, err)
	password, err := s.BMCPasswords.BMCPassword(ctx, name)
	require.NoError(t, err)
	plan, err := s.Plans.Plan(ctx, "run-"+name)
	require.NoError(t, err)
	require.Equal(t, []string{"canary user " + name, "canary vendor " + name, "canary bmc " + name, "canary plan " + name},
		[]string{user.Reveal(), vendor.Reveal(), password.Reveal(), plan.Actions[0].Name})
}

// ciphertexts returns everything that is stored sealed.
func ciphertexts(t *testing.T, path string) (out [][]byte) {
	t.Helper()
	db, err := sqlx.Open("sqlite3", "file:"+path+"?mode=ro")
	require.NoError(t, err)
	defer db.Close()
	for _, q := range []string{"user_data FROM machine", "vendor_data FROM machine", "bmc_password FROM machine", "sealed FROM plan", "value FROM meta WHERE name LIKE 'key_check.%'"} {
		var some [][]byte
		require.NoError(t, db.SelectContext(t.Context(), &some, "SELECT "+q))
		require.NotEmpty(t, some, q)
		out = append(out, some...)
	}
	return out
}

// TestS24KeysAreReplacedWhileTheServerGoesOn: nothing of before opens what
// is stored afterwards, nothing sealed by the old keys is left in the files,
// and who writes at that time loses nothing.
func TestS24KeysAreReplacedWhileTheServerGoesOn(t *testing.T) {
	cfg := testConfig(t)
	s := testServer(t, cfg)
	db := filepath.Join(cfg.DataDir, "ingot.db")
	secretsOf(t, s.records.store, "m1", 1)
	before := ciphertexts(t, db)
	signer, claim := s.secrets.ring.PlanSigner(), s.secrets.ring.Key(keyring.Claim)
	oldKeys := filepath.Join(t.TempDir(), "keys.json")
	text, err := os.ReadFile(cfg.KeyFile)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(oldKeys, text, 0o600))

	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	written := make(chan string, 10_000)
	for w := range 3 {
		writers.Go(func() {
			for n := 0; ctx.Err() == nil && n < 3000; n++ {
				run := fmt.Sprintf("run-%d-%d", w, n)
				if err := s.records.store.Plans.PutPlan(t.Context(), inventory.Plan{Run: run, Digest: "d"}); err != nil {
					t.Error(err)
					return
				}
				written <- run
			}
		})
	}
	for range 3 {
		w := s.post(t, "/v1/secrets/rotate", "")
		require.Equal(t, http.StatusOK, w.Code, w.Body)
		readable(t, s.records.store, "m1")
	}
	stop()
	writers.Wait()
	close(written)
	n := 0
	for run := range written {
		_, err := s.records.store.Plans.Plan(t.Context(), run)
		require.NoError(t, err, run)
		n++
	}
	require.NotZero(t, n)

	require.Equal(t, signer, s.secrets.ring.PlanSigner(), "agents that are at work know the signer")
	require.Equal(t, claim, s.secrets.ring.Key(keyring.Claim))
	require.NoError(t, s.records.store.Close())
	for _, name := range []string{db, db + "-wal"} {
		b, err := os.ReadFile(name)
		if name != db && os.IsNotExist(err) {
			continue
		}
		require.NoError(t, err)
		for i, c := range before {
			require.False(t, bytes.Contains(b, c), "%s holds what the old keys had sealed (%d)", filepath.Base(name), i)
		}
		require.NotContains(t, string(b), "canary", "the database alone reveals no secret")
	}
	lost, err := keyring.Load(oldKeys)
	require.NoError(t, err)
	with, err := sqlite.Open(t.Context(), db, lost)
	require.NoError(t, err)
	require.ErrorIs(t, with.Keys.KeyCheck(t.Context()), inventory.ErrSealed)
	_, err = with.BMCPasswords.BMCPassword(t.Context(), "m1")
	require.ErrorIs(t, err, inventory.ErrSealed)
	require.NoError(t, with.Close())

	again := testServer(t, cfg)
	readable(t, again.records.store, "m1")
	require.Equal(t, signer, again.secrets.ring.PlanSigner())
	require.False(t, again.secrets.ring.Rotating())
	files := 0
	for _, dir := range []string{cfg.DataDir, filepath.Dir(cfg.KeyFile)} {
		require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && d.Name() == "ipmitool" {
				return fs.SkipDir // a list of manufacturers
			}
			if err != nil || d.IsDir() {
				return err
			}
			st, err := d.Info()
			if err == nil {
				files++
				require.Equal(t, fs.FileMode(0o600), st.Mode().Perm(), path)
			}
			return err
		}))
	}
	require.GreaterOrEqual(t, files, 4, "keys, token, agent.pem and the database")
}

// TestS24ReplacingKeysSurvivesACrashAtEachStep: a database that refuses to
// write one table after the other simulates a process that is killed there.
func TestS24ReplacingKeysSurvivesACrashAtEachStep(t *testing.T) {
	for _, table := range []string{"machine", "plan", "assignment", "meta", "nothing"} {
		t.Run(table, func(t *testing.T) {
			cfg := testConfig(t)
			s := testServer(t, cfg)
			path := filepath.Join(cfg.DataDir, "ingot.db")
			secretsOf(t, s.records.store, "m1", 1)
			secretsOf(t, s.records.store, "m2", 2)
			g, err := s.records.store.Grants.TakeGrant(t.Context(), "m1", "run-m1", "machine/m1", false)
			require.NoError(t, err)
			db, err := sqlx.Open("sqlite3", "file:"+path)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			_, err = db.ExecContext(
				t.Context(),
				"INSERT INTO assignment (machine, run, epoch, action, attempt, boot, sealed, state) SELECT 'm1', run, ?, 0, 1, 1, sealed, 'PENDING' FROM plan WHERE run = 'run-m1'",
				g.Epoch,
			)
			require.NoError(t, err)
			if table == "nothing" { // killed between the last table and the key file
				require.NoError(t, s.secrets.ring.Rotate(cfg.KeyFile))
				_, err = s.records.store.Keys.Reseal(t.Context())
				require.NoError(t, err)
			} else {
				_, err = db.ExecContext(t.Context(), "CREATE TRIGGER crash BEFORE UPDATE ON "+table+" BEGIN SELECT RAISE(ABORT, 'crash'); END")
				require.NoError(t, err)
				require.Equal(t, http.StatusInternalServerError, s.post(t, "/v1/secrets/rotate", "").Code)
				_, err = db.ExecContext(t.Context(), "DROP TRIGGER crash")
				require.NoError(t, err)
			}
			// The same process goes on, and so does the next one, which finishes it.
			readable(t, s.records.store, "m1")
			secretsOf(t, s.records.store, "m3", 3)
			require.NoError(t, s.records.store.Close())
			keys, err := keyring.Load(cfg.KeyFile)
			require.NoError(t, err)
			require.True(t, keys.Rotating())

			next := testServer(t, cfg)
			for _, name := range []string{"m1", "m2", "m3"} {
				readable(t, next.records.store, name)
			}
			a, err := next.records.store.Assignments.Assignment(t.Context(), g.Owner, action.Key{Epoch: g.Epoch, Attempt: 1})
			require.NoError(t, err, "%v", a)
			require.False(t, next.secrets.ring.Rotating())
			keys, err = keyring.Load(cfg.KeyFile)
			require.NoError(t, err)
			require.False(t, keys.Rotating())
			st, err := os.Stat(cfg.KeyFile)
			require.NoError(t, err)
			require.Equal(t, fs.FileMode(0o600), st.Mode().Perm())
		})
	}
}

// TestS24WithoutTheRightKeysNothingIsReplaced: a wrong or missing key file is
// an operator's to put right.
func TestS24WithoutTheRightKeysNothingIsReplaced(t *testing.T) {
	cfg := testConfig(t)
	secretsOf(t, testServer(t, cfg).records.store, "m1", 1)
	right, err := os.ReadFile(cfg.KeyFile)
	require.NoError(t, err)
	require.NoError(t, os.Remove(cfg.KeyFile))
	missing := testServer(t, cfg)
	require.Equal(t, http.StatusServiceUnavailable, missing.post(t, "/v1/secrets/rotate", "").Code)
	require.NoFileExists(t, cfg.KeyFile)
	_, err = keyring.Create(cfg.KeyFile)
	require.NoError(t, err)
	wrong, err := os.ReadFile(cfg.KeyFile)
	require.NoError(t, err)
	require.Equal(t, http.StatusServiceUnavailable, testServer(t, cfg).post(t, "/v1/secrets/rotate", "").Code)
	still, err := os.ReadFile(cfg.KeyFile)
	require.NoError(t, err)
	require.Equal(t, wrong, still)
	require.NoError(t, os.WriteFile(cfg.KeyFile, right, 0o600))
	readable(t, testServer(t, cfg).records.store, "m1")
}

// TestS24AnEarlierKeyFileThatWasPutBackIsNotRotated: the running server holds
// the only right keys then.
func TestS24AnEarlierKeyFileThatWasPutBackIsNotRotated(t *testing.T) {
	cfg := testConfig(t)
	s := testServer(t, cfg)
	secretsOf(t, s.records.store, "m1", 1)
	first, err := os.ReadFile(cfg.KeyFile)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, s.post(t, "/v1/secrets/rotate", "").Code)
	present, err := os.ReadFile(cfg.KeyFile)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(cfg.KeyFile, first, 0o600))
	answer := s.post(t, "/v1/secrets/rotate", "")
	require.Equal(t, http.StatusServiceUnavailable, answer.Code)
	require.Contains(t, answer.Body.String(), "has changed since this server loaded it")
	still, err := os.ReadFile(cfg.KeyFile)
	require.NoError(t, err)
	require.Equal(t, first, still)
	readable(t, s.records.store, "m1")
	require.NoError(t, os.WriteFile(cfg.KeyFile, present, 0o600))
	require.Equal(t, http.StatusOK, s.post(t, "/v1/secrets/rotate", "").Code)
	readable(t, testServer(t, cfg).records.store, "m1")
}

// TestS9TemporalIsOnLoopbackOrBehindTLS: anything else does not start. The
// embedded server's own refusal is TestBeyondLoopbackIsRefused.
func TestS9TemporalIsOnLoopbackOrBehindTLS(t *testing.T) {
	file := filepath.Join(t.TempDir(), "identity.pem") // certificate and key
	_, err := identity.LoadCertificate(file)
	require.NoError(t, err)
	for _, c := range []struct {
		address, ca, cert string
		ok                bool
	}{
		{"127.0.0.1:7233", "", "", true},
		{"[::1]:7233", "", "", true},
		{"localhost:7233", "", "", true},
		{"", "", "", true}, // embedded
		{"10.0.0.1:7233", "", "", false},
		{"0.0.0.0:7233", "", "", false},
		{"[::]:7233", "", "", false},
		{"temporal.example:7233", "", "", false},
		{"localhost.example:7233", "", "", false},
		{"127.0.0.1.nip.io:7233", "", "", false},
		{"temporal.example", "", "", false},
		{"temporal.example:7233", file, "", true},
		{"temporal.example:7233", "", file, true},
	} {
		cfg := testConfig(t)
		cfg.Temporal.Address, cfg.Temporal.TLSCA, cfg.Temporal.TLSCert, cfg.Temporal.TLSKey = c.address, c.ca, c.cert, c.cert
		_, err := (&server{cfg: cfg, log: slog.New(slog.DiscardHandler), records: &records{}}).newTemporal()
		if c.ok {
			require.NoError(t, err, c.address)
			continue
		}
		require.ErrorContains(t, err, "tls_ca", c.address)
		_, err = startWith(t, cfg, slog.New(slog.DiscardHandler))
		require.Error(t, err, "%s: the server starts", c.address)
	}
}

// TestS50ARetargetedBMCIsNotSpokenTo: the program that would carry the
// password to the new address is not even started; with the password entered
// again it is.
func TestS50ARetargetedBMCIsNotSpokenTo(t *testing.T) {
	dir := t.TempDir()
	recorder := "#!/bin/sh\necho \"$*\" >>" + dir + "/argv\ncat <&3 >>" + dir + "/secret\necho Chassis Power is on\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ipmitool"), []byte(recorder), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	s := testServer(t, testConfig(t))
	push := func(host, password string) {
		t.Helper()
		if password != "" {
			password = `,"password":"` + password + `"`
		}
		w := s.post(t, "/v1/machines", `{"replace":true,"machines":[{"name":"m1","interfaces":[{"mac":"52:54:00:00:00:01"}],
			"bmc":{"driver":"ipmi","host":"`+host+`","user":"admin","hasPassword":true`+password+`}}]}`)
		require.Equal(t, http.StatusCreated, w.Code, w.Body)
	}
	check := func() string { return s.post(t, "/v1/bmc/check", `{"machine":"m1"}`).Body.String() }
	push("10.0.9.1", "hunter2")
	push("10.0.9.66", "")
	require.Contains(t, check(), "IPMI needs a password")
	require.NoFileExists(t, filepath.Join(dir, "argv"))
	require.NoFileExists(t, filepath.Join(dir, "secret"))

	push("10.0.9.66", "entered again")
	require.Contains(t, check(), `"ok":true`)
	got, err := os.ReadFile(filepath.Join(dir, "secret"))
	require.NoError(t, err)
	require.Equal(t, "entered again\n", string(got), "the recorder records")
	argv, err := os.ReadFile(filepath.Join(dir, "argv"))
	require.NoError(t, err)
	require.NotContains(t, string(argv), "entered", "security S25")
}
