package inventory

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSize(t *testing.T) {
	for text, want := range map[string]Size{
		`500000000000`: 5e11, `"500GB"`: 5e11, `"500 GB"`: 5e11, `"1.5TiB"`: 3 << 39, `"12"`: 12, `"0.1kB"`: 100, `"1KiB"`: 1024,
		`"1.1GiB"`: 1181116006, `9007199254740993`: 9007199254740993, `-1`: -1, `"8191PiB"`: 8191 << 50,
	} {
		var d DiskSelector
		require.NoError(t, json.Unmarshal([]byte(`{"minSize":`+text+`}`), &d), text)
		require.Equal(t, want, d.MinSize, text)
	}

	for _, text := range []string{
		`"500G"`, `"500g"`, `"GB"`, `"1.5"`, `1.5`, `"-5GB"`, `"5  GB"`, `"5XB"`, `"9PiBs"`, `"8192PiB"`, `"99999999999999999999"`, `true`, `{}`,
		`"1e3"`, `"5iB"`, `"5kiB"`,
	} {
		d := DiskSelector{MinSize: 7}
		err := json.Unmarshal([]byte(`{"minSize":`+text+`}`), &d)
		require.ErrorIs(t, err, ErrInvalid, text)
		require.ErrorContains(t, err, "a size such as 500GB", text)
		require.EqualValues(t, 7, d.MinSize)
	}

	b, err := json.Marshal(DiskSelector{MinSize: 5e11})
	require.NoError(t, err)
	require.JSONEq(t, `{"minSize":500000000000}`, string(b), "what is stored and answered stays a number")
}
