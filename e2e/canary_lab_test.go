package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
)

// secretFields returns all exported fields of type inventory.Secret in the product's source,
// by package: through these fields secrets are received or stored.
func secretFields(t *testing.T, root string) []string {
	t.Helper()
	found := map[string]bool{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains([]string{"node_modules", "bin", "e2e", "lab"}, d.Name()) || len(d.Name()) > 2 && d.Name()[0] == '.'):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.StructType)
			if !ok {
				return true
			}
			for _, field := range s.Fields.List {
				for _, name := range field.Names {
					if name.IsExported() && isSecret(field.Type, f.Name.Name) {
						found[f.Name.Name+"."+name.Name] = true
					}
				}
			}
			return true
		})
		return nil
	}))
	return slices.Collect(maps.Keys(found))
}

// isSecret reports whether a type, in the source of a package, is a Secret or contains one.
func isSecret(x ast.Expr, pkg string) bool {
	switch x := x.(type) {
	case *ast.StarExpr:
		return isSecret(x.X, pkg)
	case *ast.ArrayType:
		return isSecret(x.Elt, pkg)
	case *ast.MapType:
		return isSecret(x.Value, pkg)
	case *ast.SelectorExpr:
		of, ok := x.X.(*ast.Ident)
		return ok && of.Name == "inventory" && x.Sel.Name == "Secret"
	case *ast.Ident:
		return pkg == "inventory" && x.Name == "Secret"
	}
	return false
}

// canaryLab is a lab file with a secret wherever one is possible. Its Genesis reaches the
// router, whose template fails.
const canaryLab = `# %[1]s
name: canary
seed: {address: 10.10.20.2, segment: 10.10.20.0/24}
network: {prefix: 10.10.30.0/24, gateway: 10.10.30.1}
images:
  - {name: sim, url: "%[2]s", sha256: %[3]s}
machines:
  - name: %[4]s
    template: fails
    config: config.boot
    vendorData: "%[5]s"
    interfaces: [{mac: "%[6]s", address: 10.10.20.77, netmask: 255.255.255.0, gateway: 10.10.20.1}]
    bmc: {driver: ipmi, host: %[7]s, user: %[8]s, cipherSuite: "3"}
    bmcPasswordFile: router.password
  - name: platform
    config: talos.yaml
    hardwareMap: {kernel: sim, initramfs: sim}
    interfaces: [{mac: "52:54:00:99:00:01", address: 10.10.30.11, netmask: 255.255.255.0, gateway: 10.10.30.1}]
    diskSelector: {serial: DISK-platform}
  - name: node
    config: node.yaml
    hardwareMap: {kernel: sim, initrd: sim, rootfs: sim}
    interfaces: [{mac: "52:54:00:99:00:02", address: 10.10.30.12, netmask: 255.255.255.0, gateway: 10.10.30.1}]
    diskSelector: {serial: DISK-node}
    bmc: {driver: amt, host: 10.10.30.12, user: admin}
    bmcPasswordFile: node.password
router: {machine: %[4]s, keyFile: vyos.key}
platform: {machine: platform, talosconfigFile: talosconfig}
cluster: {vip: 10.10.30.30, create: node, passwordFile: admin.password}
`

const canaryNode = `scheme_version: 1
token: %s
os: {hostname: node, password: %s}
install:
  mode: create
  management_interface: {interfaces: [{hwAddr: "52:54:00:99:00:02"}], method: dhcp}
  device: /dev/disk/by-id/nvme-DISK-node
  vip: 10.10.30.30
  vip_mode: static
  iso_url: http://10.10.20.2:7080/images/sim
`

// canaryFiles are the lab file and the files that it names.
func canaryFiles(t *testing.T, router *lab.Machine, sha256 string, secret func(what string) string) map[string]string {
	t.Helper()
	example := func(name string) string {
		b, err := os.ReadFile(filepath.Join("..", "deploy", "genesis", name))
		require.NoError(t, err)
		return string(b) + "# " + secret("lab file: "+name) + "\n"
	}
	spec := router.Spec()
	key := secret("lab file: the router's key")
	return map[string]string{
		"lab.yaml": fmt.Sprintf(
			canaryLab,
			secret("lab file: itself"),
			"http://"+lab.DirectGateway+"/sim?sig="+secret("lab file: an image's address"),
			sha256,
			spec.Name,
			secret("lab file: vendor-data"),
			spec.MAC,
			spec.BMCAddress,
			spec.BMCUser,
		),
		"config.boot": strings.NewReplacer(lab.SeedAddress, lab.ServerAddress, lab.DirectGateway, lab.RelayedGateway,
			lab.RouterHomeAddress, "10.10.20.77").
			Replace(lab.VyOSConfig(key)),
		"vyos.key":        key + "\n",
		"router.password": spec.BMCPassword + "\n",
		"talos.yaml": strings.NewReplacer("nvme-EXAMPLE_UM760_SSD_0001", "nvme-DISK-platform", "10.10.20.11", "10.10.30.11").
			Replace(example("talos.yaml")),
		"talosconfig":    strings.ReplaceAll(example("talosconfig"), "10.10.20.11", "10.10.30.11"),
		"node.yaml":      fmt.Sprintf(canaryNode, secret("lab file: the cluster's token"), secret("lab file: a node's password")),
		"node.password":  secret("lab file: AMT password") + "\n",
		"admin.password": secret("lab file: the cluster's password") + "\n",
	}
}

