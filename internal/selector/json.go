package selector

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
)

// MarshalText returns s as text. It makes the text the form of s in JSON.
func (s Selector) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalJSON reads a selector as text, or as an object: with matchLabels and matchExpressions, or with labels and their values,
// which is the form in the inputs of older workflows. Its errors are those of Parse.
func (s *Selector) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		read, err := Parse(text)
		if err == nil {
			*s = read
		}
		return err
	}

	var labels map[string]string
	if json.Unmarshal(b, &labels) == nil {
		return s.set(labels, nil)
	}
	var in struct {
		MatchLabels      map[string]string `json:"matchLabels"`
		MatchExpressions []Requirement     `json:"matchExpressions"`
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		what := strings.TrimPrefix(err.Error(), "json: ")
		if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
			what = strings.TrimPrefix(wrong.Field+": ", ": ") + "unexpected value of the JSON type " + wrong.Value
		}
		return invalid(`write text such as "rack=a1", or an object with matchLabels and matchExpressions`, "%s", what)
	}
	return s.set(in.MatchLabels, in.MatchExpressions)
}

// set sets s to the labels and the other requirements.
func (s *Selector) set(labels map[string]string, others []Requirement) error {
	for k, v := range labels {
		others = append(others, Requirement{k, In, []string{v}})
	}

	read, err := normalize(others)
	if err != nil {
		return err
	}
	for _, r := range read {
		if err := r.check(); err != nil {
			return err
		}
	}
	*s = read
	return nil
}

// check returns an error if r is invalid.
func (r Requirement) check() error {
	if !IsKey(r.Key) {
		return invalid(KeyRemedy, "invalid key %q", r.Key)
	}
	for _, v := range r.Values {
		if !IsValue(v) {
			return invalid(ValueRemedy, "key %s: invalid value %q", r.Key, v)
		}
	}
	switch r.Operator {
	case In, NotIn:
		if len(r.Values) == 0 {
			return invalid("list the values, or use Exists or DoesNotExist", "key %s: operator %s has no values", r.Key, r.Operator)
		}
	case Exists, DoesNotExist:
		if len(r.Values) > 0 {
			return invalid("leave the values out, or use In or NotIn", "key %s: operator %s has values", r.Key, r.Operator)
		}
	default:
		return invalid("", "key %s: invalid operator %q; must be one of In, NotIn, Exists, DoesNotExist", r.Key, r.Operator)
	}
	return nil
}
