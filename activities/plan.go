package activities

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// plans holds the activities that plan runs.
type plans struct{ *shared }

// DefaultTemplate is used if neither the request nor the machine names a template.
const DefaultTemplate = "image"

// PlanRequest asks for the plan of a run.
type PlanRequest struct {
	Run         string            `json:"run"`
	Machine     string            `json:"machine"`
	Template    string            `json:"template,omitempty"`
	Image       string            `json:"image,omitempty"`
	HardwareMap map[string]string `json:"hardwareMap,omitempty"`
	// Wipe adds a wipe of the bound disk as the first action.
	Wipe bool `json:"wipe,omitempty"`
	// First refuses a machine on which Ingot may have installed a system.
	First bool `json:"first,omitempty"`
	// By is the name of the operator for whom FetchImages stores images.
	By string `json:"by,omitempty"`
	// Together: the run is one of several in an operation ProvisionTogether, and HardwareMap names their machines.
	Together bool `json:"together,omitempty"`
	// Resume is the id of an earlier run. The plan of that run is carried out again, from the step that failed.
	Resume string `json:"resume,omitempty"`
}

// Planned is the part of a plan that enters the workflow history: names, timeouts, policies and the digest. Planned
// holds no environment, because environments may contain secrets.
type Planned struct {
	// Run is the id of the run under which the plan is stored.
	Run           string          `json:"run,omitempty"`
	Template      string          `json:"template"`
	Image         string          `json:"image,omitempty"` // name of the image that the plan writes
	Digest        string          `json:"digest"`
	Actions       []PlannedAction `json:"actions"`
	GlobalTimeout action.Seconds  `json:"globalTimeout"`
	Manual        bool            `json:"manual,omitempty"` // the machine has no BMC
	Evidence      string          `json:"evidence"`         // phone-home | webhook | talos | weak
	// Installer is the installer that the machine boots after the actions; nil for none.
	Installer *PlannedInstaller `json:"installer,omitempty"`
	// NoSystem means that no action writes a system to a disk, and that there is no installer.
	NoSystem bool `json:"noSystem,omitempty"`
	// From is the index of the first action to carry out. Disk is the disk that the earlier run wrote, if this run
	// resumes one.
	From     int          `json:"from,omitempty"`
	Disk     *action.Disk `json:"disk,omitempty"`
	Warnings []string     `json:"warnings,omitempty"`
	// Fetch lists the names of the images that FetchImages must store before the run can be planned. If the list is not empty, no plan was
	// stored, and the fields from Digest on are not set.
	Fetch []string `json:"fetch,omitempty"`
}

// PlannedAction is the part of an action that the workflow needs.
type PlannedAction struct {
	Name    string         `json:"name"`
	Task    string         `json:"task,omitempty"`
	Image   string         `json:"image"`
	Timeout action.Seconds `json:"timeout"` // includes the time of the action's handlers
	Leaving bool           `json:"leaving,omitempty"`
	Writes  bool           `json:"writes,omitempty"` // the action needs the disk that is bound to the run
	// Seed: the action writes to the disk an instance id for cloud-init that depends on the number of the boot.
	Seed bool `json:"seed,omitempty"`
	// After is what the action's task waits for; nil if it waits for no other machine.
	After *inventory.Turn `json:"after,omitempty"`
}

// TurnOf returns what the run must wait for before it carries out Actions[i]: a task waits before the first of its actions that the run
// carries out. It returns nil if there is nothing to wait for.
func (p Planned) TurnOf(i int) *inventory.Turn {
	if i > p.From && p.Actions[i-1].Task == p.Actions[i].Task {
		return nil
	}
	return p.Actions[i].After
}

// Values of Planned.Evidence. They tell what proves that the installed system is up.
const (
	EvidencePhoneHome = "phone-home"
	EvidenceWebhook   = "webhook"
	EvidenceTalos     = "talos"
	EvidenceWeak      = inventory.EvidenceWeak
)

