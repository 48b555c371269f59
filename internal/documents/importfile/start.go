package importfile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ingotmetal/ingot/inventory"
)

// workflowDocument is a Workflow of tinkerbell.org/v1alpha1.
type workflowDocument struct {
	typeMeta
	Spec struct {
		TemplateRef string            `json:"templateRef"`
		HardwareRef string            `json:"hardwareRef"`
		HardwareMap map[string]string `json:"hardwareMap"`
	} `json:"spec"`
}

// ignoredWorkflow maps keys of a Workflow to the reason why the command that replaces the Workflow does not need them.
var ignoredWorkflow = map[string]string{
	"metadata.namespace": "an inventory has no namespaces",
	"metadata.labels":    "a run has no labels",
	"spec.disabled":      "an import starts nothing",
	"spec.bootOptions":   "a run switches power and network boot itself",
}

// starts collects the documents that start a run or a BMC job in Tinkerbell, and the commands of ingot that do the same.
type starts struct {
	found     *findings
	machines  *machines
	workflows []workflow
	jobs      []job
	commands  []Start
}

// A workflow holds a Workflow document whose reference to a machine is not resolved yet.
type workflow struct {
	object
	template, hardware string
	hardwareMap        map[string]string
}

func (r *starts) readWorkflow(o object) {
	var d workflowDocument
	if !r.found.decode(o, &d, ignoredWorkflow) {
		return
	}
	if d.Spec.TemplateRef == "" {
		r.found.add(o.doc, "spec.templateRef", "name a template", "there is no template")
	}
	r.workflows = append(r.workflows, workflow{o, d.Spec.TemplateRef, d.Spec.HardwareRef, d.Spec.HardwareMap})
}

// startWorkflow adds the command that does the same as w. If the hardware map names several machines, they carry out the template
// together. Otherwise the machine is hardwareRef, or if that is empty, the machine whose MAC is device_1 in the hardware map.
func (r *starts) startWorkflow(w workflow) {
	var values []string                                // words
	owners, devices := map[string]string{}, []string{} // key of owners: a machine; value: the key that names it
	for _, k := range slices.Sorted(maps.Keys(w.hardwareMap)) {
		switch {
		case inventory.DeviceKey.MatchString(k):
			devices = append(devices, k)
			if owner := r.machines.byMAC(w.hardwareMap[k]); owner != "" && owners[owner] == "" {
				owners[owner] = k
			}
		default:
			values = r.addHardwareMap(w, values, k)
		}
	}

	name, _ := shortName(w.hardware)
	var words []string
	if len(owners) > 1 {
		words = []string{"ingot", "together", "start", w.name, "--template", w.template}
		words = r.nameMachines(w, name, owners, devices, words)
	} else {
		name = r.nameMachine(w, name, devices)
		words = []string{"ingot", "machine", "provision", name, "--template", w.template}
		if _, err := inventory.ParseMAC(name); err == nil {
			words = []string{"ingot", "workflow", "create", "--hardware", name, "--template", w.template}
		}
	}
	words = append(words, values...)
	if slices.Contains(words, "") || !r.printable(w.object, "spec", words) {
		return
	}
	r.addCommand(w.object, words...)
}

// addHardwareMap adds the value of a hardware map to the words of a command.
func (r *starts) addHardwareMap(w workflow, words []string, key string) []string {
	if pair, ok := hardwareMapWord(key, w.hardwareMap[key]); ok {
		return append(words, "--hardware-map", pair)
	}
	r.found.add(w.doc, "spec.hardwareMap."+key, "use no quotes at the ends, no line breaks, and no = in the name",
		"the name and the value cannot be passed on a command line")
	return words
}

// nameMachine returns the machine of a Workflow for one machine. name is the machine of hardwareRef.
func (r *starts) nameMachine(w workflow, name string, devices []string) string {
	for _, k := range devices {
		v := w.hardwareMap[k]
		owner := r.machines.byMAC(v)
		switch {
		case k == "device_1" && name == "":
			name = cmp.Or(owner, v)
		case owner != "" && owner != name:
			r.found.add(w.doc, "spec.hardwareMap."+k, "name the same machine in spec.hardwareRef",
				"%s is the MAC address of %s, but the workflow is for %s", clip(v), owner, clip(name))
		case owner == "":
			r.found.ignore(w.object, "spec.hardwareMap."+k, "a run sets it from the interfaces of its machine")
		}
	}
	if name == "" {
		r.found.add(w.doc, "spec.hardwareRef", "name a Hardware, or give device_1 in spec.hardwareMap", "there is no machine")
	}
	return name
}

