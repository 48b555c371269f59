package template

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// checkStructure checks everything in the template that does not depend on the machine.
func (c *checker) checkStructure() {
	d := c.doc
	if d.Version != version && !c.open(d.Version) {
		c.add("version", `write version: "0.1"`, "is %q, but must be %q", d.Version, version)
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
		c.add("tasks", "", "have %d actions; at most %d are allowed in one template", total, maxActions)
		return
	}

	tasks := map[string]bool{}
	for i, t := range d.Tasks {
		p := fmt.Sprintf("tasks[%d]", i)
		c.checkName(p+".name", t.Name, "task", tasks)
		if len(t.Actions) == 0 {
			c.add(p+".actions", "", "a task needs at least one action")
		}

		c.checkVolumes(p+".volumes", t.Volumes, "")
		names := map[string]bool{}
		for j, a := range t.Actions {
			last := j == len(t.Actions)-1 && c.lastOfWorker(i)
			c.checkStep(fmt.Sprintf("%s.actions[%d]", p, j), a, names, last)
		}
	}

	c.checkDocuments()
	c.checkInstaller()
}

func (c *checker) checkName(path, name, of string, seen map[string]bool) {
	switch {
	case name == "":
		c.add(path, "", "the %s needs a name", of)
	case len(name) > maxName:
		c.add(path, "", "is longer than %d characters", maxName)
	case strings.ContainsFunc(name, unicode.IsControl):
		c.add(path, "", "contains a control character")
	case seen[name]:
		c.add(path, "give each a different name", "is the second %s named %q", of, name)
	}
	seen[name] = true
}

func (c *checker) checkStep(path string, a step, names map[string]bool, last bool) {
	c.checkName(path+".name", a.Name, "action", names)
	if a.Timeout < 0 {
		c.add(path+".timeout", "give seconds, or leave it out", "is negative")
	}
	if a.PID != "" && a.Namespaces.PID != "" && a.PID != a.Namespaces.PID {
		c.add(path+".pid", "keep one of the two", "differs from namespaces.pid")
	}

	if a.Native != nil && *a.Native && !c.open(a.Image) {
		if _, ok := a.native(); !ok {
			c.add(path+".native", "leave it out", "%q is not an action built into the agent", a.Image)
		}
	}
	c.checkHandlers(path, a)
	if a.Image == "" {
		c.add(path+".image", "name one of: "+knownActions(), "the action needs an image")
		return
	}
	if c.open(a.Image) {
		return
	}

	native, ok := a.native()
	if !ok {
		c.checkContainer(path, a)
		return
	}
	if a.Privileged {
		c.add(path+".privileged", "leave it out", "%q is an action built into the agent, and only a container can be privileged", a.Image)
	}
	if action.Leaves(native) && !last {
		c.add(path+".image", "move the action to the end of the machine's last task",
			"%q takes the machine away from the agent, so it can only be the last action", a.Image)
	}
}

func knownActions() string { return strings.Join(action.Names(), ", ") }

var (
	documentName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	imageName    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
)

func (c *checker) checkDocuments() {
	if len(c.doc.Documents) > maxDocuments {
		c.add("documents", "", "are %d; at most %d are allowed", len(c.doc.Documents), maxDocuments)
		return
	}
	names := map[string]bool{}
	for n, x := range c.doc.Documents {
		p := fmt.Sprintf("documents[%d]", n)
		switch {
		case c.open(x.Name):
		case !documentName.MatchString(x.Name):
			c.add(p+".name", "use up to 64 letters, digits, dots, dashes and underscores", "%q cannot be the last element of a URL",
				x.Name)
		case names[x.Name]:
			c.add(p+".name", "give each a different name", "is the second document named %q", x.Name)
		}

		names[x.Name] = true
		if kinds := inventory.DocumentKinds(); x.Kind != "" && !c.open(x.Kind) && !slices.Contains(kinds, x.Kind) {
			c.add(p+".kind", "use one of: "+strings.Join(kinds, ", "), "unknown kind of document %q", x.Kind)
		}
		if len(x.Contents) > maxDocument {
			c.add(p+".contents", "", "are larger than %d KiB", maxDocument>>10)
		}
		if inventory.Refers(x.Contents, inventory.RefBootURL) {
			c.add(p+".contents", "use .images_url", "name .boot_url, which is invalid after the boot")
		}
	}
}

