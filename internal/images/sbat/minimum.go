package sbat

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// Minimum holds the lowest accepted generation of each component, by the component's name. 0 accepts every generation.
type Minimum map[string]int

// Names returns the names of the components, sorted.
func (m Minimum) Names() []string { return slices.Sorted(maps.Keys(m)) }

// Check returns a text for each invalid entry, by the name of the component.
func (m Minimum) Check() map[string]string {
	out := map[string]string{}
	for name, n := range m {
		switch {
		case !validName(name):
			out[name] = fmt.Sprintf("invalid component name %q", name)
		case n < 0 || n > math.MaxUint16:
			out[name] = fmt.Sprintf("invalid generation %d", n)
		}
	}
	return out
}

// fixes holds a generation of a component and, as text, the vulnerabilities that this generation fixes.
type fixes struct {
	component  string
	generation int
	text       string
}

// known holds the generations that shim's own list of revocations requires (SbatLevel 2025021800).
var known = []fixes{
	{"shim", 4, "CVE-2023-40547 and others of January 2024"},
	{"grub", 5, "CVE-2024-45774, CVE-2025-0624 and others of February 2025"},
	{"grub.peimage", 2, "CVE-2024-2312"},
}

// Known returns, for each component, the generation below which vulnerabilities are known.
func Known() Minimum {
	out := Minimum{}
	for _, k := range known {
		out[k.component] = k.generation
	}
	return out
}

// Vulnerabilities returns the vulnerabilities that are known in generation n of a component, or "".
func Vulnerabilities(component string, n int) string {
	for _, k := range known {
		if k.component == component && n < k.generation {
			return k.text
		}
	}
	return ""
}

// A Shortfall is a component of a program that is below its minimum.
type Shortfall struct {
	Component string
	Have      int // 0 if the program does not have the component
	Need      int
}

// String returns a text with the component and both generations.
func (s Shortfall) String() string {
	if s.Have == 0 {
		return fmt.Sprintf("the component %s is missing; its minimum generation is %d", s.Component, s.Need)
	}
	return fmt.Sprintf("%s %d is below the minimum %d", s.Component, s.Have, s.Need)
}

// Below returns the components of p whose generation is lower than m requires, sorted by component. file is the name of the
// program's file. Like shim, Below ignores a component that p does not have, except for the component that the program in a
// file of that name must have; see stage.
func (m Minimum) Below(file string, p Program) (out []Shortfall) {
	for _, component := range m.Names() {
		have, ok := p.generation(component)
		if need := m[component]; have < need && (ok || stages[file].component == component) {
			out = append(out, Shortfall{component, have, need})
		}
	}
	return out
}
