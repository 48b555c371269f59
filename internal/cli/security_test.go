package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// controlTexts returns texts that control a terminal, or forge a line on it.
func controlTexts() []string {
	return []string{
		"\x1b[2J\x1b[1;1Hroot#",
		"\x1b]0;title\x07",
		"\x1b]52;c;cm0gLXJmIC8=\x07",
		"\x9b31m",
		"\u009b31m",
		"\x1bP+q544e\x1b\\",
		"\x1b]8;;http://evil\x1b\\link",
		"a\rb",
		"a\bb",
		"\x00",
		"\u202egpj.exe",
		"\u2066x\u2069",
		"\x7f",
		"line\nforged: line",
		"\x0e\x0f",
		"\x05",
	}
}

// TestS47TerminalCapture: text from machines cannot control a terminal, in any output
// format.
func TestS47TerminalCapture(t *testing.T) {
	for _, form := range []string{"table", "json", "yaml", "name", "jsonpath={.name}"} {
		out := filepath.Join(t.TempDir(), "tty")
		f, err := os.Create(out)
		require.NoError(t, err)
		o := &Options{output: form}
		for _, text := range controlTexts() {
			c := &Call{Command: &cobra.Command{}, Options: o}
			c.SetOut(&terminal{file: f})
			require.NoError(t, ShowValue(c, map[string]string{"name": text}, func(w io.Writer) error {
				tab := NewTable(w, "SERIAL", "MODEL")
				tab.Row(text, text)
				return tab.Flush()
			}))
			_, err := fmt.Fprintln(c.OutOrStdout(), text) // a log is printed as it is
			require.NoError(t, err)
		}
		require.NoError(t, f.Close())
		b, err := os.ReadFile(out)
		require.NoError(t, err)
		require.NotEmpty(t, b)
		for _, r := range string(b) {
			if r != '\n' && r != '\t' && human.Dangerous(r) {
				t.Fatalf("%s: %U reaches the terminal: %q", form, r, b)
			}
		}
	}
}

// TestS47ColouredTable: a table with colours goes to the terminal itself, so its cells are safe before.
func TestS47ColouredTable(t *testing.T) {
	for _, text := range controlTexts() {
		var b strings.Builder
		table := Table{w: &b, colour: true}
		table.Row(text, State("FAILED"), State(text), text)
		require.NoError(t, table.Flush())
		rest := strings.NewReplacer("\x1b[31mFAILED\x1b[0m", "FAILED").Replace(b.String())
		require.Equal(t, 1, strings.Count(rest, "\n"), "%q", rest)
		require.False(t, strings.ContainsFunc(strings.TrimSpace(rest), human.Dangerous), "%q", rest)
	}
}

// TestS25MistakesInAFileRepeatNoSecret: errors about an unreadable document name lines and
// fields, never values.
func TestS25MistakesInAFileRepeatNoSecret(t *testing.T) {
	t.Setenv("INGOT_TOKEN", strings.Repeat("x", 40))
	for n, doc := range []string{
		"name: n1\nbmc: {driver: ipmi, host: 10.0.0.1, password: [canary, canary]}\n",
		"name: n1\nuserData: {a: canary}\nvendorData: [canary]\n",
		"name: n1\nuserData: |\n  x\n canary\n",
		"name: n1\nbmc: {password: \"canary\n",
		"name: n1\nbmc:\n  password: canary\n  password: canary2\n  passwort: canary\n",
		`{"name":"n1","bmc":{"password":"canary"}`,
		`{"name":"n1","bmc":{"driver":"ipmi","host":"h","password":"canary-that-is-longer-than-twenty"}}`,
		"name: n1\nbmc: {driver: ipmi, host: h, password: \"canary\\nx\"}\n",
		"name: n1\nbmc: canary\n",
		"name: n1\nuserData: !!binary canary!\n",
		"name: n1\nbmc: {driver: ipmi, host: h, user: admin, password:canary}\n",
		"name: n1\nbmc: {driver: ipmi, host: h, user: admin, password:canary, password:canary}\n",
		"name: n1\nbmc:\n  driver: ipmi\n  password:canary\n",
		"name: n1\nbmc: {driver: ipmi, host: h, user: admin, password canary}\n",
		"name: n1\nbmc: {driver: ipmi, host: h, user: admin, password=canary}\n",
		"name: n1\nbmc: {driver: ipmi, host: h, user: admin, password\tcanary, password\tcanary}\n",
		"name: n1\nbmc:\n  password=canary: x\n",
		`{"name": "n1", "bmc": {"password=canary": 1}}`,
		"name: n1\nbmc: {driver: ipmi, host: \"admin:canary@10.0.0.1\", user: admin, password: x}\n",
		"name: n1\nbmc: {driver: wol, host: \"admin:canary@10.0.0.1\"}\n",
		"name: n1\nbmc: {driver: rpc, host: h, consumerURL: \"http://admin:canary@h:x/\"}\n",
	} {
		file := filepath.Join(t.TempDir(), "machine.yaml")
		require.NoError(t, os.WriteFile(file, []byte(doc), 0o600))
		root := Root("test")
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs([]string{"machine", "push", "--server", "http://127.0.0.1:1", "--file", file})
		err := root.ExecuteContext(t.Context())
		require.ErrorIs(t, err, inventory.ErrInvalid, "document %d", n)
		require.NotContains(t, err.Error()+out.String(), "canary", "document %d", n)
	}
}