// Plan renders the template with the machine's data, replaces images by their digests and stores the plan. If the
// input is invalid, Plan returns an error before anything is changed.
func (a *plans) Plan(ctx context.Context, q PlanRequest) (Planned, error) {
	p, err := a.plan(ctx, q)
	if err != nil {
		return Planned{}, fmt.Errorf("planning %q: %w", q.Machine, err)
	}
	return p, nil
}

// checkFirst refuses a first installation of a machine on which Ingot may have installed a system. The run holds the machine's
// workflow id, so no other run can install the machine after this check.
func (a *plans) checkFirst(ctx context.Context, q PlanRequest) error {
	if !q.First {
		return nil
	}
	all, err := a.Installed.Installed(ctx, q.Machine)
	if err != nil {
		return err
	}
	if i, ok := all[q.Machine]; ok && i.MayBeSystem() {
		return fmt.Errorf("the machine may hold the system of run %s (to wipe and install the machine again: ingot machine reprovision %s): %w",
			i.Run, q.Machine, inventory.ErrConflict)
	}
	return nil
}

func (a *plans) plan(ctx context.Context, q PlanRequest) (Planned, error) {
	m, err := a.Machines.Machine(ctx, q.Machine)
	if err != nil {
		return Planned{}, err
	}

	if err := inService(m); err != nil {
		return Planned{}, err
	}

	if err := a.checkFirst(ctx, q); err != nil {
		return Planned{}, err
	}

	if err := errors.Join(a.Site.bootable(), a.Site.mediaReady(m)); err != nil {
		return Planned{}, err
	}

	out := newPlanned(q, m)
	var plan inventory.Plan
	if q.Resume == "" {
		plan, err = a.render(ctx, q, m, &out)
	} else if plan, err = a.resume(ctx, q, &out); err == nil && plan.Installer != nil {
		err = mayInstall(m).Err() // a disk may have been protected since the earlier run was planned
	}
	if err == nil && len(out.Fetch) > 0 {
		return out, nil
	}
	if err == nil {
		err = a.Site.mayUpload(plan.Actions[min(out.From, len(plan.Actions)):]...)
	}
	if err != nil {
		return Planned{}, err
	}

	out.Digest, out.GlobalTimeout, out.Evidence = plan.Digest, plan.GlobalTimeout, EvidenceWeak
	for _, x := range plan.Actions {
		native, _ := x.Native()
		out.Actions = append(out.Actions, PlannedAction{
			Name: x.Name, Task: x.Task, Image: x.Image, Timeout: x.Longest(), Leaving: action.Leaves(native),
			Writes: x.NeedsDisk(), Seed: native == action.ConfigDrive && x.Environment["META_DATA"] == "",
		})
		if n := slices.IndexFunc(plan.Turns, func(t inventory.Turn) bool { return t.Task == x.Task }); n >= 0 {
			out.Actions[len(out.Actions)-1].After = &plan.Turns[n]
		}
		if phonesHome(x) {
			out.Evidence = EvidencePhoneHome
		}
		if native == action.PowerOff {
			out.Evidence = EvidenceWeak
		}
	}

	out.install(plan)
	out.NoSystem = plan.Installer == nil && !slices.ContainsFunc(plan.Actions, func(x action.Action) bool {
		return x.MayInstall()
	})
	if err := a.checkResolved(ctx, m.Name, plan.Actions); err != nil {
		return Planned{}, err
	}
	if err := a.judgeUserData(ctx, m, plan, &out); err != nil {
		return Planned{}, err
	}
	if err := a.Plans.PutPlan(ctx, plan); err != nil {
		return out, err
	}

	// Check the image files only now: they are protected from removal only after the plan is stored.
	return out, a.requireImages(ctx, m.Name, plan, out.From)
}

// ImagesRequest asks about the image files that one action of a run needs.
type ImagesRequest struct {
	Run     string `json:"run"`
	Machine string `json:"machine"`
	Action  int    `json:"action"`
}

