package template

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// FuzzS14TemplateValues: with any value from a hardware map or a machine, the rendered template has
// the same tasks, actions, images, time-outs and variables as with harmless text, or it is refused
// with file, line or field. This is S16, too.
func FuzzS14TemplateValues(f *testing.F) {
	for _, x := range []string{
		"r7", "two words", "1\n      - name: b\n        image: wipe", "1\r\n      - name: b\r        image: wipe", "1\n        timeout: 1",
		"x }, image: wipe, y: {", "1}, volumes: [/:/]",
		"a; reboot", "a && reboot", "a || reboot", "#!/bin/sh", "${HOME}", "$(id)", `"`, "'", "\"\n  - x", "{{ .image }}", "!!binary aGk=", "&a",
		"*a", "<<: *a", "| \n x", "> \n x", "- x", "? x", ": x", "%YAML 1.1", "---\nname: x",
		"\u2028- x", "\u0085- x", "\x00", "\x7f", "\ufeff", "\xff", "~", "null", "yes", "0x10", "1e3", "# x", " #x", "@x", "`x`", "\t- x",
		"a, b", "a: b", "[a]", "{a: b}", strings.Repeat("a", 1000),
	} {
		f.Add(x)
	}
	forms := map[string]string{
		"bare":    frame + "      - name: a\n        image: noop\n        environment:\n          X: {{ .x }}\n",
		"quoted":  frame + "      - name: a\n        image: noop\n        environment: {X: \"{{ .x }}\"}\n",
		"single":  frame + "      - name: a\n        image: noop\n        environment: {X: '{{ .x }}'}\n",
		"flow":    frame + "      - {name: a, image: noop, environment: {X: {{ .x }}}}\n",
		"block":   frame + "      - name: a\n        image: noop\n        environment:\n          X: |\n            before {{ .x }}\n",
		"json":    frame + "      - name: a\n        image: noop\n        environment: {X: {{ .x | toJson }}}\n",
		"list":    frame + "      - name: a\n        image: noop\n        command: [sh, {{ .x }}]\n",
		"handler": frame + "      - name: a\n        image: noop\n        on-failure: [writefile, DEST_PATH=/x, CONTENTS={{ .x }}]\n",
		"echo":    frame + "      - name: a\n        image: noop\n        on-timeout: [echo, {{ .x }}]\n",
		"label":   frame + "      - name: a\n        image: noop\n        environment:\n          X: {{ index .Hardware.Labels \"x\" }}\n",
		"key":     frame + "      - name: a\n        image: noop\n        environment:\n          X: {{ index .Hardware.Metadata.Instance.SSHKeys 0 }}\n",
	}
	filled := func(x string) Data {
		d := data()
		d.HardwareMap = map[string]string{"x": x}
		d.Machine.Labels, d.Machine.SSHKeys = map[string]string{"x": x}, []string{x}
		return d
	}
	f.Fuzz(func(t *testing.T, x string) {
		for _, name := range slices.Sorted(maps.Keys(forms)) {
			if x == "" && (name == "list" || name == "echo") {
				continue // an empty value adds nothing
			}
			want, err := Render(t.Context(), name, forms[name], filled("harmless"))
			require.NoError(t, err, name)
			got, err := Render(t.Context(), name, forms[name], filled(x))
			if err != nil {
				var p inventory.Problems
				require.True(t, errors.As(err, &p) && len(p) > 0, "%s: %v", name, err)
				require.True(t, p[0].Line > 0 || p[0].Field != "" || p[0].File != "", "%s: %v says not where", name, p[0])
				continue
			}
			require.Len(t, got.Actions, len(want.Actions), "%s: %q", name, x)
			require.Equal(t, want.Name, got.Name)
			require.Equal(t, want.GlobalTimeout, got.GlobalTimeout)
			require.Equal(t, want.DiskAlias, got.DiskAlias)
			for i, a := range got.Actions {
				b := want.Actions[i]
				require.Equal(t, []any{b.Name, b.Task, b.Image, b.Timeout, len(b.Command), slices.Sorted(maps.Keys(b.Environment))},
					[]any{a.Name, a.Task, a.Image, a.Timeout, len(a.Command), slices.Sorted(maps.Keys(a.Environment))}, "%s: %q", name, x)
				require.Equal(t, []string{handlerShape(b.OnFailure), handlerShape(b.OnTimeout)},
					[]string{handlerShape(a.OnFailure), handlerShape(a.OnTimeout)}, "%s: %q", name, x)
				for k, v := range a.Environment {
					if k != "X" {
						require.Equal(t, b.Environment[k], v, "%s: %q", name, x)
					}
				}
			}
		}
	})
}
