package strictyaml

import (
	_ "embed"
	"encoding"
	"encoding/json"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/text/human"
)

// A Schema is a JSON Schema, or a part of one.
type Schema map[string]any

// Rules add conditions to the schema of a type, which its validation checks and Go's types cannot express.
// The keys are paths of fields, as in problems; [] means each element of a list: "interfaces[].arch".
type Rules map[string]Schema

// OneOf returns the rule for a field whose value must be one of words.
func OneOf(words ...string) Schema { return Schema{"enum": anys(words)} }

// Text returns the schema of an optional text with a description.
func Text(description string) Schema {
	s := optional(text())
	s["description"] = description
	return s
}

// Between returns the rule for a number with a minimum and a maximum.
func Between(least, most int) Schema { return Schema{"minimum": least, "maximum": most} }

// Below returns r with path added before each key: these are the rules for a type that is at path in another type.
func (r Rules) Below(path string) Rules {
	out := Rules{}
	for field, s := range r {
		out[path+"."+field] = s
	}
	return out
}

// SchemaOf returns the JSON Schema (draft 7) of the documents that Decode reads into a T. Keys without omitempty or omitzero
// are required. As in Decode, unknown keys are refused, a number is valid where text is expected, and null counts as missing.
func SchemaOf[T any](title string, rules Rules) Schema {
	d := describer{rules, map[string]map[string]string{}}
	if err := json.Unmarshal(descriptions, &d.descriptions); err != nil {
		panic(err) // cannot fail: a test decodes descriptions.json, which is embedded
	}
	s := d.value(reflect.TypeFor[T](), "")
	s["$schema"], s["title"] = "http://json-schema.org/draft-07/schema#", title
	return s
}

// Patterns of IP addresses and prefixes, which are texts in a file.
const (
	addressForm = `^[0-9A-Fa-f:.]*$`
	prefixForm  = `^[0-9A-Fa-f:.]+/[0-9]+$`
)

// descriptions holds the first paragraph of each field's comment, by type and key. "make docs" writes
// descriptions.json, because a program cannot read its own comments. A test compares the file with the source.
//
//go:embed descriptions.json
var descriptions []byte

// A Patterned type can be written as a whole number, or as text that matches the regular expression TextPattern.
type Patterned interface{ TextPattern() string }

type describer struct {
	rules        Rules
	descriptions map[string]map[string]string
}

// value returns the schema of the values that walker.value decodes into a t. It includes the rule for path.
func (d describer) value(t reflect.Type, path string) Schema {
	s := d.kind(t, path)
	maps.Copy(s, d.rules[path])
	return s
}

func (d describer) kind(t reflect.Type, path string) Schema {
	form := func(pattern string, types ...string) Schema { return Schema{"type": anys(types), "pattern": pattern} }
	switch t {
	case reflect.TypeFor[time.Duration]():
		return form(human.DurationPattern, "string", "integer")
	case reflect.TypeFor[netip.Addr]():
		return form(addressForm, "string")
	case reflect.TypeFor[netip.Prefix]():
		return form(prefixForm, "string")
	case reflect.TypeFor[time.Time]():
		return Schema{"type": "string"}
	}
	if x, ok := reflect.New(t).Interface().(Patterned); ok {
		return form(x.TextPattern(), "string", "integer")
	}
	switch p := reflect.PointerTo(t); {
	case p.Implements(reflect.TypeFor[encoding.BinaryUnmarshaler]()):
		return textOrBytes()
	case p.Implements(reflect.TypeFor[json.Unmarshaler]()):
		return Schema{}
	case p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return Schema{"type": "string"}
	}

	switch t.Kind() {
	case reflect.Pointer:
		return d.kind(t.Elem(), path)
	case reflect.Struct:
		return d.structure(t, path)
	case reflect.Map:
		return Schema{"type": "object", "additionalProperties": optional(d.value(t.Elem(), path+".*"))}
	case reflect.Slice:
		return Schema{"type": "array", "items": d.value(t.Elem(), path+"[]")}
	case reflect.String:
		return text()
	case reflect.Bool:
		return Schema{"type": "boolean"}
	case reflect.Float32, reflect.Float64:
		return Schema{"type": "number"}
	case reflect.Interface:
		return Schema{}
	}
	return Schema{"type": "integer"}
}

// text returns the schema of a string. A number or a boolean is valid, too; its value is the text that was written.
func text() Schema { return Schema{"type": []any{"string", "number", "boolean"}} }

// textOrBytes returns the schema of a text, a !!binary, or an object with the key base64.
func textOrBytes() Schema {
	s := text()
	s["type"] = append(s["type"].([]any), "object")
	s["properties"], s["required"] = Schema{"base64": Schema{"type": "string", "description": "the bytes in standard base64"}}, []any{"base64"}
	s["additionalProperties"] = false
	return s
}

// structure returns the schema of the mappings that walker.structure decodes into the struct t.
func (d describer) structure(t reflect.Type, path string) Schema {
	fields := map[string][]int{}
	collect(t, nil, fields)
	properties, required := Schema{}, []string{}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		f := t.FieldByIndex(fields[name])
		s := d.value(f.Type, strings.TrimPrefix(path+"."+name, "."))
		if _, options, _ := strings.Cut(f.Tag.Get("json"), ","); options == "" {
			required = append(required, name)
		} else {
			s = optional(s)
		}
		if text := d.describe(t, fields[name]); text != "" && s["description"] == nil {
			s["description"] = text
		}
		properties[name] = s
	}

	s := Schema{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		s["required"] = anys(required)
	}
	return s
}

// describe returns the description of the field of t at index, which may be a field of an embedded struct; "" if it has none.
func (d describer) describe(t reflect.Type, index []int) string {
	f := t.FieldByIndex(index)
	for _, n := range index[:len(index)-1] {
		t = t.Field(n).Type
	}
	module := strings.TrimSuffix(reflect.TypeFor[describer]().PkgPath(), "internal/documents/strictyaml")
	key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return d.descriptions[strings.TrimPrefix(t.PkgPath(), module)+"."+t.Name()][key]
}

// optional returns s with null as a further valid value, because null counts as missing.
func optional(s Schema) Schema {
	switch types := s["type"].(type) {
	case string:
		s["type"] = []any{types, "null"}
	case []any:
		s["type"] = append(types, "null")
	}
	if words, ok := s["enum"].([]any); ok {
		s["enum"] = append(slices.Clone(words), nil)
	}
	return s
}

func anys[T any](from []T) []any {
	out := make([]any, len(from))
	for i, x := range from {
		out[i] = x
	}
	return out
}
