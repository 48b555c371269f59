package template

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	version    = "0.1"
	maxName    = 200
	maxActions = 256
)

// document is a document of format 0.1.
type document struct {
	Version string `json:"version"`        // of the format: "0.1"
	Name    string `json:"name,omitempty"` // under which the template is stored
	ID      string `json:"id,omitempty"`   // not read
	// GlobalTimeout is the time of the whole run in seconds; default 7200, and the time of the installer.
	GlobalTimeout action.Seconds `json:"global_timeout,omitempty"`
	Tasks         []task         `json:"tasks,omitempty"` // carried out one after the other; at least one, or an installer

	// Documents and Installer are extensions of Ingot: see installer.go.

	// Documents are what an installer or the installed system reads.
	Documents []servedDocument `json:"documents,omitempty"`
	// Installer is another installer, which the machine boots after the actions.
	Installer *installer `json:"installer,omitempty"`
}

type task struct {
	Name string `json:"name"` // unique in the template
	// Worker is the machine: its name or the MAC of one of its interfaces; usually {{ .device_1 }}. The same in all tasks.
	Worker      string            `json:"worker,omitempty"`
	Volumes     []string          `json:"volumes,omitempty"`     // of all its actions; kept and not used
	Environment map[string]string `json:"environment,omitempty"` // variables of all its actions
	Actions     []step            `json:"actions"`               // carried out one after the other
}

type step struct {
	Name      string         `json:"name"`                 // unique in the task
	Image     string         `json:"image"`                // the action: its name, or a reference of its container image
	Timeout   action.Seconds `json:"timeout,omitempty"`    // seconds; 0 or none means the default, 3600
	Command   []string       `json:"command,omitempty"`    // what rootio does; kept and not used by others
	OnTimeout []string       `json:"on-timeout,omitempty"` // what the agent carries out when the time is up: as on-failure
	// OnFailure is what the agent carries out when the action fails: the name of an action and its variables as NAME=VALUE,
	// or echo and a text. The run still fails.
	OnFailure   []string          `json:"on-failure,omitempty"`
	Volumes     []string          `json:"volumes,omitempty"`     // kept and not used
	Environment map[string]string `json:"environment,omitempty"` // variables of the action; they win over those of the task
	PID         string            `json:"pid,omitempty"`         // kept and not used
	Namespaces  namespaces        `json:"namespaces,omitzero"`
}

// namespaces are of a container: they have no effect on the actions of the agent. Tinkerbell's templates contain them.
type namespaces struct {
	Network string `json:"network,omitempty"` // kept and not used
	PID     string `json:"pid,omitempty"`     // kept and not used
}

// part is a part of a document that data must not change.
type part struct{ path, what string }

// shape lists the structure of a document: its tasks, their actions and images, the names of the
// variables that are set, and the number of other elements.
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
				part{p + ".pid", a.PID + a.Namespaces.PID})
			count(p+".command", len(a.Command))
			count(p+".volumes", len(a.Volumes))
			s = append(s, part{p + ".on-timeout", handlerShape(a.OnTimeout)}, part{p + ".on-failure", handlerShape(a.OnFailure)})
			env(p+".environment", a.Environment)
		}
	}

	return append(s, d.installerShape()...)
}

// checker collects the problems of a document and creates its actions.
type checker struct {
	out  output
	doc  document
	data *Data // nil: check only what needs no data
	// unknown reports whether a text contains a placeholder, so that its value cannot be checked.
	unknown  func(string) bool
	problems inventory.Problems
	warnings []string
	// unplannable are problems with which a template may be stored: see Template.
	unplannable inventory.Problems
	why         Explanation       // explains the result of actions
	wrapped     map[string]string // see unwrap
}

func (c *checker) add(path, remedy, format string, args ...any) {
	c.problems = append(c.problems, inventory.Problem{
		File: c.out.file, Line: c.out.line(path), Field: path, What: fmt.Sprintf(format, args...), Remedy: remedy,
	})
}

func (c *checker) open(s string) bool { return c.unknown != nil && c.unknown(s) }