// beginGenesis stores a lab file and starts its Genesis; the store's answer is a searched place. A
// lab file with a password in an address is refused.
func (s *Site) beginGenesis(ctx context.Context, t *testing.T, found places, files map[string]string, password string) {
	t.Helper()
	var plan map[string]any
	bad := maps.Clone(files)
	bad["lab.yaml"] = strings.Replace(bad["lab.yaml"], "http://", "http://ingot:"+password+"@", 1)
	refusal := s.REST(ctx, http.MethodPut, "/v1/genesis/canary", map[string]any{"file": "lab.yaml", "files": bad}, nil)
	require.ErrorContains(t, refusal, "a URL must not contain a password")
	found["rest/refused/genesis"] = []byte(refusal.Error())
	require.NoError(t, s.REST(ctx, http.MethodPut, "/v1/genesis/canary", map[string]any{"file": "lab.yaml", "files": files}, &plan))
	require.Empty(t, plan["problems"])
	found["rest/stored/genesis"] = fmt.Append(nil, plan)
	require.NoError(t, s.REST(ctx, http.MethodPost, "/v1/genesis/canary/start", nil, nil))
}

// endGenesis waits until the Genesis asks about the router, whose run has failed, and ends it. It
// returns that run.
func (s *Site) endGenesis(ctx context.Context, t *testing.T) (run string) {
	t.Helper()
	status := func() (o inventory.Operation) {
		require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/genesis/canary/status", nil, &o))
		return o
	}
	eventually(ctx, t, "the Genesis asks about its router", func() bool {
		o := status()
		require.False(t, inventory.Final(o.State), "%s: %s", o.Step, o.Message)
		return o.Question != nil && strings.Contains(o.Question.Text, "step router")
	})
	for _, step := range status().Steps {
		if step.Name == "router" {
			run = step.Run
		}
	}
	s.must(ctx, t, "genesis", "cancel", "canary")
	eventually(ctx, t, "the end of the Genesis", func() bool { return inventory.Final(status().State) })
	return run
}

// pair creates a standby next to the site with that token, and pairs with it.
func (s *Site) pair(ctx context.Context, t *testing.T, found places, token string) *Site {
	t.Helper()
	o, err := NewSite(
		ctx,
		Options{
			Root:      "..",
			Programs:  programs(),
			Lab:       s.Lab,
			Name:      "standby",
			Namespace: lab.Seed,
			RelayOnly: true,
			NoStart:   true,
			Top:       "site: {name: standby}\n",
		},
	)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, o.Close()) })
	file := filepath.Join(o.dir, "etc/ingot/standby.token")
	require.NoError(t, os.WriteFile(file, []byte(token+"\n"), 0o600))
	said := o.must(ctx, t, "standby")
	found["cli/standby"] = []byte(said)
	require.NoError(t, o.Launch(ctx))
	fingerprint := strings.Fields(said[strings.Index(said, "fingerprint:"):])[1]
	eventually(ctx, t, "the standby is a peer", func() bool {
		said, err := s.CLI(
			ctx,
			"peer",
			"add",
			"standby",
			"https://"+lab.SeedAddress+":7444",
			"--fingerprint",
			fingerprint,
			"--peer-token-file",
			file,
		)
		found["cli/peer add"] = fmt.Append(found["cli/peer add"], said, err, "\n")
		return err == nil
	})
	return o
}

// allHistories collects Temporal's histories of all runs.
func (s *Site) allHistories(ctx context.Context, t *testing.T, found places, when string) {
	t.Helper()
	list, err := s.TemporalCLI(ctx, "workflow", "list", "-o", "json")
	require.NoError(t, err)
	found["list/"+when] = []byte(list)
	var runs []struct {
		Execution struct{ WorkflowID, RunID string }
	}
	require.NoError(t, json.Unmarshal([]byte(list), &runs))
	require.NotEmpty(t, runs)
	for _, r := range runs {
		for kind, args := range map[string][]string{
			"history/": {"show"}, "raw-history/": {"show", "--no-json-shorthand-payloads"}, "describe/": {"describe"},
		} {
			out, err := s.TemporalCLI(
				ctx,
				append(append([]string{"workflow"}, args...), "--workflow-id", r.Execution.WorkflowID, "--run-id",
					r.Execution.RunID, "-o", "json")...)
			require.NoError(t, err)
			found[kind+when+"/"+r.Execution.WorkflowID+"/"+r.Execution.RunID] = []byte(out)
		}
	}
}

// backUp creates an archive with a passphrase and collects the output.
func (s *Site) backUp(ctx context.Context, t *testing.T, found places, passphrase string) {
	t.Helper()
	dir := t.TempDir()
	file, words := filepath.Join(dir, "backup.tar"), filepath.Join(dir, "passphrase")
	require.NoError(t, os.WriteFile(words, []byte(passphrase+"\n"), 0o600))
	found["cli/backup"] = []byte(s.must(ctx, t, "backup", "--to", file, "--images", "--passphrase-file", words))
	found["cli/backup verify"] = []byte(s.must(ctx, t, "backup", "verify", file))
	_, parts := s.unpack(t, file)
	for name, path := range parts {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		found["backup/"+name] = b
	}
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	found["backup.tar"] = b
}
