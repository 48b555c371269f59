package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// The faults of the long form: two at once, long ones, rare ones, and those of other kinds of run and of site.
const (
	serveAndBMC      strike = "ingot serve and BMC"
	serveAndAgent    strike = "ingot serve and agent process"
	serveAndDisk     strike = "ingot serve and disk full"
	temporalAndLink  strike = "Temporal child and link"
	serveAndPower    strike = "ingot serve and agent's machine"
	temporalAndLock  strike = "Temporal child and database lock"
	longOutage       strike = "ingot serve away for 16 minutes"
	serveRedfish     strike = "ingot serve (Redfish)"
	busyRedfish      strike = "Redfish service busy"
	fullRedfish      strike = "Redfish service has no session left"
	muteRedfish      strike = "Redfish service loses its answers"
	clockBack        strike = "clock set back"
	replaceImage     strike = "image replaced"
	pushMachine      strike = "machine pushed"
	cancelAndKill    strike = "cancelled, and ingot serve"
	serveAgain       strike = "reprovision: ingot serve"
	powerAgain       strike = "reprovision: agent's machine"
	agentAgain       strike = "reprovision: agent process"
	serveRetiring    strike = "decommission: ingot serve"
	powerRetiring    strike = "decommission: agent's machine"
	agentRetiring    strike = "decommission: agent process"
	temporalRetiring strike = "decommission: Temporal child"
	serveProxy       strike = "proxy DHCP: ingot serve"
	serveNoDHCP      strike = "no DHCP: ingot serve"
)

var (
	pairStrikes = []strike{
		serveAndBMC, serveAndAgent, serveAndDisk, temporalAndLink, serveAndPower, temporalAndLock,
		serveRedfish, busyRedfish, fullRedfish, muteRedfish,
	}
	kindStrikes = []strike{
		serveAgain, powerAgain, agentAgain, serveRetiring, powerRetiring, agentRetiring, temporalRetiring,
		replaceImage, pushMachine, cancelAndKill,
	}
	fullStrikes = slices.Concat(pairStrikes, kindStrikes, []strike{longOutage, clockBack, serveProxy, serveNoDHCP})
)

// combined are the parts of faults that are several, or that strike another kind of run.
var combined = map[strike][]strike{
	serveAndBMC: {killServe, cutBMC}, serveAndAgent: {killServe, killAgent}, serveAndDisk: {fillDisk, killServe},
	temporalAndLink: {killTemporal, cutLink}, serveAndPower: {killServe, cutPower}, temporalAndLock: {killTemporal, lockDatabase},
	serveProxy: {killServe}, serveNoDHCP: {killServe},
	serveRedfish: {killServe}, serveAgain: {killServe}, powerAgain: {cutPower}, agentAgain: {killAgent},
	serveRetiring: {killServe}, powerRetiring: {cutPower}, agentRetiring: {killAgent}, temporalRetiring: {killTemporal},
}

// installedBefore are the faults whose machine is installed before its run.
var installedBefore = map[strike]bool{
	serveAgain: true, powerAgain: true, agentAgain: true,
	serveRetiring: true, powerRetiring: true, agentRetiring: true, temporalRetiring: true,
}

// causes reports whether the cell's fault is, or includes, another one.
func (x *cell) causes(s strike) bool { return x.strike == s || slices.Contains(combined[x.strike], s) }

// decommissions reports whether the cell's run is a decommission.
func (x *cell) decommissions() bool {
	switch x.strike {
	case serveRetiring, powerRetiring, agentRetiring, temporalRetiring:
		return true
	}
	return false
}

// Decommission starts the decommission of a machine.
func (s *Site) Decommission(ctx context.Context, in contract.ProvisionInput) (string, error) {
	var started struct{ Run string }
	err := s.REST(ctx, http.MethodPost, "/v1/workflows", map[string]any{
		"type": inventory.TypeDecommission, "input": contract.DecommissionInput{Machine: in.Machine},
	}, &started)
	return started.Run, err
}

// install installs the cell's machine, undisturbed.
func (x *cell) install(ctx context.Context) error {
	run, err := x.c.Provision(ctx, contract.ProvisionInput{Machine: x.m.Name()})
	if err != nil {
		return err
	}
	x.run = run
	x.runs++
	return x.see(ctx, 100*time.Millisecond, func(w inventory.Workflow) (bool, error) {
		if inventory.Final(w.State) && w.State != inventory.StateSuccess {
			return false, fmt.Errorf("%s: the installation before the run ended as %s: %s", x, w.State, w.Message)
		}
		return inventory.Final(w.State), nil
	})
}

