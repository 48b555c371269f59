package e2e

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestHandlers lets an action fail, and another one time out, behind an image that was written: on-failure wipes the disk,
// on-timeout outlasts the server's wait for an action without handlers. Both runs end with the first error.
func TestHandlers(t *testing.T) {
	runInTurn(t, 45, 2)
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "sim", image.Zst)
	for name, last := range map[string]string{
		"failing": `{name: last, image: noop, timeout: 60, environment: {EXIT: "3", MESSAGE: "the first error"}, on-failure: [wipe]}`,
		"late":    `{name: last, image: noop, timeout: 2, environment: {SLEEP: "500"}, on-timeout: [noop, SLEEP=35, "LOG=it is late"]}`,
	} {
		s.template(ctx, t, name, `version: "0.1"
name: `+name+`
tasks:
- name: install
  worker: "{{.device_1}}"
  actions:
  - {name: write, image: image2disk, timeout: 300, environment: {IMG_URL: "{{.image.url}}"}}
  - `+last+"\n")
		spec := lab.Spec{Name: name, Firmware: lab.Simulated, Agent: filepath.Join(s.bin, "worker-agent")}
		m, err := s.Add(ctx, spec, func(doc map[string]any) { doc["image"], doc["template"] = "sim", name })
		require.NoError(t, err)
		_, err = s.Provision(ctx, contract.ProvisionInput{Machine: name})
		require.NoError(t, err)
		if name == "failing" {
			w := s.ended(ctx, t, name, inventory.StateFailed)
			require.Equal(t, "the first error", w.Actions[1].Message)
			require.Equal(t, action.Failed, w.Actions[1].State)
			log := s.must(ctx, t, "workflow", "logs", name, "--action", "last")
			require.Contains(t, log, "on-failure: begins (wipe)")
			require.Contains(t, log, "on-failure: done")
			require.True(t, blankStart(t, m.DiskPath()), "the image is still on the disk")
			s.closed(ctx, t, name)
			continue
		}

		w := s.ended(ctx, t, name, inventory.StateTimeout)
		require.Equal(t, "the action has exceeded its timeout", w.Actions[1].Message)
		log := s.must(ctx, t, "workflow", "logs", name, "--action", "last")
		require.Contains(t, log, "it is late")
		require.Contains(t, log, "on-timeout: done")
		require.False(t, blankStart(t, m.DiskPath()), "no wipe was requested")
		require.Equal(t, 1, m.Writers())
		s.closed(ctx, t, name)
	}
}

// blankStart reports whether the first MiB of a disk is zero.
func blankStart(t *testing.T, file string) bool {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	b := make([]byte, 1<<20)
	_, err = io.ReadFull(f, b)
	require.NoError(t, err)
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}