// nameMachines adds the machines of a Workflow for several machines to the words of its command. name is the machine of hardwareRef.
func (r *starts) nameMachines(w workflow, name string, owners map[string]string, devices, words []string) []string {
	if !inventory.OperationName.MatchString(w.name) {
		r.found.add(w.doc, "metadata.name", "use up to 63 letters, digits, - and _", "%q cannot be the name of an operation", clip(w.name))
	}
	if name != "" && owners[name] == "" {
		r.found.add(w.doc, "spec.hardwareRef", "name it in spec.hardwareMap too", "spec.hardwareMap does not name machine %s", clip(name))
	}
	for _, k := range devices {
		if owner := r.machines.byMAC(w.hardwareMap[k]); owner != "" && owners[owner] != k {
			r.found.add(w.doc, "spec.hardwareMap."+k, "name each machine once", "%s is machine %s, which %s names already",
				clip(w.hardwareMap[k]), owner, owners[owner])
		}
		words = r.addHardwareMap(w, words, k)
	}
	return words
}

// addCommand adds the command that starts what o describes.
func (r *starts) addCommand(o object, words ...string) {
	r.commands = append(r.commands, Start{Place: o.place(), Object: o.String(), Command: command(words...), Args: words})
}

// hardwareMapWord returns key=value as an argument of --hardware-map. It returns false if the flag cannot express the pair:
// the flag reads an argument with more than one = as a row of CSV, and removes quotes at both ends of other arguments.
func hardwareMapWord(key, value string) (string, bool) {
	pair := key + "=" + value
	if key == "" || strings.ContainsAny(key, "=\"") || strings.ContainsAny(pair, "\r\n") {
		return "", false
	}
	if strings.Count(pair, "=") == 1 {
		return pair, pair == strings.Trim(pair, `"`)
	}
	if strings.ContainsAny(pair, `",`) {
		pair = `"` + strings.ReplaceAll(pair, `"`, `""`) + `"`
	}
	return pair, true
}

// printable reports whether a command of these words is safe to show and to run. It adds a problem and returns false
// for a word with a character that a terminal may interpret, or with a value that ingot would parse as a flag.
func (r *starts) printable(o object, field string, words []string) bool {
	for n, w := range words {
		if strings.ContainsFunc(w, func(c rune) bool { return !unicode.IsPrint(c) }) || !utf8.ValidString(w) {
			r.found.add(o.doc, field, "write names and values on one line", "the command would have a character that cannot be printed: %q", clip(w))
			return false
		}
		if n > 0 && !strings.HasPrefix(words[n-1], "-") && strings.HasPrefix(w, "-") && !slices.Contains(flags, w) {
			r.found.add(o.doc, field, "give the object another name", "%q would be a flag of the command", clip(w))
			return false
		}
	}
	return true
}

// flags holds the flags that the commands of this file use.
var flags = []string{"--template", "--hardware-map", "--task", "--hardware"}

// jobDocument is a Job of bmc.tinkerbell.org/v1alpha1.
type jobDocument struct {
	typeMeta
	Spec struct {
		MachineRef reference   `json:"machineRef"`
		Tasks      []bmcAction `json:"tasks"`
	} `json:"spec"`
}

// A bmcAction is one step of a Job. Exactly one of its fields is set.
type bmcAction struct {
	PowerAction    string `json:"powerAction"`
	OneTimeBootDev *struct {
		Device  []string `json:"device"`
		EFIBoot bool     `json:"efiBoot"`
	} `json:"oneTimeBootDeviceAction"`
	BootDevice   *bmcBoot  `json:"bootDevice"`
	VirtualMedia *bmcMedia `json:"virtualMediaAction"`
}

type bmcBoot struct {
	Device     string `json:"device"`
	Persistent bool   `json:"persistent"`
	EFIBoot    bool   `json:"efiBoot"`
}

