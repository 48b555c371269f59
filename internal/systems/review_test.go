package systems

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

const examples = "../../deploy/genesis"

func example(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(examples, name))
	require.NoError(t, err)
	return b
}

// problems returns what Check finds, as "line field".
func problems(t *testing.T, kind string, contents string) inventory.Problems {
	t.Helper()
	err := CheckDocument(kind, "doc", []byte(contents))
	var p inventory.Problems
	if err != nil {
		require.ErrorAs(t, err, &p)
		require.ErrorIs(t, err, inventory.ErrInvalid)
	}
	for _, x := range p {
		require.Equal(t, "doc", x.File)
		require.NotEmpty(t, x.What)
	}
	return p
}

func TestExamplesAreRight(t *testing.T) {
	for name, kind := range map[string]string{
		"config.boot": inventory.DocumentVyOS, "talos.yaml": inventory.DocumentTalos, "harvester-create.yaml": inventory.DocumentHarvester, "harvester-join.yaml": inventory.DocumentHarvester,
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, CheckDocument(kind, name, example(t, name)))
			require.Empty(t, warningsOf(t, kind, name, example(t, name)))
		})
	}
}

func TestKinds(t *testing.T) {
	for kind := range table {
		require.Contains(t, inventory.DocumentKinds(), kind)
	}
	for _, kind := range inventory.DocumentKinds() {
		require.NotEmpty(t, problems(t, kind, " \n"), "an empty %s", kind)
		require.NotEmpty(t, problems(t, kind, "a\x00b"), "binary %s", kind)
		require.NotEmpty(t, problems(t, kind, strings.Repeat("#", maxDocument+1)), "a big %s", kind)
	}
	require.Empty(t, problems(t, inventory.DocumentText, "{{ what ever"))
	require.Contains(t, problems(t, "ignition", "{}").Error(), "harvester, talos, text, vyos")
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(file, got, 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

// S25: whatever is wrong with a document, no message repeats a secret of it.
func TestS25NoSecretInMessages(t *testing.T) {
	const canary = "CANARY-7f3a9c1e"
	spoil := func(doc string) []string {
		out := []string{doc}
		for i, l := range strings.Split(doc, "\n") {
			if len(doc) > 5000 && i%5 != 0 && !strings.Contains(l, canary) {
				continue // Talos' is long, and its loader thorough
			}
			lines := strings.Split(doc, "\n")
			for _, with := range []string{l + " spoiled", strings.Replace(l, ": ", ": [spoiled, ", 1), strings.Replace(l, ":", "x:", 1), "", l + "\n" + l, "token: {a: " + canary + "}"} {
				lines[i] = with
				out = append(out, strings.Join(lines, "\n"))
			}
		}
		return out
	}
	plant := map[string]struct {
		kind string
		r    *strings.Replacer
	}{
		"config.boot": {
			inventory.DocumentVyOS,
			strings.NewReplacer("EXAMPLE-make-your-own-with-openssl-rand-hex-32", canary, "$6$EXAMPLE$make.your.own.with.mkpasswd", canary),
		},
		"harvester-create.yaml": {inventory.DocumentHarvester, strings.NewReplacer(
			"EXAMPLE-the-same-on-all-three-nodes", canary, "password: EXAMPLE-make-your-own", "password: "+canary)},
		"talos.yaml": {inventory.DocumentTalos, strings.NewReplacer("juhpdl.xwdywqkf0f05dato", canary)},
	}
	for name, c := range plant {
		t.Run(name, func(t *testing.T) {
			doc := c.r.Replace(string(example(t, name)))
			require.Contains(t, doc, canary)
			refused := 0
			for _, bad := range spoil(doc) {
				p, warnings := Review(c.kind, name, []byte(bad))
				if len(p) > 0 {
					refused++
				}
				for _, p := range append(p, warnings...) {
					require.NotContains(t, p.String(), canary)
				}
			}
			require.Greater(t, refused, 20)
		})
	}
}

// warningsOf returns the warnings about a document that has no problems.
func warningsOf(t *testing.T, kind, file string, contents []byte) inventory.Problems {
	t.Helper()
	problems, warnings := Review(kind, file, contents)
	require.Empty(t, problems)
	return warnings
}
