package workflows

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// strict wraps the workflow w for registration. The wrapper takes one input and ends the run before its first activity if the input
// has an unknown key; otherwise, after a misspelled key, the default would silently apply. Signals and recorded results may have
// unknown keys, because a newer release may have written them.
func strict[In, Out any](w func(workflow.Context, In) (Out, error)) any {
	return func(ctx workflow.Context, raw, extra converter.RawValue) (out Out, err error) {
		var in In
		if err := readInput(raw, extra, &in); err != nil {
			return out, err
		}
		return w(ctx, in)
	}
}

// strictWithoutResult does what strict does, for a workflow without a result.
func strictWithoutResult[In any](w func(workflow.Context, In) error) any {
	return func(ctx workflow.Context, raw, extra converter.RawValue) error {
		var in In
		if err := readInput(raw, extra, &in); err != nil {
			return err
		}
		return w(ctx, in)
	}
}

// readInput decodes raw. The argument in is a pointer to the struct for the result. For an unknown key or a second input, readInput
// returns an error that is not retried.
func readInput(raw, extra converter.RawValue, in any) error {
	refuse := func(format string, args ...any) error {
		return temporal.NewNonRetryableApplicationError("reading the input: "+fmt.Sprintf(format, args...),
			activities.TypeInvalid, nil)
	}

	if p := raw.Payload(); p != nil {
		if err := converter.GetDefaultDataConverter().FromPayload(p, in); err != nil {
			return refuse("%v", err)
		}
		if key := unknownKey(p.GetData(), in); key != "" {
			others := slices.DeleteFunc(keysOf(reflect.TypeOf(in), nil),
				func(k string) bool { return k == key }) // do not suggest the key itself: another struct of the input may have it
			return refuse("unknown key %q: %s", key, strictyaml.Suggest(key, others))
		}
	}

	if extra.Payload() != nil {
		return refuse("the workflow takes exactly one input")
	}
	return nil
}

// unknownKey returns the first key of a JSON document for which the struct that v points to has no field, or "" if the struct has
// all keys. The linter objects to reflection, but the result depends only on the arguments.
//
//workflowcheck:ignore
func unknownKey(doc []byte, v any) string {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.DisallowUnknownFields()
	err := d.Decode(reflect.New(reflect.TypeOf(v).Elem()).Interface())
	if err == nil {
		return ""
	}
	key, unknown := strings.CutPrefix(err.Error(), "json: unknown field ")
	if !unknown {
		return "" // the document is not JSON, but the data converter has already decoded it
	}
	return strings.Trim(key, `"`)
}

// keysOf appends to keys the JSON keys of the struct type t and of the structs in it.
func keysOf(t reflect.Type, keys []string) []string {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		return keysOf(t.Elem(), keys)
	case reflect.Struct:
		for f := range t.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name != "" && name != "-" {
				keys = keysOf(f.Type, append(keys, name))
			}
		}
	}
	return keys
}

// invalid returns the problems of a request as an error that is not retried, or nil if there are none.
func invalid(ps inventory.Problems) error {
	if err := ps.Err(); err != nil {
		return newError(activities.TypeInvalid, "%s", err)
	}
	return nil
}
