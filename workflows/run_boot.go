package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// boot holds the state of the network boot that is under way.
type boot struct {
	number     int       // number of this boot, from 1 in each grant
	left       int       // boots left before the operator is asked
	silent     int       // boots in a row without an agent
	shim       bool      // an interface of the machine boots by shim
	how        string    // how the present boot was started, if not in the usual way
	installer  bool      // the boot is for the plan's installer, not for the agent
	path       int       // number of boot paths that were tried without an answer
	lost       bool      // the previous boot was lost, see bootLost
	began      time.Time // when the wait for this boot began
	poweredOff bool      // the machine was switched off to stop its agent
}

// ladder lists the ways to start a machine. After a boot in which the machine stays silent, the next boot uses the next rung. After
// the run's last boot the operator is asked, and the ladder starts again. A step that the machine or its BMC does not support is
// skipped, and the record says so.
var ladder = []struct {
	does                      string
	warm, resetBMC, otherPath bool
}{
	{does: "off, network boot once, on"},
	// This helps if the BMC has lost the boot device, or if a boot loader hangs.
	{does: "network boot once again, reset", warm: true},
	// This helps if the BMC reports success without acting, or if the firmware ignores the boot flag of the present boot path. If the
	// machine has ever booted by its path, the path is not changed.
	{does: "BMC reset, off, network boot once, on", resetBMC: true, otherPath: true},
}

// rung returns the index in ladder for the present boot.
func (b *boot) rung() int { return min(b.silent, len(ladder)-1) }

// startMachine boots the machine over the network and returns nil once its agent has sent its hello or its
// installer has fetched all files. It goes through the phases power, dhcp, loader and agent. A silent machine is
// started again on the next rung of ladder. The operator is asked when the run's boots are used up.
func (r *machineRun) startMachine(ctx workflow.Context) error {
	b := &r.boot
	b.silent, b.poweredOff, b.lost = 0, false, false
	for {
		if b.left == 0 {
			if started, err := r.askForMoreBoots(ctx); err != nil || started {
				return err
			}
		}
		b.number++
		b.left--
		r.signals.beginBoot(b.installer)
		if err := r.powerOn(ctx); err != nil {
			return err
		}

		up, err := r.waitForBoot(ctx)
		switch {
		case err != nil:
			return err
		case r.signals.conflict:
			return r.resolveClaimConflict(ctx)
		case up:
			return nil
		}
		if b.lost = r.bootLost(); !b.lost {
			b.silent++
		}
		r.logger().Info("starting the machine again", "lost", b.lost)
	}
}

// askForMoreBoots asks the operator whether the run may use more boots. If started is true, no answer is needed, because the
// installer of the last boot has reported.
func (r *machineRun) askForMoreBoots(ctx workflow.Context) (started bool, err error) {
	b := &r.boot
	last := ""
	if b.how != "" {
		last = ", the last one: " + b.how
	}

	d, err := r.askUnless(ctx, func() bool { return b.installer && r.signals.received.hasAny(installerKinds...) },
		inventory.Question{
			ID: r.questionID("boot", b.number), Choices: []string{contract.Retry, contract.Abort},
			Text: fmt.Sprintf("the run has used up its boots (%d%s)%s; look at the machine's console and at: ingot why %s",
				b.number, last, b.secureBootHint(r.signals.received), r.grant.owner.Machine),
		})
	if err != nil || d == nil {
		return d == nil, err
	}

	if err := executeLocal(ctx, nil, do.MoreBoots, r.grant.owner); err != nil {
		return false, err
	}

	b.left, b.silent = inventory.MaxBoots, 0
	return false, nil
}

// secureBootHint returns a text for the operator if the machine boots by shim, otherwise "". The text names the file that was
// delivered last in the present boot, because the program in that file may have refused the next one.
func (b *boot) secureBootHint(received kinds) string {
	if !b.shim {
		return ""
	}

	last := "no file was delivered: with shim, firmware must boot by PXE (IPv4), not by HTTP"
	switch {
	case b.installer && !received[inventory.EventLoader]:
		last = "no file was delivered: with shim, UEFI boots only the agent, and this boot is for another installer; set another " +
			"loader at the interface, for example snponly.efi, and switch Secure Boot off"
	case received[inventory.EventInitrd]:
		last = "the file delivered last is initramfs, so the kernel was accepted"
	case received[inventory.EventKernel]:
		last = "the file delivered last is vmlinuz: GRUB refuses a kernel whose signature shim does not know"
	case received[inventory.EventScript]:
		last = "the file delivered last is GRUB's configuration"
	case received[inventory.EventLoader]:
		last = "the file delivered last is a loader, shimx64.efi or grubx64.efi: the firmware refuses a shim that it does not trust, " +
			"and shim refuses a GRUB that is unsigned or revoked; if another DHCP server answers, it must send the Ingot server as " +
			"next-server, from which GRUB loads its configuration"
	}
	return "; with Secure Boot, the firmware, shim and GRUB each refuse unsigned files: " + last
}

