package action

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCommands: words and commands are told apart as in a shell, and nothing is expanded.
func TestCommands(t *testing.T) {
	for text, want := range map[string][][]string{
		"true":                          {{"true"}},
		" a  b\tc ; d;;e\nf ":           {{"a", "b", "c"}, {"d"}, {"e"}, {"f"}},
		`a "b c" 'd;e' f"g h"i ""`:      {{"a", "b c", "d;e", "fg hi", ""}},
		`a \; "\"" '\' b\ c $HOME $(x)`: {{"a", ";", `"`, `\`, "b c", "$HOME", "$(x)"}},
		`update-grub; echo "a|b" c&d`:   {{"update-grub"}, {"echo", "a|b", "c&d"}},
	} {
		got, err := Commands(map[string]string{CommandVariable: text})
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	got, err := Commands(map[string]string{CommandVariable: `a && b "c`, InterpreterVariable: "/bin/sh -e -c"})
	require.NoError(t, err)
	require.Equal(t, [][]string{{"/bin/sh", "-e", "-c", `a && b "c`}}, got)

	for text, says := range map[string]string{
		"": "it is missing", " \n": "it is missing", `a "b`: "a quote is not closed", `a\`: "a quote is not closed",
		"a && b": "need a shell", "a | b": "need a shell", "a > b": "need a shell", "a\x00b": "zero byte",
	} {
		_, err := Commands(map[string]string{CommandVariable: text})
		require.ErrorContains(t, err, says, text)
	}
	_, err = Commands(map[string]string{CommandVariable: "a", InterpreterVariable: "/bin/sh -c; reboot"})
	require.ErrorContains(t, err, "must be one program")
}
