// Package selector selects objects by their labels. A selector has the two forms that Kubernetes gives it: text such as
// "rack=a1,role notin (db,web),!old", and JSON with matchLabels and matchExpressions.
package selector

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/problem"
)

const (
	maxText         = 4 << 10 // of a selector as text, in bytes
	maxRequirements = 64
)

// Operator says how a requirement compares the label of an object with its values.
type Operator string

// The operators.
const (
	In           Operator = "In"           // the label has one of the values
	NotIn        Operator = "NotIn"        // the label has none of the values, or the object does not have the label
	Exists       Operator = "Exists"       // the object has the label
	DoesNotExist Operator = "DoesNotExist" // the object does not have the label
)

// A Requirement is a condition on one label.
type Requirement struct {
	Key      string   `json:"key"`
	Operator Operator `json:"operator"`
	Values   []string `json:"values,omitempty"` // at least one for In and NotIn, none for the other operators
}

// A Selector selects the objects that meet all of its requirements; an empty Selector selects every object. Parse and UnmarshalJSON return
// valid selectors in which requirements are sorted by key, and values are sorted and unique.
type Selector []Requirement

var (
	key   = regexp.MustCompile(`^(` + domain + `/)?` + name + `$`)
	value = regexp.MustCompile(`^(` + name + `)?$`)
)

const (
	name   = `[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?`
	dns    = `[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`
	domain = dns + `(\.` + dns + `)*`

	maxDomain = 253
)

// IsKey reports whether text is a valid key of a label: name or domain/name.
func IsKey(text string) bool {
	return key.MatchString(text) && strings.IndexByte(text, '/') <= maxDomain
}

// IsValue reports whether text is a valid value of a label.
func IsValue(text string) bool { return value.MatchString(text) }

// Remedies for a wrong key and a wrong value of a label.
const (
	KeyRemedy   = "use name or domain/name, of letters, digits, - _ and ."
	ValueRemedy = "use up to 63 letters, digits, - _ and ."
)

// Matches reports whether s selects an object that has these labels.
func (s Selector) Matches(labels map[string]string) bool {
	return !slices.ContainsFunc(s, func(r Requirement) bool { return !r.matches(labels) })
}

func (r Requirement) matches(labels map[string]string) bool {
	v, has := labels[r.Key]
	switch r.Operator {
	case In:
		return has && slices.Contains(r.Values, v)
	case NotIn:
		return !has || !slices.Contains(r.Values, v)
	case Exists:
		return has
	case DoesNotExist:
		return !has
	}
	return false
}

// String returns s as text, which Parse parses.
func (s Selector) String() string {
	parts := make([]string, len(s))
	for i, r := range s {
		parts[i] = r.String()
	}
	return strings.Join(parts, ",")
}

// String returns r as text.
func (r Requirement) String() string {
	is, in := "=", "in"
	switch r.Operator {
	case Exists:
		return r.Key
	case DoesNotExist:
		return "!" + r.Key
	case NotIn:
		is, in = "!=", "notin"
	}
	if len(r.Values) == 1 {
		return r.Key + is + r.Values[0]
	}
	return r.Key + " " + in + " (" + strings.Join(r.Values, ",") + ")"
}

// normalize sorts requirements and their values. If they are too many or too long, it returns an error.
func normalize(s Selector) (Selector, error) {
	if len(s) > maxRequirements {
		return nil, invalid("select by fewer labels", "has %d requirements; the limit is %d", len(s), maxRequirements)
	}
	for i, r := range s {
		slices.Sort(r.Values)
		s[i].Values = slices.Compact(r.Values)
	}
	slices.SortFunc(s, func(a, b Requirement) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.String(), b.String()))
	})
	if n := len(s.String()); n > maxText {
		return nil, tooLong(n)
	}
	return s, nil
}

func tooLong(n int) error {
	return invalid("select by fewer labels and values", "has %d bytes; the limit is %d", n, maxText)
}

// invalid returns an error that is a problem.List with one problem. Its field is "selector", the name of each field, parameter and flag
// that holds a selector.
func invalid(remedy, format string, args ...any) error {
	return problem.List{{Field: "selector", What: fmt.Sprintf(format, args...), Remedy: remedy}}
}
