package e2e

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestBinaryUserData: binary user data comes from a YAML file and is the same on the CIDATA volume, in the NoCloud seed
// and, by the machine's address, in the EC2 tree; also after the machine was read and pushed back.
func TestBinaryUserData(t *testing.T) {
	runInTurn(t, 40, 4)
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "sim", image.Zst)
	userData := make([]byte, 64<<10)
	_, _ = rand.Read(userData) // never returns an error: it ends the program instead
	userData[0] = 0            // not of gzip

	machines, gates := map[string]*lab.Machine{}, map[string]*lab.Gate{}
	file := filepath.Join(t.TempDir(), "machine.yaml")
	for name, template := range map[string]string{"volume": "image", "seed": "image-metadata"} {
		gates[name] = lab.NewGate(lab.StagePhoneHome)
		spec := lab.Spec{Name: name, Firmware: lab.Simulated, Agent: filepath.Join(s.bin, "worker-agent"), Stage: gates[name].Stage}
		machines[name], err = s.Add(ctx, spec, func(doc map[string]any) { doc["image"], doc["template"] = "sim", template })
		require.NoError(t, err)
		doc := s.must(ctx, t, "machine", "get", name, "--output", "yaml") +
			"userDataByAddress: true\nuserData: !!binary " + base64.StdEncoding.EncodeToString(userData) + "\n"
		for range 2 { // the second file says hasUserData
			require.NoError(t, os.WriteFile(file, []byte(doc), 0o600))
			out := s.must(ctx, t, "machine", "push", "--replace", "--file", file)
			require.Contains(t, out, "machine "+name)
			doc = s.must(ctx, t, "machine", "get", name, "--output", "yaml")
			require.Contains(t, doc, "hasUserData: true")
		}
		_, err = s.Provision(ctx, contract.ProvisionInput{Machine: name})
		require.NoError(t, err)
	}
	for _, gate := range gates {
		require.NoError(t, gate.Reached(ctx))
	}

	want := fmt.Sprintf("%x", sha256.Sum256(userData))
	disk := machines["volume"].DiskPath()
	number := 0 // of the partition CIDATA
	for n, label := range strings.Fields(partx(ctx, t, disk, "NAME")) {
		if strings.EqualFold(label, "cidata") {
			number = n + 1
		}
	}
	onVolume, err := s.Command(ctx, lab.Host, "mtype", "-i", fmt.Sprintf("%s@@%d", disk, startOf(ctx, t, disk, number)), "::user-data").
		Output()
	require.NoError(t, err)
	require.Equal(t, want, fmt.Sprintf("%x", sha256.Sum256(onVolume)))

	m := machines["seed"]
	_, seed, ok := strings.Cut(seedConfig(ctx, t, m), "seedfrom: ")
	require.True(t, ok)
	seed = strings.TrimSpace(seed)
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return s.DialContext(ctx, m.Namespace(), network, address)
	}}}
	for _, url := range []string{
		seed + "user-data", strings.TrimSuffix(seed, "nocloud/") + "latest/user-data", "http://" + lab.ServerAddress + ":7172/2009-04-04/user-data",
	} {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		require.NoError(t, err)
		answer, err := client.Do(request)
		require.NoError(t, err)
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, http.StatusOK, answer.StatusCode)
		require.Equal(t, want, fmt.Sprintf("%x", sha256.Sum256(body)))
	}
	client.CloseIdleConnections()
	for name, gate := range gates {
		gate.Open()
		s.ended(ctx, t, name, inventory.StateSuccess)
	}
}
