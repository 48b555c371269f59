package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

func load(t *testing.T, text string) (Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ingot.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return Load(file, true)
}

func TestPowerCommands(t *testing.T) {
	c, err := load(t, `power:
  commands:
    plug:
      on: [/usr/local/bin/plug, "on", "{machine}"]
      off: [/usr/local/bin/plug, "off", "x={machine},{host}"]
      status: [/usr/local/bin/plug, status]
      timeout: 10s
`)
	require.NoError(t, err)
	require.Equal(t, PowerCommand{
		On: []string{"/usr/local/bin/plug", "on", "{machine}"}, Off: []string{"/usr/local/bin/plug", "off", "x={machine},{host}"},
		Status: []string{"/usr/local/bin/plug", "status"}, Timeout: 10 * time.Second,
	}, c.Power.Commands["plug"])
}

// TestPowerCommandsThatAreWrong: all at once, with their lines.
func TestPowerCommandsThatAreWrong(t *testing.T) {
	_, err := load(t, `power:
  commands:
    a:
      on: [plug, "{password}"]
      off: [/bin/../bin/plug]
      timeout: 1h
    b:
      on: ["{host}/x"]
      off: [/bin/plug]
      status: [/bin/plug]
      shell: true
    "c d": {on: [/x], off: [/x], status: [/x]}
`)
	require.ErrorIs(t, err, inventory.ErrInvalid)
	text := err.Error()
	for _, want := range []string{
		"ingot.yaml:4", "power.commands.a.on[0]", "power.commands.a.on[1]", "unknown placeholder {password}", "power.commands.a.off[0]", "power.commands.a.status", "power.commands.a.timeout",
		"power.commands.b.on[0]", "shell", `invalid command name "c d"`,
	} {
		require.Contains(t, text, want)
	}
}

// TestExamplePowerCommandsCanBeRead: the text behind the # can be read.
func TestExamplePowerCommandsCanBeRead(t *testing.T) {
	_, example, ok := strings.Cut(Example, "#power:\n")
	require.True(t, ok)
	example, _, _ = strings.Cut(example, "\n\n")
	c, err := load(t, "power:\n"+strings.ReplaceAll(example, "#  ", "  "))
	require.NoError(t, err)
	require.Len(t, c.Power.Commands, 1)
}
