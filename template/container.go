package template

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// checkContainer checks what can be checked of a container without a machine. Its image is in a registry.
func (c *checker) checkContainer(path string, s step) {
	const remedy = "write REGISTRY/REPOSITORY:TAG for a container, or use one of the agent's actions: "
	_, err := action.ParseContainer(s.Image)
	bare := !strings.Contains(s.Image, "/")
	name, _, tagged := strings.Cut(s.Image, ":")
	switch near := strictyaml.Nearest(name, action.Names()); {
	case err != nil:
		c.add(path+".image", remedy+knownActions(), "%v", err)
	case bare && near != "" && near != name:
		c.add(path+".image", fmt.Sprintf("did you mean %q? For the container of Docker Hub: docker.io/library/%s", near, s.Image),
			"%q is not an action built into the agent", s.Image)
	case bare && !tagged && near == "":
		c.add(path+".image", remedy+knownActions(), "%q is not an action built into the agent; as a container, it needs a tag or a digest",
			s.Image)
	}

	for key, value := range map[string]string{".pid": s.PID, ".namespaces.pid": s.Namespaces.PID} {
		if value != "" && value != hostNamespace && !c.open(value) {
			c.add(path+key, "leave it out for a namespace of the container's own", "invalid value %q; must be host", value)
		}
	}
	if n := s.Namespaces.Network; !slices.Contains([]string{"", hostNamespace, noNetwork}, n) && !c.open(n) {
		c.add(path+".namespaces.network", "leave it out for the agent's network", "invalid value %q; must be host or none", n)
	}
	c.checkVolumes(path+".volumes", s.Volumes, "")
}

// Values of namespaces.
const (
	hostNamespace = "host"
	noNetwork     = "none"
)

// checkVolumes checks volumes of containers. disk is the path of the run's disk; "" if it is not known.
func (c *checker) checkVolumes(path string, volumes []string, disk string) {
	for n, text := range volumes {
		if c.open(text) {
			continue
		}
		if _, err := action.ParseVolume(text, disk); err != nil {
			c.add(fmt.Sprintf("%s[%d]", path, n), "see "+actionsPage, "%v", err)
		}
	}
}

// setContainer makes a the container of a step: with the image that its reference means, and with what it may do.
func (p *planner) setContainer(path string, s step, a *action.Action, disk string) {
	a.Container = &action.Container{
		HostNetwork: s.Namespaces.Network != noNetwork,
		HostPID:     s.PID == hostNamespace || s.Namespaces.PID == hostNamespace,
		Privileged:  s.Privileged,
		Disk:        a.RefersToDisk(disk) || s.Privileged,
	}
	p.checkOtherDisks(path, *a, disk)
	p.check.checkVolumes(path+".volumes", a.Volumes, disk)
	ref, err := action.ParseContainer(s.Image)
	if err != nil {
		return // checkContainer reports it
	}
	if why := action.Foreign(s.Image); why != "" {
		p.warn(fmt.Sprintf("%s runs as a container: %s", s.Image, why))
	}
	if p.data.RequireDigest && ref.Digest == "" {
		p.check.add(path+".image", "add @sha256: and the digest of the image", "%q has no digest, but require_digest is set", s.Image)
	}
	if s.Privileged {
		p.checkPrivileged(path+".privileged", ref)
	}
	if !slices.Contains(p.containers, ref) {
		p.containers = append(p.containers, ref)
	}

	digest := p.data.Containers[ref]
	if digest == "" {
		return // the caller has not asked the registry
	}
	a.Container.Digest = digest
	ref.Digest = cmp.Or(ref.Digest, digest)
	for _, address := range slices.Sorted(maps.Keys(p.data.Images)) {
		img := p.data.Images[address]
		if c := img.Container; a.Container.URL == "" && c != nil && c.Digest == digest && c.HasDigest(ref.Digest) {
			a.Container.URL, a.Container.SHA256, a.Container.Size = address, img.SHA256, img.DiskSize
		}
	}
	if a.Container.URL == "" { // or it is stored without the digest of the index, by which later plans find it
		p.addFetch(action.ContainerScheme + ref.String())
		return
	}
	p.checkMemory(path+".image", s.Image, a.Container.Size)
}