// bootLost reports whether the present boot was lost although the machine did not fail. This is the case if the system on the disk
// has reported (for example, because the server was killed while it delivered the loader), or if the machine has been silent since
// the server was started. The next boot then uses the same rung of ladder again, but counts as one of the run's boots. Without a
// BMC, bootLost always returns false: the system on the disk may have run all the time, so the run waits for the operator.
func (r *machineRun) bootLost() bool { return !r.manual && r.signals.received[inventory.EventBootLost] }

// powerOn starts the present boot. If that fails, it asks the operator and tries again. It also returns nil if it turns out that
// the previous boot has reached its agent or installer.
func (r *machineRun) powerOn(ctx workflow.Context) error {
	b, s := &r.boot, &r.signals
	q := activities.PowerRequest{Owner: r.grant.owner, Boot: b.number, For: untilDHCP + windowMargin, Installer: b.installer}
	message := ladder[b.rung()].does + " (boot %d)"
	if r.manual {
		message = "opening network boot (boot %d)"
		q.For = reminder + windowMargin
	} else {
		rung := ladder[b.rung()]
		q.Warm, q.ResetBMC, q.OtherPath = rung.warm, rung.resetBMC, rung.otherPath && !s.pxe
		q.Unclaimed = b.silent > 0 || b.lost
		if !s.pxe { // keep the path if the machine has ever booted by it
			b.path = b.silent
		}
		q.Path = b.path
	}

	if err := r.record.showPhase(ctx, inventory.PhasePower, message, b.number); err != nil {
		return err
	}

	for n := 1; ; n++ {
		r.grant.armed = true
		var done activities.Powered
		err := execute(ctx, bmc, &done, do.Power, q)
		switch {
		case err == nil:
			b.shim = done.Shim
			if b.how = ""; b.silent > 0 {
				b.how = done.How
			}
			return nil
		case hasType(err, activities.TypeClaimed):
			r.returnToPreviousBoot()
			return nil
		case !operatorCanHelp(err):
			return err
		}

		d, err := r.askUnless(ctx, func() bool {
			return b.installer && (s.received.hasAny(installerKinds...) || s.previous.hasAny(installerKinds...))
		}, inventory.Question{ID: r.questionID("power", b.number, n), Text: messageOf(err), Choices: []string{contract.Retry, contract.Abort}})
		if err != nil {
			return err
		}
		if d == nil { // the installer of the boot that was given up has reported
			s.mergePreviousBoot()
			return nil
		}
	}
}

// returnToPreviousBoot makes the previous boot the present one again, because its agent or installer has reported after all.
func (r *machineRun) returnToPreviousBoot() {
	b, s := &r.boot, &r.signals
	b.number--
	b.left++
	s.helloBoot = max(s.helloBoot, b.number)
	s.returnToPreviousBoot()
	if b.installer {
		s.received[inventory.EventPayload] = true
	}
}

// bootStage is a stage of a machine's boot. done reports whether an event has proven that the stage was reached.
type bootStage struct {
	phase, message string
	limit          time.Duration
	done           func() bool
}

// installerKinds are the kinds of event that prove that an installer runs.
var installerKinds = []string{
	inventory.EventPayload, inventory.EventDocument, inventory.EventInstalled, inventory.EventInstallFailed, inventory.EventPhoneHome,
}

// bootStages returns the stages of the present boot. An event of a later stage also proves the earlier ones.
func (r *machineRun) bootStages() []bootStage {
	s := &r.signals
	last := bootStage{inventory.PhaseAgent, "waiting for the agent", untilAgent, func() bool {
		return s.helloBoot >= r.boot.number || s.conflict
	}}
	if r.boot.installer {
		last = bootStage{inventory.PhaseInstall, "waiting for the installer to be loaded", untilPayload, func() bool {
			return s.received.hasAny(installerKinds...)
		}}
	}

	script := func() bool {
		return s.received.hasAny(inventory.EventScript, inventory.EventKernel, inventory.EventInitrd) || last.done()
	}

	dhcp := func() bool { return s.received.hasAny(inventory.EventDHCP, inventory.EventLoader) || script() }
	return []bootStage{
		{inventory.PhaseDHCP, "waiting for the firmware to ask for an address", untilDHCP, dhcp},
		{inventory.PhaseLoader, "waiting for the loader to fetch the boot script", untilScript, script},
		last,
	}
}

