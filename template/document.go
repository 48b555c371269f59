package template

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
)

const (
	version    = "0.1"
	maxName    = 200
	maxActions = 256
)

// document is a template of format 0.1.
type document struct {
	Version string `json:"version"`        // version of the format: "0.1"
	Name    string `json:"name,omitempty"` // name under which the template is stored
	ID      string `json:"id,omitempty"`   // not read
	// GlobalTimeout is the time limit of the whole run in seconds; default: 7200, plus the installer's timeout if there is an installer.
	GlobalTimeout action.Seconds `json:"global_timeout,omitempty"`
	Tasks         []task         `json:"tasks,omitempty"` // carried out one after the other; there must be at least one task, or an installer

	// The following two fields are extensions of Ingot; see installer.go.

	// Documents are what an installer or the installed system reads.
	Documents []servedDocument `json:"documents,omitempty"`
	// Installer is an installer that the machine boots after the actions, in place of the agent.
	Installer *installer `json:"installer,omitempty"`
}

type task struct {
	Name string `json:"name"` // unique in the template
	// Worker is the name of the machine, or the MAC of one of its interfaces, usually {{ .device_1 }}. Tasks of several machines
	// need an operation that names the machines: ingot together start.
	Worker      string            `json:"worker,omitempty"`
	Volumes     []string          `json:"volumes,omitempty"`     // volumes for all containers of the task, before their own
	Environment map[string]string `json:"environment,omitempty"` // variables for all actions of the task
	Actions     []step            `json:"actions"`               // carried out one after the other
}

type step struct {
	Name string `json:"name"` // unique in the task
	// Image is the name of an action, the image of Tinkerbell's action, for which the agent has a built-in one, or the image of a container:
	// REGISTRY/REPOSITORY:TAG or REGISTRY/REPOSITORY@sha256:DIGEST.
	Image     string         `json:"image"`
	Native    *bool          `json:"native,omitempty"`     // false: run the image as a container, although the agent has a built-in action
	Timeout   action.Seconds `json:"timeout,omitempty"`    // seconds; 0 or none means the default, 3600
	Command   []string       `json:"command,omitempty"`    // of a container: replaces CMD of its image; of rootio: what the action does
	OnTimeout []string       `json:"on-timeout,omitempty"` // what the agent carries out when the action times out, written as on-failure
	// OnFailure is what the agent carries out when the action fails: the name of an action, and its variables as NAME=VALUE; or echo and a
	// text; or, for a container, a command for the same image. The run still fails.
	OnFailure   []string          `json:"on-failure,omitempty"`
	Volumes     []string          `json:"volumes,omitempty"`     // what a container sees: SOURCE:TARGET or SOURCE:TARGET:ro
	Environment map[string]string `json:"environment,omitempty"` // variables of the action; they take precedence over those of the task
	PID         string            `json:"pid,omitempty"`         // the same as namespaces.pid
	Namespaces  namespaces        `json:"namespaces,omitzero"`
	// Privileged gives the container all capabilities. images.privileged_containers of the configuration must list the image's digest.
	Privileged bool `json:"privileged,omitempty"`
}

// namespaces are the Linux namespaces that a container shares with the agent.
type namespaces struct {
	Network string `json:"network,omitempty"` // host (the default), or none: the container has no network
	PID     string `json:"pid,omitempty"`     // host; default: the container sees only its own processes
}

// native returns the name of the native action that s is; false if s is a container.
func (s step) native() (string, bool) {
	if s.Native != nil && !*s.Native {
		return "", false
	}
	return action.Native(s.Image)
}

// part is a part of a rendered template that must be the same for all data.
type part struct{ path, what string }

// shape returns the structure of d, which must be the same for all data: its tasks, their actions and images, the names of the variables
// that are set, and how many elements other lists have.
func (d document) shape() []part {
	s := []part{
		{"version", d.Version},
		{"global_timeout", fmt.Sprint(d.GlobalTimeout)},
		{"tasks", fmt.Sprint(len(d.Tasks))},
	}
	count := func(path string, n int) { s = append(s, part{path, fmt.Sprint(n)}) }
	env := func(path string, m map[string]string) {
		s = append(s, part{path, strings.Join(slices.Sorted(maps.Keys(m)), "\x00")})
	}
	for i, t := range d.Tasks {
		p := fmt.Sprintf("tasks[%d]", i)
		count(p+".volumes", len(t.Volumes))
		count(p+".actions", len(t.Actions))
		env(p+".environment", t.Environment)

		for j, a := range t.Actions {
			p := fmt.Sprintf("tasks[%d].actions[%d]", i, j)
			s = append(s, part{p + ".image", a.Image}, part{p + ".timeout", fmt.Sprint(a.Timeout)},
				part{p + ".pid", a.PID + a.Namespaces.PID}, part{p + ".namespaces", a.Namespaces.Network},
				part{p + ".native", fmt.Sprint(a.native())}, part{p + ".privileged", fmt.Sprint(a.Privileged)})
			count(p+".command", len(a.Command))
			count(p+".volumes", len(a.Volumes))
			s = append(s, part{p + ".on-timeout", handlerShape(a.OnTimeout)}, part{p + ".on-failure", handlerShape(a.OnFailure)})
			env(p+".environment", a.Environment)
		}
	}

	return append(s, d.installerShape()...)
}

// handlers returns the handlers of a step; the keys are on-timeout and on-failure.
func (s step) handlers() map[string][]string {
	return map[string][]string{"on-timeout": s.OnTimeout, "on-failure": s.OnFailure}
}

// handlerShape returns the part of a handler that must be the same for all data: the name of its action and the names of its variables.
func handlerShape(words []string) string {
	names := slices.Clone(words[:min(1, len(words))])
	for _, word := range words[len(names):] {
		name, _, _ := strings.Cut(word, "=")
		if words[0] == action.Echo {
			name = "" // the text of echo may come from data
		}
		names = append(names, name)
	}
	return strings.Join(names, "\x00")
}
