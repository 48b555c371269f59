package activities

import (
	"context"
	"fmt"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// BindRequest asks which disk of the machine the run is to write.
type BindRequest struct {
	Owner inventory.Owner `json:"owner"`
	// Selector is the operator's answer to an earlier question. If Selector is nil, the machine's disk selector
	// applies.
	Selector *inventory.DiskSelector `json:"selector,omitempty"`
	// Disk is the disk that an earlier run wrote. If set, this disk must be chosen again.
	Disk *action.Disk `json:"disk,omitempty"`
	// Anyway: the operator was asked about a disk with Bound.CanConfirm and has named it, so the image is written
	// although the image has no loader for the machine.
	Anyway bool `json:"anyway,omitempty"`
	// From is the index of the first action that the run carries out.
	From int `json:"from,omitempty"`
}

// Bound is the result of Bind: the chosen disk, or the reason why no disk was chosen, and all disks of the machine.
type Bound struct {
	Disk   *action.Disk `json:"disk,omitempty"`
	Reason string       `json:"reason,omitempty"`
	// CanConfirm: the operator may name the disk in spite of Reason; see BindRequest.Anyway.
	CanConfirm bool          `json:"canConfirm,omitempty"`
	Disks      []action.Disk `json:"disks,omitempty"`
}

// Bind chooses one of the disks that the agent has found. The disk selector decides.
func (a *assignments) Bind(ctx context.Context, q BindRequest) (Bound, error) {
	if err := a.fence(ctx, q.Owner); err != nil {
		return Bound{}, err
	}

	m, err := a.Machines.Machine(ctx, q.Owner.Machine)
	if err != nil {
		return Bound{}, err
	}

	agent, err := a.Agents.Agent(ctx, q.Owner)
	if err != nil {
		return Bound{}, fmt.Errorf("reading the agent of machine %q: %w", q.Owner.Machine, err)
	}

	written, err := a.Disks.DisksWritten(ctx, m.Name)
	if err != nil {
		return Bound{}, err
	}

	disks := agent.Facts.Disks
	for i, d := range disks {
		for _, id := range d.ID().Keys() {
			if run := written[id]; run != "" {
				disks[i].Written = run
			}
		}
	}

	d, reason := chooseDisk(m, q, agent.Facts)
	canConfirm := false
	if d != nil {
		if reason, canConfirm, err = a.findMisfit(ctx, q, m, *d, agent.Facts); err != nil {
			return Bound{}, err
		}
	}
	if reason != "" {
		return Bound{Reason: reason, CanConfirm: canConfirm, Disks: disks}, nil
	}

	return Bound{Disk: d, Disks: disks}, a.event(ctx, q.Owner.Event(agent.Boot, inventory.EventBound, "",
		fmt.Sprintf("disk %s (serial %q, wwn %q), %d bytes", d.Path, d.Serial, d.WWN, d.Size)))
}

// findSecondDisk returns the disk that an action uses in place of the run's disk, the bound one. It returns the reason if the agent has not
// found this disk, or has found several, or if the disk is protected or is the bound one.
func findSecondDisk(m inventory.Machine, x action.SecondDisk, bound action.Disk, f action.Facts) (*action.Disk, string) {
	d, reason := chooseUnprotected(m, f.Disks, &inventory.DiskSelector{Serial: x.Serial, WWN: x.WWN})
	if d != nil && d.ID() == bound.ID() {
		d, reason = nil, "it is the run's disk"
	}
	if d != nil {
		return d, ""
	}
	return nil, fmt.Sprintf("disk %s (serial %q, wwn %q), which the machine declares: %s: correct the machine's disks, then plan again",
		x.Device, x.Serial, x.WWN, reason)
}

// chooseDisk returns the disk that the selector of the request or of the machine selects. If there is none, it
// returns nil and the reason.
func chooseDisk(m inventory.Machine, q BindRequest, f action.Facts) (*action.Disk, string) {
	selector := m.DiskSelector
	known := q.Disk != nil && (q.Disk.Serial != "" || q.Disk.WWN != "")
	switch {
	case q.Selector != nil:
		selector = q.Selector
	case q.Disk != nil && (known || selector == nil):
		size := inventory.Size(q.Disk.Size)
		selector = &inventory.DiskSelector{Serial: q.Disk.Serial, WWN: q.Disk.WWN, MinSize: size, MaxSize: size}
	}

	if n := f.DisksOmitted; n > 0 && (selector == nil || selector.Serial == "" && selector.WWN == "") {
		// The selector could also match a disk that the agent did not report.
		return nil, fmt.Sprintf("the machine has %d more disks than the agent could report: give the serial "+
			"number of the disk to write", n)
	}

	d, reason := chooseUnprotected(m, f.Disks, selector)
	if d == nil && f.Truncated != "" {
		reason += " (the agent's report would have been too long; left out: " + f.Truncated + ")"
	}
	if d != nil && q.Selector == nil && known && m.DiskSelector != nil && !m.DiskSelector.Matches(*d) {
		return nil, fmt.Sprintf("the earlier run wrote disk %s (serial %q, wwn %q), which does not match the "+
			"machine's disk selector: name the disk to go on with, or retry from the start",
			d.Path, d.Serial, d.WWN)
	}
	return d, reason
}

// chooseUnprotected calls DiskSelector.Choose with those of the disks that are not protected.
func chooseUnprotected(m inventory.Machine, disks []action.Disk, selector *inventory.DiskSelector) (*action.Disk, string) {
	var free []action.Disk
	var spared []string
	for _, d := range disks {
		if m.Protects(d) {
			spared = append(spared, fmt.Sprintf("%s (serial %q, wwn %q)", d.Path, d.Serial, d.WWN))
			continue
		}
		free = append(free, d)
	}

	d, reason := selector.Choose(free)
	if d == nil && len(spared) > 0 {
		reason += "; protected, so never written: " + strings.Join(spared, ", ")
	}
	return d, reason
}
