package workflows_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// A run claims what it has grounds for: a system only if an action writes one, an image only if it is written, and evidence only
// once it has succeeded.
func TestRecordClaimsWhatTheRunReached(t *testing.T) {
	const image = "{name: write, image: image2disk, timeout: 60}"
	for name, c := range map[string]struct {
		actions, image, evidence, message string
		noSystem                          bool
	}{
		"nothing is written":     {"{name: try, image: noop, timeout: 60}", "", "", "finished: nothing was installed", true},
		"the disk is wiped":      {"{name: clear, image: wipe, timeout: 60}", "", "", "finished: nothing was installed", true},
		"a file is written":      {"{name: file, image: writefile, timeout: 60, environment: {DEST_PATH: /x, CONTENTS: y}}", "", "", "finished: nothing was installed", true},
		"an image":               {image, "debian-12", "weak", "installed (evidence: weak): nothing shows that the installed system has started", false},
		"an image that reports":  {image + ", {name: seed, image: configdrive, timeout: 60}", "debian-12", "phone-home", "installed and ready (evidence: phone-home)", false},
		"a system that reports":  {"{name: seed, image: configdrive, timeout: 60}", "", "phone-home", "finished: nothing was installed; the system on the disk is ready (evidence: phone-home)", true},
		"an image of a registry": {"{name: oci, image: oci2disk, timeout: 60, environment: {IMG_URL: 'r.example/a@sha256:0000000000000000000000000000000000000000000000000000000000000001'}}", "", "weak", "installed (evidence: weak): nothing shows that the installed system has started", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			source := "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  actions: [" + c.actions + "]\n"
			require.NoError(t, w.Store.Templates.PutTemplate(t.Context(), inventory.Template{Name: "t", Source: source}, "test"))
			w.agentFor = func(a inventory.Assignment) *action.Result {
				require.Empty(t, w.record().Evidence, "the run is open")
				return &action.Result{Key: a.Key, State: action.Success}
			}
			require.NoError(t, w.run(contract.ProvisionInput{Machine: machine, Template: "t"}))
			r := w.record()
			require.Equal(t, inventory.StateSuccess, r.State)
			require.Equal(t, []any{c.image, c.evidence, c.message, c.noSystem}, []any{r.Image, r.Evidence, r.Message, r.NoSystem})
			require.Equal(t, c.evidence != "" && c.evidence != "weak", r.Proven())
		})
	}

	w := newWorld(t, nil)
	w.agentFor = func(a inventory.Assignment) *action.Result {
		return &action.Result{Key: a.Key, State: action.Failed, Message: "disk on fire"}
	}
	require.Error(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Empty(t, w.record().Evidence, "the run has failed")
	require.False(t, w.record().Proven())
}
