package genesis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// Kinds of steps, in the order in which the steps are carried out. The name of a step is its kind, except for
// StepJoin: see JoinStep.
const (
	StepPreflight  = "preflight"
	StepRouter     = "router"
	StepRelay      = "relay"
	StepPlatform   = "platform"
	StepKubernetes = "kubernetes"
	StepMigrate    = "migrate"
	StepCreate     = "create"
	StepVIP        = "vip"
	StepJoin       = "join"
	StepProven     = "proven"
)

// A Plan shows what a Genesis of a lab file would do: its steps, the disks that it overwrites, and the problems that
// prevent a start now. It contains no secrets.
type Plan struct {
	Name   string   `json:"name"`
	SHA256 string   `json:"sha256"`
	Files  []string `json:"files"` // names of the lab file and of the files that it names
	Steps  []Step   `json:"steps"`
	// Destroys lists the disks that are overwritten, one line per machine.
	Destroys []string `json:"destroys"`
	// Problems prevent a start now; Warnings do not prevent it.
	Problems inventory.Problems `json:"problems"`
	Warnings inventory.Problems `json:"warnings"`
}

// A Step is one step of a Genesis, described by the texts that the plan prints.
type Step struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	// Machine is the machine that the step works on, "" for the server itself.
	Machine string `json:"machine,omitempty"`
	Does    string `json:"does"` // one sentence
	// Disk describes the disks that the step overwrites; "" if there are none.
	Disk     string      `json:"disk,omitempty"`
	Images   []StepImage `json:"images,omitempty"`
	Template string      `json:"template,omitempty"`
	// Waits describes what the step may wait for, such as an operator or the BMC.
	Waits  string        `json:"waits,omitempty"`
	Ready  string        `json:"ready"` // condition that ends the step
	Budget time.Duration `json:"budget"`
	// Undo describes how the step is undone. If it cannot be undone, Undo is "none: " and the reason.
	Undo string `json:"undo"`
}

// A StepImage is an image that a step needs, with its required digest.
type StepImage struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
}

// budgets holds the default time limits of the steps, by kind. Time during which a step waits for an operator does not
// count.
var budgets = map[string]time.Duration{
	StepPreflight:  15 * time.Minute,
	StepRouter:     45 * time.Minute,
	StepRelay:      15 * time.Minute,
	StepPlatform:   45 * time.Minute,
	StepKubernetes: 30 * time.Minute,
	StepMigrate:    time.Hour,
	StepCreate:     2 * time.Hour,
	StepVIP:        40 * time.Minute,
	StepJoin:       2 * time.Hour,
	StepProven:     40 * time.Minute,
}

// JoinStep returns the name of the step in which machine joins the cluster.
func JoinStep(machine string) string { return StepJoin + "-" + machine }

// Writes reports whether the step overwrites a disk.
func (s Step) Writes() bool { return s.Disk != "" }

// Steps returns the steps of a Genesis of the lab, in order. The plan prints them, and the workflow carries them out.
// If Load has returned problems, the texts of the steps may be incomplete.
func (l Lab) Steps() []Step {
	steps := []Step{{
		Kind: StepPreflight,
		Does: "Checks that every image has its digest, addresses are free, BMCs answer " +
			"and all documents are valid; then stores the machines.",
		Ready: "every check passed",
		Undo:  "none: only the inventory was changed, and the machines stay in it",
	}}
	steps = append(slices.Concat(steps, l.routerSteps(), l.platformSteps(), l.migrateSteps(), l.clusterSteps()), l.provenStep())

	for n := range steps {
		s := &steps[n]
		s.Name = cmp.Or(s.Name, s.Kind)
		if s.Budget = budgets[s.Kind]; l.Budgets[s.Name] > 0 {
			s.Budget = l.Budgets[s.Name]
		}
	}
	return steps
}

func (l Lab) routerSteps() []Step {
	r := l.Router
	if r == nil {
		return nil
	}
	install := l.installStep(StepRouter, r.Machine)
	install.Does = fmt.Sprintf(
		"Installs VyOS and its config.boot on %s, which boots in the server's own network %s, because no relay exists yet.",
		r.Machine, l.Seed.Segment)
	install.Ready = "the VyOS that this run installed has reported, and its API at " + r.API + " shows the configuration"
	return []Step{install, {
		Kind: StepRelay, Machine: r.Machine,
		Does:  fmt.Sprintf("Waits for a DHCP packet that %s relays from %s.", r.Machine, l.Network.Prefix),
		Waits: l.waitsForPower(l.firstBehindRouter(), "a machine behind the router asks for an address"),
		Ready: fmt.Sprintf("a DISCOVER with giaddr %s was seen", l.Network.Gateway),
		Undo:  "none: this step only listens",
	}}
}

