package e2e

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// chaosTemplate is the built-in template with a shorter timeout for the reboot.
const chaosTemplate = `version: "0.1"
name: chaos
global_timeout: 7200
tasks:
- name: install
  worker: "{{.device_1}}"
  actions:
  - {name: write-image, image: image2disk, timeout: 1200, environment: {IMG_URL: "{{.image.url}}", IMG_SHA256: "{{.image.sha256}}"}}
  - {name: write-configdrive, image: configdrive, timeout: 300}
  - {name: reboot, image: reboot, timeout: 60}
`

// Ports of the server on the provisioning network.
const (
	imagePort = 80
	agentPort = 7443
)

// A chaos is a site with broken parts, and everything that is needed to observe it.
type chaos struct {
	*Site
	t     *testing.T
	image lab.Image
	ask   client.Client // the site's Temporal

	// otherDHCP: another server gives the addresses of the site.
	otherDHCP bool
	// runUp limits how many machines are brought to their phase at a time: there are more machines
	// than cores.
	runUp chan struct{}
	// still is held while Temporal is stopped, so that a phase of milliseconds can be hit.
	still sync.Mutex
}

func newChaos(ctx context.Context, t *testing.T, image lab.Image, change ...func(*Options)) *chaos {
	t.Helper()
	o := Options{Root: "..", Dir: keepDir(t), Disk: 512 << 20, KeepSockets: true}
	for _, f := range change {
		f(&o)
	}
	s, err := NewSite(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	c := &chaos{Site: s, t: t, image: image, runUp: make(chan struct{}, 4)}
	s.keep(t)
	t.Cleanup(func() {
		if c.ask != nil {
			c.ask.Close()
		}
	})
	// Not in frames: the agent writes whole ones, the image would have only one, and a cell stops its transfer half-way.
	s.must(ctx, t, "image", "add", "sim", image.Raw, "--as-is")
	s.template(ctx, t, "chaos", chaosTemplate)
	if c.ask, err = client.NewLazyClient(client.Options{HostPort: s.Temporal, Logger: quiet{}}); err != nil {
		t.Fatal(err)
	}
	return c
}

// quiet is a logger for the Temporal client that discards everything, because outages are
// part of the test.
type quiet struct{}

func (quiet) Debug(string, ...any) {}
func (quiet) Info(string, ...any)  {}
func (quiet) Warn(string, ...any)  {}
func (quiet) Error(string, ...any) {}

// A cell is one fault in one phase, on a separate machine.
type cell struct {
	strike strike
	phase  string
	want   expected
	late   bool          // the fault comes as late in a quick phase as it can
	panics time.Duration // of lab.Spec.Panic
	qemu   lab.Firmware  // "": the machine is simulated
	image  lab.Image

	c          *chaos
	m          *lab.Machine
	doc        map[string]any // of the machine, as it was added
	run        string
	runs       int    // runs that were started until the phase was caught
	unfinished int    // those that were cancelled
	asked      string // the question to the operator
	was        string // the phase of the run at the fault
	release    func() error
	led        func() // called after the fault, may be nil
	began      time.Time
	struck     time.Time
	felt       bool          // the run, or a part that serves it, was affected by the fault
	took       time.Duration // from the fault to the end
	mended     time.Duration // from the fault until it was taken away
	before     started       // of the machine, before the run
	made       started       // by the run
	openings   int           // of the decoy for writing, before the run
	final      inventory.Workflow
	err        error
	over       chan struct{}
}

// started counts the starts of a machine: power-ons, and resets including its own reboots.
type started struct{ powerOns, resets int }

func (x *cell) starts() started { return started{x.m.PowerOns(), x.m.Resets()} }

func (c *chaos) cell(s strike, phase string) *cell {
	return &cell{
		strike:  s,
		phase:   phase,
		want:    expectations[s][phase],
		image:   c.image,
		c:       c,
		over:    make(chan struct{}),
		release: func() error { return nil },
	}
}

func (x *cell) String() string { return string(x.strike) + " × " + x.phase }

// name returns the machine's name, which is as short as the serial number of its disk requires.
func (x *cell) name() string {
	name := shortly[x.strike] + "-" + x.phase
	if x.late {
		name += "2"
	}
	return name
}

// decoy returns the serial number of the machine's second disk, which no run may write.
func (x *cell) decoy() string { return "KEEP-" + x.name() }

// add adds the cell's machine to the site. The machine is on when its run begins, like those in a
// rack, and finds nothing to boot.
func (x *cell) add(ctx context.Context) error {
	spec := lab.Spec{Name: x.name(), Firmware: x.qemu, Decoys: []string{x.decoy()}}
	image := "mini"
	if x.qemu == "" {
		image = "sim"
		spec.Firmware, spec.Agent, spec.Panic = lab.Simulated, filepath.Join(x.c.bin, "worker-agent"), x.panics
	}
	if strings.Contains(string(x.strike), "Redfish") {
		spec.Controller = lab.ControllerRedfish
	}
	var err error
	x.m, err = x.c.Add(ctx, spec, func(doc map[string]any) {
		x.doc = doc
		doc["image"], doc["template"] = image, "chaos"
		doc["diskSelector"] = map[string]any{"serial": "DISK-" + x.name()}
		if x.c.otherDHCP {
			dropAddress(doc)
		}
		if x.decommissions() {
			doc["protectedDisks"] = []map[string]string{{"serial": x.decoy()}}
		}
	})
	if err != nil {
		return err
	}
	// The decoy comes first on the bus, and has content.
	x.m.SetDecoysFirst(true)
	if err := os.WriteFile(x.m.DiskPathOf(x.decoy()), decoyContent(x.m.Spec().DiskSize), 0o644); err != nil {
		return err
	}
	if x.qemu != "" {
		return nil
	}
	x.openings = x.m.Openings(x.decoy())
	if err := x.m.PowerOn(ctx); err != nil || !installedBefore[x.strike] {
		return err
	}
	return x.install(ctx)
}

// decoyContent returns what a decoy holds at its beginning: 1 MiB that is no partition table.
func decoyContent(size int64) []byte {
	return bytes.Repeat([]byte("never written\n\x00\x01"), int(min(size, 1<<20)/16))
}

// see polls the record of the cell's run until see returns true. It ignores errors while the server
// is away.
func (x *cell) see(ctx context.Context, every time.Duration, see func(w inventory.Workflow) (bool, error)) error {
	var last error
	for {
		var w inventory.Workflow // a new value each time: empty fields are missing in the answer
		if last = x.c.REST(ctx, http.MethodGet, "/v1/workflows/"+x.run, nil, &w); last == nil {
			if done, err := see(w); done || err != nil {
				return err
			}
		}
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return fmt.Errorf("%s: %w (last seen: %s %s %s)", x, errors.Join(context.Cause(ctx), last), w.State, w.Phase, w.Message)
		}
	}
}

