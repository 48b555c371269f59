package template

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

const explained = `
version: "0.1"
name: t
tasks:
  - name: install
    worker: "{{ .device_1 }}"
    environment: {MODE: "0600", UID: "1", RACK: a1}
    actions:
      - {name: write, image: osie-installer}
      - name: file
        image: registry.example.com/tinkerbell/actions/writefile:v2
        timeout: 60
        environment: {DEST_PATH: /x, CONTENTS: "{{ .nonce }} hunter2", UID: "0"}
      - {name: seed, image: configdrive}
`

func TestExplanation(t *testing.T) {
	r, err := Render(t.Context(), "t", explained, data())
	require.NoError(t, err)
	e := r.Explanation
	require.Len(t, e.Actions, len(r.Actions))
	require.Equal(t, "the first disk that the machine declares", e.DiskAlias)
	require.Equal(t, "default", e.GlobalTimeout)

	write, file, seed, reboot := e.Actions[0], e.Actions[1], e.Actions[2], e.Actions[3]
	require.Equal(t, action.Image2Disk, write.Native)
	require.Equal(t, "osie-installer is another name of image2disk", write.Rule)
	require.Equal(t, "default of an action", write.Timeout)
	require.True(t, write.Writes)
	require.Equal(t, "image debian-12", write.Environment["IMG_URL"])
	require.Equal(t, "image debian-12", write.Environment["IMG_SHA256"])
	require.Equal(t, "the run's disk", write.Environment["DEST_DISK"])
	require.Equal(t, "the task; image2disk does not read this variable", write.Environment["RACK"])
	require.NotEmpty(t, write.Adds)

	require.Equal(t, "the name of the action; tinkerbell/actions/ is a repository of native actions; "+
		"registry.example.com counts as a mirror of the publisher's registry", file.Rule)
	require.Equal(t, "the template", file.Timeout)
	require.Equal(t, "the task", file.Environment["MODE"])
	require.Equal(t, "the action, which overrides the task", file.Environment["UID"])
	require.Equal(t, "not set: 0755", file.Environment["DIRMODE"])
	require.Equal(t, "the action; .nonce is filled in when the agent gets the action", file.Environment["CONTENTS"])
	require.Contains(t, seed.Environment["VENDOR_DATA"], "not set: the machine's, and a phone-home")

	require.Equal(t, action.Reboot, reboot.Native)
	require.NotEmpty(t, reboot.Appended)
	require.True(t, reboot.Leaves)

	b, err := json.Marshal(e)
	require.NoError(t, err)
	require.NotContains(t, string(b), "hunter2", "it contains no value")
	for _, ref := range refs {
		require.NotEmpty(t, secretTexts[ref])
	}
}

func TestExplanationOfAnInstaller(t *testing.T) {
	r, err := Render(t.Context(), "t", installing, data())
	require.NoError(t, err)
	require.Contains(t, r.Explanation.Installer, "kernel ")
	require.Contains(t, r.Explanation.Installer, "completed by webhook")
}

// Parse reports errors that do not depend on the machine, and no errors that depend on data.
func TestParseChecksEnvironments(t *testing.T) {
	const head = "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  environment: {MODE: \"9\"}\n  actions:\n"
	_, err := Parse("f", []byte(head+`  - {name: a, image: writefile, environment: {DEST_PATH: x, UID: root}}
  - {name: b, image: image2disk, environment: {IMG_SHA512: abc}}
  - {name: c, image: inject, environment: {FILES: '[{"path": "x"}]', WHERE: y}}
`))
	var ps inventory.Problems
	require.ErrorAs(t, err, &ps)
	got := map[string]int{}
	for _, p := range ps {
		got[p.Field] = p.Line
	}
	const env = "].environment."
	require.Equal(t, map[string]int{
		"tasks[0].actions[0" + env + "DEST_PATH": 7, "tasks[0].actions[0" + env + "CONTENTS": 7,
		"tasks[0].actions[0" + env + "UID": 7, "tasks[0].actions[0" + env + "MODE": 7, "tasks[0].actions[2" + env + "FILES": 9,
	}, got)

	for name, text := range map[string]string{
		"of data":        `  - {name: a, image: writefile, environment: {MODE: "{{ .mode }}", DEST_PATH: '{{ get .Hardware.Labels "p" }}', CONTENTS: ""}}` + "\n",
		"of a condition": "  {{ if .x }}\n  - {name: a, image: noop, environment: {MODE: x}}\n  {{ end }}\n  - {name: b, image: noop}\n",
		"in a condition": "  - name: a\n    image: writefile\n    environment: {DEST_PATH: /x, MODE: \"0600\"}\n#{{ if .x }}{{ end }}\n",
	} {
		_, err := Parse("f", []byte(head+text))
		require.NoError(t, err, name)
	}
}
