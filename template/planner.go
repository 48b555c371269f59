package template

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// makeActions makes the actions of the run, and checks everything that depends on the machine. It returns them with the other parts of the
// rendered template.
func (p *planner) makeActions() Rendered {
	r := Rendered{Name: p.check.doc.Name, GlobalTimeout: p.check.doc.GlobalTimeout}
	p.why.GlobalTimeout = "the template"
	if r.GlobalTimeout == 0 {
		r.GlobalTimeout, p.why.GlobalTimeout = DefaultGlobalTimeout, "default"
		if p.check.doc.Installer != nil {
			r.GlobalTimeout += p.check.doc.Installer.timeout()
			p.why.GlobalTimeout = "default, plus the installer's timeout"
		}
	}

	if p.data.Image != nil {
		p.checkDeclared("", *p.data.Image)
	}
	r.DiskAlias = p.findDiskAlias()
	p.why.Installer = p.check.doc.Installer.explain()
	r.Documents, r.Installer = p.check.doc.documents(), p.check.doc.Installer.plan()
	r.Turns = p.check.turns()
	for i, t := range p.check.doc.Tasks {
		if p.check.foreign(t) {
			continue
		}
		for j, s := range t.Actions {
			r.Actions = append(r.Actions, p.makeAction(fmt.Sprintf("tasks[%d].actions[%d]", i, j), t, s, r.DiskAlias))
		}
	}

	if len(r.Actions) > 0 {
		p.appendReboot(&r)
	}
	r.Explanation, r.Warnings, r.Fetch, r.Containers = p.why, p.warnings, p.fetches, p.containers
	return r
}

// appendReboot adds a reboot as the last action, unless the last action already takes the machine away from the agent.
func (p *planner) appendReboot(r *Rendered) {
	last := r.Actions[len(r.Actions)-1]
	if native, _ := last.Native(); action.Leaves(native) {
		return
	}

	name := action.Reboot
	for taken(r.Actions, last.Task, name) {
		name += "-at-the-end"
	}
	reboot := action.Action{Name: name, Task: last.Task, Image: action.Reboot, Timeout: DefaultActionTimeout}
	r.Actions = append(r.Actions, reboot)

	why := environmentOf(task{}, step{}).explain(reboot, 0)
	why.Appended = "the template's last action does not leave the agent"
	p.why.Actions = append(p.why.Actions, why)
}

func taken(actions []action.Action, task, name string) bool {
	return slices.ContainsFunc(actions, func(a action.Action) bool { return a.Task == task && a.Name == name })
}

func (p *planner) makeAction(path string, t task, s step, disk string) action.Action {
	a := action.Action{
		Name: s.Name, Task: t.Name, Image: s.Image, Command: s.Command,
		Timeout: cmp.Or(s.Timeout, DefaultActionTimeout), OnTimeout: s.OnTimeout, OnFailure: s.OnFailure,
		Volumes: append(slices.Clone(t.Volumes), s.Volumes...),
	}

	env := environmentOf(t, s)
	native, known := s.native()
	if !known {
		a.Environment = env.values
		p.setContainer(path, s, &a, disk)
	}
	row := action.Describe(native)
	if row.URL != "" {
		p.setImage(path, native, env)
	}
	switch native {
	case action.RootIO:
		p.setStorage(path, env, disk)
	case action.WriteFile:
		p.setNetwork(path, env)
	}
	if variable := action.DiskVariable(native, env.values); variable != "" {
		if !action.Requires(native, variable) {
			env.setDefault(variable, disk, "the run's disk")
		}
		disk = p.setSecondDisk(path, native, env, &a, disk)
		p.checkDevice(path, native, env, disk)
	}
	for _, v := range row.Variables {
		if err := v.Check(env.values); err != nil {
			p.check.add(path+".environment."+v.Name, "see "+actionsPage, "%v", err)
		}
	}
	p.checkPartitionImage(path, native, env, disk)
	p.checkUpload(path, native, env)
	if err := action.CheckCommand(native, s.Command); err != nil {
		p.check.add(path+".command", "see "+actionsPage, "%v", err)
	}
	p.checkHandlerDisks(path, s, disk)
	if len(env.values) > 0 {
		a.Environment = env.values
	}

	why := env.explain(a, s.Timeout)
	p.explainWrapped(path, &why)
	p.why.Actions = append(p.why.Actions, why)
	return a
}

// Rendered is a template that was rendered for a machine.
type Rendered struct {
	Name          string
	Actions       []action.Action
	GlobalTimeout action.Seconds
	// DiskAlias is the path by which the actions name the run's disk. The real path may differ: the agent replaces DiskAlias, and the paths of
	// its partitions, by the paths that the bound disk has.
	DiskAlias string
	// Installer is the installer that the machine boots after the actions; nil = none. Documents are what the installer or the installed
	// system fetches.
	Installer *inventory.Installer `json:",omitempty"`
	Documents []inventory.Document `json:",omitempty"`
	// Turns are the tasks that wait for tasks of other machines.
	Turns []inventory.Turn `json:",omitempty"`
	// Fetch lists the files that this server must fetch. The template must then be rendered again, because the actions lack the digests of
	// these files.
	Fetch []Fetch `json:"-"`
	// Containers are the references to images of containers, each once. An action whose container has no digest, because Data.Containers has
	// none for its reference, cannot be carried out.
	Containers []action.ContainerReference `json:"-"`
	// Warnings say which settings are allowed, but perhaps not intended.
	Warnings []string `json:",omitempty"`
	// Explanation says where the other fields come from.
	Explanation Explanation `json:"-"`
}