// ChangedImage returns why a file that the action needs cannot be served as planned; "" if all can be served. It
// checks only files in place (inventory.InPlace). These belong to other programs, which can restore them.
func (a *plans) ChangedImage(ctx context.Context, q ImagesRequest) (why string, err error) {
	plan, err := a.Plans.Plan(ctx, q.Run)
	if err != nil {
		return "", fmt.Errorf("reading the plan of run %q: %w", q.Run, err)
	}
	if q.Action >= len(plan.Actions) || a.Site.ImageStored == nil {
		return "", nil
	}

	only := inventory.Plan{Run: plan.Run, ImagesURL: plan.ImagesURL, Actions: plan.Actions[q.Action : q.Action+1]}
	for _, i := range only.Images(0) {
		err := a.Site.ImageStored(ctx, i)
		if errors.Is(err, inventory.ErrConflict) {
			return err.Error(), nil
		}
		if err != nil && !errors.Is(err, inventory.ErrNotFound) {
			return "", err
		}
	}
	return "", nil
}

// inService returns an error if a Decommission has quarantined the machine or has released its address.
func inService(m inventory.Machine) error {
	if m.Quarantined() {
		return fmt.Errorf("the machine is quarantined: %s (once that is resolved: ingot machine release %s): %w",
			m.Standing.Reason, m.Name, inventory.ErrConflict)
	}
	return checkAddress(m)
}

// checkAddress returns an error if the machine cannot boot because a Decommission has released its address.
func checkAddress(m inventory.Machine) error {
	if nic, _ := m.Netboot(); m.Standing != nil && !nic.Address.IsValid() {
		return fmt.Errorf("the machine's address was released when it was decommissioned: store the machine with an address (ingot "+
			"machine push --replace): %w", inventory.ErrConflict)
	}
	return nil
}

// newPlanned returns what is known of the plan before the template is rendered.
func newPlanned(q PlanRequest, m inventory.Machine) Planned {
	return Planned{
		Run: q.Run, Template: cmp.Or(q.Template, m.Template, DefaultTemplate),
		Image: cmp.Or(q.Image, m.Image), Manual: m.BMC.Manual(),
	}
}

func (a *plans) render(ctx context.Context, q PlanRequest, m inventory.Machine, out *Planned) (inventory.Plan,
	error,
) {
	r, images, err := a.renderTemplate(ctx, q, m, *out)
	if err != nil {
		return inventory.Plan{}, err
	}
	out.Warnings = append(out.Warnings, r.Warnings...)
	for _, f := range r.Fetch {
		out.Fetch = append(out.Fetch, f.Name)
	}
	if len(out.Fetch) > 0 {
		return inventory.Plan{}, nil
	}

	if q.Wipe {
		wipe := wipeAction(action.WipeModes[0])
		r.Actions = append([]action.Action{wipe}, r.Actions...)
		if r.GlobalTimeout > 0 { // the timeout in the template does not include the wipe
			r.GlobalTimeout += wipe.Timeout
		}
	}

	plan := inventory.Plan{
		Run: q.Run, Actions: r.Actions, GlobalTimeout: r.GlobalTimeout, DiskAlias: r.DiskAlias, Turns: r.Turns,
	}
	if a.Site.ImageURL != nil {
		plan.ImagesURL = a.Site.ImageURL()
	}
	if err := a.installer(ctx, m, r, &plan); err != nil {
		return inventory.Plan{}, err
	}

	out.Image = writtenImage(plan, images, out.Image)
	pin(&plan, images)
	plan.Digest, err = digestPlan(plan)
	return plan, err
}

// writtenImage returns the name of an image of this server that the plan writes to a disk; "" if there is none. If
// the plan writes several, or several names have the same digest, it prefers given, the image of the run. If the
// plan has an installer, it returns given, because an installer may fetch images that no action names.
func writtenImage(plan inventory.Plan, images []inventory.Image, given string) string {
	if plan.Installer != nil {
		return given
	}
	written := ""
	for _, x := range plan.Actions {
		native, _ := x.Native()
		digest := x.Environment[action.Describe(native).Digest]
		for _, i := range images {
			if !action.Installs(native) || digest == "" || i.SHA256 != digest {
				continue
			}
			if i.Name == given {
				return given
			}
			written = cmp.Or(written, i.Name)
		}
	}
	return written
}

