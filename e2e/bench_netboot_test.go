package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/bmc"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/lab/fakesite"
	"github.com/ingotmetal/ingot/workflows"
)

// instantBMC answers immediately from memory, so that only Ingot's own time is measured. It
// fulfills the contract of Driver: it writes only if the state differs, checks the fence before
// each write, and returns states that it has read.
type instantBMC struct {
	mu     sync.Mutex
	on     map[string]bool
	pxe    map[string]bool
	writes int
}

func (i *instantBMC) State(_ context.Context, b inventory.BMC, _ inventory.Secret) (string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.on[b.Host] {
		return bmc.On, nil
	}
	return bmc.Off, nil
}

func (i *instantBMC) Set(ctx context.Context, b inventory.BMC, p inventory.Secret, power string, fence activities.Fence) error {
	if was, err := i.State(ctx, b, p); err != nil || was == power {
		return err
	}
	if err := fence(ctx); err != nil {
		return err
	}
	i.mu.Lock()
	i.on[b.Host] = power == bmc.On
	i.writes++
	i.mu.Unlock()
	if is, err := i.State(ctx, b, p); err != nil || is != power {
		return fmt.Errorf("power is %s and not %s: %w", is, power, err)
	}
	return nil
}

func (i *instantBMC) SetMedia(context.Context, inventory.BMC, inventory.Secret, string, activities.Fence) error {
	return nil
}

