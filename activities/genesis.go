package activities

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

// Labs is where lab files lie, and what operations have found out.
type Labs interface {
	Genesis(ctx context.Context, name string) (inventory.GenesisBundle, error)
	PutMachines(ctx context.Context, ms []inventory.Machine, replace bool, by string) error
	Operation(ctx context.Context, run string) (inventory.Operation, error)
	PutFact(ctx context.Context, operation, name string, value inventory.Secret) error
	Fact(ctx context.Context, operation, name string) (inventory.Secret, error)
}

// Presence tells whether somebody answers at an address, and with which MAC
// where that can be known.
type Presence interface {
	Answers(ctx context.Context, a netip.Addr) (found bool, mac string, err error)
}

// Relays tells when the relay with this giaddr was last heard; zero: never. What
// was heard outlives the server that has heard it.
type Relays interface {
	Relayed(ctx context.Context, giaddr netip.Addr) (time.Time, error)
}

// Names of facts.
const (
	factKubeconfig   = "kubeconfig"
	factBootstrapped = "bootstrapped" // of which run of the platform's machine
	factTakenBack    = "taken-back/"  // and a machine: which of its runs
)

// LabRequest names a lab file, the operation that carries it out, and the step.
type LabRequest struct {
	Name    string `json:"name"` // of the lab file
	Run     string `json:"run,omitempty"`
	Machine string `json:"machine,omitempty"`
	// Resume lets steps that an earlier run has done stay done.
	Resume bool `json:"resume,omitempty"`
	// Again lets a run that does not resume do again what an earlier one has done.
	Again bool `json:"again,omitempty"`
	// Installed are machines that need not be free any more.
	Installed []string `json:"installed,omitempty"`
	// Ours are machines of LabTable.Ours.
	Ours []string `json:"ours,omitempty"`
	// Since is when this Genesis began; zero for one that goes on with an earlier one.
	Since time.Time `json:"since,omitzero"`
}

func (q LabRequest) operation() string { return "genesis/" + q.Name }

// LabStep is a row of the table with what carrying it out needs beside.
type LabStep struct {
	genesis.Step
	HardwareMap map[string]string `json:"hardwareMap,omitempty"`
	Manual      bool              `json:"manual,omitempty"`
	Finished    bool              `json:"finished,omitempty"` // by an earlier run
}

// LabTable is what a lab file says that a workflow may know: no secrets.
type LabTable struct {
	SHA256 string    `json:"sha256"`
	Steps  []LabStep `json:"steps"`
	Target string    `json:"target,omitempty"` // peer of the migration
	// Installed are machines that an earlier run has installed: they have their
	// addresses.
	Installed []string `json:"installed,omitempty"`
	// Ours are machines that may answer although their steps are not done: an
	// earlier run has begun to install them, or somebody has by this server.
	Ours []string `json:"ours,omitempty"`
}

func (a *Activities) lab(ctx context.Context, name string) (genesis.Lab, inventory.GenesisBundle, error) {
	b, err := a.Labs.Genesis(ctx, name)
	if err != nil {
		return genesis.Lab{}, b, err
	}
	a.lastLab.mu.Lock()
	defer a.lastLab.mu.Unlock()
	if b.SHA256 == "" || a.lastLab.sha256 != b.SHA256 {
		lab, err := genesis.Load(b.File, b.Read)
		if err != nil {
			return genesis.Lab{}, b, err
		}
		a.lastLab.lab, a.lastLab.sha256 = lab, b.SHA256
	}
	return a.lastLab.lab, b, nil
}

// labCache holds the lab file that was read last: reading and checking it with
// its documents takes as long as everything else that most activities do.
type labCache struct {
	mu     sync.Mutex
	sha256 string // "": none was read
	lab    genesis.Lab
}

