package template

import (
	"fmt"
	"slices"

	"github.com/ingotmetal/ingot/inventory"
)

// machineOf returns the name of the machine that carries out the task. A task without a worker is for the run's machine. If there are no
// data, or the worker is no machine of the run, the result is the worker as the template names it.
func (c *checker) machineOf(t task) string {
	if c.data == nil {
		return t.Worker
	}
	if t.Worker == "" || c.data.Machine.IsWorker(t.Worker) {
		return c.data.Machine.Name
	}
	if n := slices.IndexFunc(c.data.Others, func(m inventory.Machine) bool { return m.IsWorker(t.Worker) }); n >= 0 {
		return c.data.Others[n].Name
	}
	return t.Worker
}

// foreign reports whether another machine carries out the task.
func (c *checker) foreign(t task) bool { return c.data != nil && c.machineOf(t) != c.data.Machine.Name }

// lastOfWorker reports whether no task after tasks[i] is for the same machine.
func (c *checker) lastOfWorker(i int) bool {
	machine := c.machineOf(c.doc.Tasks[i])
	return !slices.ContainsFunc(c.doc.Tasks[i+1:], func(t task) bool {
		other := c.machineOf(t)
		return other == machine || other == "" || machine == ""
	})
}

// turns checks the workers of all tasks, and returns for each task of the run's machine the task of another machine that comes immediately
// before it. That task waits for the tasks before it, so one is sufficient.
func (c *checker) turns() []inventory.Turn {
	var out []inventory.Turn
	own := false
	for i, t := range c.doc.Tasks {
		c.checkWorker(fmt.Sprintf("tasks[%d].worker", i), t)
		if c.foreign(t) {
			continue
		}
		own = true
		if i > 0 && c.foreign(c.doc.Tasks[i-1]) {
			before := c.doc.Tasks[i-1]
			out = append(out, inventory.Turn{Task: t.Name, Machine: c.machineOf(before), After: before.Name})
		}
	}

	if len(c.data.Others) > 0 {
		if !own {
			c.add("tasks", "leave the machine out of the hardware map", "no task is for machine %q", c.data.Machine.Name)
		}
		if c.doc.Installer != nil {
			c.add("installer", "install each machine by a run of its own", "boots one machine, but the hardware map names %d", len(c.data.Others)+1)
		}
	}
	return out
}

// checkWorker adds a problem if no machine of the run carries out the task.
func (c *checker) checkWorker(path string, t task) {
	m := c.data.Machine
	switch {
	case t.Worker == "" && len(c.data.Others) > 0:
		c.add(
			path,
			`write worker: "{{.device_1}}", or another device of the hardware map`,
			"task %q does not say which machine carries it out",
			t.Name,
		)
	case c.foreign(t) && !slices.ContainsFunc(c.data.Others, func(o inventory.Machine) bool { return o.Name == c.machineOf(t) }):
		c.add(path, workerRemedy, "%q is neither a MAC address nor the name of machine %q, for which task %q would run",
			t.Worker, m.Name, t.Name)
	}
}

// workerRemedy says what to do with a task for another machine.
const workerRemedy = `write worker: "{{.device_1}}"; ` +
	"to install several machines by one template: ingot together start NAME --template TEMPLATE " +
	"--hardware-map device_1=MACHINE,device_2=MACHINE"