// reaches waits until the run is in a phase, and fails if the run ends or asks a question first.
func (x *cell) reaches(ctx context.Context, phase string) error {
	return x.see(ctx, 50*time.Millisecond, func(w inventory.Workflow) (bool, error) {
		if w.Phase == phase {
			return true, nil
		}
		if inventory.Final(w.State) || w.Question != nil {
			return false, fmt.Errorf("%s: the run was never seen in phase %s: %s %s", x, phase, w.Phase, w.Message)
		}
		return false, nil
	})
}

func (x *cell) start(ctx context.Context) error {
	x.before = x.starts()
	start := x.c.Provision
	if x.decommissions() {
		start = x.c.Decommission
	}
	run, err := start(ctx, contract.ProvisionInput{Machine: x.m.Name()})
	x.run, x.began = run, time.Now()
	x.runs++
	return err
}

// quick are the phases that wait for nothing outside, so only Temporal can hold a run in
// them.
func quick(phase string) bool {
	switch phase {
	case inventory.PhasePlan, inventory.PhaseArm, inventory.PhaseBind, inventory.PhaseDisarm:
		return true
	}
	return false
}

// quick reports whether the cell cannot be held in its phase: its phase is quick, or its fault replaces
// the part that would hold it.
func (x *cell) quick() bool {
	return quick(x.phase) ||
		slices.Contains([]strike{slowBMC, idleBMC, lyingBMC, brokenBMC, busyRedfish, fullRedfish, muteRedfish}, x.strike.kind())
}

