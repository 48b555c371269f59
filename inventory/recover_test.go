package inventory

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRecoverOrder(t *testing.T) {
	var all []Machine
	for _, n := range []string{"a", "b", "c", "d"} {
		m := Machine{Name: n, Labels: map[string]string{"rack": "1"}}
		if n == "d" {
			m.Labels["rack"] = "2"
		}
		all = append(all, m)
	}
	for _, c := range []struct {
		names    []string
		selector map[string]string
		order    [][]string
		want     [][]string
		wrong    string
	}{
		{names: []string{"c", "a"}, want: [][]string{{"c", "a"}}},
		{selector: map[string]string{"rack": "1"}, want: [][]string{{"a", "b", "c"}}},
		{selector: map[string]string{"rack": "1"}, order: [][]string{{"c"}, {}, {"a"}}, want: [][]string{{"c"}, {"a"}, {"b"}}},
		{names: []string{"a", "b"}, order: [][]string{{"b", "a"}}, want: [][]string{{"b", "a"}}},
		{wrong: "no machine is named"},
		{names: []string{"a"}, selector: map[string]string{"rack": "1"}, wrong: "both machines and a selector are given"},
		{selector: map[string]string{"rack": "9"}, wrong: "no machine in service carries these labels"},
		{names: []string{"x", "a", "a"}, wrong: `there is no machine "x"|machine "a" is named twice`},
		{
			names: []string{"a", "b"}, order: [][]string{{"c"}, {"a"}, {"a"}},
			wrong: `order[0][0]: machine "c" is not among|order[2][0]: machine "a" is in the order already`,
		},
	} {
		got, err := RecoverOrder(all, c.names, c.selector, c.order)
		if c.wrong == "" {
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			continue
		}
		require.ErrorIs(t, err, ErrInvalid)
		for part := range strings.SplitSeq(c.wrong, "|") {
			require.ErrorContains(t, err, part)
		}
	}
}
