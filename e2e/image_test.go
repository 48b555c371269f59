package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// imageRoot builds the container image, and unpacks its root file system.
func imageRoot(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	require.NoError(t, lab.UnpackImage(imageFile(t), root))
	return root
}

// imageFile builds the container image with only a loopback interface that is down.
func imageFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ingot.oci.tar")
	out, err := exec.CommandContext(t.Context(), "unshare", "--net", "go", "run", "../deploy/image", "-bin", "../bin", "-out", file).
		CombinedOutput()
	require.NoError(t, err, string(out))
	t.Logf("%s", out)
	return file
}

// TestImage installs a machine behind the relay with a server in the container image, as on a NAS:
// with a read-only root, one capability, and only the kernel of this host.
func TestImage(t *testing.T) {
	runInTurn(t, 40, 4)
	ctx := needLab(t)
	root := imageRoot(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	s, err := NewSite(ctx,
		Options{Root: "..", Dir: keepDir(t), Programs: programs(), Home: true, Namespace: lab.Seed, RelayOnly: true, Image: root})
	require.NoError(t, err)
	s.keep(t)
	res, err := http.Get("http://" + s.API + "/healthz")
	require.NoError(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, `{"ok":true}`, string(b))
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/root", s.Pid()))
	require.NoError(t, err)
	require.Equal(t, root, exe, "the server does not run in the image")

	s.must(ctx, t, "image", "add", "sim", image.Zst)
	m, err := s.Add(ctx, lab.Spec{Name: "one", Firmware: lab.Simulated, Agent: filepath.Join(s.root, "bin/worker-agent")},
		func(doc map[string]any) { doc["image"], doc["template"] = "sim", "image-metadata" })
	require.NoError(t, err)
	_, err = s.Provision(ctx, contract.ProvisionInput{Machine: m.Name()})
	require.NoError(t, err)
	_, err = s.Follow(ctx, m.Name(), func(w inventory.Workflow) bool { return w.State == inventory.StateSuccess })
	require.NoError(t, err)
}
