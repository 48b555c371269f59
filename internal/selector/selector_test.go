package selector

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/problem"
)

// TestParse has the examples of Kubernetes' documentation and of the tests of k8s.io/apimachinery/pkg/labels.
func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"": "", " \t": "",

		"environment = production": "environment=production", "tier != frontend": "tier!=frontend",
		"environment=production,tier!=frontend": "environment=production,tier!=frontend",
		"accelerator=nvidia-tesla-p100":         "accelerator=nvidia-tesla-p100",
		"environment in (production, qa)":       "environment in (production,qa)",
		"tier notin (frontend, backend)":        "tier notin (backend,frontend)",
		"partition":                             "partition", "!partition": "!partition",
		"partition,environment notin (qa)":               "environment!=qa,partition",
		"environment in (production),tier in (frontend)": "environment=production,tier=frontend",

		"x=a,y=b,z=c": "x=a,y=b,z=c", "a=x,x=a": "a=x,x=a", "x=a,a=x": "a=x,x=a", "x==a": "x=a", "x!=a,y=b": "x!=a,y=b",
		"x=": "x=", "x= ": "x=", "x=,z= ": "x=,z=", "x= ,z= ": "x=,z=", "!x": "!x", "! x": "!x", "\rx": "x", "a ": "a",
		"notin=in": "notin=in", "in in (in)": "in=in", "!in,notin": "!in,notin", "in,in notin (notin)": "in,in!=notin",
		"this-is-another-dns.domain.com/key-with-dash in (so,what)": "this-is-another-dns.domain.com/key-with-dash in (so,what)",
		"0.1.2.domain/99 notin (10.10.100.1, tick.tack.clock)":      "0.1.2.domain/99 notin (10.10.100.1,tick.tack.clock)",
		"foo  in\t (abc)": "foo=abc", "x notin\n (abc)": "x!=abc", "x in(b,a)": "x in (a,b)", "x in (abc,abc)": "x=abc",
		"x in (abc,)": "x in (,abc)", "x in ()": "x=", "x notin ( )": "x!=", "x in (a,,)": "x in (,a)", "x in (a,,,,,,)": "x in (,a)",
		"x notin (, a)": "x notin (,a)", "x in (,)": "x=", "x,y in (a)": "x,y=a", "x,x": "x,x", "x,!x": "!x,x",
		"x notin (abc,,def),bar,z in (),w": "bar,w,x notin (,abc,def),z=",
		"a in (x,y,notin, z,in)":           "a in (in,notin,x,y,z)",
	} {
		s, err := Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want, s.String(), text)
		again, err := Parse(s.String())
		require.NoError(t, err, text)
		require.Equal(t, s, again, text)
	}
}

func TestMatches(t *testing.T) {
	labels := map[string]string{"environment": "production", "tier": "frontend", "empty": "", "in": "notin"}
	for text, want := range map[string]struct{ some, none bool }{ // whether an object with labels, and one without any, is selected
		"": {true, true}, "environment=production": {true, false}, "environment==qa": {false, false},
		"environment=production,tier!=frontend": {false, false}, "environment=production,tier!=backend": {true, false},
		"environment in (production,qa)": {true, false}, "environment in (qa,dev)": {false, false},
		"tier notin (frontend,backend)": {false, true}, "tier notin (backend)": {true, true}, "tier": {true, false},
		"!tier": {false, true}, "tier,!tier": {false, false}, "in=notin": {true, false}, "empty=": {true, false}, "empty": {true, false},
		"tier in (,x)": {false, false}, "partition": {false, false}, "!partition": {true, true}, "partition!=a": {true, true},
		"partition notin (a,b)": {true, true}, "partition=": {false, false}, "partition!=": {true, true}, "partition in (a,)": {false, false},
	} {
		s, err := Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want.some, s.Matches(labels), text)
		require.Equal(t, want.none, s.Matches(nil), text)
	}
	require.False(t, Selector{{Key: "tier", Operator: "Like"}}.Matches(labels))
}