// lead starts the run and brings it to the cell's phase, where it stays until release. It is not
// for quick phases.
func (x *cell) lead(ctx context.Context) error {
	x.c.runUp <- struct{}{}
	defer func() { <-x.c.runUp }()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	if x.qemu != "" {
		return x.watch(ctx)
	}
	var gate *lab.Gate
	hold := func(s lab.Stage) { gate = lab.NewGate(s); x.m.SetStage(gate.Stage) }
	reached := func() error { return gate.Reached(ctx) }
	x.release = func() error { gate.Open(); return nil }
	link := x.m.Link()
	switch x.phase {
	case inventory.PhasePower:
		undo, err := x.m.Control().Hold()
		if err != nil {
			return err
		}
		x.release, reached = undo, func() error { return nil }
	case inventory.PhaseDHCP:
		hold(lab.StageDHCP)
	case inventory.PhaseLoader:
		hold(lab.StageScript)
	case inventory.PhaseReady:
		hold(lab.StagePhoneHome)
	case inventory.PhaseAgent:
		if !x.causes(killAgent) {
			hold(lab.StageKernel)
			break
		}
		// Its agent runs, but its hello cannot arrive.
		hold(lab.StageAgent)
		reached = func() error {
			if err := gate.Reached(ctx); err != nil {
				return err
			}
			undo, err := x.c.Stall(link, agentPort, 0)
			if err != nil {
				return err
			}
			x.release = undo
			gate.Open()
			return waitFor(ctx, "the agent's process", func() (bool, error) { return x.m.Agent() != nil, nil })
		}
	case inventory.PhaseAction:
		// A part of the image arrives, then nothing.
		hold(lab.StageAgent)
		reached = func() error {
			if err := gate.Reached(ctx); err != nil {
				return err
			}
			undo, err := x.c.Stall(link, imagePort, x.c.image.Size/2)
			if err != nil {
				return err
			}
			x.release = undo
			gate.Open()
			return x.written(ctx, 20)
		}
	case inventory.PhaseReboot:
		// The order is delayed, and the agent is stopped when the order arrives.
		hold(lab.StageAgent)
		reached = func() error {
			if err := gate.Reached(ctx); err != nil {
				return err
			}
			undo, err := x.c.Delay(link, 150*time.Millisecond)
			if err != nil {
				return err
			}
			gate.Open()
			if err := x.see(ctx, 5*time.Millisecond, func(w inventory.Workflow) (bool, error) {
				if inventory.Final(w.State) || w.Phase == inventory.PhaseReady {
					return false, fmt.Errorf("%s: %w: the run is in phase %s", x, errMissed, w.Phase)
				}
				return w.Phase == inventory.PhaseReboot, nil
			}); err != nil {
				return errors.Join(err, undo())
			}
			a := x.m.Agent()
			if a == nil {
				return errors.Join(fmt.Errorf("%s: %w: the agent has left", x, errMissed), undo())
			}
			thaw, err := x.c.Freeze(ctx, a.Pid())
			if err == nil {
				x.release = thaw
			}
			return errors.Join(err, undo())
		}
	}
	if err := x.start(ctx); err != nil {
		return err
	}
	if err := reached(); err != nil {
		return err
	}
	return x.reaches(ctx, x.phase)
}

// watch is lead for a QEMU machine: its phases last for seconds and need not be held.
func (x *cell) watch(ctx context.Context) error {
	if x.phase == inventory.PhaseAction {
		if err := x.c.SlowServer(ctx, "40mbit"); err != nil {
			return err
		}
		x.release = func() error { return x.c.UnslowServer(context.WithoutCancel(ctx)) }
	}
	if err := x.start(ctx); err != nil {
		return err
	}
	if x.phase == inventory.PhaseAction {
		return x.written(ctx, 20)
	}
	return x.reaches(ctx, x.phase)
}

// written waits until a percentage of the image is written.
func (x *cell) written(ctx context.Context, percent int64) error {
	return x.see(ctx, 100*time.Millisecond, func(w inventory.Workflow) (bool, error) {
		if inventory.Final(w.State) || w.Question != nil {
			return false, fmt.Errorf("%s: the run was not seen in mid-write: %s %s", x, w.Phase, w.Message)
		}
		if len(w.Actions) == 0 || w.Actions[0].Total == 0 {
			return false, nil
		}
		p := w.Actions[0].Done * 100 / w.Actions[0].Total
		x.was = fmt.Sprintf("%d %% written", p)
		return p >= percent, nil
	})
}

// catches is the maximum number of runs that are started to catch a phase of milliseconds.
const catches = 24

var errMissed = errors.New("missed")