// ReadLab reads the lab file and the table that it makes, and what of it
// earlier runs of this name have done already. Whoever begins anew after a run
// that has installed something is told so: that would be installed again.
func (a *Activities) ReadLab(ctx context.Context, q LabRequest) (LabTable, error) {
	lab, b, err := a.lab(ctx, q.Name)
	if err != nil {
		return LabTable{}, fail(err)
	}
	for _, typ := range []string{inventory.TypeGenesis, inventory.TypeMigrate} {
		open, err := a.Operations.Operations(ctx, inventory.OperationFilter{Type: typ, Open: true})
		if err != nil {
			return LabTable{}, fail(err)
		}
		for _, o := range open {
			own := o.Run == q.Run || o.ID == q.operation()
			if lab.Migrate != nil && o.ID == "migrate/"+lab.Migrate.Target {
				of, err := labOf(o) // begun by an earlier run of this name, or for it by a person
				if err != nil {
					return LabTable{}, fail(err)
				}
				own = of == q.Name
			}
			if !own {
				return LabTable{}, fail(fmt.Errorf("%s is under way (ingot operation get %s): %w", o.ID, o.ID, inventory.ErrConflict))
			}
		}
	}
	done, err := a.doneBefore(ctx, q)
	if err != nil {
		return LabTable{}, fail(err)
	}
	t := LabTable{SHA256: b.SHA256}
	for _, s := range lab.Steps() {
		if s.Writes() && done[s.Name] {
			if !q.Resume && !q.Again {
				return LabTable{}, fail(fmt.Errorf("an earlier run of genesis %q has done step %q, which would overwrite %s again: resume it (ingot genesis resume %s), or say that all is to be done again: %w",
					q.Name, s.Name, s.Machine, q.Name, inventory.ErrConflict))
			}
			t.Installed = append(t.Installed, s.Machine)
		} else if s.Writes() && (q.Resume || q.Again) {
			ours, err := a.ours(ctx, s.Machine, q.operation())
			if err != nil {
				return LabTable{}, fail(err)
			}
			if ours {
				t.Ours = append(t.Ours, s.Machine)
			}
		}
	}
	if !q.Resume {
		done = nil
	}
	if lab.Migrate != nil {
		t.Target = lab.Migrate.Target
	}
	for _, s := range lab.Steps() {
		m, _ := lab.Machine(s.Machine)
		step := LabStep{Step: s, Manual: s.Machine != "" && m.BMC.Manual(), Finished: done[s.Name]}
		if s.Writes() {
			step.HardwareMap = m.HardwareMap
		}
		t.Steps = append(t.Steps, step)
	}
	return t, nil
}

// ours tells whether a machine has been given its address by this server: the
// operation has begun to install it, or the last installation has succeeded,
// whoever began that.
func (a *Activities) ours(ctx context.Context, machine, operation string) (bool, error) {
	list, err := a.installations(ctx, machine)
	if err != nil || len(list) == 0 {
		return false, err
	}
	if list[0].State == inventory.StateSuccess {
		return true, nil
	}
	return startedBy(list[0], operation)
}

// doneBefore tells which steps earlier runs of this name have done, by the
// newest run that has tried each.
func (a *Activities) doneBefore(ctx context.Context, q LabRequest) (map[string]bool, error) {
	runs, err := a.Operations.Operations(ctx, inventory.OperationFilter{ID: q.operation()})
	done := map[string]bool{}
	for _, o := range runs {
		for _, s := range o.Steps {
			if _, known := done[s.Name]; !known && o.Run != q.Run && s.State != inventory.StepPending {
				done[s.Name] = s.State == inventory.StepDone
			}
		}
	}
	return done, err
}

