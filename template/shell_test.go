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
			require.ErrorContains(t, err, "CMD_LINE: a shell would run the template's data as commands", environment)
		} else {
			require.NoError(t, err, environment)
		}
	}

	const last = "version: \"0.1\"\nname: t\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n  - name: a\n    image: noop\n"
	for handler, wrong := range map[string]bool{
		`[cexec, "CMD_LINE=echo {{.device_1}}", "DEFAULT_INTERPRETER=/bin/sh -c"]`:              true,
		`[cexec, "DEFAULT_INTERPRETER=/bin/sh -c", "{{.word}}"]`:                                true,
		`[cexec, "CMD_LINE=echo {{.device_1}}", "{{.word}}"]`:                                   true,
		`["{{.word}}", "CMD_LINE=echo {{.device_1}}", "DEFAULT_INTERPRETER=sh -c"]`:             true,
		`[cexec, "CMD_LINE=echo {{.device_1}}", "{{if true}}DEFAULT_INTERPRETER{{end}}=sh -c"]`: true,
		`[cexec, "CMD_LINE=echo {{.device_1}}"]`:                                                false,
		`[cexec, "CMD_LINE=echo x", "DEFAULT_INTERPRETER=/bin/sh -c"]`:                          false,
		`[echo, "DEFAULT_INTERPRETER=x {{.device_1}}"]`:                                         false,
		`[writefile, DEST_PATH=/x, "CONTENTS={{.device_1}}"]`:                                   false,
	} {
		for _, key := range []string{"on-failure", "on-timeout"} {
			_, err := Parse("f", []byte(last+"    "+key+": "+handler+"\n"))
			if wrong {
				require.ErrorContains(t, err, key+": a shell would run the template's data as commands", handler)
			} else {
				require.NoError(t, err, handler)
			}
		}
	}
}
