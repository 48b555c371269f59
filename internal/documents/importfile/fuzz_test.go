package importfile

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/inventory"
)

func FuzzHardware(f *testing.F)       { fuzzKinds(f, "Hardware") }
func FuzzTemplate(f *testing.F)       { fuzzKinds(f, "Template") }
func FuzzWorkflow(f *testing.F)       { fuzzKinds(f, "Workflow") }
func FuzzController(f *testing.F)     { fuzzKinds(f, "Secret", "Machine", "Hardware") }
func FuzzTask(f *testing.F)           { fuzzKinds(f, "Task") }
func FuzzJob(f *testing.F)            { fuzzKinds(f, "Job") }
func FuzzStack(f *testing.F)          { fuzzKinds(f, "") }
func FuzzTemplateConfig(f *testing.F) { fuzzKinds(f, "TinkerbellTemplateConfig") }
func FuzzMachineConfig(f *testing.F)  { fuzzKinds(f, "TinkerbellMachineConfig") }
func FuzzList(f *testing.F)           { fuzzKinds(f, "List") }

// fuzzKinds starts from each document of these kinds in the samples, from all of them together,
// and from the wrong documents.
func fuzzKinds(f *testing.F, kinds ...string) {
	for _, files := range samples {
		for _, file := range readSamples(f, files) {
			if isCSV(file.Content) {
				f.Add(file.Content)
				continue
			}
			var together []*yaml.Node
			for _, d := range nodes(f, file.Content) {
				var x struct{ Kind string }
				if len(d.Content) == 1 && d.Decode(&x) == nil && slices.Contains(kinds, x.Kind) {
					f.Add(encode(f, []*yaml.Node{d}))
					together = append(together, d)
				}
			}
			if len(together) > 0 {
				f.Add(encode(f, together))
			}
		}
	}
	for _, w := range wrong {
		f.Add([]byte(w.text))
	}
	f.Fuzz(checkRead)
}

// checkRead: any text is refused with the place of each problem, or imported to a state that is
// exported and imported again; and it does not take long.
func checkRead(t *testing.T, b []byte) {
	begun := time.Now()
	known := Known(File{"f", b})
	got, err := Read([]File{{"f", b}})
	require.Less(t, time.Since(begun), 10*time.Second)
	if err != nil {
		var ps inventory.Problems
		require.True(t, errors.As(err, &ps))
		for _, p := range ps {
			require.Equal(t, "f", p.File, "%s", p)
			require.NotEmpty(t, p.What)
			require.True(t, p.Line > 0 || p.What == "holds nothing" || p.What == "is not text" || isCSV(b), "no line: %s", p)
		}
		return
	}

	for _, m := range got.Machines {
		require.Empty(t, inventory.Validate(m.Machine))
		require.Positive(t, m.LineOf("interfaces[0].mac"))
		require.True(t, known || m.Own)
	}
	for _, x := range got.Ignored {
		require.NotEmpty(t, x.Why)
		require.Positive(t, x.Line, "%v", x)
	}

	ms, ts := stored(got)
	exported, err := Export(ms, ts)
	require.NoError(t, err)
	if len(ms)+len(ts) == 0 {
		return
	}
	again, err := Read([]File{{"site.yaml", exported}})
	require.NoError(t, err, "%s", exported)
	msAgain, tsAgain := stored(again)
	require.Equal(t, ms, msAgain)
	require.Equal(t, ts, tsAgain)
}
