package e2e

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/internal/backup/dbcopy"
	handover "github.com/ingotmetal/ingot/internal/siterole"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

const (
	peerPort = 7444
	linkPort = 9444
)

// A hostPair is two hosts: the site is on the first, and moves to the second. Their connections go
// through link.
type hostPair struct {
	seed, target *Site
	link         *peerLink
}

// newHostPair creates both in l, or in a new lab, and pairs them. cluster, if not nil, prepares a Temporal cluster for their runs
// before the seed starts.
func newHostPair(ctx context.Context, t *testing.T, l *lab.Lab, name string, cluster func(*Site)) *hostPair {
	t.Helper()
	top := ""
	if cluster != nil {
		top = fmt.Sprintf("temporal: {address: 127.0.0.1:%d}\n", lab.TemporalPort)
	}
	o := Options{
		Root:      "..",
		Programs:  programs(),
		Lab:       l,
		Home:      l == nil,
		Namespace: lab.Seed,
		RelayOnly: true,
		Relays:    []string{lab.RouterHomeAddress},
		Name:      name + "seed",
		Top:       "site: {name: seed}\n" + top,
		NoStart:   true,
	}
	if l == nil {
		o.Dir, o.Name = keepDir(t), ""
	}
	seed, err := NewSite(ctx, o)
	require.NoError(t, err)
	seed.keep(t)
	if cluster != nil {
		cluster(seed)
	}
	require.NoError(t, seed.Start(ctx))
	target, err := NewSite(ctx,
		Options{Root: "..", Programs: programs(), Lab: seed.Lab, Name: name + "target", NoStart: true, Top: "site: {name: target}\n" + top})
	require.NoError(t, err)
	target.keep(t)
	h := &hostPair{seed: seed, target: target}
	if h.link, err = newPeerLink(ctx, h); err != nil {
		require.NoError(t, err)
	}
	t.Cleanup(h.link.close)
	out := target.must(ctx, t, "standby")
	require.Contains(t, out, "fingerprint: sha256:")
	again := target.must(ctx, t, "standby")
	require.Contains(t, again, "nothing was changed")
	require.NoError(t, target.Launch(ctx))
	fingerprint := strings.Fields(out[strings.Index(out, "fingerprint:"):])[1]
	url := fmt.Sprintf("https://127.0.0.1:%d", linkPort)
	eventually(ctx, t, "the standby answers", func() bool {
		_, err = seed.CLI(ctx, "peer", "add", "target", url, "--fingerprint", fingerprint, "--peer-token-file",
			filepath.Join(target.dir, "etc/ingot/standby.token"))
		return err == nil
	})
	return h
}

