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

// Rules refine the schema of a type: what its validation knows besides the types. Keys are
// paths of fields as in problems, with [] for each element of a list: "interfaces[].arch".
type Rules map[string]Schema

// OneOf is the rule of a field that has one of some values.
func OneOf(words ...string) Schema { return Schema{"enum": anys(words)} }

// Text is the schema of an optional text with a description.
func Text(description string) Schema {
	s := optional(text())
	s["description"] = description
	return s
}

// Between is the rule of a number with limits.
func Between(least, most int) Schema { return Schema{"minimum": least, "maximum": most} }

// Below returns the rules of a type at a path of another type.
func (r Rules) Below(path string) Rules {
	out := Rules{}
	for field, s := range r {
		out[path+"."+field] = s
	}
	return out
}

// SchemaOf returns the JSON Schema (draft 7) of the documents that Decode reads into a T.
// Keys without omitempty or omitzero are required. It follows what Decode does: unknown keys
// are refused, a number is taken for text, and null counts as missing.
func SchemaOf[T any](title string, rules Rules) Schema {
	d := describer{rules, map[string]map[string]string{}}
	if err := json.Unmarshal(descriptions, &d.descriptions); err != nil {
		panic(err) // it is part of the program, and a test reads it
	}
	s := d.value(reflect.TypeFor[T](), "")
	s["$schema"], s["title"] = "http://json-schema.org/draft-07/schema#", title
	return s
}

// Forms of values that are texts in a file.
const (
	addressForm = `^[0-9A-Fa-f:.]*$`
	prefixForm  = `^[0-9A-Fa-f:.]+/[0-9]+$`
)

// descriptions are the first paragraphs of the comments of fields, by type and key. Comments are
// not in a program: "make docs" writes this file, and a test holds it against the source.
//
//go:embed descriptions.json
var descriptions []byte

// A Patterned type is written as a whole number or as text that matches a regular expression.
type Patterned interface{ TextPattern() string }

type describer struct {
	rules        Rules
	descriptions map[string]map[string]string
}

// value describes t as walker.value reads it.
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

// text is the schema of a string: a number or a boolean is read as it was written.
func text() Schema { return Schema{"type": []any{"string", "number", "boolean"}} }

// textOrBytes is the schema of text, !!binary, or an object with base64.
func textOrBytes() Schema {
	s := text()
	s["type"] = append(s["type"].([]any), "object")
	s["properties"], s["required"] = Schema{"base64": Schema{"type": "string", "description": "its bytes in standard base64"}}, []any{"base64"}
	s["additionalProperties"] = false
	return s
}

// structure describes a struct as walker.structure reads it.
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

// describe returns the description of a field of t, which may be one of an embedded struct.
func (d describer) describe(t reflect.Type, index []int) string {
	f := t.FieldByIndex(index)
	for _, n := range index[:len(index)-1] {
		t = t.Field(n).Type
	}
	module := strings.TrimSuffix(reflect.TypeFor[describer]().PkgPath(), "internal/documents/strictyaml")
	key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return d.descriptions[strings.TrimPrefix(t.PkgPath(), module)+"."+t.Name()][key]
}

// optional returns s for a value that may be null, which counts as missing.
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
