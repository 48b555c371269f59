package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	failurepb "go.temporal.io/api/failure/v1"
	"go.temporal.io/api/proxy"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/server"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

var (
	clusterMachines = flag.Int("cluster-machines", 50, "how many simulated machines TestTemporalCluster installs at once")
	temporalAway    = flag.Duration("temporal-away", 10*time.Minute, "how long TestTemporalAway leaves the cluster stopped")
)

// clusterSite prepares a site whose Temporal is a cluster on PostgreSQL. "ingot serve" is not started.
func clusterSite(ctx context.Context, t *testing.T, access lab.TemporalAccess) (*Site, *lab.TemporalCluster) {
	t.Helper()
	if !*full {
		t.Skip("long form: make e2e FULL=1")
	}
	dir := keepDir(t)
	cluster := filepath.Join(dir, "temporal-cluster")
	top := fmt.Sprintf("temporal:\n  address: 127.0.0.1:%d\n", lab.TemporalPort)
	if access != lab.TemporalOpen {
		top += fmt.Sprintf("  tls_server_name: %s\n  tls_ca: %s/ca.pem\n", lab.TemporalName, cluster)
	}
	switch access {
	case lab.TemporalMTLS:
		top += fmt.Sprintf("  tls_cert: %s/cert.pem\n  tls_key: %[1]s/key.pem\n", cluster)
		top += fmt.Sprintf("  encryption_key_file: %s/encryption.keys\n", dir)
	case lab.TemporalAPIKey:
		top += fmt.Sprintf("  api_key_file: %s/key.token\n", cluster)
	}
	s, err := NewSite(ctx, Options{Root: "..", Dir: dir, NoStart: true, Top: top})
	require.NoError(t, err)
	s.keep(t)
	if access == lab.TemporalMTLS {
		s.must(ctx, t, "temporal", "new-key")
	}
	c, err := s.TemporalCluster(ctx, s.Namespace, "../.tools", access)
	require.NoError(t, err)
	s.readTemporalEnv(ctx, t)
	return s, c
}

// readTemporalEnv takes what the temporal command needs from "ingot temporal env".
func (s *Site) readTemporalEnv(ctx context.Context, t *testing.T) {
	t.Helper()
	var env map[string]string
	require.NoError(t, json.Unmarshal([]byte(s.must(ctx, t, "temporal", "env", "-o", "json")), &env))
	for name, value := range env {
		s.temporalEnv = append(s.temporalEnv, name+"="+value)
	}
}

// setUp runs "ingot temporal setup", and returns each step's state.
func (s *Site) setUp(ctx context.Context, t *testing.T) (states map[string]string, err error) {
	t.Helper()
	out, err := s.CLI(ctx, "temporal", "setup", "-o", "json")
	var steps []server.SetupStep
	require.NoError(t, json.Unmarshal([]byte(out), &steps), "%s: %v", out, err)
	states = map[string]string{}
	for _, step := range steps {
		states[step.What] = step.State
		require.Equal(t, step.State == server.SetupMissing, step.Remedy != "", "%+v", step)
	}
	return states, err
}