// eventually waits for an effect of another process.
func eventually(ctx context.Context, t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for !cond() {
		select {
		case <-ctx.Done():
			t.Fatalf("timed out waiting for: %s", what)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// data returns the data directory of a site.
func (s *Site) data() string { return filepath.Join(s.dir, "state/ingot") }

// is returns the state in the site's file.
func (s *Site) is() handover.Site {
	f, err := handover.Open(s.data())
	if err != nil {
		return handover.Site{Role: err.Error()}
	}
	return f.Site()
}

// quiet is what a server reports while it may not be the site.
func (s *Site) quiet(ctx context.Context) (st struct {
	Role, Silent, Why string
	Successor         *struct{ Name, URL string }
}, err error,
) {
	out, err := s.CLI(ctx, "handover", "status", "-o", "json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &st)
	}
	return st, err
}

// moves returns the newest migration in the records of a server.
func (s *Site) moves(ctx context.Context) (inventory.Operation, error) {
	var o inventory.Operation
	out, err := s.CLI(ctx, "migrate", "status", "target", "-o", "json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &o)
	}
	return o, err
}

// A peerLink is the connection from source to target: one connection is one request.
type peerLink struct {
	hostPair *hostPair
	listener net.Listener
	mu       sync.Mutex
	cut      bool
	// before is called for a connection before the target receives it; lost reports that the answer
	// to a connection must not arrive.
	before func(stage string) (refuse bool)
	lost   func(stage string) bool
	seen   []string
}

func newPeerLink(ctx context.Context, h *hostPair) (*peerLink, error) {
	p := &peerLink{hostPair: h}
	var err error
	p.listener, err = h.seed.Listen(ctx, lab.Seed, fmt.Sprintf("127.0.0.1:%d", linkPort))
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := p.listener.Accept()
			if err != nil {
				return
			}
			go p.carry(c)
		}
	}()
	return p, nil
}

func (p *peerLink) close() { _ = p.listener.Close() } // it may be closed already

// stage is the purpose of a connection: the source makes one request after another.
func (p *peerLink) stage() string {
	if p.hostPair.seed.is().Role != handover.HandingOver {
		return "other"
	}
	if p.hostPair.target.is().Prepared == nil {
		return "prepare"
	}
	return "activate"
}

func (p *peerLink) carry(in net.Conn) {
	defer in.Close()
	stage := p.stage()
	p.mu.Lock()
	p.seen = append(p.seen, stage)
	cut, before, lost := p.cut, p.before, p.lost
	p.mu.Unlock()
	if cut || before != nil && before(stage) {
		return
	}
	// Connections from the namespace of the seed use its routes.
	out, err := p.hostPair.seed.DialContext(context.Background(), lab.Seed, "tcp", fmt.Sprintf("%s:%d", lab.TargetAddress, peerPort))
	if err != nil {
		return
	}
	defer out.Close()
	go func() {
		_, _ = io.Copy(out, in) // its end is the end of the request
	}()
	b := make([]byte, 32<<10)
	for {
		n, err := out.Read(b)
		if n > 0 {
			if lost != nil && lost(stage) {
				return
			}
			if _, err := in.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *peerLink) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func needIngot(t *testing.T, h *hostPair, image string) {
	t.Helper()
	h.seed.must(t.Context(), t, "image", "add", "sim", image)
}

// addOne adds the machine "one", which has no BMC: an operator presses its button.
func (h *hostPair) addOne(ctx context.Context, t *testing.T) *lab.Machine {
	t.Helper()
	spec := lab.Spec{Name: "one", VLAN: lab.DirectVLAN, Firmware: lab.Simulated, Agent: filepath.Join(h.seed.root, "bin/worker-agent")}
	m, err := h.seed.Add(ctx, spec, func(doc map[string]any) {
		doc["image"], doc["template"] = "sim", "image-metadata"
		delete(doc, "bmc")
	})
	require.NoError(t, err)
	return m
}

// regularFiles is a file system without its sockets.
type regularFiles struct{ fs.FS }

// ReadDir implements fs.ReadDirFS.
func (r regularFiles) ReadDir(name string) ([]fs.DirEntry, error) {
	all, err := fs.ReadDir(r.FS, name)
	return slices.DeleteFunc(all, func(d fs.DirEntry) bool { return d.Type() == fs.ModeSocket }), err
}

// copyTree copies a directory unchanged.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	// The socket of Temporal's UI cannot be copied.
	require.NoError(t, os.CopyFS(to, regularFiles{os.DirFS(from)}))
	// CopyFS gives all files the same mode; keys may be readable only by their owner.
	require.NoError(t, filepath.WalkDir(to, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return os.Chmod(path, 0o600)
	}))
}

// tables reads the contents of a database.
func tables(ctx context.Context, t *testing.T, file string) dbcopy.Content {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+file+"?mode=ro")
	require.NoError(t, err)
	defer db.Close()
	c, err := dbcopy.Read(ctx, db)
	require.NoError(t, err)
	return c
}

