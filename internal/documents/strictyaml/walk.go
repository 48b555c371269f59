package strictyaml

import (
	"encoding"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/internal/problem"
	"github.com/ingotmetal/ingot/internal/text/human"
)

func (w *walker) decode(n *yaml.Node, into any) {
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		w.add(n, "", "", "cannot be read into %T", into)
		return
	}
	if err := w.value(n, v.Elem(), "", 0); err != nil {
		w.add(n, "", "use fewer aliases and less nesting", "is too large, too deep, or wrong in too many places")
	}
}

// value decodes n into v. Problems of the document are added to w.problems; an error is returned only if the document is too large.
func (w *walker) value(n *yaml.Node, v reflect.Value, path string, depth int) error {
	if err := w.tick(depth); err != nil {
		return err
	}

	at := n
	n = follow(n)
	if isNull(n) {
		return nil // null counts as missing
	}
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return w.value(n, v.Elem(), path, depth+1)
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!binary" {
		return w.binary(n, v, path, depth)
	}
	if v.CanAddr() {
		switch u := v.Addr().Interface().(type) {
		case *time.Duration:
			w.text(n, (*duration)(u), path)
			return nil
		case encoding.TextUnmarshaler:
			w.text(n, u, path)
			return nil
		case json.Unmarshaler:
			return w.unmarshalJSON(n, u, path, depth)
		}
	}

	switch v.Kind() {
	case reflect.Struct:
		return w.structure(n, v, path, depth)
	case reflect.Map:
		return w.mapping(n, v, path, depth)
	case reflect.Slice:
		return w.sequence(n, v, path, depth)
	case reflect.Interface:
		x, err := w.plain(n, depth)
		if err != nil {
			return err
		}
		v.Set(reflect.ValueOf(x))
	case reflect.String:
		if n.Kind != yaml.ScalarNode {
			w.add(at, path, "", "must be text, but is %s", kindName(n))
			return nil
		}
		v.SetString(n.Value) // a number or a boolean becomes the text that was written
	default:
		w.scalar(n, v, path)
	}

	return nil
}

// binary decodes base64 with the tag !!binary into v. The bytes must be UTF-8, unless v implements
// encoding.TextUnmarshaler or encoding.BinaryUnmarshaler.
func (w *walker) binary(n *yaml.Node, v reflect.Value, path string, depth int) error {
	b, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(n.Value), ""))
	if err != nil {
		w.add(n, path, "write standard base64, or leave !!binary out", "must be base64 after !!binary")
		return nil
	}
	decoded := *n
	decoded.Tag, decoded.Value, decoded.Style = "!!str", string(b), 0
	switch u := v.Addr().Interface().(type) {
	case encoding.TextUnmarshaler:
		w.text(&decoded, u, path)
		return nil
	case encoding.BinaryUnmarshaler:
		if err := u.UnmarshalBinary(b); err != nil {
			w.add(n, path, "", "%s", err)
		}
		return nil
	}
	if !utf8.Valid(b) {
		w.add(n, path, "", "must be text, but holds bytes that are not UTF-8")
		return nil
	}
	return w.value(&decoded, v, path, depth+1)
}

// text decodes a scalar with u.UnmarshalText.
func (w *walker) text(n *yaml.Node, u encoding.TextUnmarshaler, path string) {
	if n.Kind != yaml.ScalarNode {
		w.add(n, path, "", "must be text, but is %s", kindName(n))
		return
	}

	err := u.UnmarshalText([]byte(n.Value))
	var known problem.Problem
	_, isAddress := u.(*netip.Addr)
	switch {
	case err == nil:
	case isAddress: // the error of netip does not help an operator
		w.add(n, path, "write it as 10.0.0.11", "invalid IP address %q", clip(n.Value))
	case errors.As(err, &known):
		w.add(n, path, known.Remedy, "%s", known.What)
	default:
		w.add(n, path, "", "%s", err)
	}
}

// duration is a time.Duration that human.ParseDuration decodes.
type duration time.Duration

func (d *duration) UnmarshalText(b []byte) error {
	x, err := human.ParseDuration(string(b))
	*d = duration(x)
	return err
}

// scalar decodes a number or a boolean.
func (w *walker) scalar(n *yaml.Node, v reflect.Value, path string) {
	want := "a number"
	switch v.Kind() {
	case reflect.Bool:
		want = "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		want = "a whole number"
	}
	if n.Kind != yaml.ScalarNode {
		w.add(n, path, "", "must be %s, but is %s", want, kindName(n))
		return
	}

	// Refuse a quoted number such as "08": programs do not agree on its value.
	if n.ShortTag() == "!!str" {
		w.add(n, path, "", "must be %s, but is the text %q", want, clip(n.Value))
		return
	}
	if err := n.Decode(v.Addr().Interface()); err != nil {
		w.add(n, path, "", "must be %s, but is %q", want, clip(n.Value))
	}
}

