package mergepatch

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestApply is the table of RFC 7396, appendix A.
func TestApply(t *testing.T) {
	for _, c := range [][3]string{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`["a","b"]`, `["c","d"]`, `["c","d"]`},
		{`{"a":"b"}`, `["c"]`, `["c"]`},
		{`{"a":"foo"}`, `null`, `null`},
		{`{"a":"foo"}`, `"bar"`, `"bar"`},
		{`{"e":null}`, `{"a":1}`, `{"a":1,"e":null}`},
		{`[1,2]`, `{"a":"b","c":null}`, `{"a":"b"}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
	} {
		require.Equal(t, c[2], write(t, Apply(read(t, c[0]), read(t, c[1]))), "%s", c)
	}
}

func TestDiff(t *testing.T) {
	const doc = `{"bmc":{"driver":"ipmi","port":623},"labels":{"a":"1"},"list":[{"x":1},2],"size":12345678901234567890}`
	for next, want := range map[string]string{
		doc:              `{}`,
		`{"list":[1]}`:   `{"bmc":null,"labels":null,"list":[1],"size":null}`,
		`{"bmc":"none"}`: `{"bmc":"none","labels":null,"list":null,"size":null}`,
		`{"bmc":{"driver":"ipmi","port":624},"labels":{"b":"1"},"list":[{"x":1},2],"size":12345678901234567890,"new":{"a":true}}`://
		`{"bmc":{"port":624},"labels":{"a":null,"b":"1"},"new":{"a":true}}`,
	} {
		before, after := read(t, doc).(map[string]any), read(t, next).(map[string]any)
		patch := Diff(before, after)
		require.JSONEq(t, want, write(t, patch))
		require.Equal(t, after, Apply(before, patch))
	}

	hidden := Diff(map[string]any{"bmc": map[string]any{}}, map[string]any{"bmc": map[string]any{"password": nil}})
	require.Equal(t, `{"bmc":{"password":null}}`, write(t, hidden))
}

func TestFind(t *testing.T) {
	doc := read(t, `{"bmc":{"password":null},"list":[1]}`)
	v, found := Find(doc, "bmc.password")
	require.True(t, found)
	require.Nil(t, v)
	for _, path := range []string{"bmc.host", "list.a", "x"} {
		_, found := Find(doc, path)
		require.False(t, found, path)
	}
}

func read(t *testing.T, text string) any {
	t.Helper()
	v, err := Decode([]byte(text))
	require.NoError(t, err)
	return v
}

func write(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	require.NoError(t, err)
	return string(b)
}
