package e2e

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
)

var (
	chaosReport = flag.String("report", "", "TestChaosMatrix writes its table to this file")
	chaosOnly   = flag.String(
		"only",
		"",
		"TestChaosMatrix: only cells whose name (\"fault × phase\") contains one of these, separated by commas",
	)
)

// TestChaos is the short form of the matrix: nine cells of nine faults, on two sites. None
// of them loses a boot, because that takes minutes to detect.
func TestChaos(t *testing.T) {
	runInTurn(t, 58, 4)
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	type pair struct {
		strike strike
		phase  string
	}
	for name, cells := range map[string][]pair{
		"one": {
			{refusedBMC, inventory.PhasePower},
			{brokenRedfish, inventory.PhasePower},
			{killAgent, inventory.PhaseAgent},
			{cutImages, inventory.PhaseAction},
			{lockDatabase, inventory.PhaseLoader},
			{killServe, inventory.PhaseAction},
		},
		"two": {{killWorker, inventory.PhasePower}, {killTemporal, inventory.PhaseDHCP}, {fillDisk, inventory.PhaseAction}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newChaos(ctx, t, image)
			for _, p := range cells {
				x := c.cell(p.strike, p.phase)
				x.panics = time.Second
				c.strike(ctx, x)
				t.Logf("%-32s %-20s %s", x, x.result(), x.was)
				require.NoError(t, x.err)
				require.True(t, x.felt, "the fault was never felt")
			}
		})
	}
}

// strike carries out one cell.
func (c *chaos) strike(ctx context.Context, x *cell) {
	if x.quick() {
		c.alone(ctx, x)
		return
	}
	c.together(ctx, x)
}

// result returns the short text for the end of a cell.
func (x *cell) result() string {
	switch {
	case x.want.none != "":
		return "–"
	case x.err != nil:
		return "WRONG"
	case x.asked != "":
		return "answered, " + short(x.took)
	}
	if !x.felt {
		return "not felt, " + short(x.took)
	}
	return short(x.took)
}

// lostTime returns how much longer the run took than the undisturbed one did from the same phase. The
// time in which the worker could not reach Temporal is not counted.
func (x *cell) lostTime(undisturbed *cell) time.Duration {
	d := x.took
	if x.strike == killWorker {
		d -= x.mended
	}
	return max(0, d-undisturbed.took)
}