// TestTemporalCluster installs machines through a Temporal cluster, while each of its processes and its database are killed
// and started again while runs are in progress, and the frontend refuses what is above a limit. As many machines are then installed
// through an undisturbed cluster and through the embedded Temporal, for the time.
func TestTemporalCluster(t *testing.T) {
	ctx := needLabFor(t, 25*time.Minute)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	s, c := clusterSite(ctx, t, lab.TemporalMTLS)

	states, err := s.setUp(ctx, t)
	require.NoError(t, err)
	require.Len(t, states, 6)
	require.Equal(t, server.SetupMade, states["namespace default"])
	states, err = s.setUp(ctx, t)
	require.NoError(t, err)
	for what, state := range states {
		require.Equal(t, server.SetupThere, state, what)
	}
	require.NoError(t, s.Start(ctx))
	s.refuseSecond(ctx, t)

	machines := s.fleet(ctx, t, image, *clusterMachines)
	emulated := s.emulated(ctx, t)
	faults := append([]clusterFault{s.refuseFault(t, c)}, killFaults(c)...)
	took := s.installAll(ctx, t, image, machines, emulated, s.breakCluster(t, faults, machines))
	t.Logf("%d simulated and %d emulated machines: %.0f s, while every process was killed", len(machines), len(emulated), took.Seconds())
	s.refuseSecond(ctx, t) // also now that the namespace has runs

	undisturbed := func(through string, s *Site) {
		took := s.installAll(ctx, t, image, s.fleet(ctx, t, image, *clusterMachines), s.emulated(ctx, t), nil)
		t.Logf("the same through %s, undisturbed: %.0f s", through, took.Seconds())
	}
	another, _ := clusterSite(ctx, t, lab.TemporalMTLS)
	_, err = another.setUp(ctx, t)
	require.NoError(t, err)
	require.NoError(t, another.Start(ctx))
	undisturbed("another cluster", another)
	undisturbed("the embedded Temporal", site(ctx, t))
}

// fleet adds n simulated machines.
func (s *Site) fleet(ctx context.Context, t *testing.T, image lab.Image, n int) []*lab.Machine {
	t.Helper()
	s.must(ctx, t, "image", "add", "sim", image.Zst)
	machines := make([]*lab.Machine, n)
	for i := range machines {
		spec := lab.Spec{Name: fmt.Sprintf("sim-%d", i), Firmware: lab.Simulated, Agent: filepath.Join(s.bin, "worker-agent")}
		var err error
		machines[i], err = s.Add(ctx, spec, func(doc map[string]any) { doc["image"], doc["template"] = "sim", "image" })
		require.NoError(t, err)
	}
	return machines
}

// emulated adds two QEMU machines.
func (s *Site) emulated(ctx context.Context, t *testing.T) (all []*lab.Machine) {
	t.Helper()
	s.must(ctx, t, "image", "add", "mini", mini(ctx, t).Zst)
	for _, firmware := range []lab.Firmware{lab.BIOS, lab.UEFI} {
		m, err := s.Add(ctx, lab.Spec{Name: "qemu-" + strings.ToLower(string(firmware)), Firmware: firmware},
			func(doc map[string]any) { doc["image"], doc["template"] = "mini", "image" })
		require.NoError(t, err)
		all = append(all, m)
	}
	return all
}

// installAll installs all machines at once during a disturbance, and checks each disk.
func (s *Site) installAll(ctx context.Context, t *testing.T, image lab.Image, simulated, emulated []*lab.Machine,
	disturb func(context.Context) error,
) time.Duration {
	t.Helper()
	began := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	install := func(m *lab.Machine) (w inventory.Workflow, err error) {
		if _, err := s.Provision(gctx, contract.ProvisionInput{Machine: m.Name()}); err != nil {
			return w, err
		}
		return s.Follow(gctx, m.Name(), func(w inventory.Workflow) bool { return w.State == inventory.StateSuccess })
	}
	for _, m := range simulated {
		g.Go(func() error {
			w, err := install(m)
			if err != nil {
				return err
			}
			return s.installed(gctx, m, w, image, 1<<20)
		})
	}
	for _, m := range emulated {
		g.Go(func() error {
			w, err := install(m)
			if err != nil {
				return err
			}
			if m.PowerOns() != 1 || w.Disk == nil || w.Disk.Serial != m.Spec().DiskSerial {
				return fmt.Errorf("%s: %d power-ons, and the run wrote to %+v", m.Name(), m.PowerOns(), w.Disk)
			}
			_, err = m.WaitSerial(gctx, "LAB-MINI-PHONED-HOME")
			return err
		})
	}
	if disturb != nil {
		g.Go(func() error { return disturb(gctx) })
	}
	require.NoError(t, g.Wait())
	took := time.Since(began)
	for _, m := range append(simulated, emulated...) {
		s.closed(ctx, t, m.Name())
	}
	return took
}