func (l Lab) platformSteps() []Step {
	p := l.Platform
	if p == nil {
		return nil
	}
	install := l.installStep(StepPlatform, p.Machine)
	install.Does = fmt.Sprintf("Installs Talos on %s with its machine configuration.", p.Machine)
	if l.Router != nil {
		install.Does = fmt.Sprintf("Installs Talos on %s with its machine configuration, through the router's DHCP relay.", p.Machine)
	}
	install.Ready = "the Talos API at " + p.Talos + " shows the configuration of this run"
	return []Step{install, {
		Kind: StepKubernetes, Machine: p.Machine,
		Does:  "Bootstraps etcd exactly once, fetches the kubeconfig and waits for Kubernetes.",
		Ready: p.Kubernetes + "/readyz says ok, and node " + p.Machine + " is Ready",
		Undo:  "none: a bootstrap cannot be undone; ingot machine reprovision " + p.Machine + " installs the node again",
	}}
}

func (l Lab) migrateSteps() []Step {
	m := l.Migrate
	if m == nil {
		return nil
	}
	does := fmt.Sprintf("Copies images to the standby %s and hands the site over to it; machines then reach it at %s.", m.Target, m.Address)
	if m.ManifestFile != "" {
		does = fmt.Sprintf("Starts a standby server on %s, copies images to it and hands the site over to it; machines then reach it at %s.",
			l.platformMachine(), m.Address)
	}
	return []Step{{
		Kind: StepMigrate, Machine: l.platformMachine(), Does: does,
		Ready: "the target is active, the source is retired, and a DHCP client behind the relay gets its answer from " +
			m.Address.String(),
		Undo: "before the hand-over is committed: the standby and its entry in the relay are removed, " +
			"and this server stays active; afterwards: none, because the target is then the active server",
	}}
}

func (l Lab) clusterSteps() []Step {
	c := l.Cluster
	if c == nil {
		return nil
	}
	create := l.installStep(StepCreate, c.Create)
	create.Does = fmt.Sprintf("Installs Harvester on %s, which creates the cluster.", c.Create)
	create.Ready = "Harvester's installer reports success, and the installed node answers"
	steps := []Step{create, {
		Kind: StepVIP, Machine: c.Create,
		Does:  "Waits until the cluster's address answers, because no other node can join before.",
		Ready: c.API + "/ping says pong",
		Undo:  "none: this step only waits",
	}}
	for _, name := range c.Join {
		join := l.installStep(StepJoin, name)
		join.Name = JoinStep(name)
		join.Does = fmt.Sprintf("Installs Harvester on %s, which joins the cluster.", name)
		join.Ready = "Harvester's installer reports success, and the cluster lists the node"
		steps = append(steps, join)
	}
	return steps
}

// installStep returns the common part of a step that installs a machine.
func (l Lab) installStep(kind, machine string) Step {
	m, _ := l.Machine(machine)
	undo := "the machine is disarmed and switched off"
	if m.BMC.Manual() {
		undo = "the machine is disarmed; an operator switches it off"
	}
	return Step{
		Kind: kind, Machine: machine, Template: m.Template, Disk: l.disksOf(m), Images: l.imagesOf(m), Waits: l.powerOf(m),
		Undo: undo + "; its netboot window is closed; the disk is not restored: its old contents are lost, and a half-written disk does not boot",
	}
}

func (l Lab) provenStep() Step {
	s := Step{Kind: StepProven, Undo: "none: this step only checks"}
	switch {
	case l.Cluster != nil:
		n := 1 + len(l.Cluster.Join)
		s.Does = fmt.Sprintf("Asks the cluster for its nodes: %d must be ready.", n)
		s.Ready = fmt.Sprintf("%s lists %d nodes that are Ready", l.Cluster.API, n)
	case l.Platform != nil:
		s.Does, s.Ready = "Checks the platform once more.", l.Platform.Kubernetes+"/readyz says ok"
	default:
		s.Does, s.Ready = "Checks once more what was installed.", "every earlier step is done"
	}
	return s
}