// Each wrong text is refused with the position of the mistake and what to write.
func TestWrongText(t *testing.T) {
	list := func(n int) string { return strings.Repeat("x,", n-1) + "x" }
	for text, want := range map[string]string{
		"x>1":                                  `selector: invalid operator ">" at character 2 (use =, ==, !=, in or notin)`,
		"x<a":                                  `invalid operator "<" at character 2`,
		"x nott in (y)":                        `invalid operator "nott" at character 3`,
		"x IN (y)":                             `invalid operator "IN" at character 3`,
		"a (":                                  `invalid operator "(" at character 3`,
		"x!y":                                  `invalid operator "!" at character 2`,
		"x=a||y=b":                             `invalid value "a||y" at character 3 (use up to 63 letters, digits, - _ and .)`,
		"x=\"a\"":                              `invalid value "\"a\"" at character 3`,
		"x in (a,ä)":                           `invalid value "ä" at character 9`,
		"x=" + longName:                        `invalid value "` + longName + `" at character 3`,
		"x==a==b":                              `unexpected "==" at character 5 (put a comma between two requirements)`,
		"!x=a":                                 `unexpected "=" at character 3 (put a comma`,
		"x=a y=b":                              `unexpected "y" at character 5 (put a comma`,
		"a in (xyz)b notin ()":                 `unexpected "b" at character 11 (put a comma`,
		"x=(a,b)":                              `unexpected "(" at character 3 (write key=value, or key in (a,b) for several values)`,
		"x=>1":                                 `unexpected ">" at character 3`,
		"x===a":                                `unexpected "=" at character 4`,
		"x,,y":                                 `a key is missing at character 3 (write key=value, key in (a,b), key or !key)`,
		",x":                                   `a key is missing at character 1`,
		"a in (xyz),":                          `a key is missing at character 12`,
		"!":                                    `a key is missing at character 2`,
		"!!x":                                  `a key is missing at character 2`,
		"=x":                                   `a key is missing at character 1`,
		"(":                                    `a key is missing at character 1`,
		"a/b/c=x":                              `invalid key "a/b/c" at character 1 (use name or domain/name, of letters, digits, - _ and .)`,
		"é=1":                                  `invalid key "é" at character 1`,
		"é,x\x00":                              `invalid key "é" at character 1`,
		"x,y\x00z":                             `invalid key "y\x00z" at character 3`,
		"/x":                                   `invalid key "/x"`,
		"x/":                                   `invalid key "x/"`,
		longName:                               `invalid key`,
		"Example.org/x":                        `invalid key`,
		strings.Repeat("a.", 127) + "/x":       `invalid key`,
		"x in y":                               `unexpected "y" at character 6 (write several values as (a,b))`,
		"a in (xyz abc)":                       `unexpected "abc" at character 11 (write several values`,
		"a notin(":                             `unexpected end at character 9 (write several values`,
		"x in":                                 `unexpected end at character 5`,
		"x in (a,(b))":                         `unexpected "(" at character 9`,
		list(65):                               `has 65 requirements; the limit is 64`,
		"x=" + strings.Repeat(" ", 4096):       `has 4098 bytes; the limit is 4096 (select by fewer labels and values)`,
		strings.Repeat("a in(b,c),", 1000):     `the limit is 4096`,
		strings.Repeat("a in(b,c,),", 3) + ",": `a key is missing`,
	} {
		s, err := Parse(text)
		require.ErrorContains(t, err, want, text)
		require.ErrorIs(t, err, problem.ErrInvalid)
		require.Nil(t, s)
	}
	for _, text := range []string{list(64), "x" + strings.Repeat(" ", 4095), longName[1:] + "=" + longName[1:], strings.Repeat("a.", 126) + "a/x"} {
		_, err := Parse(text)
		require.NoError(t, err)
	}
}

var longName = strings.Repeat("x", 64)

// TestJSONOfOlderWorkflows: a workflow that an older release has started has its labels as an object.
func TestJSONOfOlderWorkflows(t *testing.T) {
	var s Selector
	require.NoError(t, json.Unmarshal([]byte(`{"rack": "a1", "role": "db"}`), &s))
	require.Equal(t, "rack=a1,role=db", s.String())
}