// TestMigrate moves a site with a run that waits for an operator, while machines behind the relay
// request addresses from both servers (S33: only the holder answers). The run and the migration itself continue at the target.
// Then the old server is started again in all the ways in which that could happen by mistake.
func TestMigrate(t *testing.T) {
	runInTurn(t, 32, 5)
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	h := newHostPair(ctx, t, nil, "", nil)
	seed, target := h.seed, h.target
	needIngot(t, h, image.Zst)
	require.NoError(t, seed.addLoad(ctx))
	m := h.addOne(ctx, t)
	// This machine was installed long ago and knows only the seed's metadata server.
	require.NoError(t, seed.REST(ctx, http.MethodPost, "/v1/machines", map[string]any{"machines": []any{
		map[string]any{
			"name":       "of-before",
			"interfaces": []any{map[string]any{"mac": "52:54:02:00:00:77", "address": lab.RouterHomeAddress, "netmask": "255.255.255.0"}},
		},
	}}, nil))
	require.NoError(t, seed.SetRelays(lab.SeedAddress, lab.TargetAddress))

	// A standby answers no machine and does nothing.
	_, err = target.CLI(ctx, "machine", "list")
	require.ErrorContains(t, err, "is standby and answers no requests")
	st, err := target.quiet(ctx)
	require.NoError(t, err)
	require.Equal(t, handover.Standby, st.Role)

	// Invalid requests are refused before anything is done.
	_, err = seed.CLI(ctx, "migrate", "start", "nobody")
	require.ErrorContains(t, err, "there is no peer")
	taken, err := seed.Listen(ctx, lab.Target, "127.0.0.1:7235")
	require.NoError(t, err)
	seed.must(ctx, t, "migrate", "start", "target")
	var refused inventory.Operation
	eventually(ctx, t, "the refusal", func() bool {
		refused, err = seed.moves(ctx)
		return err == nil && inventory.Final(refused.State)
	})
	require.Equal(t, inventory.StateFailed, refused.State)
	require.Contains(t, refused.Message, "127.0.0.1:7235 (temporal.port) is in use")
	require.NoError(t, taken.Close())
	require.Equal(t, handover.Active, seed.is().Role)

	// A run that waits for the operator at the power button.
	w, err := seed.Provision(ctx, contract.ProvisionInput{Machine: "one"})
	require.NoError(t, err)
	_, err = seed.FollowUntilButton(ctx, "one")
	require.NoError(t, err)

	keep := t.TempDir()
	copyTree(t, seed.data(), filepath.Join(keep, "state"))
	copyTree(t, filepath.Join(seed.dir, "etc/ingot"), filepath.Join(keep, "etc"))

	load, err := startLoad(ctx, seed.Lab, "moving")
	require.NoError(t, err)
	pause(ctx, t, 3*time.Second)
	began := time.Now()
	seed.must(ctx, t, "migrate", "start", "target")
	_, err = seed.CLI(ctx, "migrate", "start", "target", "--name", "again")
	require.ErrorContains(t, err, "migrate/target is already running")
	var asked inventory.Operation
	eventually(ctx, t, "the question of the drain", func() bool {
		asked, err = seed.moves(ctx)
		return err == nil && asked.Question != nil
	})
	require.Contains(t, asked.Question.Text, "runs are open: one")
	_, err = seed.CLI(ctx, "machine", "provision", "load-01", "--image", "sim", "--yes")
	require.ErrorContains(t, err, "new runs are refused")
	_, err = seed.TemporalCLI(ctx, "workflow", "execute", "--type", "Migrate", "--task-queue", "ingot", "--workflow-id", "migrate/again",
		"--id-conflict-policy", "Fail", "--fail-existing", "--input", `{"name":"again","target":"target"}`)
	require.ErrorContains(t, err, "migrate/target is already running")
	seed.must(ctx, t, "operation", "decide", "migrate/target", "--choice", "skip")
	eventually(ctx, t, "the site at the target",
		func() bool { return target.is().Role == handover.Active && seed.is().Role == handover.Retired })
	t.Logf("moved %.1f s after the start", time.Since(began).Seconds())
	require.NoError(t, target.WaitReady(ctx))
	var done inventory.Operation
	eventually(ctx, t, "the end of the migration, at the target", func() bool {
		done, err = target.moves(ctx)
		return err == nil && inventory.Final(done.State)
	})
	require.Equal(t, inventory.StateSuccess, done.State, done.Message)
	require.Equal(t, asked.Run, done.Run, "the very run that began at the source")
	verified := done.Steps[len(done.Steps)-1]
	require.Equal(t, "verify", verified.Name)
	require.Contains(t, verified.Message, "a test DISCOVER on eth0 is answered by "+lab.TargetAddress+" and by no other server of Ingot")
	require.Contains(t, verified.Message, "a client's boot script is served by HTTP and TFTP")
	t.Logf("verified: %s", verified.Message)
	pause(ctx, t, 2*time.Second)
	v, err := load.stop()
	require.NoError(t, err)
	t.Logf("while the site moved: %s", v)
	require.Empty(t, v.Twice)
	require.GreaterOrEqual(t, v.PerSecond, 20.0)
	require.Positive(t, v.By[lab.SeedAddress])
	require.Positive(t, v.By[lab.TargetAddress])

	history, err := target.TemporalCLI(ctx, "workflow", "describe", "--workflow-id", "migrate/target", "-o", "json")
	require.NoError(t, err)
	require.Contains(t, history, "WORKFLOW_EXECUTION_STATUS_COMPLETED")

	// No data was lost. The keys are new, so sealed values differ.
	was, is := tables(ctx, t, filepath.Join(seed.data(), "ingot.db")), tables(ctx, t, filepath.Join(target.data(), "ingot.db"))
	require.NotZero(t, was["image"].Rows)
	require.Equal(t, was["image"], is["image"], "content")
	for _, name := range []string{"machine", "workflow", "grant_", "plan"} {
		require.NotZero(t, was[name].Rows, name)
		require.Equal(t, was[name].Rows, is[name].Rows, name)
	}
	require.Equal(t, handover.Site{}.ReKey, target.is().ReKey, "the keys that came are replaced")
	_, marked, err := handover.ReadMark(filepath.Join(seed.dir, "etc/ingot/keys.json"))
	require.NoError(t, err)
	require.True(t, marked, "the source's keys are destroyed")

	// The run continues after the button is pressed.
	x, err := target.Workflow(ctx, "one")
	require.NoError(t, err)
	require.Equal(t, w, x.Run)
	require.Equal(t, inventory.PhasePower, x.Phase)
	require.NoError(t, m.PowerOn(ctx))
	_, err = target.Follow(ctx, "one", func(w inventory.Workflow) bool { return inventory.Final(w.State) })
	require.NoError(t, err)
	x, err = target.Workflow(ctx, "one")
	require.NoError(t, err)
	require.Equal(t, inventory.StateSuccess, x.State, x.Message)
	require.Equal(t, w, x.Run)

	// The source again, unchanged.
	seed.Stop()
	require.NoError(t, seed.Launch(ctx))
	h.retired(ctx, t, "as it is")
	for _, port := range []int{80, 7080, 7172} {
		status, body := h.asks(ctx, t, port, "/2009-04-04/meta-data/instance-id")
		require.Equal(t, http.StatusOK, status, "port %d", port)
		require.Equal(t, "i-of-before", strings.TrimSpace(body))
	}
	var events struct{ Items []inventory.Event }
	require.NoError(t, target.REST(ctx, http.MethodGet, "/v1/machines/of-before/events", nil, &events))
	require.NotEmpty(t, events.Items, "it is the target that has answered")
	res, err := http.Get("http://" + seed.API + "/v1/machines")
	require.NoError(t, err)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, errors.Join(err, res.Body.Close()))
	require.Equal(t, http.StatusGone, res.StatusCode)
	require.Contains(t, string(body), "has moved to target")

	// From an earlier copy of its data directory, with an unreachable target.
	target.Stop()
	h.link.set(func() { h.link.cut = true })
	seed.Stop()
	h.replace(t, filepath.Join(keep, "state"), "")
	require.NoError(t, seed.Launch(ctx))
	h.retired(ctx, t, "copy of the data directory")
	status, told := h.asks(ctx, t, 7172, "/2009-04-04/meta-data/instance-id")
	require.Equal(t, http.StatusServiceUnavailable, status, "it has nothing of its own to answer with")
	require.NotContains(t, told, "of-before")

	// And from a copy of everything, including its keys.
	seed.Stop()
	h.replace(t, filepath.Join(keep, "state"), filepath.Join(keep, "etc"))
	require.NoError(t, seed.Launch(ctx))
	eventually(ctx, t, "the copy says why it is silent", func() bool {
		st, err = seed.quiet(ctx)
		return err == nil && st.Silent != ""
	})
	require.Equal(t, handover.Active, st.Role, "as far as the copy knows")
	require.Contains(t, st.Silent, "peer target may run the site by now, but does not answer")
	t.Logf("the copy: %s", st.Silent)
	h.silent(ctx, t, "copy of everything")
	log, err := os.ReadFile(filepath.Join(seed.dir, "ingot.log"))
	require.NoError(t, err)
	require.Contains(t, string(log), "answers no machine until its peer answers")

	// When the target is reachable again, the copy notices the move.
	require.NoError(t, target.Launch(ctx))
	h.link.set(func() { h.link.cut = false })
	eventually(ctx, t, "the copy retires", func() bool { return seed.is().Role == handover.Retired })
	require.NoError(t, target.WaitReady(ctx))
	h.retired(ctx, t, "the copy, which was told")
}

