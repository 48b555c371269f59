// Package problem describes errors in an input, each with its place: a field of a request, or a line of a file.
package problem

import (
	"errors"
	"fmt"
	"strings"
)

// ErrInvalid is the kind of every Problem.
var ErrInvalid = errors.New("invalid")

// A Problem is one error in an input. errors.Is matches it with ErrInvalid.
type Problem struct {
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Field  string `json:"field,omitempty"`
	What   string `json:"what"`
	Remedy string `json:"remedy,omitempty"`
}

func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File + ":")
		if p.Line > 0 {
			fmt.Fprintf(&b, "%d:", p.Line)
		}
		b.WriteByte(' ')
	} else if p.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", p.Line)
	}
	if p.Field != "" {
		b.WriteString(p.Field + ": ")
	}

	b.WriteString(p.What)
	if p.Remedy != "" {
		b.WriteString(" (" + p.Remedy + ")")
	}
	return b.String()
}

func (p Problem) Error() string { return p.String() }

// Is makes errors.Is(err, ErrInvalid) true.
func (p Problem) Is(target error) bool { return target == ErrInvalid }

// A List holds all problems of an input. errors.Is matches it with ErrInvalid.
type List []Problem

func (l List) Error() string {
	lines := make([]string, len(l))
	for i, p := range l {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Is makes errors.Is(err, ErrInvalid) true.
func (l List) Is(target error) bool { return target == ErrInvalid }

// Err returns l as an error, or nil if l is empty.
func (l List) Err() error {
	if len(l) == 0 {
		return nil
	}
	return l
}

// Add appends a problem.
func (l *List) Add(field, remedy, format string, args ...any) {
	*l = append(*l, Problem{Field: field, What: fmt.Sprintf(format, args...), Remedy: remedy})
}