// clusterFault is a fault of a cluster. inject calls boot when the machines that it hits are to boot.
type clusterFault struct {
	what   string
	inject func(ctx context.Context, boot func()) error
}

// killFault kills a part of a cluster and starts it again.
func killFault(what string, kill func(), start func(context.Context) error) clusterFault {
	return clusterFault{what + " was killed and started again", func(ctx context.Context, boot func()) error {
		boot()
		kill()
		wait(ctx)
		return start(ctx)
	}}
}

// killFaults are the kills of each service of a cluster, and of its database.
func killFaults(c *lab.TemporalCluster) (faults []clusterFault) {
	for _, service := range c.Services() {
		faults = append(faults, killFault(service, func() { c.Kill(service) }, func(ctx context.Context) error { return c.Start(ctx, service) }))
	}
	return append(faults, killFault("the database", c.KillDatabase, c.StartDatabase))
}

// refuseFault is a limit at the frontend.
func (s *Site) refuseFault(t *testing.T, c *lab.TemporalCluster) clusterFault {
	return clusterFault{"the frontend refused requests above 5 per second for 15 s", func(ctx context.Context, boot func()) error {
		return s.limitCluster(ctx, t, c, boot)
	}}
}

// breakCluster returns a function that injects faults one after another. A share of the machines boots when each of these begins,
// so that it hits runs in progress.
func (s *Site) breakCluster(t *testing.T, faults []clusterFault, machines []*lab.Machine) func(context.Context) error {
	gates := make([]*lab.Gate, len(faults))
	for n := range gates {
		gates[n] = lab.NewGate(lab.StageDHCP)
	}
	for n, m := range machines {
		m.SetStage(gates[n%len(gates)].Stage)
	}
	return func(ctx context.Context) error {
		for n, fault := range faults {
			if err := gates[n].Reached(ctx); err != nil {
				return err
			}
			if err := fault.inject(ctx, gates[n].Open); err != nil {
				return err
			}
			open, err := s.openRuns(ctx)
			if err != nil {
				return err
			}
			if open == 0 {
				return fmt.Errorf("%s, and every run had ended", fault.what)
			}
			t.Logf("%s; %d runs are open", fault.what, open)
			wait(ctx)
		}
		return nil
	}
}

// wait waits for 5 s, or until ctx ends.
func wait(ctx context.Context) {
	select {
	case <-time.After(5 * time.Second):
	case <-ctx.Done():
	}
}

// limitCluster lets the frontend refuse requests, and boots machines while it does. Its limiter reads the limit once in a minute.
func (s *Site) limitCluster(ctx context.Context, t *testing.T, c *lab.TemporalCluster, boot func()) error {
	before, err := c.Refused(ctx)
	if err != nil {
		return err
	}
	undo, err := c.Limit(5)
	if err != nil {
		return err
	}
	refused := before
	for began := time.Now(); refused == before; wait(ctx) {
		if refused, err = c.Refused(ctx); err != nil {
			return err
		}
		if time.Since(began) > 2*time.Minute {
			return errors.New("the frontend has refused no request in 2 minutes")
		}
	}
	boot()
	for range 3 {
		wait(ctx)
	}
	after, err := c.Refused(ctx)
	if err != nil {
		return err
	}
	if after == refused {
		return errors.New("the frontend has refused no request since machines boot")
	}
	t.Logf("%d requests were refused with RESOURCE_EXHAUSTED", after-before)
	return undo()
}

// openRuns returns how many machines are being installed.
func (s *Site) openRuns(ctx context.Context) (n int, err error) {
	var list struct{ Items []inventory.Workflow }
	if err := s.REST(ctx, http.MethodGet, "/v1/workflows?limit=500", nil, &list); err != nil {
		return 0, err
	}
	for _, w := range list.Items {
		if !inventory.Final(w.State) {
			n++
		}
	}
	return n, nil
}

