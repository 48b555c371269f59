package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	handover "github.com/ingotmetal/ingot/internal/siterole"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
)

// platformAddress is the node's own address: the address of um760 in the lab file.
const platformAddress = "10.10.20.11"

// migrates adds the migration to the lab file: afterwards, the cluster fetches its image from the
// new server.
func (e *genesisRun) migrates() {
	e.t.Helper()
	edit := func(file string, change func(text string) string) {
		path := filepath.Join(filepath.Dir(e.file), file)
		b, err := os.ReadFile(path)
		require.NoError(e.t, err)
		require.NoError(e.t, os.WriteFile(path, []byte(change(string(b))), 0o600))
	}
	manifest, err := os.ReadFile(filepath.Join("..", "deploy", "genesis", "ingot.yaml"))
	require.NoError(e.t, err)
	require.NoError(e.t, os.WriteFile(filepath.Join(filepath.Dir(e.file), "ingot.yaml"), manifest, 0o600))
	edit("lab.yaml", func(text string) string {
		return text + fmt.Sprintf(
			"migrate: {target: platform, address: %s, image: registry.example.org/ingot:lab, manifestFile: ingot.yaml}\n",
			lab.TargetAddress)
	})
	for _, x := range []string{"a", "b", "c"} {
		edit("ms-02-"+x+".yaml", func(text string) string {
			return strings.Replace(text, "http://"+lab.SeedAddress+":7080/", "http://"+lab.TargetAddress+":7080/", 1)
		})
	}
}

// An applied object is an object that the platform should run.
type applied struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Data     map[string]string
}

// guest sends a request to the lab's port of a machine.
func (e *genesisRun) guest(ctx context.Context, method, address, path string) (string, error) {
	// A machine that loses its power in mid-request never answers.
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return e.DialContext(ctx, lab.Target, network, addr)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("http://%s:%d%s", address, lab.GuestHealthPort, path), nil)
	if err != nil {
		return "", err
	}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, path, res.Status, b)
	}
	return string(b), err
}

// runs simulates the container runtime of the platform: it waits for the Deployment and its Secret,
// and starts the described program on the target host. It returns the contents of the Secret.
func (e *genesisRun) runs(ctx context.Context, target *Site) (secrets []string) {
	e.t.Helper()
	var secret applied
	eventually(ctx, e.t, "the Secret and the Deployment of the standby", func() bool {
		var now struct{ Objects []applied }
		text, err := e.guest(ctx, http.MethodGet, platformAddress, "/applied")
		if err != nil || json.Unmarshal([]byte(text), &now) != nil {
			return false
		}
		deployed := false
		for _, o := range now.Objects {
			switch {
			case o.Kind == "Secret" && o.Metadata.Name == "ingot-standby" && o.Metadata.Namespace == "ingot":
				secret = o
			case o.Kind == "Deployment" && o.Metadata.Name == "ingot" && o.Metadata.Namespace == "ingot":
				deployed = true
			}
		}
		return deployed && secret.Kind != ""
	})
	for _, name := range []string{"site.pem", "standby.token", "token"} { // the volumeMounts of the manifest
		b, err := base64.StdEncoding.DecodeString(secret.Data[name])
		require.NoError(e.t, err)
		require.NotEmpty(e.t, b, name)
		require.NoError(e.t, os.WriteFile(filepath.Join(target.dir, "etc/ingot", name), b, 0o600))
		secrets = append(secrets, strings.TrimSpace(string(b)), secret.Data[name])
	}
	target.must(ctx, e.t, "standby")
	require.NoError(e.t, target.Launch(ctx))
	eventually(ctx, e.t, "the standby", func() bool {
		st, err := target.quiet(ctx)
		return err == nil && st.Role == handover.Standby
	})
	_, err := e.guest(ctx, http.MethodPost, platformAddress, "/ready?ready=1")
	require.NoError(e.t, err)
	return secrets
}

// injected checks the configuration on a real router's disk: owner and mode, including the bit that
// gives new files the group of their directory. The router has saved its configuration since, as a
// new file.
func (e *genesisRun) injected(ctx context.Context) {
	e.t.Helper()
	m := e.machines["vp6630"]
	require.NoError(e.t, m.PowerOff(ctx))
	const etc = "/boot/" + lab.VyOSVersion + "/rw/opt/vyatta/etc/config"
	for file, want := range map[string]string{
		"": "02775 0 102", "/scripts": "02775 0 102", "/.vyatta_config": "0664 0 102", "/config.boot": `\d+ 0 102`,
	} {
		stat, err := exec.CommandContext(ctx, "debugfs", "-R", "stat "+etc+file, fmt.Sprintf("%s?offset=%d", m.DiskPath(), lab.VyOSPersistence)).
			CombinedOutput()
		require.NoError(e.t, err)
		has := regexp.MustCompile(`(?s)Mode: +(\d+) .*User: +(\d+) +Group: +(\d+) `).FindSubmatch(stat)
		require.NotNil(e.t, has, "%s: %s", file, stat)
		require.Regexp(e.t, "^"+want+"$", fmt.Sprintf("%s %s %s", has[1], has[2], has[3]), "%s: mode, owner, group", file)
	}
}