// Preflight checks everything that can be checked before anything is powered
// on, tells all that is wrong at once, and stores the machines. It may run
// again at any time.
func (a *Activities) Preflight(ctx context.Context, q LabRequest) error {
	defer heartbeat(ctx)()
	lab, b, err := a.lab(ctx, q.Name)
	if err != nil {
		return fail(err)
	}
	if err := a.Grants.KeyCheck(ctx); err != nil {
		return fail(err)
	}
	if off := a.Site.bootable(); off != nil {
		return fail(off)
	}
	var ps inventory.Problems
	if err := a.checkImages(ctx, lab, &ps); err != nil {
		return fail(err)
	}
	if err := a.checkMachines(ctx, lab, b.Replace, &ps); err != nil {
		return fail(err)
	}
	if err := a.checkFree(ctx, lab, q.Installed, q.Ours, &ps); err != nil {
		return fail(err)
	}
	a.checkBMCs(ctx, lab, &ps, func(m genesis.Machine) bool {
		return !behind(lab, m.BMC) || lab.Router == nil || slices.Contains(q.Installed, lab.Router.Machine)
	})
	if len(ps) == 0 {
		// Names, MACs, addresses and BMCs that others have: the store compares.
		err := a.Labs.PutMachines(ctx, lab.Inventory(), true, "genesis "+q.Name)
		if !errors.As(err, &ps) {
			return fail(err)
		}
	}
	if err := lab.Locate(ps).Err(); err != nil {
		return temporal.NewNonRetryableApplicationError(err.Error(), TypeInvalid, nil)
	}
	return nil
}

func (a *Activities) checkImages(ctx context.Context, lab genesis.Lab, ps *inventory.Problems) error {
	images, err := a.Catalogue.Images(ctx)
	if err != nil {
		return err
	}
	have := map[string]string{}
	for _, i := range images {
		have[i.Name] = i.SHA256
	}
	for n, i := range lab.Images {
		field := fmt.Sprintf("images[%d].", n)
		switch got, ok := have[i.Name]; {
		case !ok:
			ps.Add(field+"name", strings.TrimSpace("ingot image add "+i.Name+" "+i.Source()), "the server has no image %q", i.Name)
		case got != i.SHA256:
			ps.Add(field+"sha256", "remove the stored one: ingot image delete "+i.Name+"; or correct the digest", "the stored image %q has the digest %s", i.Name, got)
		}
	}
	if a.ProbeImage != nil {
		*ps = append(*ps, lab.CheckSources(func(name string) string { return have[name] }, func(address string) error { return a.ProbeImage(ctx, address) })...)
	}
	return nil
}