func short(d time.Duration) string {
	if d < 100*time.Second {
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f min", d.Minutes())
}

// chaosGroup is the ordered steps of one site; the cells of a step run at the same time.
type chaosGroup struct {
	name  string
	steps []func(context.Context, *chaos) []*cell
	site  func(*Options) // nil: as for all
}

func losesSockets(o *Options) { o.KeepSockets = false }

func wanted(s strike, phase string) bool {
	return slices.ContainsFunc(strings.Split(*chaosOnly, ","), func(part string) bool {
		return strings.Contains(string(s)+" × "+phase, part)
	})
}

// wave causes faults of a whole site once with a machine in each long phase, and once more for each
// short phase.
func wave(s strike) []func(context.Context, *chaos) []*cell {
	steps := []func(context.Context, *chaos) []*cell{func(ctx context.Context, c *chaos) []*cell {
		var cells []*cell
		for _, p := range phases { // of one start of the fault
			if want, ok := expectations[s][p]; ok && want.none == "" && !quick(p) && wanted(s, p) {
				cells = append(cells, c.cell(s, p))
			}
		}
		if len(cells) > 0 {
			c.together(ctx, cells...)
		}
		return cells
	}}
	for _, p := range phases {
		if _, ok := expectations[s][p]; !ok || !quick(p) || !wanted(s, p) {
			continue
		}
		steps = append(steps, func(ctx context.Context, c *chaos) []*cell {
			cells := c.cells(s, p)
			for _, x := range cells {
				c.alone(ctx, x)
			}
			return cells
		})
	}
	return steps
}

// cells returns the cells of a fault in a phase. A quick phase has two: the fault comes when the phase is seen first, and
// as late in it as can be.
func (c *chaos) cells(s strike, phase string) []*cell {
	first := c.cell(s, phase)
	if !quick(phase) {
		return []*cell{first}
	}
	second := c.cell(s, phase)
	second.late = true
	return []*cell{first, second}
}

// machines causes a fault on each of many machines of one site. The longest cells start first.
func machines(ctx context.Context, c *chaos) []*cell {
	var cells []*cell
	for _, s := range slices.Concat(machineStrikes, otherStrikes) {
		if s == frozenServe {
			continue // for the whole site
		}
		for p, want := range expectations[s] {
			if want.none == "" && wanted(s, p) {
				cells = append(cells, c.cells(s, p)...)
			}
		}
	}
	slices.SortFunc(cells, func(a, b *cell) int {
		if d := b.long() - a.long(); d != 0 {
			return d
		}
		return strings.Compare(a.String(), b.String())
	})
	var wg sync.WaitGroup
	slots := make(chan struct{}, 6) // machines that are brought to their phases at a time, in the order of the list
	for _, x := range cells {
		slots <- struct{}{}
		led := sync.OnceFunc(func() { <-slots })
		x.led = led
		wg.Go(func() {
			c.strike(ctx, x)
			led()
		})
	}
	wg.Wait()
	return cells
}

// sample is the cells that the long form also runs with QEMU machines.
var sample = []struct {
	strike   strike
	phase    string
	firmware lab.Firmware
}{
	{killServe, inventory.PhaseAction, lab.BIOS},
	{killTemporal, inventory.PhaseAgent, lab.UEFI},
	{lockDatabase, inventory.PhaseDHCP, lab.BIOS},
	{cutImages, inventory.PhaseAgent, lab.BIOS},
	{cutImages, inventory.PhaseAction, lab.UEFI},
	{fillDisk, inventory.PhaseAgent, lab.BIOS},
	{cutBMC, inventory.PhasePower, lab.UEFI},
	{cutPower, inventory.PhaseAction, lab.BIOS},
	{cutLink, inventory.PhaseAction, lab.UEFI},
}

// sampled runs cells with QEMU machines, one after another.
func sampled(image lab.Image) []func(context.Context, *chaos) []*cell {
	steps := []func(context.Context, *chaos) []*cell{func(ctx context.Context, c *chaos) []*cell {
		c.must(ctx, c.t, "image", "add", "mini", image.Zst)
		return nil
	}}
	for _, s := range sample {
		if !wanted(s.strike, s.phase) {
			continue
		}
		steps = append(steps, func(ctx context.Context, c *chaos) []*cell {
			x := c.cell(s.strike, s.phase)
			x.qemu, x.image = s.firmware, image
			c.strike(ctx, x)
			if x.m != nil {
				x.err = errors.Join(x.err, x.m.PowerOff(ctx)) // free the processors for the next one
			}
			return []*cell{x}
		})
	}
	return steps
}

// long returns the approximate duration of a cell in minutes.
func (x *cell) long() int {
	switch {
	case x.strike == cutPower && after(x.phase, inventory.PhaseAction):
		return 22 // waits once for the installed system until the deadline
	case (x.strike == cutLink || x.strike == cutPower) && !after(x.phase, inventory.PhaseAgent) && x.want.powerOns > 1:
		return 13 // one lost boot
	}
	return 1
}

// TestChaosMatrix is make chaos.
func TestChaosMatrix(t *testing.T) {
	ctx := needLabFor(t, 75*time.Minute)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	groups := []chaosGroup{
		{name: "machines", steps: []func(context.Context, *chaos) []*cell{machines}},
		{name: "serve, Temporal, images", steps: slices.Concat(
			wave(noFault), wave(killServe), wave(frozenServe), wave(killTemporal), wave(cutImages))},
		{name: "database, disk, worker", steps: slices.Concat(wave(lockDatabase), wave(fillDisk), wave(killWorker))},
		{name: "sockets lost", steps: wave(killBare), site: losesSockets},
	}
	if *full {
		small := mini(ctx, t)
		groups = append([]chaosGroup{{name: "a long outage", steps: wave(longOutage), site: losesSockets}}, groups...) // it takes longest
		groups = append(groups, chaosGroup{name: "QEMU", steps: sampled(small)})
		groups = append(groups, fullGroups(small)...)
		t.Run("discovery", func(t *testing.T) {
			require.NoError(t, discoverKilled(ctx, newChaos(ctx, t, image, func(o *Options) {
				o.Netboot = "  discovery:\n    ranges: {" + lab.ServerInterface + ": 10.10.20.200-10.10.20.210}"
			})))
		})
	}
	begun := time.Now()
	var mu sync.Mutex
	done := map[strike]map[string][]*cell{}
	var emulated []*cell
	t.Run("sites", func(t *testing.T) {
		for _, g := range groups {
			t.Run(g.name, func(t *testing.T) {
				t.Parallel()
				var change []func(*Options)
				if g.site != nil {
					change = append(change, g.site)
				}
				c := newChaos(ctx, t, image, change...)
				for _, step := range g.steps {
					cells := step(ctx, c)
					mu.Lock()
					for _, x := range cells {
						if done[x.strike] == nil {
							done[x.strike] = map[string][]*cell{}
						}
						if x.qemu != "" && !x.c.otherDHCP {
							emulated = append(emulated, x)
						} else {
							done[x.strike][x.phase] = append(done[x.strike][x.phase], x)
						}
						t.Logf("%-32s %-28s %+v %s", x, x.result(), x.made, x.was)
						if x.err != nil {
							t.Errorf("%s: %v", x, x.err)
						}
					}
					mu.Unlock()
				}
			})
		}
	})
	text := report(done, emulated, begun, time.Since(begun))
	fmt.Println(text)
	if *chaosReport != "" && *chaosOnly == "" {
		require.NoError(t, os.WriteFile(*chaosReport, []byte(text), 0o644))
	}
}

// ownParts are the faults whose lost time the report shows: the parts of Ingot that are killed.
var ownParts = []strike{killServe, killBare, killTemporal, killWorker}

// worstOfCells returns the cell that took longest, or one that ended wrong; nil for none.
func worstOfCells(cells []*cell) *cell {
	if len(cells) == 0 {
		return nil
	}
	if i := slices.IndexFunc(cells, func(x *cell) bool { return x.err != nil }); i >= 0 {
		return cells[i]
	}
	return slices.MaxFunc(cells, func(a, b *cell) int { return cmp.Compare(a.took, b.took) })
}

// report is docs/reliability.md.
func report(done map[strike]map[string][]*cell, emulated []*cell, begun time.Time, took time.Duration) string {
	var b strings.Builder
	pf := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	var cells, right, answered, unfelt, wrong, nothing int
	var worst time.Duration
	var worstOf *cell
	count := func(all []*cell) string {
		x := worstOfCells(all)
		if x == nil {
			return "not run"
		}
		cells++
		switch {
		case x.err != nil:
			wrong++
		case x.asked != "":
			answered++
		case !x.felt:
			unfelt++
		default:
			right++
		}
		if undisturbed := worstOfCells(done[noFault][x.phase]); undisturbed != nil && x.err == nil && slices.Contains(ownParts, x.strike) {
			lost := x.lostTime(undisturbed)
			if lost >= worst {
				worst, worstOf = lost, x
			}
			if x.felt && x.asked == "" {
				return "+" + short(lost)
			}
			return fmt.Sprintf("%s, +%s", x.result(), short(lost))
		}
		return x.result()
	}
	rows := func(strikes []strike, phases []string) {
		pf("| fault | %s |\n|---|%s\n", strings.Join(phases, " | "), strings.Repeat("---|", len(phases)))
		for _, s := range strikes {
			pf("| %s |", s)
			for _, p := range phases {
				x := done[s][p]
				switch want := expectations[s][p]; {
				case want.none != "":
					nothing++
					pf(" – |")
				default:
					pf(" %s |", count(x))
				}
			}
			pf("\n")
		}
		pf("\n")
	}
	rows(slices.Concat(siteStrikes, machineStrikes), phases)
	pf("Neither dead nor away, but wrong in another way:\n\n| fault | phase | end |\n|---|---|---|\n")
	for _, s := range otherStrikes {
		for _, p := range phases {
			if _, ok := expectations[s][p]; ok {
				pf("| %s | %s | %s |\n", s, p, count(done[s][p]))
			}
		}
	}
	pf("\n")
	if *full {
		pf("Two faults, long and rare ones, and other kinds of run (`make chaos FULL=1`):\n\n| fault | phase | end |\n|---|---|---|\n")
		for _, s := range fullStrikes {
			for _, p := range phases {
				if _, ok := expectations[s][p]; ok {
					pf("| %s | %s | %s |\n", s, p, count(done[s][p]))
				}
			}
		}
		pf(
			"\nIn discovery, `ingot serve` was killed while the agent of an unknown machine reported its hardware: it was reported, and no disk\n" +
				"was opened for writing.\n\n",
		)
	}
	if len(emulated) > 0 {
		pf(
			"With QEMU machines, their firmware and their kernels (%s):\n\n| fault | phase | firmware | end |\n|---|---|---|---|\n",
			"`make chaos FULL=1`",
		)
		for _, x := range emulated {
			pf("| %s | %s | %s | %s |\n", x.strike, x.phase, x.qemu, count([]*cell{x}))
		}
		pf("\n")
	}
	tables := b.String()
	b.Reset()

	command := "make chaos"
	if *full {
		command += " FULL=1"
	}
	pf("# Reliability\n\nWritten by `%s`; do not edit.\n\n", command)
	pf(
		"Every part is broken on purpose, in every phase of `Provision` from plan to ready, and every installation must " +
			"end as\n`e2e/chaos_expect_test.go` expects. Left out are:\n\n",
	)
	for _, p := range slices.Sorted(maps.Keys(leftOut)) {
		pf("- `%s`: %s\n", p, leftOut[p])
	}
	pf(
		"\n```\n%s    # commit %s, %s, took %s on 2 cores\n```\n\n",
		command,
		commit(),
		begun.UTC().Format("2006-01-02"),
		took.Round(time.Second),
	)
	pf(
		"%d cells: %d ended right without help, %d after the operator had answered the question that is expected there\n"+
			"(*answered*), %d did not meet their fault, because the run does not need the broken part in that phase (*not felt*), and %d\n"+
			"ended in another way than expected. In %d (–) the fault has nothing to strike.\n\n",
		cells, right, answered, unfelt, wrong, nothing,
	)
	pf(
		"The time is that from the strike to the end of the run. Where it is minutes, a boot was lost, and the run waited as long as\n" +
			"servers need before they first touch their network card.\n",
	)
	if worstOf != nil {
		pf(
			"With + it is how much longer the run took than the undisturbed one of the first row, without the time in which the worker is\n"+
				"kept from Temporal. At most: %s (%s).\n",
			short(worst),
			worstOf,
		)
	}
	b.WriteString("\n" + tables)
	pf("## What the faults do\n\n| fault | what, and until when |\n|---|---|\n")
	told := slices.Concat(siteStrikes, machineStrikes, otherStrikes)
	if *full {
		told = append(told, fullStrikes...)
	}
	for _, s := range told {
		if !strings.HasPrefix(about[s], "as BMC") { // by Redfish: see below
			pf("| %s | %s |\n", s, about[s])
		}
	}
	pf(`
The same faults by Redfish: no session of the service is open at the end of any of them, and the refusing one has ended all sessions.

Each fault comes when its run was seen in the phase, never after a fixed time. Machines are held there until the fault, and
released together with it: before the firmware's DHCP (dhcp), the boot script (loader), the kernel (agent), the installed
system's phone-home (ready), after half of the image (action), with a slow BMC (power), with a stopped agent (reboot). Plan, arm,
bind and disarm last for milliseconds: there the Temporal server is stopped while the fault is made, and the phase is read again
first. Each of them is struck twice: when it is seen first, and up to 8 ms of Temporal's time later, at random. A fault of a whole
site meets one machine in each phase that lasts, at the same time.

Each cell has a machine of its own: simulated firmware, iPXE and installed system in a network namespace, with the real agent, two
disks, real IPMI or a Redfish service, real DHCP, TFTP and HTTP, against an unmodified ` + "`ingot serve`" + ` with its Temporal.

## When a fault counts as felt

The killed process had the run or the agent; the machine was on when its power was cut; a BMC task of this run failed, or took as
long as the BMC was slow; a frame of this machine was lost; its firmware, its agent or its system noticed. A fault of what all
machines share (worker, database, disk, a frozen server) is felt when one of the machines that it hits together has met it.

## What is checked after each cell

- The run has succeeded within the time that is expected, and its evidence is the installed system's phone-home.
- The disk is the bound one and holds the image, by SHA-256. Its first and last MiB are not compared: they hold the partition
  tables, to which the run adds a partition. Outside of image, tables and partitions, every byte is zero.
- The machine's other disk, which comes first on the bus, was never opened for writing, and holds what it held.
- Network boot is closed: by the server's record, by the answer to a DISCOVER of the machine's firmware, and by its boot script.
  No run owns the machine; the machine is on.
- The disk was never open for writing in two processes at once (every open is counted).
- The machine was switched on once, and switched on or reset once more only where a boot or a power supply was lost, by its own
  reboot, and by a kernel whose agent was killed.
- There is one run in the inventory for each that was started, and Temporal's latest is the one that ended.
- No operator was asked, not even for a moment, unless that is expected.
- The run has met the fault, unless it need not.

A whole Genesis run whose server is killed, or whose steps fail, in every step: ` + "`make genesis CHAOS=1`" + `, [genesis.md](genesis.md).
`)
	return b.String()
}