// catch starts the run and lets the Temporal server run in small steps (SIGCONT, a few
// milliseconds, SIGSTOP) until the run is in the cell's phase. Then it calls hit and lets the
// server run: while the server was stopped, the run could not leave its phase. If a run was too
// fast, catch lets it end and starts another one.
func (x *cell) catch(ctx context.Context, hit func() error) error {
	x.c.runUp <- struct{}{}
	defer func() { <-x.c.runUp }()
	late := 0
	if x.late {
		late = 1 + rand.IntN(latest)
	}
	for ; ; late /= 2 { // a step that came too late is tried earlier
		if x.runs == catches {
			return fmt.Errorf("%s: the phase was not caught in %d runs", x, catches)
		}
		caught, err := x.caught(ctx, late, hit)
		if caught || err != nil {
			return err
		}
		if err := x.see(ctx, 100*time.Millisecond, func(w inventory.Workflow) (bool, error) {
			if inventory.Final(w.State) && w.State != inventory.StateSuccess || w.Question != nil {
				return false, fmt.Errorf("%s: the run that was not caught ended as %s: %s", x, w.State, w.Message)
			}
			return inventory.Final(w.State), nil
		}); err != nil {
			return err
		}
	}
}

// latest is the largest number of steps that Temporal is let run within a quick phase before a late fault.
const latest = 8

// caught does one try of catch. The fault comes late steps after the phase was seen first.
func (x *cell) caught(ctx context.Context, late int, hit func() error) (bool, error) {
	x.c.still.Lock()
	defer x.c.still.Unlock()
	pids, err := x.c.Processes(lab.RoleTemporal)
	if err != nil || len(pids) != 1 {
		return false, fmt.Errorf("%s: the Temporal servers are %v: %w", x, pids, err)
	}
	if err := x.start(ctx); err != nil {
		return false, err
	}
	thaw, err := x.c.Freeze(ctx, pids[0])
	if err != nil {
		return false, err
	}
	for seen := 0; err == nil; {
		var w inventory.Workflow
		// There is no record before the run's first step.
		e := x.c.REST(ctx, http.MethodGet, "/v1/workflows/"+x.run, nil, &w)
		if e == nil && w.Phase == x.phase {
			if seen == late {
				break
			}
			seen++
		} else if e == nil && after(w.Phase, x.phase) {
			err = errMissed
			break
		}
		err = errors.Join(ctx.Err(), syscall.Kill(pids[0], syscall.SIGCONT))
		if seen == 0 {
			time.Sleep(step)
		} else {
			time.Sleep(step / 3)
		}
		err = errors.Join(err, syscall.Kill(pids[0], syscall.SIGSTOP))
	}
	if err == nil {
		x.was = fmt.Sprintf("step %d of the phase", late)
		err = hit()
	}
	if errors.Is(err, errMissed) {
		return false, thaw()
	}
	return err == nil, errors.Join(err, thaw())
}

// step is shorter than the time that a run needs for a phase.
const step = 3 * time.Millisecond

// after reports whether phase a comes after phase b in a run.
func after(a, b string) bool {
	order := func(p string) int {
		for i, q := range phases {
			if p == q {
				return i
			}
		}
		return len(phases)
	}
	return order(a) > order(b)
}

// finish follows the run to its end, answers the expected questions, and checks everything
// that must hold afterwards.
func (x *cell) finish(ctx context.Context, answer func() error) error {
	within, cancel := context.WithDeadlineCause(ctx, x.struck.Add(x.want.within),
		fmt.Errorf("the run has not ended within %s of the fault", x.want.within))
	defer cancel()
	err := x.see(within, time.Second, func(w inventory.Workflow) (bool, error) {
		x.final = w
		if w.Question == nil {
			return inventory.Final(w.State), nil
		}
		switch {
		case x.asked == w.Question.ID:
			return false, nil // the answer has been sent
		case x.want.answer == "" || x.asked != "":
			return false, fmt.Errorf("%s: the operator is asked: %s", x, w.Question.Text)
		}
		x.asked = w.Question.ID
		if err := answer(); err != nil {
			return false, err
		}
		return false, x.c.REST(ctx, http.MethodPost, "/v1/workflows/"+x.run+"/decide",
			contract.Decision{Question: w.Question.ID, Choice: x.want.answer}, nil)
	})
	if err != nil {
		return err
	}
	x.took = time.Since(x.struck)
	if x.decommissions() {
		return x.checkRetired(ctx)
	}
	if x.strike == cancelAndKill && x.final.State == inventory.StateCancelled {
		x.unfinished++
		if err := errors.Join(x.checkDecoy(ctx), x.checkScript(ctx), x.start(ctx)); err != nil {
			return err
		}
		return x.finish(ctx, answer)
	}
	if x.want.answer != "" && x.asked == "" {
		return fmt.Errorf("%s: the operator was not asked", x)
	}
	return x.check(ctx)
}