// stepNames returns the names of the steps. It also works for a lab with problems.
func (l Lab) stepNames() []string {
	var out []string
	for _, s := range l.Steps() {
		out = append(out, s.Name)
	}
	return out
}

func (l Lab) platformMachine() string {
	if l.Platform == nil {
		return ""
	}
	return l.Platform.Machine
}

// firstBehindRouter returns the first of the machines behind the router that the steps install, or the zero Machine if
// there is none.
func (l Lab) firstBehindRouter() Machine {
	name := l.platformMachine()
	if name == "" && l.Cluster != nil {
		name = l.Cluster.Create
	}
	m, _ := l.Machine(name)
	return m
}

// waitsForPower returns a text for Step.Waits if an operator must switch m on, otherwise "".
func (l Lab) waitsForPower(m Machine, until string) string {
	if m.Name == "" || !m.BMC.Manual() {
		return ""
	}
	return fmt.Sprintf("an operator who switches %s on, until %s", m.Name, until)
}

// powerOf returns a text for Step.Waits that describes what switches a machine on.
func (l Lab) powerOf(m Machine) string {
	switch {
	case m.BMC.Wakes():
		return "wake-on-LAN, and an operator if " + m.Name + " must be switched off; or the machine's first network boot"
	case m.BMC.Manual():
		return "an operator who switches " + m.Name + " on and lets it boot from the network; or the machine's first network boot"
	case m.BMC.Driver == inventory.DriverExec:
		return "the power command " + m.BMC.Command
	}
	return "its BMC (" + m.BMC.Driver + " at " + m.BMC.Host + ")"
}

// imagesOf returns the images of the lab that a machine needs: its image, the images that its hardwareMap and labels
// name, and those that its installer downloads.
func (l Lab) imagesOf(m Machine) []StepImage {
	names := []string{m.Image}
	for _, v := range m.HardwareMap {
		names = append(names, v)
	}
	for k, v := range m.Labels {
		if m.HardwareMap[k] == "" {
			names = append(names, v)
		}
	}
	if l.systems != nil {
		names = append(names, l.systems.Downloads(l.kindOf(m), []byte(m.UserData.Reveal()))...)
	}
	slices.Sort(names)
	var out []StepImage
	for _, n := range slices.Compact(names) {
		if i, ok := l.Image(n); ok && n != "" {
			out = append(out, StepImage{Name: i.Name, SHA256: i.SHA256})
		}
	}
	return out
}

// disksOf returns a text about the disks that an installation of m overwrites: the disk that the inventory selects, and
// the disks that the machine's document names.
func (l Lab) disksOf(m Machine) string {
	var named []string
	if l.systems != nil {
		named = l.systems.Disks(l.kindOf(m), []byte(m.UserData.Reveal()))
	}
	slices.Sort(named)
	named = slices.Compact(named)
	if len(named) == 0 {
		return DiskText(m.Machine)
	}
	return DiskText(m.Machine) + "; the machine's configuration names " + strings.Join(named, ", ")
}

// DiskText returns a text about the disk that an installation of m overwrites, according to its disk selector.
func DiskText(m inventory.Machine) string {
	d := m.DiskSelector
	if d == nil {
		if len(m.Disks) == 1 {
			return "the declared disk (" + m.Disks[0].Device + "), if it is the machine's only disk and blank or written by Ingot"
		}
		return "the machine's only disk, if it is blank or was written by Ingot"
	}
	var parts []string
	for _, x := range []struct{ name, value string }{
		{"serial", d.Serial}, {"wwn", d.WWN}, {"byID", d.ByID}, {"model", d.Model},
	} {
		if x.value != "" {
			parts = append(parts, x.name+" "+x.value)
		}
	}
	if d.MinSize > 0 {
		parts = append(parts, fmt.Sprintf("at least %d bytes", d.MinSize))
	}
	if d.MaxSize > 0 {
		parts = append(parts, fmt.Sprintf("at most %d bytes", d.MaxSize))
	}
	return strings.Join(parts, ", ")
}

// Destroys returns one line for each machine whose disks a Genesis overwrites. The operator must confirm these lines.
func (l Lab) Destroys() []string {
	var out []string
	for _, s := range l.Steps() {
		if s.Writes() {
			out = append(out, s.Machine+": "+s.Disk)
		}
	}
	return out
}
