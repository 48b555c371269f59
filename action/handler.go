package action

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// HandlerTime is the maximum duration of a handler. A handler is the on-failure or on-timeout of an action.
const HandlerTime Seconds = 300

// maxHandlerWords is the maximum number of words in a handler.
const maxHandlerWords = 64

// Echo is the first word of a handler that only writes its other words to the log.
const Echo = "echo"

// A Handler is what the agent carries out after an action has failed or timed out: a native action with its own environment. It does
// not change the result of the failed action.
type Handler struct {
	Native      string
	Environment map[string]string
}

// ParseHandler parses the words of an action's on-failure or on-timeout: the name of a native action and its variables as
// NAME=VALUE, or echo and a text. If there are no words, it returns the zero Handler. It returns all errors at once. The errors
// contain no values of variables, because these may be secret. Both the plan and the agent call ParseHandler.
func ParseHandler(words []string) (Handler, error) {
	if len(words) == 0 {
		return Handler{}, nil
	}
	if len(words) > maxHandlerWords {
		return Handler{}, fmt.Errorf("it has %d words; at most %d are allowed", len(words), maxHandlerWords)
	}
	if words[0] == Echo {
		return Handler{Noop, map[string]string{"LOG": strings.Join(words[1:], " ")}}, nil
	}

	native, ok := Native(words[0])
	row := natives[native]
	switch why := Foreign(words[0]); {
	case why != "":
		return Handler{}, fmt.Errorf("reading %q: %s; must be only the name of an action", words[0], why)
	case !ok:
		return Handler{}, fmt.Errorf("invalid %q; must be %s and a text, or one of these actions and its variables as NAME=VALUE: %s", words[0],
			Echo, strings.Join(Handlers(), ", "))
	case !canHandle(row):
		return Handler{}, fmt.Errorf("reading %q: this action is not allowed after a failure; must be one of %s", words[0],
			strings.Join(Handlers(), ", "))
	}

	h := Handler{native, map[string]string{}}
	var errs []error
	for n, word := range words[1:] {
		name, value, ok := strings.Cut(word, "=")
		known := slices.ContainsFunc(row.Variables, func(v Variable) bool { return v.Name == name })
		_, twice := h.Environment[name]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("invalid variable %d; must be NAME=VALUE", n+1))
		case !known:
			errs = append(errs, fmt.Errorf("reading %s: %s has no such variable", name, native))
		case twice:
			errs = append(errs, fmt.Errorf("reading %s: it is given twice", name))
		}
		h.Environment[name] = value
	}
	if len(errs) == 0 {
		errs = append(errs, Check(native, h.Environment))
	}
	return h, errors.Join(errs...)
}

// IsCommandOfContainer reports whether words, the on-failure or on-timeout of a container, are a command for the container's image, and not
// a Handler.
func IsCommandOfContainer(words []string) bool {
	if len(words) == 0 || words[0] == Echo {
		return false
	}
	_, native := Native(words[0])
	return !native || strings.HasPrefix(words[0], "/")
}

// Handlers lists the actions that a Handler may name, sorted.
func Handlers() []string {
	return slices.DeleteFunc(Natives(), func(name string) bool { return !canHandle(natives[name]) })
}

// canHandle reports whether an action may be a handler. Not allowed are actions that end the agent (the run decides that), that
// write an image (only the actions of a run may do that), that get a part of their environment from the server (a
// handler gets none), and that send the content of the disk.
func canHandle(row Description) bool {
	return !row.Leaves && !row.Whole && row.Adds == "" && row.Upload == ""
}

// handlers returns the valid handlers of a. It leaves out those that ParseHandler refuses.
func (a Action) handlers() (all []Handler) {
	for _, words := range [][]string{a.OnFailure, a.OnTimeout} {
		if h, err := ParseHandler(words); err == nil && h.Native != "" {
			all = append(all, h)
		}
	}
	return all
}

// Native returns the name of the native action that a is; false if a is a container, or unknown.
func (a Action) Native() (string, bool) {
	if a.Container != nil {
		return "", false
	}
	return Native(a.Image)
}

// usesDisk reports whether a is a container that may write to the run's disk.
func (a Action) usesDisk() bool { return a.Container != nil && a.Container.Disk }

// NeedsDisk reports whether the action or one of its handlers needs the disk that is bound to the run.
func (a Action) NeedsDisk() bool {
	native, _ := a.Native()
	return natives[native].Reads || a.WritesDisk() || native == EFIBoot && a.Environment[CreateLabelVariable] != ""
}

// WritesDisk reports whether the action or one of its handlers writes to the disk that is bound to the run, or starts a system from
// it.
func (a Action) WritesDisk() bool {
	native, _ := a.Native()
	return a.usesDisk() || Writes(native, a.Environment) ||
		slices.ContainsFunc(a.handlers(), func(h Handler) bool { return Writes(h.Native, h.Environment) })
}

// WritesWhole reports whether the action replaces everything on its disk, and not only on one partition. alias is the path by
// which the environment names that disk.
func (a Action) WritesWhole(alias string) bool {
	native, _ := a.Native()
	row := natives[native]
	partition, _ := PartitionOf(a.Environment[row.Disk], alias)
	return row.Whole && (!row.Partitions || partition == 0 && a.Environment[PartitionVariable] == "")
}

// MayInstall reports whether a may write a system to a disk: an image, an archive, or a container that may write to the run's disk.
func (a Action) MayInstall() bool {
	native, _ := a.Native()
	return a.usesDisk() || Installs(native)
}

// WritesAny reports whether the action or one of its handlers writes to any disk, bound to the run or not, or starts a system from
// one.
func (a Action) WritesAny() bool {
	native, _ := a.Native()
	return a.usesDisk() || WritesAny(native) || slices.ContainsFunc(a.handlers(), func(h Handler) bool { return WritesAny(h.Native) })
}

// Rewrite returns a copy of a after applying change to each value of its environment, to each word of its command and of its handlers, and
// to the URL of its container.
func (a Action) Rewrite(change func(string) string) Action {
	a.Environment = maps.Clone(a.Environment)
	for k, v := range a.Environment {
		a.Environment[k] = change(v)
	}
	for _, words := range []*[]string{&a.Command, &a.OnTimeout, &a.OnFailure} {
		*words = slices.Clone(*words)
		for i, word := range *words {
			(*words)[i] = change(word)
		}
	}
	if a.Container != nil {
		c := *a.Container
		c.URL = change(c.URL)
		a.Container = &c
	}
	return a
}

// Longest returns the maximum time that the agent needs for the action and one of its handlers.
func (a Action) Longest() Seconds {
	if len(a.handlers()) == 0 && (a.Container == nil || len(a.OnFailure)+len(a.OnTimeout) == 0) {
		return a.Timeout
	}
	return a.Timeout + HandlerTime
}