// waitFor polls ready. ctx only ends a wait that hangs.
func waitFor(ctx context.Context, what string, ready func() (bool, error)) error {
	for {
		ok, err := ready()
		if ok || err != nil {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		}
	}
}

// hit causes the fault of some cells, which are held in their phases. It returns a function that
// waits until the fault had an effect, and then removes it.
func (c *chaos) hit(ctx context.Context, cells []*cell) (heal func() error, err error) {
	now := time.Now()
	for _, x := range cells {
		x.struck = now
		if x.led != nil {
			defer x.led()
		}
	}
	parts := combined[cells[0].strike]
	if parts == nil {
		parts = []strike{cells[0].strike.kind()}
	}
	var heals errgroup.Group
	var undo []func() error
	for _, s := range parts {
		f, e := c.cause(ctx, s, cells)
		if e != nil {
			return nil, e
		}
		undo = append(undo, f)
	}
	return func() error {
		for _, f := range undo {
			heals.Go(f)
		}
		return heals.Wait()
	}, nil
}

// cause causes one fault.
func (c *chaos) cause(ctx context.Context, s strike, cells []*cell) (heal func() error, err error) {
	first := cells[0]
	at := c.logSize()
	felt := func() {
		for _, x := range cells {
			x.felt = true
		}
	}
	atOnce := func() error { felt(); return nil } // for faults that need no proof and no undo
	// over is closed when all cells have ended: then there is no need to wait for an effect any
	// more.
	over := make(chan struct{})
	go func() {
		defer close(over)
		for _, x := range cells {
			<-x.over
		}
	}()
	// seen waits until f has seen an effect of the fault. For a part that all cells share (the
	// worker, the database, the disk), an effect on one cell is enough.
	seen := func(what string, undo lab.Undo, f func() (bool, error)) func() error {
		return func() error {
			err := waitFor(ctx, what, func() (bool, error) {
				ended := false
				select {
				case <-over:
					ended = true
				default:
				}
				if ok, err := f(); ok {
					felt()
					return true, err
				}
				return ended, nil // the server may be away
			})
			return errors.Join(err, undo())
		}
	}
	// untilOver keeps the fault until the end, and then checks whether it had an effect.
	untilOver := func(undo lab.Undo, met func() (bool, error)) func() error {
		return func() error {
			select {
			case <-over:
			case <-ctx.Done():
			}
			ok, err := met()
			if ok {
				felt()
			}
			return errors.Join(err, undo())
		}
	}
	always := func() (bool, error) { return true, nil }
	// job reports whether the run had a BMC job of that kind.
	job := func(is func(inventory.BMCJob) bool) func() (bool, error) {
		return func() (bool, error) {
			var jobs struct{ Items []inventory.BMCJob }
			err := c.REST(ctx, http.MethodGet, "/v1/bmc/jobs?machine="+first.m.Name(), nil, &jobs)
			return slices.ContainsFunc(jobs.Items, func(j inventory.BMCJob) bool { return j.Run == first.run && is(j) }), err
		}
	}
	failedTask := job(func(j inventory.BMCJob) bool { return j.State == inventory.StateFailed })
	bmcFault := func(undo lab.Undo, err error) (func() error, error) {
		if err != nil {
			return nil, err
		}
		if after(first.phase, inventory.PhasePower) {
			return untilOver(undo, failedTask), nil
		}
		return seen("a BMC task that failed", undo, failedTask), nil
	}
	bmc := first.m.Control()
	switch s {
	case noFault:
		return atOnce, nil
	case killServe, killBare:
		c.Kill()
		return func() error { felt(); return c.Start(ctx) }, nil
	case killTemporal:
		n, err := c.KillRole(lab.RoleTemporal)
		if err == nil && n != 1 {
			err = fmt.Errorf("%d Temporal servers were killed", n)
		}
		return atOnce, err
	case killWorker:
		undo, err := c.Sever(lab.Server, c.Pid(), temporalPort)
		return seen("Temporal to give the worker up", undo, func() (bool, error) { return c.givenUp(ctx, cells) }), err
	case lockDatabase:
		undo, err := c.LockDatabase(filepath.Join(c.dir, "state/ingot/ingot.db"))
		return seen("a writer that gave up", undo, func() (bool, error) { return c.logged(at, `database is locked`) }), err
	case fillDisk:
		state := filepath.Join(c.dir, "state")
		if err := truncateLog(ctx, filepath.Join(state, "ingot/ingot.db")); err != nil {
			return nil, err
		}
		undo, err := c.KeepFull(state)
		return seen("a write that failed", undo, func() (bool, error) { return c.logged(at, `disk is full|no space left`) }), err
	case cutImages:
		var undos []lab.Undo
		for _, x := range cells { // each machine separately, so that its losses can be counted
			undo, e := c.Stall(x.m.Link(), imagePort, 0)
			if e == nil {
				undos = append(undos, undo)
			}
			err = errors.Join(err, e)
		}
		if err == nil {
			_, err = c.ResetTransfers(imagePort, "")
		}
		return c.starved(ctx, cells, over, undos), err
	case killAgent:
		a := first.m.Agent()
		if a == nil {
			return nil, fmt.Errorf("%s: there is no agent", first)
		}
		a.Kill()
		<-a.Done()
		return atOnce, nil
	case cutPower:
		if first.m.PowerState() == lab.On {
			felt()
		}
		return func() error { return nil }, first.m.PowerOff(ctx)
	case cutLink:
		undo, err := c.Cut(first.m.Link())
		text, e := first.m.Serial()
		return seen("the loss of the link", undo, func() (bool, error) { return first.suffers(ctx, len(text)) }), errors.Join(err, e)
	case cutBMC:
		return bmcFault(bmc.Unreachable(ctx))
	case frozenServe:
		undo, err := c.Freeze(ctx, c.Pid())
		return seen("an agent that waited without an answer", undo, func() (bool, error) {
			for _, x := range cells {
				text, err := x.m.Serial()
				if err != nil || strings.Contains(text, `msg="sending a heartbeat" error=`) {
					return err == nil, err
				}
			}
			return false, nil
		}), err
	case frozenAgent, wakingAgent:
		a := first.m.Agent()
		if a == nil {
			return nil, fmt.Errorf("%s: there is no agent", first)
		}
		undo, err := c.Freeze(ctx, a.Pid())
		if s == frozenAgent {
			return untilOver(undo, func() (bool, error) { return first.lost(ctx) }), err
		}
		return seen("the loss of the agent", undo, func() (bool, error) { return first.lost(ctx) }), err
	case lossyLink:
		undo, err := c.Lose(first.m.Link(), 5)
		return untilOver(undo, func() (bool, error) { n, err := c.Lost(first.m.Link()); return n > 0, err }), err
	case slowLink:
		undo, err := c.Delay(first.m.Link(), 200*time.Millisecond)
		return untilOver(undo, always), err // nothing is faster
	case slowBMC:
		const slow = 3 * time.Second
		undo, err := bmc.Slow(slow)
		return untilOver(undo, job(func(j inventory.BMCJob) bool { return j.Ended.Sub(j.Started) >= slow })), err
	case idleBMC:
		return bmcFault(bmc.Idle())
	case lyingBMC:
		return bmcFault(bmc.Lie(lab.On))
	case brokenBMC:
		return bmcFault(bmc.Broken())
	case refusedBMC:
		undo, err := bmc.Refuse(ctx)
		return func() error { felt(); return undo() }, err // called after the question was asked
	}
	return c.causeRare(ctx, s, first, atOnce, seen)
}

