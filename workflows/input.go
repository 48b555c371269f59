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

// strict returns the workflow w for registration: with one input, decoded strictly. An
// unknown key ends the run before its first activity; otherwise a misspelled key would
// silently give the machine a default. Signals and recorded results are not decoded
// strictly, so that releases may differ in their keys.
func strict[In, Out any](w func(workflow.Context, In) (Out, error)) any {
	return func(ctx workflow.Context, raw, extra converter.RawValue) (out Out, err error) {
		var in In
		if err := readInput(raw, extra, &in); err != nil {
			return out, err
		}
		return w(ctx, in)
	}
}

// strictWithoutResult is strict for a workflow that has no result.
func strictWithoutResult[In any](w func(workflow.Context, In) error) any {
	return func(ctx workflow.Context, raw, extra converter.RawValue) error {
		var in In
		if err := readInput(raw, extra, &in); err != nil {
			return err
		}
		return w(ctx, in)
	}
}

// readInput decodes raw into in, a pointer to a struct. Each error is non-retryable.
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
				func(k string) bool { return k == key }) // known in another struct of the input
			return refuse("unknown key %q: %s", key, strictyaml.Suggest(key, others))
		}
	}

	if extra.Payload() != nil {
		return refuse("the workflow takes one input")
	}
	return nil
}

// unknownKey returns the first key of a JSON document that the type of v, a
// pointer, does not have; "" when all are known. Decoding the same bytes gives the
// same answer; the linter sees only that reflection may start the collector.
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
		return "" // another encoding, already decoded
	}
	return strings.Trim(key, `"`)
}

// keysOf adds to keys the JSON keys of a struct and of the structs in it.
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

// invalid is the error of a run whose request has problems; nil for none.
func invalid(ps inventory.Problems) error {
	if err := ps.Err(); err != nil {
		return newError(activities.TypeInvalid, "%s", err)
	}
	return nil
}