// structure checks everything that does not depend on the machine.
func (c *checker) structure() {
	d := c.doc
	if d.Version != version && !c.open(d.Version) {
		c.add("version", `write version: "0.1"`, "is %q, but the format known here is %q", d.Version, version)
	}
	if len(d.Name) > maxName {
		c.add("name", "", "is longer than %d characters", maxName)
	}
	if d.GlobalTimeout < 0 {
		c.add("global_timeout", "give seconds, or leave it out", "is negative")
	}

	total := 0
	for _, t := range d.Tasks {
		total += len(t.Actions)
	}
	switch {
	case len(d.Tasks) == 0 && d.Installer == nil:
		c.add("tasks", "", "a template needs at least one task")
	case total > maxActions:
		c.add("tasks", "", "hold %d actions; more than %d are not carried out in one run", total, maxActions)
		return
	}

	tasks, n := map[string]bool{}, 0
	for i, t := range d.Tasks {
		p := fmt.Sprintf("tasks[%d]", i)
		c.name(p+".name", t.Name, "task", tasks)
		if len(t.Actions) == 0 {
			c.add(p+".actions", "", "a task needs at least one action")
		}

		names := map[string]bool{}
		for j, a := range t.Actions {
			n++
			c.step(fmt.Sprintf("%s.actions[%d]", p, j), a, names, n == total)
		}
	}

	c.workers()
	c.documents()
	c.installer()
}

func (c *checker) name(path, name, of string, seen map[string]bool) {
	switch {
	case name == "":
		c.add(path, "", "the %s needs a name", of)
	case len(name) > maxName:
		c.add(path, "", "is longer than %d characters", maxName)
	case strings.ContainsFunc(name, unicode.IsControl):
		c.add(path, "", "holds a control character")
	case seen[name]:
		c.add(path, "give each a different name", "is the second %s named %q", of, name)
	}
	seen[name] = true
}

func (c *checker) step(path string, a step, names map[string]bool, last bool) {
	c.name(path+".name", a.Name, "action", names)
	if a.Timeout < 0 {
		c.add(path+".timeout", "give seconds, or leave it out", "is negative")
	}
	if a.PID != "" && a.Namespaces.PID != "" && a.PID != a.Namespaces.PID {
		c.add(path+".pid", "keep one of the two", "differs from namespaces.pid")
	}

	c.handlers(path, a)
	if a.Image == "" {
		c.add(path+".image", "name one of: "+knownActions(), "the action needs an image")
		return
	}
	if c.open(a.Image) {
		return
	}

	native, ok := action.Native(a.Image)
	if why := action.Foreign(a.Image); why != "" {
		c.add(path+".image", "write the name alone for the agent's own action, or name a registry of yours, which counts as a mirror",
			"%q: %s", a.Image, why)
		return
	}
	if !ok {
		c.add(path+".image", "use one of: "+knownActions(),
			"%q names no action that the agent carries out itself, and running containers is not supported", a.Image)
		return
	}
	if action.Leaves(native) && !last {
		c.add(path+".image", "move it to the end of the last task",
			"%q takes the machine away from the agent, so it can only be the last action", a.Image)
	}
}

// actionsPage documents the environment of every native action.
const actionsPage = "docs/templates.md"

func knownActions() string { return strings.Join(action.Names(), ", ") }

// actions creates the actions of the run and checks what depends on the machine.
func (c *checker) actions() Rendered {
	r := Rendered{Name: c.doc.Name, GlobalTimeout: c.doc.GlobalTimeout}
	c.why.GlobalTimeout = "the template"
	if r.GlobalTimeout == 0 {
		r.GlobalTimeout, c.why.GlobalTimeout = DefaultGlobalTimeout, "default"
		if c.doc.Installer != nil {
			r.GlobalTimeout += c.doc.Installer.timeout()
			c.why.GlobalTimeout = "default, and the time of the installer"
		}
	}

	if c.data.Image != nil {
		c.declared("", *c.data.Image)
	}
	r.DiskAlias = c.diskAlias()
	c.why.Installer = c.doc.Installer.explain()
	r.Documents, r.Installer = c.doc.documents(), c.doc.Installer.plan()
	for i, t := range c.doc.Tasks {
		c.worker(fmt.Sprintf("tasks[%d].worker", i), t)
		for j, s := range t.Actions {
			r.Actions = append(r.Actions, c.action(fmt.Sprintf("tasks[%d].actions[%d]", i, j), t, s, r.DiskAlias))
		}
	}

	if len(r.Actions) > 0 {
		c.appendReboot(&r)
	}
	r.Explanation, r.Warnings = c.why, c.warnings
	return r
}