// checkOtherDisks judges the disks, other than the run's disk, that a container names. A disk that the machine declares is a problem. For a
// path that only looks like a disk's, checkOtherDisks adds a warning. Volumes and variables that name a disk are checked elsewhere.
func (p *planner) checkOtherDisks(path string, a action.Action, disk string) {
	known := []string{disk}
	for _, d := range p.data.Machine.Disks[min(1, len(p.data.Machine.Disks)):] {
		known = append(known, d.Device)
		if d.Device != disk && a.RefersToDisk(d.Device) {
			p.check.add(path, "use an action of the agent for this disk", "the container names %s, but a container can use only the run's disk (%s)",
				d.Device, disk)
		}
	}
	for _, other := range a.KernelDisks() {
		if !slices.Contains(known, other) {
			p.warn(fmt.Sprintf("action %s: the container names %s, but can use only the run's disk (%s)", a.Name, other, disk))
		}
	}
}

// checkPrivileged adds a problem if the image at ref may not run as a privileged container on the machine.
func (p *planner) checkPrivileged(path string, ref action.ContainerReference) {
	if digest := p.data.Containers[ref]; digest != "" && !slices.Contains(p.data.PrivilegedContainers, digest) {
		p.check.add(path, "leave it out, or add the digest to images.privileged_containers of the configuration and start the server again",
			"the image %s (%s) must not run as a privileged container", ref, digest)
	}
	if m := p.data.Machine; len(m.ProtectedDisks) > 0 {
		p.check.add(path, "leave it out", "machine %s has protected disks, so no container may be privileged on it", m.Name)
	}
}

// ContainerMemory is how much memory must be left for the agent and the container's processes next to the files of the image, in bytes.
const ContainerMemory = 256 << 20

// checkMemory adds a problem if the memory of the machine is known, and too small for the files of a container image.
func (p *planner) checkMemory(path, image string, size int64) {
	if p.data.Memory > 0 && p.data.Memory < size+ContainerMemory {
		p.check.add(path, "use a smaller image or a larger machine",
			"the machine has %s of memory, but %s needs %s: its files (%s) are in memory, too", human.Size(p.data.Memory), image,
			human.Size(size+ContainerMemory), human.Size(size))
	}
}

// warn adds a warning to the rendered template, unless it has the same already.
func (p *planner) warn(text string) {
	if !slices.Contains(p.warnings, text) {
		p.warnings = append(p.warnings, text)
	}
}

// addFetch adds a file to the files that this server must fetch.
func (p *planner) addFetch(address string) {
	f := Fetch{URL: address, Name: inventory.FetchedName(address)}
	if !slices.Contains(p.fetches, f) {
		p.fetches = append(p.fetches, f)
	}
}

// explainContainer says in why what is known of a container.
func explainContainer(c action.Container) string {
	if c.Digest == "" {
		return "a container; its image is looked up in the registry when a run is planned"
	}
	return "a container with the image " + c.Digest
}

// checkContainerShells adds a problem if a command of a container may pass data to a shell as commands (security S42): the word after -c
// contains data.
func (l *linter) checkContainerShells(at place, s step) {
	commands := s.handlers()
	commands["command"] = s.Command
	for _, key := range slices.Sorted(maps.Keys(commands)) {
		for n, word := range commands[key][min(1, len(commands[key])):] {
			field := fmt.Sprintf("%s.%s[%d]", at.step, key, n+1)
			if shellOption.MatchString(commands[key][n]) && at.source.Text(field) != word {
				l.check.add(field, `put the data into a variable of environment, and write "$NAME" here`,
					"a shell would run the template's data as commands")
			}
		}
	}
}

// shellOption matches the option of a shell whose argument is a command, such as -c or -euxc.
var shellOption = regexp.MustCompile(`^-[a-z]*c$`)

// noteForeign returns a note for a container whose image has the name of a native action of the agent.
func (l *linter) noteForeign(path, image string) inventory.Problems {
	why := action.Foreign(image)
	if why == "" {
		return nil
	}
	return inventory.Problems{{
		File: l.check.out.file, Line: l.check.out.line(path), Field: path, What: "runs as a container: " + why,
		Remedy: "write only the name for the agent's built-in action",
	}}
}