// TestGenesisMigrates is TestGenesis with the migration: the server on the NAS installs the router
// and the platform, runs the standby there and moves to it. The Genesis that began on the NAS ends
// at the target, which installs the cluster. The target is a separate host with the lab's address
// of the target, next to the Talos node. With -qemu, all machines are real ones and both servers run
// in the container image. With INGOT_PICTURE, it saves a picture of the page.
func TestGenesisMigrates(t *testing.T) {
	runInTurn(t, 76, 8)
	ctx := needGenesisRun(t)
	e := newGenesisRun(ctx, t)
	e.migrates()
	target, err := NewSite(ctx,
		Options{Root: "..", Programs: programs(), Lab: e.Lab, Name: "target", NoStart: true, Image: e.image, Top: "site: {name: platform}\n"})
	require.NoError(t, err)
	target.keep(t)
	e.must(ctx, t, "genesis", "start", e.file, "--yes")
	begun, err := e.now(ctx)
	require.NoError(t, err)
	e.until(ctx, "migrate", func(o inventory.Operation, row inventory.OperationStep) bool {
		require.False(t, inventory.Final(o.State), "%s: %s", o.Step, o.Message)
		return row.State != inventory.StepPending
	})
	for name, m := range e.machines {
		if strings.HasPrefix(name, "ms-") {
			require.Zero(t, m.PowerOns(), "%s before the server has moved", name)
		}
	}
	secrets := e.runs(ctx, target)
	eventually(ctx, t, "the site at the target", func() bool {
		return target.is().Role == handover.Active && e.is().Role == handover.Retired
	})
	require.NoError(t, target.WaitReady(ctx))

	// Only the target knows the rest.
	at := &genesisRun{Site: target, t: t, machines: e.machines, file: e.file}
	if file := os.Getenv("INGOT_PICTURE"); file != "" {
		at.picture(ctx, file)
	}
	o := at.ends(ctx)
	at.whole(ctx, o)
	require.Equal(t, begun.Run, o.Run, "the very run that began on the NAS")
	for id, activities := range map[string][]string{
		"genesis/home":     {"RouterReady", "DeployTarget", "Migrated", "ClusterHas"}, // of both, in one history
		"migrate/platform": {"SyncImages", "AwaitHandOver", "VerifyMoved"},
	} {
		said, err := target.TemporalCLI(ctx, "workflow", "describe", "--workflow-id", id, "-o", "json")
		require.NoError(t, err)
		require.Contains(t, said, "WORKFLOW_EXECUTION_STATUS_COMPLETED", id)
		history, err := target.TemporalCLI(ctx, "workflow", "show", "--workflow-id", id, "-o", "json")
		require.NoError(t, err)
		for _, activity := range activities {
			require.Contains(t, history, `"`+activity+`"`, id)
		}
		t.Logf("at the target, temporal workflow show: %s, %d events", id, strings.Count(history, `"eventId"`))
		for _, secret := range secrets {
			require.NotContains(t, readable(t, history), secret, "S44: %s", id)
		}
	}
	list, err := target.TemporalCLI(ctx, "workflow", "list")
	require.NoError(t, err)
	t.Logf("at the target, temporal workflow list:\n%s", list)
	for name, m := range e.machines {
		if strings.HasPrefix(name, "ms-") {
			require.Equal(t, 1, m.PowerOns(), "%s was installed once", name)
			calls := m.AMT().Calls()
			require.Contains(t, calls, "ChangeBootOrder CIM_BootConfigSetting")
			require.Contains(t, calls, "RequestPowerStateChange 2")
		}
	}

	// The target has served them, and the source reports where it is.
	asked, err := os.ReadFile(filepath.Join(target.dir, "ingot.log"))
	require.NoError(t, err)
	before, err := os.ReadFile(filepath.Join(e.dir, "ingot.log"))
	require.NoError(t, err)
	e.without("the log on the NAS", string(before))
	for _, x := range []string{"a", "b", "c"} {
		mac := e.machines["ms-02-"+x].Spec().MAC
		require.Contains(t, string(asked), mac, "the target's DHCP")
		require.NotContains(t, string(before), mac, "the NAS's DHCP")
	}
	config, err := e.guest(ctx, http.MethodGet, lab.DirectGateway, "/config")
	require.NoError(t, err)
	require.Contains(t, config, lab.TargetAddress, "the router relays to the target")
	require.NotContains(t, config, lab.SeedAddress, "and to it alone")
	require.Zero(t, temporalOf(e.Site))
	st, err := e.quiet(ctx)
	require.NoError(t, err)
	require.NotNil(t, st.Successor)
	require.Equal(t, "platform", st.Successor.Name)
	if *realFirmware {
		e.injected(ctx)
		require.Contains(t, e.HomeLeases(), e.machines["vp6630"].Spec().MAC, "the home router has offered an address as well")
	}
}