// TestMigrateKeepsItsCluster moves a site that has its runs in a Temporal cluster: the standby that takes over is no second server
// by mistake, and continues the run that waits for an operator. The old server, started again, does not work for the site.
func TestMigrateKeepsItsCluster(t *testing.T) {
	if !*full {
		t.Skip("long form: make e2e FULL=1")
	}
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	h := newHostPair(ctx, t, nil, "", func(seed *Site) {
		_, err := seed.TemporalCluster(ctx, seed.Namespace, "../.tools", lab.TemporalOpen)
		require.NoError(t, err)
		frontend := fmt.Sprintf("127.0.0.1:%d", lab.TemporalPort)
		_, err = seed.Forward(ctx, lab.Target, frontend, seed.Namespace, frontend)
		require.NoError(t, err)
		_, err = seed.setUp(ctx, t)
		require.NoError(t, err)
	})
	needIngot(t, h, image.Zst)
	m := h.addOne(ctx, t)
	require.NoError(t, h.seed.SetRelays(lab.SeedAddress, lab.TargetAddress))
	run, err := h.seed.Provision(ctx, contract.ProvisionInput{Machine: "one"})
	require.NoError(t, err)
	_, err = h.seed.FollowUntilButton(ctx, "one")
	require.NoError(t, err)

	h.seed.must(ctx, t, "migrate", "start", "target")
	eventually(ctx, t, "the question of the drain", func() bool {
		asked, err := h.seed.moves(ctx)
		return err == nil && asked.Question != nil
	})
	h.seed.must(ctx, t, "operation", "decide", "migrate/target", "--choice", "skip")
	eventually(ctx, t, "the site at the target", func() bool { return h.target.is().Role == handover.Active })
	require.NoError(t, h.target.WaitReady(ctx)) // its workers wait until the source's are gone for certain
	log, err := os.ReadFile(filepath.Join(h.target.dir, "ingot.log"))
	require.NoError(t, err)
	require.Contains(t, string(log), "waiting until another server in this namespace has certainly ended")
	eventually(ctx, t, "the end of the migration, at the target", func() bool {
		done, err := h.target.moves(ctx)
		return err == nil && done.State == inventory.StateSuccess
	})
	require.NoError(t, m.PowerOn(ctx))
	w, err := h.target.Follow(ctx, "one", func(w inventory.Workflow) bool { return w.State == inventory.StateSuccess })
	require.NoError(t, err)
	require.Equal(t, run, w.Run)

	h.seed.Stop()
	require.NoError(t, h.seed.Launch(ctx))
	h.retired(ctx, t, "the old server")
}