// pin adds the digest to each URL of an image of this server in the plan. The run then gets the planned file even
// if another file gets the name of the image.
func pin(plan *inventory.Plan, images []inventory.Image) {
	if plan.ImagesURL == "" {
		return
	}

	pinned := func(text string) string {
		for _, i := range images {
			if i.File != "" {
				text = inventory.Rebase(text, plan.ImagesURL+"/"+i.Name, plan.ImagesURL+"/"+i.PinnedPath())
			}
		}
		return text
	}

	for n, x := range plan.Actions {
		plan.Actions[n] = x.Rewrite(pinned)
	}

	if plan.Installer != nil {
		for n, v := range plan.Installer.Parameters {
			plan.Installer.Parameters[n] = pinned(v)
		}
	}

	for n, d := range plan.Documents {
		plan.Documents[n].Contents = pinned(d.Contents)
	}
}

// resume returns the plan of the earlier run q.Resume, which must be a run of the same machine. It sets the fields
// From, Template, Image and Disk of out.
func (a *plans) resume(ctx context.Context, q PlanRequest, out *Planned) (inventory.Plan, error) {
	w, err := a.Workflows.Workflow(ctx, q.Resume)
	if err != nil {
		return inventory.Plan{}, fmt.Errorf("run %q: %w", q.Resume, err)
	}

	if w.Machine != q.Machine {
		return inventory.Plan{}, fmt.Errorf("run %q belongs to machine %q: %w", q.Resume, w.Machine, inventory.ErrInvalid)
	}

	if !inventory.Final(w.State) {
		return inventory.Plan{}, fmt.Errorf("run %q has not ended: %w", q.Resume, inventory.ErrConflict)
	}

	if err := a.Workflows.Resumable(ctx, q.Resume); err != nil {
		return inventory.Plan{}, err
	}

	plan, err := a.Plans.Plan(ctx, q.Resume)
	if err != nil {
		return inventory.Plan{}, fmt.Errorf("reading the plan of run %q: %w", q.Resume, err)
	}

	if len(plan.Turns) > 0 && !q.Together {
		return inventory.Plan{}, fmt.Errorf("the tasks of run %q wait for other machines: retry the operation that started it: %w", q.Resume,
			inventory.ErrInvalid)
	}

	for out.From < len(w.Actions) && w.Actions[out.From].State == action.Success {
		out.From++
	}

	if out.From >= len(plan.Actions) && plan.Installer == nil {
		return inventory.Plan{}, fmt.Errorf("run %q has no step left to carry out: %w", q.Resume, inventory.ErrInvalid)
	}

	// Repeat the actions that wrote the nonce or the URLs of the earlier run to the disk, because this nonce and
	// these URLs are no longer valid.
	for i, x := range plan.Actions {
		if native, _ := x.Native(); i < out.From && (native == action.ConfigDrive || phonesHome(x)) {
			out.From = i
		}
	}

	// Folders that containers share were in the memory of the earlier run's agent. Repeat the actions that may have filled them, and those
	// whose folders the repeated actions need in turn.
	for i := out.From - 1; i >= 0; i-- {
		if slices.ContainsFunc(plan.Actions[out.From:], plan.Actions[i].SharesFolder) {
			out.From = i
		}
	}

	out.Template, out.Image, out.Disk = w.Template, w.Image, w.Disk
	plan.Run = q.Run
	return plan, a.Site.mayRunContainers(plan.Actions[out.From:]...)
}

// digest returns the SHA-256 of the JSON of v, in hex.
func digest(v any) (string, error) {
	b, err := json.Marshal(v)
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), err
}