func (w *walker) unmarshalJSON(n *yaml.Node, u json.Unmarshaler, path string, depth int) error {
	x, err := w.plain(n, depth)
	if err != nil {
		return err
	}

	b, err := json.Marshal(x)
	if err == nil {
		err = u.UnmarshalJSON(b)
	}
	if err != nil && n.Kind == yaml.ScalarNode {
		// Try again with the scalar as a string: in "password: 1234" the number is meant as text.
		if b, mErr := json.Marshal(n.Value); mErr == nil {
			if again := u.UnmarshalJSON(b); again == nil || n.ShortTag() == "!!str" {
				err = again
			}
		}
	}
	if err != nil {
		if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			must := "must not be %s"
			if _, isText := u.(encoding.BinaryUnmarshaler); isText {
				must = "must be text, but is %s"
			}
			w.add(n, path, "", must, kindName(n))
			return nil
		}
		w.add(n, path, "", "%s", err)
	}

	return nil
}

// plain converts n to the types that encoding/json decodes into an any.
func (w *walker) plain(n *yaml.Node, depth int) (any, error) {
	if err := w.tick(depth); err != nil {
		return nil, err
	}

	n = follow(n)
	switch n.Kind {
	case yaml.MappingNode:
		m := map[string]any{}
		pairs, err := w.pairs(n, "", depth)
		if err != nil {
			return nil, err
		}
		for _, p := range pairs {
			x, err := w.plain(p.value, depth+1)
			if err != nil {
				return nil, err
			}
			m[p.key.Value] = x
		}
		return m, nil
	case yaml.SequenceNode:
		s := make([]any, 0, len(n.Content))
		for _, c := range n.Content {
			x, err := w.plain(c, depth+1)
			if err != nil {
				return nil, err
			}
			s = append(s, x)
		}
		return s, nil
	case yaml.ScalarNode:
		switch n.ShortTag() {
		case "!!null":
			return nil, nil
		case "!!bool", "!!int", "!!float":
			var x any
			if err := n.Decode(&x); err == nil {
				if f, isFloat := x.(float64); !isFloat || (!math.IsNaN(f) && !math.IsInf(f, 0)) {
					return x, nil
				}
			}
		}
	}

	return n.Value, nil
}

func (w *walker) sequence(n *yaml.Node, v reflect.Value, path string, depth int) error {
	if n.Kind != yaml.SequenceNode {
		w.add(n, path, "write each element on its own line after \"- \"", "must be a list, but is %s", kindName(n))
		return nil
	}

	s := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, c := range n.Content {
		if err := w.value(c, s.Index(i), fmt.Sprintf("%s[%d]", path, i), depth+1); err != nil {
			return err
		}
	}

	v.Set(s)
	return nil
}

func (w *walker) mapping(n *yaml.Node, v reflect.Value, path string, depth int) error {
	pairs, err := w.pairs(n, path, depth)
	if err != nil {
		return err
	}

	m := reflect.MakeMapWithSize(v.Type(), len(pairs))
	for _, p := range pairs {
		e := reflect.New(v.Type().Elem()).Elem()
		if err := w.value(p.value, e, join(path, p.key.Value), depth+1); err != nil {
			return err
		}
		m.SetMapIndex(reflect.ValueOf(p.key.Value).Convert(v.Type().Key()), e)
	}

	v.Set(m)
	return nil
}

func (w *walker) structure(n *yaml.Node, v reflect.Value, path string, depth int) error {
	fields := map[string][]int{}
	collect(v.Type(), nil, fields)
	pairs, err := w.pairs(n, path, depth)
	if err != nil {
		return err
	}

	for _, p := range w.split(v, pairs, path) {
		index, ok := fields[p.key.Value]
		if at := join(path, p.key.Value); !ok && w.skip != nil && w.skip(at) {
			if _, err := w.plain(p.value, depth+1); err != nil {
				return err
			}
			continue
		}
		if name, joined := nameOf(p.key.Value); !ok && joined {
			w.add(p.key, join(path, name), "write NAME: VALUE, with a space after the colon", "the value is a part of the key")
			continue
		}
		if !ok {
			w.add(p.key, join(path, p.key.Value), Suggest(p.key.Value, slices.Collect(maps.Keys(fields))), "unknown key")
			continue
		}
		if err := w.value(p.value, v.FieldByIndex(index), join(path, p.key.Value), depth+1); err != nil {
			return err
		}
	}

	return nil
}

// collect stores the index of each field of t, and of structs embedded in t, by JSON name.
func collect(t reflect.Type, at []int, into map[string][]int) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		index := append(append([]int(nil), at...), i)
		switch {
		case f.Tag.Get("json") == "-":
		case f.Anonymous && name == "" && f.Type.Kind() == reflect.Struct:
			collect(f.Type, index, into)
		case !f.IsExported():
		case name == "":
			into[f.Name] = index
		default:
			into[name] = index
		}
	}
}
