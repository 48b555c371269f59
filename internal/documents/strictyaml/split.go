package strictyaml

import (
	"maps"
	"reflect"
	"slices"

	"go.yaml.in/yaml/v3"
)

// A Splitter is a struct of which one text in a file may set several fields.
type Splitter interface {
	// Split returns the fields that text, written as key, stands for; nil if it is
	// read as it is.
	Split(key, text string) map[string]string
}

// split replaces the texts of pairs that v, a struct, splits. A field that is given in
// both ways must have one value.
func (w *walker) split(v reflect.Value, pairs []pair, path string) []pair {
	s, ok := v.Interface().(Splitter)
	if !ok {
		return pairs
	}

	var out, made []pair
	for _, p := range pairs {
		var parts map[string]string
		if n := follow(p.value); n.Kind == yaml.ScalarNode {
			parts = s.Split(p.key.Value, n.Value)
		}
		if parts == nil {
			out = append(out, p)
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(parts)) {
			key := *p.key
			key.Value = name
			text := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: parts[name], Line: p.value.Line}
			made = append(made, pair{&key, text})
		}
	}

	for _, m := range made {
		i := slices.IndexFunc(out, func(p pair) bool { return p.key.Value == m.key.Value })
		if i < 0 {
			out = append(out, m)
			continue
		}
		if given := follow(out[i].value); given.Value != m.value.Value {
			w.add(out[i].key, join(path, m.key.Value), "leave it out, or correct one of the two",
				"is %q here, and %q on line %d", clip(given.Value), m.value.Value, m.key.Line)
		}
	}
	return out
}
