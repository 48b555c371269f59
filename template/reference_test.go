package template

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every function that a template can call has an example that runs, and there are no other
// examples.
func TestEveryFunctionHasAnExample(t *testing.T) {
	examples, err := FunctionReference(t.Context())
	require.NoError(t, err)
	described := map[string]bool{}
	for _, x := range examples {
		require.False(t, described[x.Name], "two examples of %s", x.Name)
		described[x.Name] = true
	}

	builtin := []string{"and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "index", "len"} // of text/template
	callable := maps.Clone(functions(newGuard(t.Context())))
	for _, name := range builtin {
		require.True(t, described[name], name)
		delete(described, name)
	}
	for name := range callable {
		if base, ok := strings.CutPrefix(name, "must"); ok {
			name = strings.ToLower(base[:1]) + base[1:]
		}
		require.True(t, described[name], "no example of %s", name)
	}
	for name := range described {
		require.Contains(t, callable, name)
	}
	require.True(t, slices.IsSorted(MustFunctions()))
}

// Every name in the data is described, and each described expression gives its example.
func TestEveryDatumIsDescribed(t *testing.T) {
	d := ExampleData()
	values, err := d.values()
	require.NoError(t, err)
	described := map[string]bool{}
	for _, x := range DataReference() {
		require.NotEmpty(t, x.Text, x.Go)
		for _, expression := range []string{x.Go, x.JSON} {
			if expression == "" {
				continue
			}
			out, err := execute(t.Context(), "t", "{{ "+expression+" | toJson }}", values)
			require.NoError(t, err, expression)
			want, err := execute(t.Context(), "t", "{{ .x | toJson }}", map[string]any{"x": x.Example})
			require.NoError(t, err)
			require.Equal(t, want.text, out.text, expression)
			described[strings.NewReplacer("(index ", "", " 0)", "").Replace(expression)] = true
		}
	}

	var leaves func(path string, v any) []string
	leaves = func(path string, v any) (out []string) {
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				out = append(out, leaves(path+"."+k, x)...)
			}
			return out
		case []any:
			if m, ok := v[0].(map[string]any); ok {
				return leaves(path, m)
			}
		}
		return []string{path}
	}
	short := strings.NewReplacer( // the same values at other places in .hardware
		".hardware.spec.interfaces", ".hardware.interfaces")
	for _, path := range leaves("", values) {
		require.True(t, described[short.Replace(path)], path)
	}
}
