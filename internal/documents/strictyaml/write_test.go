package strictyaml

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/text/human"
)

// FuzzFromJSON: text survives the way from JSON to YAML and back, and is safe on a terminal.
func FuzzFromJSON(f *testing.F) {
	for _, s := range []string{
		"", "a", "12", "true", "~", "a\nb", "a\nb\n", "\n a\n\n", "  a\nb", "a \nb", "a\tb\n", "\r\n", "a: b\n# c\n", "'", "\"\\", "- a",
		"\u202ea\nb", "\u0085", "\x00", strings.Repeat("x y ", 100), "---\na", "a\n---\nb\n", "é\n", "%a", "\ufeffa\nb", "a\n\n\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		raw, err := json.Marshal(map[string]any{"a": s, "b": []string{s}, "c": map[string]any{"d": s, "e": 1}})
		require.NoError(t, err)
		var want, got map[string]any
		require.NoError(t, json.Unmarshal(raw, &want))

		b, err := FromJSON(raw)
		require.NoError(t, err)
		require.False(t, strings.ContainsFunc(string(b), func(r rune) bool { return r != '\n' && human.Dangerous(r) }), "%q", b)
		require.NoError(t, Decode("f", b, &got), "%s", b)
		gotJSON, err := json.Marshal(got)
		require.NoError(t, err)
		wantJSON, err := json.Marshal(want)
		require.NoError(t, err)
		require.Equal(t, string(wantJSON), string(gotJSON), "%s", b)
	})
}