// appendReboot adds a reboot unless the last action leaves the agent.
func (c *checker) appendReboot(r *Rendered) {
	last := r.Actions[len(r.Actions)-1]
	if native, _ := action.Native(last.Image); action.Leaves(native) {
		return
	}

	name := action.Reboot
	for taken(r.Actions, last.Task, name) {
		name += "-at-the-end"
	}
	reboot := action.Action{Name: name, Task: last.Task, Image: action.Reboot, Timeout: DefaultActionTimeout}
	r.Actions = append(r.Actions, reboot)

	why := environmentOf(task{}, step{}).explain(reboot, 0)
	why.Appended = "the last action of the template does not leave the agent"
	c.why.Actions = append(c.why.Actions, why)
}

func taken(actions []action.Action, task, name string) bool {
	return slices.ContainsFunc(actions, func(a action.Action) bool { return a.Task == task && a.Name == name })
}

// Why all tasks have one worker, and what to do with tasks of another machine.
const (
	oneWorker = "a run writes to one machine, because its lease, its boots and its disk are that machine's"

	oneWorkerRemedy = `write worker: "{{.device_1}}" in every task; ` +
		"store the tasks of another machine as a template of their own, and provision that machine with it"
)

// workers checks that all tasks name the same worker. Whether that is the run's machine is known
// only with data.
func (c *checker) workers() {
	first := -1
	for i, t := range c.doc.Tasks {
		switch {
		case t.Worker == "":
		case first < 0:
			first = i
		case t.Worker != c.doc.Tasks[first].Worker:
			c.add(fmt.Sprintf("tasks[%d].worker", i), oneWorkerRemedy, "task %q has another worker than task %q: %s",
				t.Name, c.doc.Tasks[first].Name, oneWorker)
		}
	}
}

// worker checks that a task is for this machine.
func (c *checker) worker(path string, t task) {
	worker, m := t.Worker, c.data.Machine
	if worker == "" || worker == m.Name {
		return
	}
	if _, ok := m.InterfaceByMAC(strings.ToLower(strings.ReplaceAll(worker, "-", ":"))); ok {
		return
	}

	c.add(path, oneWorkerRemedy, "%q is neither a MAC nor the name of machine %q, for which task %q would run: %s",
		worker, m.Name, t.Name, oneWorker)
}

func (c *checker) action(path string, t task, s step, disk string) action.Action {
	a := action.Action{
		Name: s.Name, Task: t.Name, Image: s.Image, Command: s.Command, PID: s.PID,
		Timeout: s.Timeout, OnTimeout: s.OnTimeout, OnFailure: s.OnFailure,
		Volumes: append(slices.Clone(t.Volumes), s.Volumes...),
	}
	if a.PID == "" {
		a.PID = s.Namespaces.PID
	}
	if a.Timeout == 0 {
		a.Timeout = DefaultActionTimeout
	}

	env := environmentOf(t, s)
	native, _ := action.Native(s.Image)
	row := action.Describe(native)
	if row.URL != "" {
		c.image(path, native, env)
	}
	if native == action.RootIO {
		c.storage(path, env, disk)
	}
	if variable := action.DiskVariable(native, env.values); variable != "" {
		if !action.Requires(native, variable) {
			env.setDefault(variable, disk, "the run's disk")
		}
		c.device(path, native, env, disk)
	}
	for _, v := range row.Variables {
		if err := v.Check(env.values); err != nil {
			c.add(path+".environment."+v.Name, "see "+actionsPage, "%v", err)
		}
	}
	c.upload(path, native, env)
	if err := action.CheckCommand(native, s.Command); err != nil {
		c.add(path+".command", "see "+actionsPage, "%v", err)
	}
	c.handlerDisks(path, s, disk)
	if len(env.values) > 0 {
		a.Environment = env.values
	}

	why := env.explain(a, s.Timeout)
	c.explainWrapped(path, &why)
	c.why.Actions = append(c.why.Actions, why)
	return a
}