// checkRetired checks the state that is required after a decommission: the disk is blank, the protected one holds what it
// held, the machine is off and its network boot closed.
func (x *cell) checkRetired(ctx context.Context) error {
	if x.final.State != inventory.StateSuccess {
		return fmt.Errorf("%s: the run ended as %s: %s", x, x.final.State, x.final.Message)
	}
	blank := func(context.Context) error {
		f, err := os.Open(x.m.DiskPath())
		if err != nil {
			return err
		}
		defer f.Close() // opened only for reading
		at, err := lab.FirstNonZero(f)
		if err == nil && at >= 0 {
			err = fmt.Errorf("byte %d of the disk is not wiped", at)
		}
		return err
	}
	off := func(context.Context) error {
		if s := x.m.PowerState(); s != lab.Off {
			return fmt.Errorf("the machine is %s", s)
		}
		return nil
	}
	return x.checkAll(ctx, blank, off, x.checkScript, x.checkDecoy, x.checkStarts, x.checkRecord, x.checkQuestions, x.checkTemporal)
}

// setBack is how far the clock is set back. Temporal's timers stop for so long (docs/troubleshooting.md).
const setBack = 2 * time.Minute

// outage is longer than the window in which firmware may boot.
const outage = 16 * time.Minute

// causeRare causes a fault of the long form.
func (c *chaos) causeRare(
	ctx context.Context, s strike, x *cell, atOnce func() error, seen func(string, lab.Undo, func() (bool, error)) func() error,
) (func() error, error) {
	none := func() error { return nil }
	switch s {
	case longOutage:
		c.Kill()
		return func() error {
			select {
			case <-time.After(outage):
			case <-ctx.Done():
			}
			return errors.Join(atOnce(), c.Start(ctx))
		}, ctx.Err()
	case busyRedfish, fullRedfish, muteRedfish:
		r := x.m.Redfish()
		f := map[strike]lab.RedfishFault{
			busyRedfish: {Status: http.StatusServiceUnavailable},
			fullRedfish: {Method: http.MethodPost, Path: "/redfish/v1/SessionService/Sessions", Status: http.StatusServiceUnavailable},
			muteRedfish: {Method: http.MethodPost, Lose: true},
		}[s]
		enough := map[strike]int{busyRedfish: 3, fullRedfish: 1, muteRedfish: 2}[s]
		before := r.Struck()
		r.Pretend(f)
		return seen("requests that met the fault", func() error { r.Pretend(); return nil }, func() (bool, error) {
			return r.Struck() >= before+enough, nil
		}), nil
	case clockBack:
		return atOnce, c.guest.SetClock(ctx, time.Now().Add(-setBack))
	case replaceImage:
		other, err := alteredImage(c.image.Raw, filepath.Join(c.dir, "other.raw"))
		if err != nil {
			return nil, err
		}
		if _, err := c.CLI(ctx, "image", "add", "sim", other, "--as-is", "--replace"); err != nil {
			return nil, err
		}
		return func() error {
			if err := atOnce(); err != nil {
				return err
			}
			<-x.over
			_, err := c.CLI(ctx, "image", "add", "sim", c.image.Raw, "--as-is", "--replace")
			return err
		}, nil
	case pushMachine:
		// Another disk is refused while the run is open; what the run does not rely on is stored.
		push := func(field string, value any) error {
			doc := maps.Clone(x.doc)
			doc[field] = value
			return c.REST(ctx, http.MethodPost, "/v1/machines", map[string]any{"machines": []any{doc}, "replace": true}, nil)
		}
		err := push("diskSelector", map[string]any{"serial": x.decoy()})
		if err == nil || !strings.Contains(err.Error(), "is open") {
			return nil, fmt.Errorf("another disk during the run was not refused: %w", err)
		}
		return atOnce, push("labels", map[string]any{"pushed": "yes"})
	case cancelAndKill:
		if err := c.REST(ctx, http.MethodPost, "/v1/workflows/"+x.run+"/cancel", nil, nil); err != nil {
			return none, err
		}
		c.Kill()
		return func() error { return errors.Join(atOnce(), c.Start(ctx)) }, nil
	}
	return nil, fmt.Errorf("there is no fault %q", s)
}

