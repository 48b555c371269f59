package strictyaml

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A Splitter is a struct with a short form: one text in a file sets several of its fields.
type Splitter interface {
	// Split returns the fields that the short form "key: text" sets, with their texts. It returns nil if text is the value
	// of the field key itself.
	Split(key, text string) map[string]string
}

// split replaces each short form in pairs by the fields that the form sets. If v is not a Splitter, it has
// no short forms. A field that is given both by a short form and directly must have the same value in both.
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
				"is %q here, but %q on line %d", clip(given.Value), m.value.Value, m.key.Line)
		}
	}
	return out
}

type pair struct{ key, value *yaml.Node }

// pairs returns the entries of a mapping, including those of its merge keys (<<). A direct
// entry overrides a merged one.
func (w *walker) pairs(n *yaml.Node, path string, depth int) ([]pair, error) {
	if n.Kind != yaml.MappingNode {
		w.add(n, path, "", "must be a mapping of names to values, but is %s", kindName(n))
		return nil, nil
	}

	seen := map[string]int{}
	var out []pair
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := follow(n.Content[i]), n.Content[i+1]
		if k.ShortTag() == "!!merge" {
			merges = append(merges, v)
			continue
		}
		if k.Kind != yaml.ScalarNode {
			w.add(n.Content[i], path, "put text that starts with { or [ in quotes", "a name must be text, but is %s", kindName(k))
			continue
		}
		if line, dup := seen[k.Value]; dup {
			name, _ := nameOf(k.Value)
			w.add(n.Content[i], join(path, name), "keep one of the two", "is given twice, first on line %d", line)
			continue
		}
		seen[k.Value] = n.Content[i].Line
		key := *k
		key.Line = n.Content[i].Line
		out = append(out, pair{&key, v})
	}

	for _, m := range merges {
		merged, err := w.merged(follow(m), path, depth)
		if err != nil {
			return nil, err
		}
		for _, p := range merged {
			if _, dup := seen[p.key.Value]; !dup {
				seen[p.key.Value] = p.key.Line
				out = append(out, p)
			}
		}
	}

	return out, nil
}

// merged returns the entries of m, the value of a merge key: a mapping or a list of mappings.
func (w *walker) merged(m *yaml.Node, path string, depth int) (out []pair, err error) {
	sources := []*yaml.Node{m}
	if m.Kind == yaml.SequenceNode {
		sources = m.Content
	}

	for _, s := range sources {
		s = follow(s)
		if err := w.tick(depth); err != nil {
			return nil, err
		}
		if s.Kind != yaml.MappingNode {
			w.add(s, path, "", "<< must name a mapping, but names %s", kindName(s))
			continue
		}
		pairs, err := w.pairs(s, path, depth+1)
		if err != nil {
			return nil, err
		}
		out = append(out, pairs...)
	}

	return out, nil
}

// nameOf returns the part of a key that a message may show. YAML reads {NAME:VALUE} as a key without a value. For
// such a key, and for NAME=VALUE and "NAME VALUE", nameOf returns NAME and true, because VALUE may be a password.
func nameOf(key string) (name string, joined bool) {
	if n := strings.IndexAny(key, ":= \t\n"); n >= 0 {
		return key[:n], true
	}
	return key, false
}