// starved reconnects the machines to their image server after ten frames to them were lost, and
// returns which machines have lost any.
func (c *chaos) starved(ctx context.Context, cells []*cell, over <-chan struct{}, undos []lab.Undo) func() error {
	return func() error {
		err := waitFor(ctx, "ten lost frames", func() (bool, error) {
			sum := 0
			for _, x := range cells {
				n, err := c.Lost(x.m.Link())
				if err != nil {
					return false, err
				}
				x.felt = x.felt || n > 0
				sum += n
			}
			select {
			case <-over:
				return true, nil
			default:
				return sum >= 10, nil
			}
		})
		for _, undo := range undos {
			err = errors.Join(err, undo())
		}
		return err
	}
}

// suffers reports whether a cut link had an effect on the machine or its run.
func (x *cell) suffers(ctx context.Context, at int) (bool, error) {
	switch {
	case !after(x.phase, inventory.PhaseAgent): // its firmware gives up
		text, err := x.m.Serial()
		return strings.Contains(text[at:], "LAB-SIM network boot: ") || strings.Contains(text[at:], "giving up on the network"), err
	case x.phase == inventory.PhaseReady:
		text, err := x.m.Serial()
		return strings.Contains(text[at:], "LAB-MINI-PHONE-HOME-AGAIN"), err
	}
	if ok, err := x.lost(ctx); ok || err != nil {
		return ok, err
	}
	// Its last report may have passed the link just before the cut. Then the answer is lost, and the agent
	// repeats the report before it leaves; or else the installed system's phone-home is lost.
	var w inventory.Workflow
	if err := x.c.REST(ctx, http.MethodGet, "/v1/workflows/"+x.run, nil, &w); err != nil {
		return false, err
	}
	text, err := x.m.Serial()
	repeats := w.Phase == inventory.PhaseReady && strings.Contains(text[at:], "msg=reporting ")
	return repeats || strings.Contains(text[at:], "LAB-MINI-PHONE-HOME-AGAIN"), err
}

