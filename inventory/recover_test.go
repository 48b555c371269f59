package inventory

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/selector"
)

func TestRecoverOrder(t *testing.T) {
	var all []Machine
	for _, n := range []string{"a", "b", "c", "d", "e"} {
		m := Machine{Name: n, Labels: map[string]string{"rack": "1"}}
		if n == "d" {
			m.Labels["rack"] = "2"
		}
		if n == "e" {
			m.Standing = &Standing{State: StandingAvailable}
		}
		all = append(all, m)
	}
	for _, c := range []struct {
		names    []string
		selector string
		order    [][]string
		want     [][]string
		wrong    string
	}{
		{names: []string{"c", "a"}, want: [][]string{{"c", "a"}}},
		{selector: "rack=1", want: [][]string{{"a", "b", "c"}}},
		{selector: "rack=1", order: [][]string{{"c"}, {}, {"a"}}, want: [][]string{{"c"}, {"a"}, {"b"}}},
		{names: []string{"a", "b"}, order: [][]string{{"b", "a"}}, want: [][]string{{"b", "a"}}},
		{wrong: "no machine is named"},
		{names: []string{"a"}, selector: "rack=1", wrong: "both machines and a selector are given"},
		{selector: "rack notin (2,3),!old", want: [][]string{{"a", "b", "c"}}},
		{selector: "rack!=1", want: [][]string{{"d"}}},
		{selector: "rack=9", wrong: `selector: "rack=9" selects no machine in service`},
		{names: []string{"x", "a", "a"}, wrong: `there is no machine "x"|machine "a" is named twice`},
		{
			names: []string{"a", "b"}, order: [][]string{{"c"}, {"a"}, {"a"}},
			wrong: `order[0][0]: machine "c" is not among|order[2][0]: machine "a" is in the order already`,
		},
	} {
		s, err := selector.Parse(c.selector)
		require.NoError(t, err)
		got, err := RecoverOrder(all, c.names, s, c.order)
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