type bmcMedia struct {
	MediaURL string `json:"mediaURL"`
	Kind     any    `json:"kind"`
}

// A job holds a Job document whose reference to a machine is not resolved yet.
type job struct {
	object
	machine  reference
	hardware string // name of the machine, in v1alpha2 only
	tasks    []string
	partial  bool // no command is offered, because ingot has no counterpart for one of the tasks
}

func (r *starts) readJob(o object) {
	var d jobDocument
	if !r.found.decode(o, &d, map[string]string{
		"metadata.namespace": ignoredWorkflow["metadata.namespace"],
		"metadata.labels":    ignoredWorkflow["metadata.labels"],
	}) {
		return
	}

	j := job{object: o, machine: d.Spec.MachineRef}
	if j.machine.Name == "" {
		r.found.add(o.doc, "spec.machineRef", "name a Machine", "there is no machine")
	}
	r.addJob(j, "task", d.Spec.Tasks)
}

// addJob adds j with its actions. noun is the word for an action in the document, "task" or "operation".
func (r *starts) addJob(j job, noun string, actions []bmcAction) {
	path := "spec." + noun + "s"
	if len(actions) == 0 {
		r.found.add(j.doc, path, "give at least one "+noun, "there is no %s", noun)
	}
	for n, a := range actions {
		if task := r.task(j.object, fmt.Sprintf("%s[%d]", path, n), a); task != "" {
			j.tasks = append(j.tasks, task)
		} else {
			j.partial = true
		}
	}
	r.jobs = append(r.jobs, j)
}

// task returns an action as an argument of "ingot bmc job create --task". It returns "" for an action that this command does not have.
func (r *starts) task(o object, field string, a bmcAction) string {
	given := 0
	for _, has := range []bool{a.PowerAction != "", a.OneTimeBootDev != nil, a.BootDevice != nil, a.VirtualMedia != nil} {
		if has {
			given++
		}
	}
	if given != 1 {
		r.found.add(o.doc, field, "give one of powerAction, bootDevice, oneTimeBootDeviceAction, virtualMediaAction",
			"a task must have exactly one action, but has %d", given)
		return ""
	}

	boot := func(device string, efi, persistent bool) string {
		if devices := []string{"pxe", "http", "disk", "cdrom", "bios", "none"}; !slices.Contains(devices, device) {
			r.found.add(o.doc, field, "use one of: "+strings.Join(devices, ", "), "unknown device %q", clip(device))
		}
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
			r.found.add(o.doc, field+".powerAction", "use one of: "+strings.Join(actions, ", "), "unknown action %q", clip(a.PowerAction))
		}
		return "power:" + a.PowerAction
	case a.BootDevice != nil:
		return boot(a.BootDevice.Device, a.BootDevice.EFIBoot, a.BootDevice.Persistent)
	case a.VirtualMedia != nil:
		if a.VirtualMedia.Kind != nil {
			r.found.ignore(o, field+".virtualMediaAction.kind", "Ingot always inserts the image into the virtual CD drive")
		}
		return "media:" + a.VirtualMedia.MediaURL
	}

	if len(a.OneTimeBootDev.Device) == 0 {
		r.found.add(o.doc, field+".oneTimeBootDeviceAction.device", "name a device", "there is no device")
		return ""
	}
	if len(a.OneTimeBootDev.Device) > 1 {
		r.found.ignore(o, field+".oneTimeBootDeviceAction.device[1]", "only the first device is used")
	}
	return boot(a.OneTimeBootDev.Device[0], a.OneTimeBootDev.EFIBoot, false)
}

// startJob adds the command that does the same as j.
func (r *starts) startJob(j job) {
	name, _ := shortName(j.hardware)
	if name == "" {
		name = r.machines.withBMC(j.machine, j.object)
	}
	if name == "" {
		r.found.ignore(j.object, "spec.machineRef", "no Hardware in the files has the BMC "+clip(j.machine.Name)+
			"; create the job by hand: ingot bmc job create MACHINE --task …")
		return
	}

	words := []string{"ingot", "bmc", "job", "create", name}
	for _, t := range j.tasks {
		words = append(words, "--task", t)
	}
	if !j.partial && r.printable(j.object, "spec.tasks", words) {
		r.addCommand(j.object, words...)
	}
}
