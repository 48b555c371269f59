package importfile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// workflowDocument is tinkerbell.org/v1alpha1 Workflow.
type workflowDocument struct {
	typeMeta
	Spec struct {
		Disabled    any               `json:"disabled"`
		TemplateRef string            `json:"templateRef"`
		HardwareRef string            `json:"hardwareRef"`
		HardwareMap map[string]string `json:"hardwareMap"`
		BootOptions any               `json:"bootOptions"`
	} `json:"spec"`
}

// ignoredWorkflow are the keys of a Workflow that its command does not need, and why.
var ignoredWorkflow = map[string]string{
	"metadata.namespace": "an inventory has no namespaces",
	"metadata.labels":    "a run has no labels",
	"spec.disabled":      "an import starts nothing",
	"spec.bootOptions":   "a run switches power and network boot itself",
}

// A workflow is a Workflow whose machine is not resolved yet.
type workflow struct {
	object
	template, hardware string
	hardwareMap        map[string]string
}

func (r *reader) readWorkflow(o object) {
	var d workflowDocument
	if !r.decode(o, &d, ignoredWorkflow) {
		return
	}
	if d.Spec.TemplateRef == "" {
		r.add(o.doc, "spec.templateRef", "name a template", "there is no template")
	}
	r.workflows = append(r.workflows, workflow{o, d.Spec.TemplateRef, d.Spec.HardwareRef, d.Spec.HardwareMap})
}

// startWorkflow adds the command that does what a Workflow does. Its machine is the
// hardwareRef, or else the machine whose MAC is device_1 of the hardware map.
func (r *reader) startWorkflow(w workflow) {
	name, _ := shortName(w.hardware)
	device := w.hardwareMap["device_1"]
	for _, m := range r.Machines {
		if i, ok := m.InterfaceByMAC(strings.ToLower(device)); ok && i.MAC != "" && name == "" {
			name = m.Name
		}
	}
	if name == "" {
		name = device
	}
	if name == "" {
		r.add(w.doc, "spec.hardwareRef", "name a Hardware, or give device_1 in spec.hardwareMap", "there is no machine")
		return
	}

	words := []string{"ingot", "machine", "provision", name, "--template", w.template}
	for _, k := range slices.Sorted(maps.Keys(w.hardwareMap)) {
		if !strings.HasPrefix(k, "device_") { // every run sets device_1
			words = append(words, "--hardware-map", k+"="+w.hardwareMap[k])
		}
	}
	r.Starts = append(r.Starts, Start{w.place(), w.String(), command(words...)})
}

// jobDocument is bmc.tinkerbell.org/v1alpha1 Job.
type jobDocument struct {
	typeMeta
	Spec struct {
		MachineRef reference   `json:"machineRef"`
		Tasks      []bmcAction `json:"tasks"`
	} `json:"spec"`
}

// A bmcAction has exactly one of its fields.
type bmcAction struct {
	PowerAction    string `json:"powerAction"`
	OneTimeBootDev *struct {
		Device  []string `json:"device"`
		EFIBoot bool     `json:"efiBoot"`
	} `json:"oneTimeBootDeviceAction"`
	BootDevice *struct {
		Device     string `json:"device"`
		Persistent bool   `json:"persistent"`
		EFIBoot    bool   `json:"efiBoot"`
	} `json:"bootDevice"`
	VirtualMedia *struct {
		MediaURL any `json:"mediaURL"`
		Kind     any `json:"kind"`
	} `json:"virtualMediaAction"`
}

// A job is a Job whose machine is not resolved yet.
type job struct {
	object
	machine reference
	tasks   []string
}

func (r *reader) readJob(o object) {
	var d jobDocument
	if !r.decode(o, &d, map[string]string{
		"metadata.namespace": ignoredWorkflow["metadata.namespace"],
		"metadata.labels":    ignoredWorkflow["metadata.labels"],
	}) {
		return
	}

	j := job{object: o, machine: d.Spec.MachineRef}
	for n, a := range d.Spec.Tasks {
		if task := r.task(o, fmt.Sprintf("spec.tasks[%d]", n), a); task != "" {
			j.tasks = append(j.tasks, task)
		}
	}
	if len(d.Spec.Tasks) == 0 {
		r.add(o.doc, "spec.tasks", "give at least one task", "there is no task")
	}
	r.jobs = append(r.jobs, j)
}

// task returns a task in the form of ingot bmc job create; "" if it cannot be expressed.
func (r *reader) task(o object, field string, a bmcAction) string {
	given := 0
	for _, has := range []bool{a.PowerAction != "", a.OneTimeBootDev != nil, a.BootDevice != nil, a.VirtualMedia != nil} {
		if has {
			given++
		}
	}
	if given != 1 {
		r.add(o.doc, field, "give one of powerAction, bootDevice, oneTimeBootDeviceAction, virtualMediaAction",
			"a task has exactly one action, and here are %d", given)
		return ""
	}

	boot := func(device string, efi, persistent bool) string {
		task := "boot:" + device
		if efi {
			task += ",efi"
		}
		if persistent {
			task += ",persistent"
		}
		return task
	}
	switch {
	case a.PowerAction != "":
		actions := []string{"on", "off", "soft", "cycle", "reset", "status"}
		if !slices.Contains(actions, a.PowerAction) {
			r.add(o.doc, field+".powerAction", "use one of: "+strings.Join(actions, ", "), "unknown action %q", clip(a.PowerAction))
		}
		return "power:" + a.PowerAction
	case a.BootDevice != nil:
		return boot(a.BootDevice.Device, a.BootDevice.EFIBoot, a.BootDevice.Persistent)
	case a.VirtualMedia != nil:
		r.ignore(o, field+".virtualMediaAction", "virtual media is not supported by this version")
		return ""
	}

	if len(a.OneTimeBootDev.Device) == 0 {
		r.add(o.doc, field+".oneTimeBootDeviceAction.device", "name one", "there is no device")
		return ""
	}
	if len(a.OneTimeBootDev.Device) > 1 {
		r.ignore(o, field+".oneTimeBootDeviceAction.device[1]", "only the first device counts")
	}
	return boot(a.OneTimeBootDev.Device[0], a.OneTimeBootDev.EFIBoot, false)
}

// startJob adds the command that does what a Job does.
func (r *reader) startJob(j job) {
	name := ""
	for _, h := range r.hardware {
		if h.bmc != nil && h.bmc.key(h.object) == j.machine.key(j.object) {
			name = h.machine.Name
		}
	}
	if name == "" {
		r.ignore(j.object, "spec.machineRef", "no Hardware in the files has the BMC "+clip(j.machine.Name)+
			"; its command is: ingot bmc job create MACHINE --task …")
		return
	}

	words := []string{"ingot", "bmc", "job", "create", name}
	for _, t := range j.tasks {
		words = append(words, "--task", t)
	}
	if len(j.tasks) > 0 {
		r.Starts = append(r.Starts, Start{j.place(), j.String(), command(words...)})
	}
}
