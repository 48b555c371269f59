package cli

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/documents/machinefile"
	"github.com/ingotmetal/ingot/internal/documents/mergepatch"
)

func TestSetField(t *testing.T) {
	const doc = `{"image":"a","labels":{"x.y":"1"},"interfaces":[{"mac":"m"},{"mac":"n"}],"bmc":{"port":1}}`
	for arg, want := range map[[2]string]string{
		{"image", "12"}:                  `{"image":"12"}`, // a text, whatever it looks like
		{"image", ""}:                    `{"image":null}`,
		{"labels.x.y", "true"}:           `{"labels":{"x.y":"true"}}`, // a key with a dot
		{"bmc.port", "623"}:              `{"bmc":{"port":623}}`,
		{"interfaces[1].mac", "o"}:       `{"interfaces":[{"mac":"m"},{"mac":"o"}]}`,
		{"interfaces[0]", ""}:            `{"interfaces":[{"mac":"n"}]}`,
		{"sshKeys", "[a b, c]"}:          `{"sshKeys":["a b","c"]}`,
		{"diskSelector.minSize", "40GB"}: `{"diskSelector":{"minSize":"40GB"}}`,
	} {
		var after map[string]any
		var before, change any
		require.NoError(t, json.Unmarshal([]byte(doc), &after))
		require.NoError(t, json.Unmarshal([]byte(doc), &before))
		require.NoError(t, json.Unmarshal([]byte(want), &change))
		require.NoError(t, setField(after, machinefile.Schema(), arg[0], arg[1]), arg)
		got, err := json.Marshal(mergepatch.Apply(nil, after)) // without nulls
		require.NoError(t, err)
		whole, err := json.Marshal(mergepatch.Apply(before, change))
		require.NoError(t, err)
		require.JSONEq(t, string(whole), string(got), arg)
	}

	for _, path := range []string{
		"imag", "image.x", "interfaces.mac", "interfaces[2].mac", "interfaces[-1]", "interfaces[0", "bmc.hots", "[0]", "",
	} {
		after := map[string]any{"interfaces": []any{map[string]any{}}}
		require.Error(t, setField(after, machinefile.Schema(), path, "x: y"), path)
	}
}