func (c *checker) checkInstaller() {
	i := c.doc.Installer
	if i == nil {
		return
	}

	c.checkImageName("installer.kernel", i.Kernel)
	if len(i.Initrd) == 0 || len(i.Initrd) > maxInitrds {
		c.add("installer.initrd", "name the initramfs, an image of the inventory", "has %d entries; 1 to %d are allowed",
			len(i.Initrd), maxInitrds)
	}

	seen := map[string]bool{i.Kernel: true}
	for n, name := range i.Initrd {
		path := fmt.Sprintf("installer.initrd[%d]", n)
		c.checkImageName(path, name)
		if seen[name] {
			c.add(path, "", "%q is loaded twice", name)
		}
		seen[name] = true
	}

	if i.Payload != "" {
		c.checkImageName("installer.payload", i.Payload)
		if i.Payload == i.Kernel {
			c.add("installer.payload", "name the file that the installer fetches last", "is the kernel, which is fetched first")
		}
	}
	if len(i.Parameters) > maxParameters {
		c.add("installer.parameters", "", "are %d; at most %d are allowed", len(i.Parameters), maxParameters)
	}

	for n, a := range i.Parameters {
		c.checkParameter(fmt.Sprintf("installer.parameters[%d]", n), a)
	}
	c.checkCompletion(i.Complete)
	if i.Timeout < 0 {
		c.add("installer.timeout", "give seconds, or leave it out", "is negative")
	}
	if c.doc.GlobalTimeout > 0 && c.doc.GlobalTimeout <= i.timeout() {
		c.add("global_timeout", "make global_timeout longer, or leave it out", "ends before installer.timeout of %d s", i.timeout())
	}

	c.checkLastAction()
}

// checkCompletion checks complete, the field that says how Ingot detects the end of the installer.
func (c *checker) checkCompletion(complete string) {
	known := inventory.Completions()
	if !c.open(complete) && !slices.Contains(known, complete) {
		c.add("installer.complete", "use one of: "+strings.Join(known, ", "),
			"invalid value %q", complete)
	}

	documents := 0
	for _, x := range c.doc.Documents {
		if x.Kind == complete {
			documents++
		}
	}
	if inventory.ProvenByDocument(complete) && documents != 1 {
		c.add("installer.complete", "give the template one document of kind "+complete,
			"is %s, but there are %d documents of that kind", complete, documents)
	}
}

// checkLastAction is called if the template has an installer. It adds a problem if an action takes the machine away from the agent in
// another way than by a reboot, because the machine would not boot the installer then.
func (c *checker) checkLastAction() {
	for i, t := range c.doc.Tasks {
		for j, s := range t.Actions {
			native, ok := s.native()
			if ok && action.Leaves(native) && native != action.Reboot {
				c.add(fmt.Sprintf("tasks[%d].actions[%d].image", i, j), "leave it out",
					"%q leaves the agent, but does not boot the installer, which is next", s.Image)
			}
		}
	}
}

func (c *checker) checkImageName(path, name string) {
	if !c.open(name) && !imageName.MatchString(name) {
		c.add(path, "add the file with: ingot image add NAME FILE, and name it here", "invalid image name %q", name)
	}
}

// secretElsewhere are references to secrets that must not be on a kernel command line, because every process can read it (security S44).
var secretElsewhere = []string{inventory.RefNonce, inventory.RefPhoneHomeURL, inventory.RefUserData, inventory.RefVendorData}

func (c *checker) checkParameter(path, a string) {
	for _, ref := range secretElsewhere {
		if inventory.Refers(a, ref) {
			c.add(path, "put the secret into a document, and give the kernel .documents_url",
				"puts a secret on the kernel command line, where every process can read it")
			return
		}
	}
	if c.open(a) {
		return
	}
	if why := inventory.InstallerParameterProblem(a); why != "" {
		c.add(path, "write one parameter per entry, as the kernel reads it, or leave it out", "%q %s", a, why)
	}
}
