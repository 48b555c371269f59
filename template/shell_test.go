package template

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestS42NoDataInShellCommands: what a template takes from data is not read by a shell.
func TestS42NoDataInShellCommands(t *testing.T) {
	const head = "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n  - name: a\n    image: cexec\n    timeout: 9\n"
	for environment, wrong := range map[string]bool{
		`{CMD_LINE: "echo {{.device_1}}", DEFAULT_INTERPRETER: /bin/sh -c}`:                     true,
		`{CMD_LINE: "echo {{.device_1}}"}`:                                                      false, // one word, which nothing reads
		`{CMD_LINE: 'echo "$MAC"', DEFAULT_INTERPRETER: /bin/sh -c, MAC: "{{.device_1}}"}`:      false,
		`{CMD_LINE: "echo x", DEFAULT_INTERPRETER: "{{if .device_1}}/bin/sh -c{{end}}"}`:        false,
		`{CMD_LINE: "echo {{.device_1}}", DEFAULT_INTERPRETER: "{{if .device_1}}sh -c{{end}}"}`: true,
	} {
		_, err := Parse("f", []byte(head+"    environment: "+environment+"\n"))
		if wrong {
			require.ErrorContains(t, err, "CMD_LINE: a shell would read the template's data as commands", environment)
		} else {
			require.NoError(t, err, environment)
		}
	}
}