// second prepares another "ingot serve" for the same site: with an inventory of its own, and without machines' networks.
func (s *Site) second(ctx context.Context, t *testing.T, out io.Writer) *lab.Cmd {
	t.Helper()
	dir := filepath.Join(s.dir, "second")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "etc/ingot"), 0o750))
	config, err := os.ReadFile(filepath.Join(s.dir, "etc/ingot/ingot.yaml"))
	require.NoError(t, err)
	_, temporal, ok := strings.Cut(string(config), "temporal:\n")
	require.True(t, ok)
	text := fmt.Sprintf("listen: 127.0.0.1:%d\ntemporal:\n%s", apiPort+1, temporal)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "etc/ingot/ingot.yaml"), []byte(text), 0o600))

	c := s.Command(ctx, s.Namespace, filepath.Join(s.bin, "ingot"), "serve", "--log-level", "debug")
	c.Env = append(os.Environ(), "XDG_CONFIG_HOME="+filepath.Join(dir, "etc"), "XDG_STATE_HOME="+filepath.Join(dir, "state"))
	c.Stdout, c.Stderr = out, out
	return c
}

// refused requires that a server has ended because another one works for the site.
func refused(t *testing.T, c *lab.Cmd, log string) {
	t.Helper()
	var ended *exec.ExitError
	require.ErrorAs(t, c.Wait(), &ended, "%s", log)
	require.Equal(t, 6, ended.ExitCode(), "the systemd unit would start it again")
	require.Contains(t, log, "another server works for the site in namespace \"default\"")
}

// refuseSecond starts another "ingot serve" for the same site: it ends before it works.
func (s *Site) refuseSecond(ctx context.Context, t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	var out bytes.Buffer
	c := s.second(ctx, t, &out)
	require.NoError(t, c.Start())
	<-c.Done()
	require.NoError(t, ctx.Err(), "%s", &out)
	refused(t, c, out.String())
	require.NotContains(t, out.String(), "Temporal is ready")
}

// TestTemporalTakenOver: while a server is cut off from the cluster, another one becomes certain that it has ended, and works. When
// the connection is back, the first server finds the other one, and ends before it works again.
func TestTemporalTakenOver(t *testing.T) {
	ctx := needLab(t)
	s, _ := clusterSite(ctx, t, lab.TemporalOpen)
	_, err := s.setUp(ctx, t)
	require.NoError(t, err)
	require.NoError(t, s.Start(ctx))
	s.mu.Lock()
	first := s.server
	s.mu.Unlock()

	reconnect, err := s.Sever(lab.Server, first.Pid(), lab.TemporalPort)
	require.NoError(t, err)
	file := filepath.Join(s.dir, "second.log")
	log, err := os.Create(file)
	require.NoError(t, err)
	defer func() { require.NoError(t, log.Close()) }()
	second := s.second(ctx, t, log)
	began := time.Now()
	require.NoError(t, second.Start())
	works := func(c *lab.Cmd, file string) func() (bool, error) {
		return func() (bool, error) {
			text, err := os.ReadFile(file)
			select {
			case <-c.Done():
				return false, fmt.Errorf("it has ended: %s", text)
			default:
				return bytes.Contains(text, []byte("Temporal is ready")), err
			}
		}
	}
	require.NoError(t, waitFor(ctx, "the second server", works(second, file)))
	t.Logf("the second server works after %.0f s", time.Since(began).Seconds())

	require.NoError(t, reconnect())
	began = time.Now()
	select {
	case <-first.Done():
	case <-ctx.Done():
		require.NoError(t, ctx.Err())
	}
	t.Logf("the first server ended %.0f s after its connection was back", time.Since(began).Seconds())
	text, err := os.ReadFile(filepath.Join(s.dir, "ingot.log"))
	require.NoError(t, err)
	refused(t, first, string(text))
	require.Equal(t, 1, bytes.Count(text, []byte("Temporal is ready")), "it has worked again")
	ok, err := works(second, file)()
	require.NoError(t, err)
	require.True(t, ok)
	second.Kill()
	<-second.Done()
}