func (a *Activities) checkMachines(ctx context.Context, lab genesis.Lab, replace bool, ps *inventory.Problems) error {
	for n, m := range lab.Machines {
		field := fmt.Sprintf("machines[%d]", n)
		if m.Template != "" {
			_, err := a.Catalogue.Template(ctx, m.Template)
			builtin := slices.ContainsFunc(template.Builtins(), func(b inventory.Template) bool { return b.Name == m.Template })
			if errors.Is(err, inventory.ErrNotFound) && builtin {
				err = nil
			}
			if errors.Is(err, inventory.ErrNotFound) {
				ps.Add(field+".template", "ingot template list", "there is no template %q", m.Template)
			} else if err != nil {
				return err
			}
		}
		stored, err := a.Machines.Machine(ctx, m.Name)
		if errors.Is(err, inventory.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if d := genesis.Differs(stored, m.Machine); len(d) > 0 && !replace {
			ps.Add(field+".name", "correct one of them, or start with --replace", "the inventory has a machine %q that differs in %s", m.Name, strings.Join(d, ", "))
		}
		if stored.Quarantined() {
			ps.Add(field+".name", "ingot machine release "+m.Name, "machine %q is quarantined: %s", m.Name, stored.Standing.Reason)
		}
	}
	return nil
}

// checkFree finds out whether somebody else has an address that the lab gives
// to a machine. One whose step is done has its own, and may have made a bond or a
// bridge with a MAC that the file does not know. A machine that runs what it ran
// before, and one of ours, has its own as well: only somebody whose MAC is known
// to be none of its is a stranger there.
func (a *Activities) checkFree(ctx context.Context, lab genesis.Lab, installed, ours []string, ps *inventory.Problems) error {
	type wanted struct {
		field, what string
		addr        netip.Addr
		macs        []string
		taken       bool // by the machine itself
	}
	var all []wanted
	begun := false // a cluster's address is its own once a node was made for it
	for n, m := range lab.Machines {
		written, err := a.Machines.DisksWritten(ctx, m.Name)
		if err != nil && !errors.Is(err, inventory.ErrNotFound) {
			return err
		}
		given, err := a.gaveAddress(ctx, m.Name)
		if err != nil {
			return err
		}
		done := slices.Contains(installed, m.Name)
		made := done || slices.Contains(ours, m.Name) || len(written) > 0
		begun = begun || made && lab.Cluster != nil && m.Name == lab.Cluster.Create
		if done {
			continue
		}
		taken := made || given
		var macs []string
		for _, i := range m.Interfaces {
			macs = append(macs, i.MAC)
		}
		for k, i := range m.Interfaces {
			// Intel AMT answers at the address of its machine.
			if i.Address.IsValid() && (m.BMC == nil || m.BMC.Host != i.Address.String()) {
				all = append(all, wanted{fmt.Sprintf("machines[%d].interfaces[%d].address", n, k), "machine " + m.Name, i.Address, macs, taken})
			}
		}
	}
	if c := lab.Cluster; c != nil && !begun {
		all = append(all, wanted{field: "cluster.vip", what: "the cluster", addr: c.VIP})
	}
	for _, w := range all {
		found, mac, err := a.Presence.Answers(ctx, w.addr)
		if err != nil {
			return err
		}
		if !found || mac != "" && slices.Contains(w.macs, mac) || mac == "" && w.taken {
			continue
		}
		who := "somebody"
		if mac != "" {
			who = mac
		}
		ps.Add(w.field, "give it another address, or take that device off the network", "%s answers already at %s, which is for %s", who, w.addr, w.what)
	}
	return nil
}

// gaveAddress tells whether the machine has its address from this server's DHCP:
// one that was switched on to prove the relay, for example, and runs what it ran
// before. One forged PXE request with its MAC is enough for that. Then, where no
// MAC is seen because a router lies between, a stranger at that address passes
// for the machine: this check finds mistakes, not attackers.
func (a *Activities) gaveAddress(ctx context.Context, machine string) (bool, error) {
	list, err := a.Records.Events(ctx, inventory.EventFilter{Machine: machine})
	return slices.ContainsFunc(list, func(e inventory.Event) bool {
		return slices.Contains([]string{inventory.EventDHCP, inventory.EventRebooted, inventory.EventDisk, inventory.EventOS}, e.Kind)
	}), err
}

// behind tells whether a BMC lies outside of the network of the server, and is reached
// through the router.
func behind(lab genesis.Lab, b *inventory.BMC) bool {
	if b == nil {
		return false
	}
	at, err := netip.ParseAddr(b.Host)
	return err == nil && !lab.Seed.Segment.Contains(at)
}

// checkBMCs asks those BMCs for the power state that are reachable by now:
// what lies behind the router is so once the router runs.
func (a *Activities) checkBMCs(ctx context.Context, lab genesis.Lab, ps *inventory.Problems, reachable func(genesis.Machine) bool) {
	for n, m := range lab.Machines {
		if m.BMC.Manual() || !reachable(m) {
			continue
		}
		if _, err := a.BMC.State(ctx, m.Controller(), m.BMC.Password); err != nil {
			ps.Add(fmt.Sprintf("machines[%d].bmc", n), "ingot bmc check "+m.Name+" tells more", "the BMC of %q does not tell the power state: %v", m.Name, err)
		}
	}
}

// RelayProven waits until the router has relayed a packet from the machines'
// network, and then checks the BMCs there. That it has relayed holds for as long
// as its installation lasts: once all machines have their addresses nobody asks
// again.
func (a *Activities) RelayProven(ctx context.Context, q LabRequest) error {
	lab, _, err := a.lab(ctx, q.Name)
	if err != nil {
		return fail(err)
	}
	run, err := a.latestInstallation(ctx, q.Machine)
	if err != nil {
		return fail(err)
	}
	err = a.until(ctx, func(ctx context.Context) error {
		at, err := a.Relays.Relayed(ctx, lab.Network.Gateway)
		if err != nil {
			return err
		}
		// Heard before the router was installed anew, it was another router.
		if at.Before(run.Started) {
			return fmt.Errorf("no DHCP packet with giaddr %s has come: is a machine on that network switched on, and does the router relay to %s? %w",
				lab.Network.Gateway, lab.Seed.Address, inventory.ErrUnreachable)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return a.checkBehind(ctx, lab)
}

// checkBehind checks the BMCs that can be reached since the router runs.
func (a *Activities) checkBehind(ctx context.Context, lab genesis.Lab) error {
	defer heartbeat(ctx)()
	var ps inventory.Problems
	a.checkBMCs(ctx, lab, &ps, func(m genesis.Machine) bool { return behind(lab, m.BMC) })
	if err := lab.Locate(ps).Err(); err != nil {
		return temporal.NewNonRetryableApplicationError(err.Error(), TypeInvalid, nil)
	}
	return nil
}

// Idle tells whether no run has the machine and its network boot is closed,
// and is Conflict otherwise: what an undo begins with.
func (a *Activities) Idle(ctx context.Context, machine string) error {
	g, err := a.Grants.Grant(ctx, machine)
	if errors.Is(err, inventory.ErrNotFound) {
		return nil
	}
	if err == nil && (g.Run != "" || g.NetbootOpen(a.Now())) {
		err = fmt.Errorf("machine %q is still held by run %s: %w", machine, g.Run, inventory.ErrConflict)
	}
	return fail(err)
}

// AwaitOperation returns when the operation is over by its record, as AwaitRun
// does for a machine's run.
func (a *Activities) AwaitOperation(ctx context.Context, q OutcomeRequest) (Outcome, error) {
	return a.outcome(ctx, q, "operation", func() (Outcome, error) {
		o, err := a.Labs.Operation(ctx, q.Run)
		return outcomeOfOperation(o), err
	})
}

func outcomeOfOperation(o inventory.Operation) Outcome {
	return Outcome{Run: o.Run, State: o.State, Phase: o.Step, Message: o.Message, Asks: o.Question != nil}
}

// RunNow tells how a machine's run stands.
func (a *Activities) RunNow(ctx context.Context, run string) (Outcome, error) {
	w, err := a.Records.Workflow(ctx, run)
	if errors.Is(err, inventory.ErrNotFound) {
		return Outcome{Run: run, Message: "it has recorded nothing"}, nil
	}
	return outcomeOf(w), fail(err)
}

// OperationNow tells how an operation stands.
func (a *Activities) OperationNow(ctx context.Context, run string) (Outcome, error) {
	o, err := a.Labs.Operation(ctx, run)
	if errors.Is(err, inventory.ErrNotFound) {
		return Outcome{Run: run, Message: "it has recorded nothing"}, nil
	}
	return outcomeOfOperation(o), fail(err)
}

// OpenOperation returns the run of the open operation with this workflow id.
func (a *Activities) OpenOperation(ctx context.Context, id string) (string, error) {
	list, err := a.Operations.Operations(ctx, inventory.OperationFilter{ID: id, Open: true, Limit: 1})
	if err == nil && len(list) == 0 {
		// It has just ended, and Temporal is about to learn of it.
		err = fmt.Errorf("operation %q ended as it was to be followed; retry begins it again: %w", id, inventory.ErrConflict)
	}
	if err != nil {
		return "", fail(err)
	}
	return list[0].Run, nil
}

// InstalledRequest asks whether an operation has installed a machine, or is
// about to.
type InstalledRequest struct {
	Machine string    `json:"machine"`
	Parent  string    `json:"parent"` // workflow id of the operation
	Since   time.Time `json:"since,omitzero"`
}

// Installed returns the machine's latest installation, if the operation started
// it, not before the given time, has not taken it back, and it has succeeded or
// goes on: one look, so that none can end unseen between two. What a BMC job or
// an inspection did in between does not count. Conflict: somebody else has installed the machine
// after the operation did, and nobody has said that this is to be overwritten.
func (a *Activities) Installed(ctx context.Context, q InstalledRequest) (OwnRun, error) {
	list, err := a.installations(ctx, q.Machine)
	if err != nil {
		return OwnRun{}, fail(err)
	}
	gone, err := a.Labs.Fact(ctx, q.Parent, factTakenBack+q.Machine)
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		return OwnRun{}, fail(err)
	}
	foreign := ""
	for _, w := range list {
		if w.Run == gone.Reveal() {
			return OwnRun{}, nil
		}
		if inventory.Final(w.State) && w.State != inventory.StateSuccess || w.Started.Before(q.Since) {
			return OwnRun{}, nil
		}
		switch mine, err := startedBy(w, q.Parent); {
		case err != nil:
			return OwnRun{}, fail(err)
		case !mine:
			foreign = w.Run
			continue
		case foreign != "":
			return OwnRun{}, fail(fmt.Errorf("machine %q was installed by %s and after that by run %s, which is none of its own: skip the step if that is right, or install the machine by hand: %w",
				q.Machine, q.Parent, foreign, inventory.ErrConflict))
		}
		return OwnRun{Run: w.Run, Mine: true}, nil
	}
	return OwnRun{}, nil
}

// installations are the machine's runs that install, the newest first.
func (a *Activities) installations(ctx context.Context, machine string) ([]inventory.Workflow, error) {
	list, err := a.Operations.Workflows(ctx, inventory.WorkflowFilter{Machine: machine})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(w inventory.Workflow) bool {
		return w.Type != inventory.TypeProvision && w.Type != inventory.TypeReprovision
	}), nil
}

// latestInstallation is the newest of them.
func (a *Activities) latestInstallation(ctx context.Context, machine string) (inventory.Workflow, error) {
	list, err := a.installations(ctx, machine)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("machine %q was never installed: %w", machine, inventory.ErrNotFound)
	}
	if err != nil {
		return inventory.Workflow{}, err
	}
	return list[0], nil
}

const (
	// probeEvery is how often an installed system is asked whether it is ready.
	probeEvery = 5 * time.Second
	// stubborn is how many answers in a row that no waiting mends (credentials
	// refused, a request that is wrong) are taken for a system that starts.
	stubborn = 24
	// ahead is how long before its deadline a probe gives up, to say why.
	ahead = 5 * time.Second
)

func (a *Activities) lookEvery(otherwise time.Duration) time.Duration {
	if a.ProbeEvery > 0 {
		return a.ProbeEvery
	}
	return otherwise
}

// until asks again and again, until ask has no error or the activity's time is
// up; then the last answer is the error, and is not tried again.
func (a *Activities) until(ctx context.Context, ask func(context.Context) error) error {
	defer heartbeat(ctx)()
	end := time.Now().Add(time.Hour)
	if d, ok := ctx.Deadline(); ok {
		end = d.Add(-min(ahead, time.Until(d)/2))
	}
	tick := time.NewTicker(a.lookEvery(probeEvery))
	defer tick.Stop()
	for refusals := 0; ; {
		err := ask(ctx)
		if err == nil {
			if activity.IsActivity(ctx) {
				i := activity.GetInfo(ctx)
				a.Log.Info("what was waited for is there", "activity", i.ActivityType.Name, "attempt", i.Attempt, "workflow", i.WorkflowExecution.ID)
			}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errors.Is(err, inventory.ErrUnreachable) {
			refusals = 0
		} else {
			refusals++
		}
		if refusals == stubborn || !time.Now().Before(end) {
			if e := fail(err); !errors.Is(err, inventory.ErrUnreachable) {
				return e
			}
			return temporal.NewNonRetryableApplicationError(err.Error(), TypeUnreachable, nil)
		}
		select {
		case <-tick.C:
		case <-time.After(time.Until(end)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
