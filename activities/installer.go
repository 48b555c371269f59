package activities

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/internal/systems"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

// PlannedInstaller is the part of an installer that the workflow needs.
type PlannedInstaller struct {
	Payload  string         `json:"payload"`
	Complete string         `json:"complete"` // webhook | phone-home | talos
	Timeout  action.Seconds `json:"timeout"`
	// Loaded: the firmware or the boot loader loads the whole payload before it starts the installer. A report of
	// the installer then proves that the payload was delivered.
	Loaded bool `json:"loaded,omitempty"`
}

// install sets p.Installer and p.Evidence from the plan's installer, if it has one.
func (p *Planned) install(plan inventory.Plan) {
	i := plan.Installer
	if i == nil {
		return
	}
	p.Installer = &PlannedInstaller{
		Payload: i.Payload, Complete: i.Complete, Timeout: i.Timeout,
		Loaded: slices.Contains(i.Initrds, i.Payload),
	}
	p.Evidence = i.Complete
	for _, d := range plan.Documents {
		if inventory.Refers(d.Contents, inventory.RefNonce) || inventory.Refers(d.Contents, inventory.RefPhoneHomeURL) {
			p.Evidence = EvidencePhoneHome // the installed system reports by phone-home, without the installer's help
		}
	}
}

// installer adds the documents and the installer to the plan. It also validates them, so that no machine is started
// with a document that the program that reads it would refuse. The plan holds the documents exactly as they were
// validated; only references to values of the run are replaced later.
func (a *plans) installer(ctx context.Context, m inventory.Machine, r template.Rendered, plan *inventory.Plan) error {
	var problems inventory.Problems
	if r.Installer != nil {
		i := *r.Installer
		i.Digests = map[string]string{}
		plan.Installer = &i
		if n := len(plan.Actions); n > 0 {
			if native, _ := plan.Actions[n-1].Native(); !action.Leaves(native) {
				plan.Actions = append(plan.Actions, action.Action{
					Name: "to-the-installer", Task: plan.Actions[n-1].Task,
					Image: action.Reboot, Timeout: template.DefaultActionTimeout,
				})
			}
		}
		problems = append(problems, mayInstall(m)...)
		for _, name := range slices.Compact(i.Images()) {
			sum, err := a.findServed(ctx, name, &problems)
			if err != nil {
				return err
			}
			i.Digests[name] = sum
		}
	}

	if len(r.Documents) > 0 {
		user, vendor, err := a.Machines.UserData(ctx, m.Name)
		if err != nil {
			return err
		}
		for _, d := range r.Documents {
			d, err := a.document(m, plan, d, user, vendor)
			if p, ok := errors.AsType[inventory.Problems](err); ok {
				problems = append(problems, p...)
			} else if err != nil {
				return err
			}
			plan.Documents = append(plan.Documents, d)
		}
	}
	return problems.Err()
}

// mayInstall returns the reasons why m must not boot an installer other than the agent; nil if there are none. Such
// an installer chooses by itself to which disks it writes.
func mayInstall(m inventory.Machine) (problems inventory.Problems) {
	if m.DiskSelector == nil && len(m.Disks) != 1 {
		problems.Add("machine."+m.Name+".diskSelector", "give the machine a diskSelector with the serial or wwn of the disk "+
			"that its document names, or declare its only disk",
			"an installer other than the agent will write to a disk, but the machine declares %d disks and no "+
				"diskSelector", len(m.Disks))
	}
	if len(m.ProtectedDisks) > 0 {
		problems.Add("machine."+m.Name+".protectedDisks", "unplug the protected disks and remove them from protectedDisks, or "+
			"use a template in which the agent writes the disk",
			"an installer other than the agent does not spare protected disks, and the machine has %d of them", len(m.ProtectedDisks))
	}
	return problems
}

// findServed returns the digest of an image of this server. If this server cannot serve the image, it adds a
// problem.
func (a *plans) findServed(ctx context.Context, name string, problems *inventory.Problems) (sha256 string, err error) {
	img, err := a.Images.Image(ctx, name)
	switch {
	case errors.Is(err, inventory.ErrNotFound):
		problems.Add("installer", fmt.Sprintf("add it with: ingot image add %s FILE (or URL)", name),
			"there is no image %q", name)
		return "", nil
	case err != nil:
		return "", err
	case img.File == "":
		problems.Add("installer", fmt.Sprintf("fetch it with: ingot image add %s %s", name, img.URL),
			"this server has no copy of image %q", name)
	case img.SHA256 == "":
		problems.Add("installer", "add the image again", "the digest of image %q is not known", name)
	case img.FirstSeen && a.Site.RequireDigest:
		problems.Add("installer", "add the image again with its digest", "image %q was added without a digest, "+
			"but require_digest is set", name)
	}
	return img.SHA256, nil
}