func (i *instantBMC) SetBootDevice(
	ctx context.Context,
	b inventory.BMC,
	_ inventory.Secret,
	d inventory.BootDevice,
	fence activities.Fence,
) (string, error) {
	if err := fence(ctx); err != nil {
		return "", err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.pxe[b.Host] = d.Device == "pxe"
	i.writes++
	return "", nil
}

func (i *instantBMC) ResetBMC(context.Context, inventory.BMC, inventory.Secret, activities.Fence) error {
	return inventory.ErrUnsupported
}

// benchNetboot measures the time from "POST /v1/workflows" for 30 machines until the last of them
// was seen off, has its boot device and an open window, and was seen on.
//
// The BMCs answer immediately. They are either in this process, so that only Ingot's own time
// counts, or ipmi_sim on loopback with the real driver and the real ipmitool, where most of the
// time on few cores goes into starting processes. API, worker, activities and store are those of
// ingot serve, in this test's process and with a database on the same disk. The workflows run on
// the site's Temporal in a separate namespace. All machines are on at first, so that each needs
// three writes.
func (s *Site) benchNetboot(ctx context.Context, t *testing.T, f *figures, sims bool) {
	t.Helper()
	const n = 30
	const token = "a-token-of-sufficient-length-for-the-bench"
	namespace, kind, dir := "bench", "a BMC inside the process", t.TempDir()
	log := slog.New(slog.DiscardHandler)
	keyFile := filepath.Join(dir, "key")
	_, err := keyring.Create(keyFile)
	require.NoError(t, err)
	keys, err := keyring.Load(keyFile)
	require.NoError(t, err)
	if sims {
		namespace, kind = "bench-ipmi", "`ipmi_sim` and ipmitool"
	}
	store, err := sqlite.Open(ctx, filepath.Join(s.dir, namespace+".db"), keys)
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()

	c := s.namespace(ctx, t, namespace)
	defer c.Close()
	instant := &instantBMC{on: map[string]bool{}, pxe: map[string]bool{}}
	do := activities.New(activities.Config{
		Store:  fakesite.ActivityStore(fakesite.InventoryOf(store)),
		BMC:    instant,
		Site:   activities.Site{ClaimKey: keys.Key(keyring.Claim), ImageURL: func() string { return "http://192.0.2.1/images" }},
		Log:    log,
		Clocks: activities.Clocks{Now: time.Now},
	})
	if sims {
		do.BMC = bmc.New(
			bmc.Config{Log: log, Home: filepath.Join(dir, "ipmitool"), Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
		)
	}
	temporal := func() (client.Client, bool) { return c, true }
	a := operatorAPI(t, store, temporal, namespace, func(cfg *api.Config) {
		cfg.Access = api.Access{TokenSHA256: sha256.Sum256([]byte(token)), ClaimKey: keys.Key(keyring.Claim)}
		cfg.Images.Dir, cfg.Space.MinFree, cfg.Log = dir, 1, log
	})
	web := httptest.NewServer(a.Handler())
	defer web.Close()
	w := worker.New(c, workflows.TaskQueue, worker.Options{
		MaxConcurrentWorkflowTaskPollers: 8, MaxConcurrentActivityTaskPollers: 8, StickyScheduleToStartTimeout: 10 * time.Second,
		Interceptors: []interceptor.WorkerInterceptor{&activities.Errors{}},
	})
	w.RegisterWorkflowWithOptions(workflows.Provision, workflow.RegisterOptions{Name: inventory.TypeProvision})
	w.RegisterActivity(do)
	require.NoError(t, w.Start())
	defer w.Stop()

	post := func(path string, body any) error {
		doc, err := json.Marshal(body)
		if err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, web.URL+path, bytes.NewReader(doc))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err == nil && res.StatusCode >= http.StatusBadRequest {
			err = fmt.Errorf("%s: %s: %s", path, res.Status, text)
		}
		return err
	}
	require.NoError(t, post("/v1/templates", map[string]any{"name": "empty", "source": "version: \"0.1\"\nname: empty\ntasks:\n- name: t\n" +
		"  worker: \"{{.device_1}}\"\n  actions:\n  - {name: a, image: noop, timeout: 600}\n"}))
	names := make([]string, n)
	var docs []map[string]any
	for i := range n {
		names[i] = fmt.Sprintf("instant-%d", i)
		host := fmt.Sprintf("10.13.0.%d", 1+i)
		docs = append(docs, map[string]any{
			"name": names[i],
			"interfaces": []any{
				map[string]any{"mac": fmt.Sprintf("52:54:03:00:00:%02x", i), "address": fmt.Sprintf("10.12.0.%d", 1+i), "netmask": "255.255.255.0"},
			},
			"bmc": map[string]any{
				"driver":      "ipmi",
				"host":        host,
				"user":        "admin",
				"password":    "pa55w0rd",
				"cipherSuite": fmt.Sprint(lab.BMCCipher),
			},
		})
		if sims {
			b := docs[i]["bmc"].(map[string]any)
			b["host"], b["port"] = "127.0.0.1", s.simulatedBMC(ctx, t)
		} else {
			instant.on[host] = true
		}
	}
	require.NoError(t, post("/v1/machines", map[string]any{"machines": docs}))

	changed, cancel := store.Changes.Subscribe()
	defer cancel()
	spent := s.cpu(t)
	began := time.Now()
	g := errgroup.Group{}
	for _, name := range names {
		g.Go(func() error {
			return post("/v1/workflows",
				map[string]any{"type": inventory.TypeProvision, "input": map[string]any{"machine": name, "template": "empty"}})
		})
	}
	require.NoError(t, g.Wait())
	accepted := time.Since(began)
	for left := names; len(left) > 0; {
		var not []string
		for _, name := range left {
			j, err := store.BMCJobs.BMCJob(ctx, name, "netboot-1-1")
			if err != nil || j.State != inventory.StateSuccess {
				not = append(not, name)
			}
		}
		if left = not; len(left) == 0 {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			require.NoError(t, ctx.Err())
		}
	}
	wall := time.Since(began)
	used := fleet{cpu: map[string]float64{}}
	used.since(s.cpu(t), spent)
	for i, name := range names {
		g, err := store.Grants.Grant(ctx, name)
		require.NoError(t, err)
		require.True(t, g.NetbootOpen(time.Now()), name)
		j, err := store.BMCJobs.BMCJob(ctx, name, "netboot-1-1")
		require.NoError(t, err)
		require.Len(t, j.Tasks, 3)
		if host := fmt.Sprintf("10.13.0.%d", 1+i); !sims {
			require.True(t, instant.on[host] && instant.pxe[host], name)
		}
	}
	if !sims {
		require.Equal(t, 3*n, instant.writes, "off, boot device and on, once each")
	}
	for _, name := range names { // Temporal would keep trying to give out tasks that no worker polls for
		require.NoError(t, c.TerminateWorkflow(ctx, workflows.MachineID(name), "", "measured"))
	}
	delete(used.cpu, "ingot serve") // idle: the server is in this test's process
	f.add(t, fmt.Sprintf("%d machines armed: off, boot device, on, all verified; %s", n, kind),
		"%.2f s, all accepted after %.2f s", wall.Seconds(), accepted.Seconds())
	t.Logf("processor time: %s", seconds(used.cpu))
}

// simulatedBMC starts an ipmi_sim on loopback, whose chassis state is a file with "on". It returns
// the port after the simulator answers. The simulator ends with the lab, also if this test is killed.
func (s *Site) simulatedBMC(ctx context.Context, t *testing.T) int {
	t.Helper()
	l, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	port := l.LocalAddr().(*net.UDPAddr).Port
	require.NoError(t, l.Close())
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "state"), 0o755))
	for name, text := range map[string]string{
		"power": "1\n", "boot": "default\n",
		"chassis": "#!/bin/sh\ncd " + dir + " || exit 1\nshift\nop=$1\nshift\nwhile [ $# -gt 0 ]; do\n" +
			"  if [ $op = get ]; then read -r v <$1; echo \"$1:$v\"; shift; else echo \"$2\" >$1; shift 2; fi\ndone\n",
		"lan.conf": fmt.Sprintf("name \"t\"\nset_working_mc 0x20\n  startlan 1\n    addr 127.0.0.1 %d\n    priv_limit admin\n"+
			"    allowed_auths_admin none md2 md5 straight\n    guid a123456789abcdefa123456789abcdef\n  endlan\n  "+
			"chassis_control \"%s/chassis 0x20\"\n"+
			"  user 1 true \"\" \"test\" user 10 none md2 md5 straight\n  user 2 true \"admin\" \"pa55w0rd\" admin 10 none md2 md5 straight\n",
			port, dir),
		"bmc.emu": "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr\nsel_enable 0x20 " +
			"1000 0x0a\nmc_enable 0x20\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	pkg := lab.PackageDir("openipmi")
	c := s.Command(ctx, lab.Host, filepath.Join(pkg, "usr/bin/ipmi_sim"), "-c", filepath.Join(dir, "lan.conf"), "-f",
		filepath.Join(dir, "bmc.emu"), "-s", filepath.Join(dir, "state"), "-n")
	c.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(pkg, "usr/lib/x86_64-linux-gnu"))
	require.NoError(t, c.Start())
	d := bmc.New(bmc.Config{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	b := inventory.BMC{Driver: inventory.DriverIPMI, Host: "127.0.0.1", Port: port, User: "admin", CipherSuite: fmt.Sprint(lab.BMCCipher)}
	require.Eventually(t, func() bool {
		state, err := d.State(ctx, b, inventory.NewSecret("pa55w0rd"))
		return err == nil && state == bmc.On
	}, time.Minute, 20*time.Millisecond)
	return port
}

// namespace returns a client of a new namespace on the site's Temporal that
// has Ingot's search attributes.
func (s *Site) namespace(ctx context.Context, t *testing.T, name string) client.Client {
	t.Helper()
	opts := client.Options{
		HostPort:          s.Temporal,
		Namespace:         name,
		Logger:            silent(),
		ConnectionOptions: client.ConnectionOptions{GrpcCompression: &client.GrpcCompressionNone{}},
	}
	c, err := client.DialContext(ctx, opts)
	require.NoError(t, err)
	_, err = c.WorkflowService().RegisterNamespace(ctx, &workflowservice.RegisterNamespaceRequest{
		Namespace: name, WorkflowExecutionRetentionPeriod: durationpb.New(24 * time.Hour),
	})
	require.NoError(t, err)
	attrs := map[string]enumspb.IndexedValueType{}
	for _, a := range []string{workflows.AttrMachine, workflows.AttrTemplate, workflows.AttrPhase, workflows.AttrCluster} {
		attrs[a] = enumspb.INDEXED_VALUE_TYPE_KEYWORD
	}
	require.Eventually(t, func() bool { // until the frontend knows the namespace, and then its attributes
		_, err := c.OperatorService().
			AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{Namespace: name, SearchAttributes: attrs})
		if err == nil {
			_, err = c.CountWorkflow(ctx,
				&workflowservice.CountWorkflowExecutionsRequest{Namespace: name, Query: workflows.AttrMachine + " = 'none'"})
		}
		return err == nil
	}, time.Minute, 100*time.Millisecond)
	return c
}