// alteredImage copies an image with one byte changed.
func alteredImage(from, to string) (string, error) {
	b, err := os.ReadFile(from)
	if err != nil {
		return "", err
	}
	b[len(b)/2] ^= 0xff
	return to, os.WriteFile(to, b, 0o644)
}

// fullGroups are the sites of the long form.
func fullGroups(image lab.Image) []chaosGroup {
	one := func(s strike) (steps []func(context.Context, *chaos) []*cell) {
		for _, p := range phases {
			if _, ok := expectations[s][p]; ok && wanted(s, p) {
				steps = append(steps, func(ctx context.Context, c *chaos) []*cell {
					x := c.cell(s, p)
					if c.guest == nil { // whose server is never away
						x.err = c.WaitReady(ctx) // after the last fault
					}
					if x.err == nil {
						c.strike(ctx, x)
					}
					return []*cell{x}
				})
			}
		}
		return steps
	}
	var pairs, kinds []func(context.Context, *chaos) []*cell
	for _, s := range pairStrikes {
		pairs = append(pairs, one(s)...)
	}
	for _, s := range kindStrikes {
		kinds = append(kinds, one(s)...)
	}
	return []chaosGroup{
		{name: "two faults, Redfish", steps: pairs},
		{name: "other runs", steps: kinds},
		besideDHCP(dhcpSetups[1], serveProxy, image),
		besideDHCP(dhcpSetups[3], serveNoDHCP, image),
		{name: "clock", steps: one(clockBack), site: func(o *Options) { o.Guest, o.KeepSockets, o.Disk = true, false, 0 }},
	}
}

// besideDHCP returns the group of a mode of DHCP in which another server gives addresses, with QEMU machines.
func besideDHCP(setup dhcpSetup, s strike, image lab.Image) chaosGroup {
	g := chaosGroup{name: setup.name, site: func(o *Options) {
		o.Netboot = fmt.Sprintf("  dhcp: {%s: %s}\n  relays: [%s, %s]", lab.ServerInterface, setup.mode, lab.DirectGateway, lab.RelayedGateway)
	}}
	g.steps = append(g.steps, func(ctx context.Context, c *chaos) []*cell {
		c.must(ctx, c.t, "image", "add", "mini", image.Zst)
		require.NoError(c.t, setup.startOther(ctx, c.t, c.Site, false))
		c.otherDHCP = true
		return nil
	})
	for phase, firmware := range map[string]lab.Firmware{inventory.PhaseLoader: lab.UEFI, inventory.PhaseAction: lab.BIOS} {
		if !wanted(s, phase) {
			continue
		}
		g.steps = append(g.steps, func(ctx context.Context, c *chaos) []*cell {
			x := c.cell(s, phase)
			x.qemu, x.image = firmware, image
			c.strike(ctx, x)
			return []*cell{x}
		})
	}
	return g
}

// discoverKilled kills the server while an unknown machine that has booted the agent for discovery reports its hardware: it
// is reported, and none of its disks was opened for writing.
func discoverKilled(ctx context.Context, c *chaos) error {
	spec := lab.Spec{
		Name: "unknown", Firmware: lab.Simulated, Agent: filepath.Join(c.bin, "worker-agent"), Order: lab.NetworkFirst, Decoys: []string{"KEEP"},
	}
	gate := lab.NewGate(lab.StageAgent)
	spec.Stage = gate.Stage
	m, err := c.Machine(ctx, spec)
	if err != nil {
		return err
	}
	if err := errors.Join(m.PowerOn(ctx), gate.Reached(ctx)); err != nil {
		return err
	}
	c.Kill()
	gate.Open()
	if err := c.Start(ctx); err != nil {
		return err
	}
	if err := waitFor(ctx, "the report of the unknown machine", func() (bool, error) {
		out, _ := c.CLI(ctx, "machine", "seen", m.Spec().MAC, "-o", "json") // it fails until then
		return strings.Contains(out, "SN-unknown"), nil
	}); err != nil {
		return err
	}
	for _, serial := range []string{m.Spec().DiskSerial, "KEEP"} {
		if n := m.Openings(serial); n != 0 {
			return fmt.Errorf("disk %s of an unknown machine was opened for writing %d times", serial, n)
		}
	}
	return nil
}