// replace replaces the seed's data directory and its configuration with a copy.
func (h *hostPair) replace(t *testing.T, state, etc string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(h.seed.data()))
	copyTree(t, state, h.seed.data())
	if etc != "" {
		dir := filepath.Join(h.seed.dir, "etc/ingot")
		require.NoError(t, os.RemoveAll(dir))
		copyTree(t, etc, dir)
	}
}

// retired requires that the seed reports where the site is and answers no machine.
func (h *hostPair) retired(ctx context.Context, t *testing.T, what string) {
	t.Helper()
	eventually(ctx, t, what+" is retired", func() bool {
		st, err := h.seed.quiet(ctx)
		return err == nil && st.Role == handover.Retired && st.Successor != nil && st.Successor.Name == "target"
	})
	h.silent(ctx, t, what)
}

// silent requires that the seed sends no DHCP answer, no script and no power command.
func (h *hostPair) silent(ctx context.Context, t *testing.T, what string) {
	t.Helper()
	relays := h.seed.Relays()
	require.NoError(t, h.seed.SetRelays(lab.SeedAddress))
	load, err := startLoad(ctx, h.seed.Lab, "silent")
	require.NoError(t, err)
	pause(ctx, t, 2*time.Second)
	v, err := load.stop()
	require.NoError(t, err)
	require.Positive(t, v.Discovers, what)
	require.Zero(t, v.By[lab.SeedAddress], what)
	for _, port := range []int{80, 7080, 7172} {
		if h.seed.is().Role == handover.Retired { // it forwards requests to the metadata server
			for _, path := range []string{
				"/ipxe/script/" + loadMAC(1).String() + "/auto.ipxe", "/ipxe/script/" + neighbours.CheckMAC + "/auto.ipxe",
				"/images/sim",
			} {
				status, _ := h.asks(ctx, t, port, path)
				require.Contains(t, []int{http.StatusNotFound, http.StatusServiceUnavailable}, status, "%s: port %d, %s", what, port, path)
			}
			continue
		}
		c, err := h.seed.DialContext(ctx, lab.Seed, "tcp", fmt.Sprintf("%s:%d", lab.SeedAddress, port))
		if err == nil {
			_ = c.Close() // there should be no connection
		}
		require.Error(t, err, "%s: port %d answers", what, port)
	}
	require.Zero(t, temporalOf(h.seed), "%s: no workflows, so no power", what)
	require.NoError(t, h.seed.SetRelays(relays...))
}