// TestS61ClusterHoldsNoPlainText: every payload and failure in a run's history is encrypted, and the temporal command reads them
// through the codec server.
func TestS61ClusterHoldsNoPlainText(t *testing.T) {
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	s, _ := clusterSite(ctx, t, lab.TemporalMTLS)
	_, err = s.setUp(ctx, t)
	require.NoError(t, err)
	require.NoError(t, s.Start(ctx))
	machines := s.fleet(ctx, t, image, 1)
	s.installAll(ctx, t, image, machines, nil, nil)
	id := workflows.MachineID(machines[0].Name())

	c, err := client.NewLazyClient(s.temporalOptions(t))
	require.NoError(t, err)
	defer c.Close()
	payloads := 0
	history, err := c.WorkflowService().GetWorkflowExecutionHistory(ctx, &workflowservice.GetWorkflowExecutionHistoryRequest{
		Namespace: "default", Execution: &commonpb.WorkflowExecution{WorkflowId: id}, MaximumPageSize: 1000,
	})
	require.NoError(t, err)
	require.Empty(t, history.GetNextPageToken())
	require.NoError(t, proxy.VisitPayloads(ctx, history, proxy.VisitPayloadsOptions{
		SkipSearchAttributes: true,
		Visitor: func(_ *proxy.VisitPayloadsContext, all []*commonpb.Payload) ([]*commonpb.Payload, error) {
			for _, p := range all {
				payloads++
				require.Equal(t, "binary/encrypted", string(p.GetMetadata()[converter.MetadataEncoding]))
			}
			return all, nil
		},
	}))
	require.NoError(t, proxy.VisitFailures(ctx, history, proxy.VisitFailuresOptions{
		Visitor: func(_ *proxy.VisitFailuresContext, f *failurepb.Failure) error {
			require.Equal(t, "Encoded failure", f.GetMessage())
			require.Empty(t, f.GetStackTrace())
			return nil
		},
	}))
	t.Logf("%d payloads are encrypted", payloads)
	require.Greater(t, payloads, 20)

	show := func() string {
		text, err := s.TemporalCLI(ctx, "workflow", "show", "--workflow-id", id, "--output", "json")
		require.NoError(t, err)
		return text
	}
	s.temporalEnv = append(s.temporalEnv, "TEMPORAL_CODEC_AUTH=Bearer "+strings.TrimSpace(s.must(ctx, t, "temporal", "token")))
	input := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, `{"machine":%q}`, machines[0].Name()))
	require.Contains(t, show(), input)
	s.temporalEnv = slices.DeleteFunc(s.temporalEnv, func(v string) bool { return strings.HasPrefix(v, "TEMPORAL_CODEC_") })
	require.NotContains(t, show(), input)
}

// TestTemporalAPIKey: a client that may create nothing says what is missing, and works as soon as it is there. Machines are
// installed while each process of the cluster is killed, the internal frontend among them, which only this access has.
func TestTemporalAPIKey(t *testing.T) {
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	s, c := clusterSite(ctx, t, lab.TemporalAPIKey)
	use := func(token string) {
		text, err := os.ReadFile(token)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(token), "key.token"), text, 0o600))
		s.temporalEnv = append(s.temporalEnv, "TEMPORAL_API_KEY="+string(text))
	}

	use(c.Client)
	states, err := s.setUp(ctx, t)
	require.Error(t, err)
	require.Len(t, states, 5, "the namespace, and the search attributes that it needs")
	for what, state := range states {
		require.Equal(t, server.SetupMissing, state, what)
	}
	use(c.Admin)
	_, err = s.setUp(ctx, t)
	require.NoError(t, err)
	use(c.Client)
	require.NoError(t, s.Start(ctx))
	require.Contains(t, c.Services(), "internal-frontend")
	faults := killFaults(c)
	machines := s.fleet(ctx, t, image, 2*len(faults))
	s.installAll(ctx, t, image, machines, nil, s.breakCluster(t, faults, machines))

	log, err := os.ReadFile(filepath.Join(s.dir, "ingot.log"))
	require.NoError(t, err)
	token, err := os.ReadFile(c.Client)
	require.NoError(t, err)
	require.NotContains(t, string(log), string(token), "no key is logged")
}

