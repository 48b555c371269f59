package importfile

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

var update = flag.Bool("update", false, "write the golden files again")

// samples are files of testdata that are read together, by the name of their golden file.
// They hold every kind that is read, in each form that it has elsewhere.
var samples = map[string][]string{
	"tinkerbell": {"tinkerbell.yaml"},
	"v1alpha2":   {"v1alpha2.yaml"},
	"eksa":       {"eksa.yaml", "hardware.csv"},
}

// readSamples returns files of testdata.
func readSamples(t testing.TB, names []string) []File {
	t.Helper()
	var files []File
	for _, name := range names {
		b, err := os.ReadFile("testdata/" + name)
		require.NoError(t, err)
		files = append(files, File{name, b})
	}
	return files
}

// TestSamples: what each sample becomes is in a golden file: every field, every template,
// every command, and every key that is ignored.
func TestSamples(t *testing.T) {
	for name, files := range samples {
		t.Run(name, func(t *testing.T) {
			got, err := Read(readSamples(t, files))
			require.NoError(t, err)
			text := describe(t, got)

			compareGolden(t, "testdata/"+name+".golden", text)
		})
	}
}

// compareGolden compares text with a golden file, which -update writes.
func compareGolden(t *testing.T, file, text string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), text)
}

// describe returns an import as text, with its secrets.
func describe(t testing.TB, i Import) string {
	t.Helper()
	var b strings.Builder
	for _, m := range i.Machines {
		raw, err := json.MarshalIndent(m.Machine, "", "  ")
		require.NoError(t, err)
		fmt.Fprintf(&b, "%s: machine %s\n", m.Place, raw)
		secrets := []struct {
			name   string
			secret inventory.Secret
		}{{"userData", m.UserData}, {"vendorData", m.VendorData}}
		if m.BMC != nil {
			secrets = append(secrets, struct {
				name   string
				secret inventory.Secret
			}{"bmc.password", m.BMC.Password})
		}
		for _, s := range secrets {
			if !s.secret.IsZero() {
				fmt.Fprintf(&b, "%s = %q\n", s.name, s.secret.Reveal())
			}
		}
	}
	for _, x := range i.Templates {
		fmt.Fprintf(&b, "\n%s: template %s\n%s", x.Place, x.Name, x.Source)
	}
	b.WriteString("\n")
	for _, s := range i.Starts {
		fmt.Fprintf(&b, "%s: %s starts with: %s\n", s.Place, s.Object, s.Command)
	}
	for _, x := range i.Ignored {
		fmt.Fprintf(&b, "%s: %s: %s is ignored: %s\n", x.Place, x.Object, x.Key, x.Why)
	}
	return b.String()
}

// TestSamplesAgain: what a sample becomes is exported and imported to an equal state.
func TestSamplesAgain(t *testing.T) {
	for name, files := range samples {
		t.Run(name, func(t *testing.T) {
			first, err := Read(readSamples(t, files))
			require.NoError(t, err)
			ms, ts := stored(first)
			exported, err := Export(ms, ts)
			require.NoError(t, err)
			for _, m := range first.Machines {
				for _, s := range []inventory.Secret{m.UserData, m.VendorData} {
					require.False(t, !s.IsZero() && strings.Contains(string(exported), s.Reveal()), "a secret is exported")
				}
				require.False(t, m.BMC != nil && !m.BMC.Password.IsZero() && strings.Contains(string(exported), m.BMC.Password.Reveal()))
			}

			second, err := Read([]File{{"site.yaml", exported}})
			require.NoError(t, err, "%s", exported)
			require.Empty(t, second.Ignored)
			require.Empty(t, second.Starts)
			msAgain, tsAgain := stored(second)
			require.Equal(t, ts, tsAgain)
			require.Equal(t, ms, msAgain)
			for n, m := range second.Machines {
				changes, err := inventory.Differences(ms[n], m.Machine)
				require.NoError(t, err)
				require.Empty(t, changes)
			}

			again, err := Export(msAgain, tsAgain)
			require.NoError(t, err)
			require.Equal(t, string(exported), string(again))
		})
	}
}

// stored returns an import as the inventory shows it: without secrets.
func stored(i Import) (ms []inventory.Machine, ts []inventory.Template) {
	for _, m := range i.Machines {
		ms = append(ms, documentOf(m.Machine))
	}
	for _, x := range i.Templates {
		ts = append(ts, x.Template)
	}
	return ms, ts
}