// document validates the document d and returns it as it will be served. user and vendor are the machine's
// user-data and vendor-data, which d may refer to.
func (a *plans) document(m inventory.Machine, plan *inventory.Plan, d inventory.Document, user,
	vendor inventory.Secret,
) (inventory.Document, error) {
	file := fmt.Sprintf("document %s of machine %s", d.Name, m.Name)
	if d.Contents == inventory.RefUserData && user.IsZero() {
		var p inventory.Problems
		p.Add("machine."+m.Name+".userData", "store the document as the machine's user data",
			"%s is the machine's user data, but the machine has no user data", file)
		return d, p
	}

	contents, err := inventory.Resolve(d.Contents, func(ref string) (string, error) {
		switch ref {
		case inventory.RefUserData:
			return user.Reveal(), nil
		case inventory.RefVendorData:
			return vendor.Reveal(), nil
		}
		return ref, nil
	})
	if err != nil {
		return d, err
	}

	// The run has no grant yet, so its epoch is unknown. No check depends on the epoch.
	stand := inventory.Owner{Machine: m.Name, Run: plan.Run, Epoch: 1}
	if err := systems.CheckDocument(d.Kind, file, []byte(a.ofRun(contents, stand))); err != nil {
		return d, err
	}
	if plan.Installer == nil {
		d.Contents = contents
		return d, nil
	}

	if webhooks, ok := systems.Of(d.Kind).(systems.Webhooks); ok && plan.Installer.Complete == inventory.CompleteWebhook {
		b, err := webhooks.AddWebhooks([]byte(contents), inventory.RefWebhookURL)
		if err != nil {
			return d, fmt.Errorf("%s: %w", file, err)
		}
		contents = string(b)
		if err := systems.CheckDocument(d.Kind, file, []byte(a.ofRun(contents, stand))); err != nil {
			return d, err
		}
	}
	if probe, ok := systems.Of(d.Kind).(systems.Probe); ok && plan.Installer.Complete == d.Kind {
		if err := probe.Provable([]byte(a.ofRun(contents, stand))); err != nil {
			var p inventory.Problems
			p.Add("installer.complete", "use the complete configuration of the machine, or choose another value of installer.complete",
				"%s does not say how to recognise the installed system: %v", file, err)
			return d, p
		}
		if nic, _ := m.Netboot(); !nic.Address.IsValid() {
			var p inventory.Problems
			p.Add("machine."+m.Name, "give the machine's netboot interface an address",
				"Ingot asks the machine's Talos API whether Talos is installed, but the machine has no address")
			return d, p
		}
	}

	d.Contents = contents
	return d, nil
}

// ofRun replaces references in text by their values, if the values depend on the run o.
func (a *plans) ofRun(text string, o inventory.Owner) string {
	out, err := inventory.Resolve(text, func(ref string) (string, error) {
		if v, ok := cloudinit.Reference(ref, a.Site.MetadataURL, a.Site.ClaimKey, o); ok {
			return v, nil
		}
		return ref, nil
	})
	if err != nil {
		return text // the function above never returns an error
	}
	return out
}

// digestPlan returns the digest of a plan: its actions, its installer, and the names and kinds of its documents. It
// leaves out the contents of documents. They are secret, and a digest of them in a workflow history could reveal
// them.
func digestPlan(plan inventory.Plan) (string, error) {
	if plan.Installer == nil && len(plan.Documents) == 0 {
		return digest(plan.Actions)
	}

	named := slices.Clone(plan.Documents)
	for i := range named {
		named[i].Contents = ""
	}

	return digest([]any{plan.Actions, plan.Installer, named})
}

// installedEvery is how often TalosInstalled asks the system for the proof.
const installedEvery = 5 * time.Second

// TalosInstalled waits until the system on the owner's machine proves that it runs with the document of this run.
// It returns the proof as text.
func (a *plans) TalosInstalled(ctx context.Context, o inventory.Owner) (string, error) {
	defer heartbeat(ctx)()
	return a.waitForProof(ctx, o)
}

func (a *plans) waitForProof(ctx context.Context, o inventory.Owner) (string, error) {
	plan, err := a.Plans.Plan(ctx, o.Run)
	if err != nil {
		return "", fmt.Errorf("reading the plan of run %q: %w", o.Run, err)
	}
	var probe systems.Probe
	n := slices.IndexFunc(plan.Documents, func(d inventory.Document) (ok bool) {
		probe, ok = systems.Of(d.Kind).(systems.Probe)
		return ok
	})
	if n < 0 {
		return "", fmt.Errorf("reading the plan of run %q: no document is for a system that can prove its installation: %w",
			o.Run, inventory.ErrInvalid)
	}
	m, err := a.Machines.Machine(ctx, o.Machine)
	if err != nil {
		return "", err
	}

	nic, _ := m.Netboot()
	document := []byte(a.ofRun(plan.Documents[n].Contents, o))
	for {
		if err := a.fence(ctx, o); err != nil {
			return "", err
		}
		proof, err := probe.Probe(ctx, a.Dial, nic.Address, document)
		if !errors.Is(err, inventory.ErrUnreachable) {
			return proof, err
		}
		a.Log.With(o.LogKeys(0)...).Debug("waiting for the installed system", "address", nic.Address, "error", err)
		if err := pause(ctx, time.After(installedEvery)); err != nil {
			return "", err
		}
	}
}