// TestTemporalAway: while the cluster is away, for ten minutes, DHCP, boot files, images and the metadata service answer as always,
// and every run ends right afterwards. Half of the machines boot the agent during that time, the others their installed systems, which
// phone home.
func TestTemporalAway(t *testing.T) {
	ctx := needLabFor(t, 10*time.Minute+*temporalAway)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	s, c := clusterSite(ctx, t, lab.TemporalOpen)
	_, err = s.setUp(ctx, t)
	require.NoError(t, err)
	require.NoError(t, s.Start(ctx))

	idle := s.bare(ctx, t, "idle", 1)
	var from, to time.Time
	var away apitypes.Status
	machines := s.fleet(ctx, t, image, 8)
	firmware, installed := lab.NewGate(lab.StageDHCP), lab.NewGate(lab.StageDisk) // they open while the cluster is away
	for n, m := range machines {
		gate := firmware
		if n%2 == 1 {
			gate = installed
		}
		m.SetStage(gate.Stage)
	}
	s.installAll(ctx, t, image, machines, nil, func(ctx context.Context) error {
		for !on(machines) {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := installed.Reached(ctx); err != nil {
			return err
		}
		for _, service := range c.Services() {
			c.Kill(service)
		}
		from = time.Now()
		firmware.Open()
		installed.Open()
		for time.Since(from) < *temporalAway {
			if _, err := idle.Script(ctx); err != nil {
				return err
			}
			if b, err := idle.Fetch(ctx, "/images/sim"); err != nil || len(b) == 0 {
				return fmt.Errorf("the image has %d bytes: %w", len(b), err)
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		to = time.Now()
		if err := s.REST(ctx, http.MethodGet, "/v1/status", nil, &away); err != nil {
			return err
		}
		for _, service := range c.Services() {
			if err := c.Start(ctx, service); err != nil {
				return err
			}
		}
		return nil
	})
	t.Logf("the cluster was away for %.0f s", to.Sub(from).Seconds())
	require.False(t, away.Temporal.Ready)
	require.WithinRange(t, away.Temporal.Since, from.Add(-10*time.Second), from.Add(30*time.Second))
	require.NotEmpty(t, away.Temporal.Error)
	var back apitypes.Status
	require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/status", nil, &back))
	require.True(t, back.Temporal.Ready)
	received := map[string]int{}
	for _, m := range machines {
		var events struct{ Items []inventory.Event }
		require.NoError(t, json.Unmarshal([]byte(s.must(ctx, t, "workflow", "events", m.Name(), "-o", "json")), &events))
		for _, e := range events.Items {
			if e.At.After(from) && e.At.Before(to) {
				received[e.Kind]++
			}
		}
	}
	t.Logf("events while it was away: %v", received)
	for _, kind := range []string{inventory.EventDHCP, inventory.EventScript, inventory.EventOS, inventory.EventPhoneHome} {
		require.NotZero(t, received[kind], "%s: no machine was served while the cluster was away", kind)
	}
}

// on reports whether every machine was switched on.
func on(machines []*lab.Machine) bool {
	for _, m := range machines {
		if m.PowerOns() == 0 {
			return false
		}
	}
	return true
}