// waitForBoot waits until the agent or the installer is up, stage by stage. It returns false if the machine stayed
// silent or if its claim was presented twice.
//
// Every host on the network can forge the packets that end a stage. So the wait for each stage lasts at least until the firmware
// has had its time for a first packet (untilDHCP): otherwise, after a forged packet, the run could switch the machine off in the
// middle of its self-test. If packets could not end a stage early at all, a machine whose loader hangs would wait for 25 minutes.
func (r *machineRun) waitForBoot(ctx workflow.Context) (bool, error) {
	stages := r.bootStages()
	up := stages[len(stages)-1].done
	if r.manual {
		if err := r.waitForOperatorToPowerOn(ctx, up); err != nil {
			return false, err
		}
	}

	r.boot.began, r.signals.earlierAgent = workflow.Now(ctx), false
	for _, stage := range stages {
		if stage.done() {
			continue
		}
		r.record.State = inventory.StatePending
		text := fmt.Sprint("boot ", r.boot.number)
		if r.boot.how != "" {
			text += ": " + r.boot.how
		}
		if err := r.record.showPhase(ctx, stage.phase, "%s (%s)", stage.message, text); err != nil {
			return false, err
		}

		// Allow network boot for the whole wait, because the power operation may have taken long.
		renew := func(d time.Duration) error { return r.grant.renewNetboot(ctx, d, r.boot.installer) }
		limit := max(stage.limit, untilDHCP-workflow.Now(ctx).Sub(r.boot.began))
		if !up() {
			if err := renew(limit); err != nil {
				return false, err
			}
		}
		if err := r.waitForStage(ctx, stage, wait{limit: limit, served: true, prolong: renew}); err != nil {
			return false, err
		}
		if !stage.done() {
			return false, nil
		}
	}
	return !r.signals.conflict, nil
}

// waitForStage waits until the stage is done or its time is up. It returns early if the boot was lost, or if the
// agent of an earlier boot is still alive: then the BMC has reported a restart that did not happen.
func (r *machineRun) waitForStage(ctx workflow.Context, stage bootStage, w wait) error {
	s := &r.signals
	for end := workflow.Now(ctx).Add(w.limit); ; w.limit = end.Sub(workflow.Now(ctx)) {
		_, _, err := r.waitFor(ctx, w, func() bool { return stage.done() || r.bootLost() || s.earlierAgent })
		if err != nil || stage.done() || !s.earlierAgent {
			return err
		}
		// The event may be older than the restart, so ask what the agent has reported since then.
		s.earlierAgent = false
		known, err := r.evidence(ctx, action.Key{}, activities.Wait{})
		if err != nil || known.Kind == activities.Alive && known.Boot < r.boot.number {
			return err
		}
	}
}

// waitForOperatorToPowerOn asks the operator to switch the machine on and waits, without a deadline, until the boot has begun: the
// operator has confirmed it, a kernel or initrd was delivered under the run's secret path, or the agent or installer is up. Every
// host can forge the earlier packets of a boot, so they are only shown: if they counted, they could use up the boots of a machine
// that was never switched on. Network boot must already be allowed: otherwise the machine would boot from its disk.
func (r *machineRun) waitForOperatorToPowerOn(ctx workflow.Context, up func() bool) error {
	s := &r.signals
	begun := func() bool {
		return s.poweredOn || s.received.hasAny(inventory.EventKernel, inventory.EventInitrd) || up()
	}
	if begun() {
		return nil
	}

	r.record.Next = "ingot workflow powered-on " + r.grant.owner.Machine
	r.budget.pause(workflow.Now(ctx))
	for renewal := workflow.Now(ctx).Add(reminder); ; {
		shown := s.shownPackets()
		err := r.record.showPhase(ctx, inventory.PhasePower, "power the machine on now, with network boot (boot %d)%s", r.boot.number, shown)
		if err != nil {
			return err
		}
		news, err := workflow.AwaitWithTimeout(ctx, renewal.Sub(workflow.Now(ctx)), func() bool {
			return begun() || s.fenced || s.shownPackets() != shown
		})
		switch {
		case err != nil:
			return err
		case s.fenced:
			return r.signals.explainLoss()
		case begun():
			r.record.Next = ""
			r.budget.resume(workflow.Now(ctx))
			return nil
		case news:
			continue
		}
		if err := r.grant.renewNetboot(ctx, reminder, r.boot.installer); err != nil {
			return err
		}
		renewal = workflow.Now(ctx).Add(reminder)
	}
}

// shownPackets returns a text for the operator: how far the present boot has come, according to packets from the machine's address.
// It returns "" if there were no packets.
func (s *signals) shownPackets() string {
	for _, p := range []struct{ kind, text string }{
		{inventory.EventScript, "the boot script was fetched"},
		{inventory.EventLoader, "the boot loader was fetched"},
		{inventory.EventDHCP, "an address was asked for"},
	} {
		if s.received[p.kind] {
			return "; seen so far: " + p.text
		}
	}
	return ""
}

// resolveClaimConflict asks the operator what to do after a second client has presented the claim of this boot. Reports under that
// claim prove nothing, and the first client has seen its assignment. The returned error is never nil; it is errRestart if the
// operator restarts the run under a new epoch, see retakeGrant.
func (r *machineRun) resolveClaimConflict(ctx workflow.Context) error {
	// This workflow task may have opened the secrets again after the server had closed them because of the conflict.
	if err := r.grant.closeSecrets(ctx); err != nil {
		return err
	}

	text := "another client presented this boot's claim: another machine or an attacker uses this MAC address"
	if r.manual {
		text += "; the machine's agent may still be writing, so switch the machine off before you choose " + contract.Restart
	}

	if _, err := r.ask(ctx, r.questionID("claim", r.boot.number), text, contract.Abort, contract.Restart); err != nil {
		return err
	}

	r.signals.conflict = false
	return errRestart
}