// lost reports whether the run knows that its agent is lost.
func (x *cell) lost(ctx context.Context) (bool, error) {
	var events struct{ Items []inventory.Event }
	err := x.c.REST(ctx, http.MethodGet, "/v1/workflows/"+x.run+"/events", nil, &events)
	for _, e := range events.Items {
		if e.Kind == inventory.EventAgentLost && e.At.After(x.struck) {
			return true, err
		}
	}
	return false, err
}

// givenUp reports whether Temporal has noticed the loss of the worker: its tasks have timed out, or
// waiting tasks are not fetched.
func (c *chaos) givenUp(ctx context.Context, cells []*cell) (bool, error) {
	for _, x := range cells {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		d, err := c.ask.DescribeWorkflowExecution(ctx, workflows.MachineID(x.m.Name()), x.run)
		cancel()
		if err != nil {
			return false, err
		}
		lies := func(since time.Time) bool { return time.Since(since) > 10*time.Second } // a running worker fetches it at once
		if t := d.GetPendingWorkflowTask(); t.GetAttempt() > 1 ||
			t.GetState() == enumspb.PENDING_WORKFLOW_TASK_STATE_SCHEDULED && lies(t.GetScheduledTime().AsTime()) {
			return true, nil
		}
		for _, a := range d.GetPendingActivities() {
			if a.GetAttempt() > 1 || a.GetState() == enumspb.PENDING_ACTIVITY_STATE_SCHEDULED && lies(a.GetScheduledTime().AsTime()) {
				return true, nil
			}
		}
	}
	return false, nil
}

func (c *chaos) logSize() int64 {
	st, err := os.Stat(c.log.Name())
	if err != nil {
		return 0
	}
	return st.Size()
}

// logged reports whether the server has written a message since the log had size at.
func (c *chaos) logged(at int64, pattern string) (bool, error) {
	b, err := os.ReadFile(c.log.Name())
	if err != nil {
		return false, err
	}
	return regexp.MatchString(pattern, string(b[min(at, int64(len(b))):]))
}

// settled is how long the Temporal child must have run before the next fault. Each cell is about one fault; a child that ends
// again at once is started with growing pauses.
const settled = 5 * time.Second

// settle waits until the Temporal child has recovered from the last fault.
func (c *chaos) settle(ctx context.Context) error {
	return waitFor(ctx, "a Temporal child that stays", func() (bool, error) {
		pids, err := c.Processes(lab.RoleTemporal)
		if err != nil || len(pids) == 0 {
			return false, err
		}
		age, err := processAge(pids[0])
		return err == nil && age > settled, nil // it may have ended just now
	})
}

// processAge returns for how long a process has run (proc(5)).
func processAge(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	up, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	started, err := strconv.ParseFloat(fields[19], 64) // in ticks of 10 ms since the boot
	if err != nil {
		return 0, err
	}
	now, err := strconv.ParseFloat(strings.Fields(string(up))[0], 64)
	return time.Duration((now - started/100) * float64(time.Second)), err
}

