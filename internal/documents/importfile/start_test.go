package importfile

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// TestS42CommandsAreQuoted: whatever a document says, a shell reads the command of a Start as
// words, and --hardware-map reads the key and value of the document.
func TestS42CommandsAreQuoted(t *testing.T) {
	for _, value := range []string{
		"a", "", "a b", "it's", "$(reboot)", "`reboot`", "; reboot", "a\\", "*", "~", "#a", "a,b=c", "a=b", `a="b",c=d`, "!1", "|&<>", "ü",
	} {
		text, err := json.Marshal(map[string]any{
			"apiVersion": "tinkerbell.org/v1alpha1", "kind": "Workflow", "metadata": map[string]any{"name": "w"},
			"spec": map[string]any{"templateRef": "t", "hardwareRef": "n", "hardwareMap": map[string]string{"key": value}},
		})
		require.NoError(t, err)
		got, err := Read([]File{{"f", text}})
		require.NoError(t, err, value)
		require.Len(t, got.Starts, 1)

		command, ok := strings.CutPrefix(got.Starts[0].Command, "ingot ")
		require.True(t, ok)
		out, err := exec.Command("sh", "-c", `printf '%s\0' `+command).Output()
		require.NoError(t, err)
		words := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		require.Equal(t, []string{"machine", "provision", "n", "--template", "t"}, withoutFlag(words))

		flags := pflag.NewFlagSet("ingot", pflag.ContinueOnError)
		read := flags.StringToString("hardware-map", nil, "")
		flags.String("template", "", "")
		require.NoError(t, flags.Parse(words), value)
		require.Equal(t, map[string]string{"key": value}, *read)
	}
}

// withoutFlag returns words without --hardware-map and its value.
func withoutFlag(words []string) (out []string) {
	for i := 0; i < len(words); i++ {
		if words[i] == "--hardware-map" {
			i++
			continue
		}
		out = append(out, words[i])
	}
	return out
}

// TestWorkflowForSeveralMachines: the machines of a hardware map carry out the template together.
func TestWorkflowForSeveralMachines(t *testing.T) {
	text := hardwareText("n", mac1, "") + hardwareText("m", mac2, "") + head("Template", "t") + "spec:\n  data: |\n" + templateData +
		"      - name: other\n        worker: \"{{.device_2}}\"\n        actions:\n          - {name: a, image: noop, timeout: 60}\n"
	of := func(ref, devices string) string {
		return text + head("Workflow", "k3s") + "spec:\n  templateRef: t\n" + ref + "  hardwareMap:\n    version: \"1\"\n" + devices
	}
	const two = "    device_1: " + mac1 + "\n    device_2: " + mac2 + "\n"
	const want = "ingot together start k3s --template t --hardware-map device_1=" + mac1 + " --hardware-map device_2=" + mac2
	for name, x := range map[string]struct{ text, command string }{
		"two machines":        {of("", two), want + " --hardware-map version=1"},
		"and one of them":     {of("  hardwareRef: m\n", two), want + " --hardware-map version=1"},
		"and one not in file": {of("", two+"    device_3: 02:00:00:00:00:09\n"), want + " --hardware-map device_3=02:00:00:00:00:09 --hardware-map version=1"},
		"one machine":         {of("", "    device_1: "+mac1+"\n    device_2: 02:00:00:00:00:09\n"), "ingot machine provision n --template t --hardware-map version=1"},
	} {
		got, err := Read([]File{{"f", []byte(x.text)}})
		require.NoError(t, err, name)
		require.Len(t, got.Starts, 1, name)
		require.Equal(t, x.command, got.Starts[0].Command, name)
		require.Len(t, got.Templates, 1, name)
	}
}
