package cli

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/ingotmetal/ingot/internal/documents/machinefile"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// setField sets the field of doc with a path such as interfaces[0].address. The schema of doc says whether text is meant as text or
// as a YAML value. "" removes the field; a removed field stays in doc as null.
func setField(doc map[string]any, s strictyaml.Schema, path, text string) error {
	if path == "" {
		return UsageError("a value has no name; write KEY=VALUE")
	}
	if _, err := setValue(doc, s, path, text); err != nil {
		return UsageError("%s: %v", path, err)
	}
	return nil
}

// setValue returns v with the value at path set to text.
func setValue(v any, s strictyaml.Schema, path, text string) (any, error) {
	fields, isObject := s["properties"].(strictyaml.Schema)
	entries, isMap := s["additionalProperties"].(strictyaml.Schema)
	elements, isList := s["items"].(strictyaml.Schema)
	switch {
	case path == "":
		return parseValue(s, text)
	case isMap: // the rest is one key, which may contain dots
		return setMember(v, path, entries, "", text)
	case isObject && !isText(s):
		name, rest := cutPath(path)
		field, known := fields[name].(strictyaml.Schema)
		if !known {
			return nil, errors.New("unknown key (" + strictyaml.Suggest(name, slices.Collect(maps.Keys(fields))) + ")")
		}
		return setMember(v, name, field, rest, text)
	case isList:
		return setElement(v, elements, path, text)
	}
	return nil, errors.New("unexpected " + strconv.Quote(path) + ": the value before it is neither a mapping nor a list")
}

// setMember sets the value at path in the member key of the object v.
func setMember(v any, key string, s strictyaml.Schema, path, text string) (any, error) {
	object, isObject := v.(map[string]any)
	if !isObject {
		object = map[string]any{}
	}
	member, err := setValue(object[key], s, path, text)
	object[key] = member
	return object, err
}

// setElement sets the value at path, which begins with an index, in the list v.
func setElement(v any, s strictyaml.Schema, path, text string) (any, error) {
	list, _ := v.([]any)
	index, rest, closed := strings.Cut(strings.TrimPrefix(path, "["), "]")
	n, err := strconv.Atoi(index)
	if err != nil || !closed || path[0] != '[' || n < 0 || n >= len(list) {
		return nil, errors.New("invalid index of a list with " + strconv.Itoa(len(list)) + " elements; write for example [0]")
	}
	rest = strings.TrimPrefix(rest, ".")
	if rest == "" && text == "" {
		return slices.Delete(list, n, n+1), nil
	}
	list[n], err = setValue(list[n], s, rest, text)
	return list, err
}

// parseValue returns the value that text means for a field with this schema. "" is nil.
func parseValue(s strictyaml.Schema, text string) (v any, err error) {
	switch {
	case text == "":
		return nil, nil
	case isText(s):
		return text, nil
	}
	if err := strictyaml.Decode("", []byte(text), &v); err != nil {
		var problems inventory.Problems
		if errors.As(err, &problems) {
			return nil, errors.New(problems[0].What)
		}
		return nil, err
	}
	return v, nil
}

// isText reports whether text is a valid value.
func isText(s strictyaml.Schema) bool {
	types, isList := s["type"].([]any)
	return s["type"] == "string" || isList && slices.Contains(types, any("string"))
}

// cutPath returns the first name of a path, and the rest without its dot.
func cutPath(path string) (name, rest string) {
	n := strings.IndexAny(path, ".[")
	if n < 0 {
		return path, ""
	}
	return path[:n], strings.TrimPrefix(path[n:], ".")
}

// machineFields returns the paths of the fields of a machine that "machine set" can set, each as it begins an argument.
func machineFields() []string {
	fixed := append(inventory.ServerFields(), "name")
	fields := fieldNames(strictyaml.SchemaOf[inventory.Machine]("", machinefile.Rules()), "")
	return slices.DeleteFunc(fields, func(argument string) bool {
		return slices.ContainsFunc(fixed, func(name string) bool { return argument == name+"=" || strings.HasPrefix(argument, name+".") })
	})
}

// fieldNames returns the paths of the fields below prefix that can be set by text, each as it begins an argument of "machine set".
func fieldNames(s strictyaml.Schema, prefix string) (out []string) {
	fields, _ := s["properties"].(strictyaml.Schema)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		field, _ := fields[name].(strictyaml.Schema)
		_, isMap := field["additionalProperties"].(strictyaml.Schema)
		switch {
		case isMap:
			out = append(out, prefix+name+".")
		case field["properties"] != nil && !isText(field):
			out = append(out, fieldNames(field, prefix+name+".")...)
		default:
			out = append(out, prefix+name+"=")
		}
	}
	return out
}