// together applies one fault to all cells, each in its phase.
func (c *chaos) together(ctx context.Context, cells ...*cell) {
	var ready sync.WaitGroup
	for _, x := range cells {
		ready.Go(func() {
			if x.err = x.add(ctx); x.err == nil {
				x.err = x.lead(ctx)
			}
			// A slow run-up is missed sometimes: the phase lasts for a moment.
			for n := 1; n < catches && errors.Is(x.err, errMissed); n++ {
				x.err = x.see(ctx, 100*time.Millisecond, func(w inventory.Workflow) (bool, error) { return inventory.Final(w.State), nil })
				if x.err == nil {
					x.err = x.lead(ctx)
				}
			}
		})
	}
	ready.Wait()
	var held []*cell
	for _, x := range cells {
		if x.err == nil {
			held = append(held, x)
		} else {
			close(x.over)
		}
	}
	if len(held) == 0 {
		return
	}
	heal, err := c.hit(ctx, held)
	if err != nil {
		heal = func() error { return nil }
	}
	for _, x := range held {
		x.err = errors.Join(err, x.release())
	}
	c.ends(ctx, held, heal)
}

// alone catches a cell in a phase of milliseconds and causes its fault.
func (c *chaos) alone(ctx context.Context, x *cell) {
	var heal func() error
	x.err = c.settle(ctx)
	if x.err == nil {
		x.err = x.add(ctx)
	}
	if x.err == nil {
		x.err = x.catch(ctx, func() (err error) { heal, err = c.hit(ctx, []*cell{x}); return err })
	}
	if heal == nil || x.err != nil {
		if heal != nil {
			x.err = errors.Join(x.err, heal())
		}
		close(x.over)
		return
	}
	c.ends(ctx, []*cell{x}, heal)
}

// ends removes the fault and follows all cells to their end.
func (c *chaos) ends(ctx context.Context, cells []*cell, heal func() error) {
	var wg sync.WaitGroup
	var healed error
	var once sync.Once
	cure := func() error {
		once.Do(func() {
			healed = heal()
			for _, x := range cells {
				x.mended = time.Since(x.struck)
			}
		})
		return healed
	}
	for _, x := range cells {
		wg.Go(func() {
			if x.err == nil {
				x.err = x.finish(ctx, cure)
			}
			if x.err != nil {
				c.keepCell(x)
			}
			close(x.over)
		})
	}
	if cells[0].want.answer == "" {
		if err := cure(); err != nil {
			c.t.Errorf("%s: taking the fault away: %v", cells[0], err)
		}
	}
	wg.Wait()
	for _, x := range cells { // some faults know only at their end
		if x.err == nil && !x.felt && !x.want.unfelt {
			x.err = fmt.Errorf("%s: the run did not meet the fault", x)
		}
	}
}

// keepCell records what is known of a failed cell at once, because much of it is gone later.
func (c *chaos) keepCell(x *cell) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for name, args := range map[string][]string{
		"why": {"why", x.m.Name()}, "events": {"workflow", "events", x.m.Name()},
		"workflow": {"workflow", "get", x.m.Name(), "-o", "json"},
	} {
		out, err := c.CLI(ctx, args...)
		if err != nil {
			out += err.Error()
		}
		if err := os.WriteFile(filepath.Join(c.dir, x.name()+"-"+name+".txt"), []byte(out), 0o600); err != nil {
			c.t.Log(err)
		}
	}
	out, err := c.TemporalCLI(ctx, "workflow", "show", "--workflow-id", workflows.MachineID(x.m.Name()), "-o", "json")
	if err != nil {
		out = err.Error()
	}
	if err := os.WriteFile(filepath.Join(c.dir, x.name()+"-history.json"), []byte(out), 0o600); err != nil {
		c.t.Log(err)
	}
}

// truncateLog empties the write-ahead log of a database. A log that is written again from its beginning needs no space on a full disk,
// and a short run would not notice that the disk is full.
func truncateLog(ctx context.Context, file string) (err error) {
	db, err := sql.Open("sqlite3", "file:"+file+"?_busy_timeout=10000")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return waitFor(ctx, "the write-ahead log to be empty", func() (bool, error) {
		var busy, pages, copied int
		err := db.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &pages, &copied)
		return busy == 0, err
	})
}
