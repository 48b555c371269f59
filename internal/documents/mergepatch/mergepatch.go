// Package mergepatch applies JSON merge patches (RFC 7396) and makes them. Documents and patches are values as
// encoding/json decodes them into an any.
package mergepatch

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"strings"
)

// Decode decodes one JSON value. Numbers become json.Number, so that they keep all their digits.
func Decode(b []byte) (v any, err error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	err = dec.Decode(&v)
	return v, err
}

// Apply returns doc, changed as patch says: a null removes a member, an object changes the members that it names, and any
// other value replaces. It changes neither doc nor patch.
func Apply(doc, patch any) any {
	changes, isObject := patch.(map[string]any)
	if !isObject {
		return patch
	}
	before, _ := doc.(map[string]any)
	out := maps.Clone(before)
	if out == nil {
		out = map[string]any{}
	}
	for key, change := range changes {
		if change == nil {
			delete(out, key)
		} else {
			out[key] = Apply(out[key], change)
		}
	}
	return out
}

// Diff returns the patch that turns before into after, or an empty object if they are equal. A null in after is copied
// to the patch, where it removes a member, even if before does not contain that member.
func Diff(before, after map[string]any) map[string]any {
	patch := map[string]any{}
	for key, next := range after {
		old, had := before[key]
		a, isObject := old.(map[string]any)
		b, toObject := next.(map[string]any)
		switch {
		case isObject && toObject:
			if inner := Diff(a, b); len(inner) > 0 {
				patch[key] = inner
			}
		case !had || next == nil || !reflect.DeepEqual(old, next):
			patch[key] = next
		}
	}
	for key := range before {
		if _, kept := after[key]; !kept {
			patch[key] = nil
		}
	}
	return patch
}

// Find returns the member of doc with a path such as bmc.host.
func Find(doc any, path string) (v any, found bool) {
	for key := range strings.SplitSeq(path, ".") {
		object, _ := doc.(map[string]any)
		if doc, found = object[key]; !found {
			return nil, false
		}
	}
	return doc, true
}