func TestJSON(t *testing.T) {
	for text, want := range map[string]string{
		`{"matchLabels": {"component": "redis"}, "matchExpressions": [{"key": "tier", "operator": "In", "values": ["cache"]},
			{"key": "environment", "operator": "NotIn", "values": ["dev"]}]}`: "component=redis,environment!=dev,tier=cache",
		`{"matchExpressions": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "DoesNotExist", "values": []}]}`: "a,!b",
		`{"matchExpressions": [{"key": "a", "operator": "In", "values": ["y", "x", "y", ""]}]}`:                              "a in (,x,y)",
		`{}`: "", `null`: "", `""`: "", `"a = b"`: "a=b",
	} {
		var s Selector
		require.NoError(t, json.Unmarshal([]byte(text), &s), text)
		require.Equal(t, want, s.String(), text)

		b, err := json.Marshal(map[string]Selector{"selector": s})
		require.NoError(t, err)
		require.JSONEq(t, fmt.Sprintf(`{"selector": %q}`, want), string(b), "written as text")
	}

	for text, want := range map[string]string{
		`{"matchLabel": {"a": "b"}}`:    `selector: unknown field "matchLabel" (write text such as "rack=a1", or an object with matchLabels and matchExpressions)`,
		`["rack"]`:                      `unexpected value of the JSON type array`,
		`7`:                             `selector: unexpected value of the JSON type number`,
		`{"matchLabels": {"a": 1}}`:     `matchLabels: unexpected value of the JSON type number`,
		`{"matchLabels": {"a b": ""}}`:  `invalid key "a b"`,
		`{"matchLabels": {"a": "b c"}}`: `key a: invalid value "b c"`,
		`"a>1"`:                         `invalid operator ">" at character 2`,
		`{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}`:                                                     `key a: invalid operator "Gt"; must be one of In, NotIn, Exists, DoesNotExist`,
		`{"matchExpressions": [{"key": "a"}]}`:                                                                                        `key a: invalid operator ""`,
		`{"matchExpressions": [{"key": "a", "operator": "NotIn"}]}`:                                                                   `key a: operator NotIn has no values`,
		`{"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}`:                                                 `key a: operator Exists has values`,
		`{"matchExpressions": [{"key": "a", "operator": "Exists", "value": "x"}]}`:                                                    `unknown field "value"`,
		`{"matchExpressions": [` + strings.Repeat(`{"key": "a", "operator": "Exists"},`, 64) + `{"key": "a", "operator": "Exists"}]}`: `has 65 requirements`,
		`{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b` + numbers(2000) + `"]}]}`:                                `bytes; the limit is 4096`,
	} {
		s := Selector{{Key: "kept", Operator: Exists}}
		err := json.Unmarshal([]byte(text), &s)
		require.ErrorContains(t, err, want, text)
		require.Equal(t, "kept", s.String())
		var ps problem.List
		require.True(t, errors.As(err, &ps))
		require.Equal(t, "selector", ps[0].Field)
	}
}

// numbers returns n values, as the inner part of a JSON array of strings.
func numbers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `", "%d`, i)
	}
	return b.String()
}

// FuzzSelector: every text that Parse accepts has a text of its own that gives the same selector, as text and in JSON.
func FuzzSelector(f *testing.F) {
	for _, seed := range []string{
		"rack=a1,role notin (db, web),!old,gpu", "x in (a,,)", "in in (in)", "x==,y!=", "example.org/zone in ()", "x>1", "a in (xyz abc)",
		`{"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["d", ""]}]}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil && json.Unmarshal([]byte(text), &s) != nil {
			require.Nil(t, s)
			require.ErrorIs(t, err, problem.ErrInvalid)
			return
		}
		again, err := Parse(s.String())
		require.NoError(t, err, s.String())
		require.Equal(t, s.String(), again.String())
		require.LessOrEqual(t, len(s), maxRequirements)

		b, err := json.Marshal(s)
		require.NoError(t, err)
		var read Selector
		require.NoError(t, json.Unmarshal(b, &read), string(b))
		require.Equal(t, s.String(), read.String())

		labels := map[string]string{}
		for _, r := range s {
			require.NoError(t, r.check())
			if r.Operator == In {
				labels[r.Key] = r.Values[0]
			}
		}
		require.Equal(t, s.Matches(labels), again.Matches(labels))
	})
}