// asks sends a request to the seed with the router's address.
func (h *hostPair) asks(ctx context.Context, t *testing.T, port int, path string) (status int, body string) {
	t.Helper()
	client := &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return h.seed.DialContext(ctx, lab.Router, network, addr)
		}},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s:%d%s", lab.SeedAddress, port, path), nil)
	require.NoError(t, err)
	res, err := client.Do(req)
	require.NoError(t, err, "port %d", port)
	b, err := io.ReadAll(res.Body)
	require.NoError(t, errors.Join(err, res.Body.Close()))
	return res.StatusCode, string(b)
}

// temporalOf counts the Temporal children of a site's server.
func temporalOf(s *Site) int { return len(s.temporals()) }

// temporals returns the Temporal servers that the server has started, from any of its threads.
func (s *Site) temporals() (pids []int) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.Pid()))
	if err != nil {
		return nil
	}
	for _, t := range threads {
		children, err := os.ReadFile(t)
		if err != nil {
			continue // the thread has ended
		}
		for _, child := range strings.Fields(string(children)) {
			comm, err := os.ReadFile("/proc/" + child + "/comm")
			pid, e := strconv.Atoi(child)
			if err == nil && e == nil && strings.TrimSpace(string(comm)) == "ingot-temporal" {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// TestMigrateKilled kills each side, and cuts the link, at each step of the hand-over. In the end
// exactly one side is the site. Where neither may be the site, neither answers machines, and an
// operator is asked. Then the migration is repeated and succeeds. The short form does one of the
// three at each step.
func TestMigrateKilled(t *testing.T) {
	kinds := []string{"kill source", "kill target", "cut link"}
	if *full {
		runInTurn(t, 266, 4)
	} else {
		runInTurn(t, 90, 4)
	}
	ctx := needLab(t)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 40*time.Minute)
	defer cancel()
	l, err := lab.New(ctx, lab.Options{Dir: keepDir(t), Home: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	require.NoError(t, l.SetRelays(lab.SeedAddress, lab.TargetAddress))
	for i, moment := range moments {
		for k, kind := range kinds {
			if !*full && k != i%len(kinds) {
				continue
			}
			name := fmt.Sprintf("%s: %s", moment, kind)
			t.Run(name, func(t *testing.T) {
				h := newHostPair(ctx, t, l, fmt.Sprintf("%d-%s-", i, strings.ReplaceAll(kind, " ", "-")), nil)
				h.disturbed(ctx, t, moment, kind)
			})
		}
	}
}

// moments of a hand-over.
var moments = []string{"silent", "prepare", "prepared", "activate", "activated", "retired"}

func (h *hostPair) disturbed(ctx context.Context, t *testing.T, moment, kind string) {
	require.NoError(t, h.seed.addLoad(ctx))
	load, err := startLoad(ctx, h.seed.Lab, "disturbed")
	require.NoError(t, err)
	struck := make(chan struct{})
	strike := sync.OnceFunc(func() {
		switch kind {
		case "kill source":
			h.seed.Kill()
		case "kill target":
			h.target.Kill()
		case "cut link":
			h.link.set(func() { h.link.cut = true })
		}
		close(struck)
	})
	id := func() string { // of the hand-over that the target knows
		if p := h.target.is().Prepared; p != nil {
			return p.ID
		}
		return ""
	}
	over := func() bool {
		select {
		case <-struck:
			return true
		default:
			return false
		}
	}
	h.link.set(func() {
		h.link.before = func(stage string) bool {
			if over() || stage != moment {
				return false
			}
			strike()
			return true
		}
		h.link.lost = func(stage string) bool {
			switch {
			case over():
				return false
			case moment == "prepared" && stage == "prepare" && id() != "",
				moment == "activated" && stage == "activate" && h.target.is().Role == handover.Active:
				strike()
				return true
			}
			return false
		}
	})
	h.seed.must(ctx, t, "migrate", "start", "target")
	roles := map[string]string{"silent": handover.HandingOver, "retired": handover.Retired}
	if role, ok := roles[moment]; ok {
		eventually(ctx, t, "the source is "+role, func() bool { return h.seed.is().Role == role })
		strike()
	} else {
		eventually(ctx, t, "the moment", over)
	}

	// A killed side is started again. A source that cannot know the result does not answer, and
	// asks an operator.
	switch kind {
	case "kill source":
		require.NoError(t, h.seed.Launch(ctx))
	default:
		if moment != "retired" {
			var why string
			eventually(ctx, t, "the source asks an operator", func() bool {
				st, err := h.seed.quiet(ctx)
				why = st.Silent
				return err == nil && st.Silent != "" && st.Role == handover.HandingOver
			})
			t.Logf("silent: %s", why)
			require.Zero(t, temporalOf(h.seed))
		}
		if kind == "kill target" {
			require.NoError(t, h.target.Launch(ctx))
		}
		h.link.set(func() { h.link.cut = false })
	}
	eventually(ctx, t, "exactly one is the site", func() bool {
		s, d := h.seed.is().Role, h.target.is().Role
		return s == handover.Active && d == handover.Standby || s == handover.Retired && d == handover.Active
	})
	committed := moment == "activated" || moment == "retired"
	require.Equal(t, committed, h.target.is().Role == handover.Active)
	if !committed {
		require.NoError(t, h.seed.WaitReady(ctx))
		require.Contains(t, h.target.is().Refused, h.seed.is().HandOver.ID)
		eventually(ctx, t, "the question", func() bool {
			o, err := h.seed.moves(ctx)
			return err == nil && o.Question != nil
		})
		h.seed.must(ctx, t, "operation", "decide", "migrate/target", "--choice", "retry")
		eventually(ctx, t, "the second attempt", func() bool { return h.target.is().Role == handover.Active })
	}
	require.NoError(t, h.target.WaitReady(ctx))
	eventually(ctx, t, "the end of the migration", func() bool {
		o, err := h.target.moves(ctx)
		return err == nil && o.State == inventory.StateSuccess
	})
	eventually(ctx, t, "the source is retired", func() bool { return h.seed.is().Role == handover.Retired })
	epoch := h.target.is().Epoch
	require.Equal(t, map[bool]int64{true: 2, false: 4}[committed], epoch, "site epoch")
	v, err := load.stop()
	require.NoError(t, err)
	t.Logf("%s", v)
	require.Empty(t, v.Twice)
	require.Positive(t, v.By[lab.TargetAddress])
}
