package e2e

import (
	"errors"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// A strike is a fault of the matrix.
type strike string

// The faults. Those from killServe to cutImages affect a whole site, the others one machine.
const (
	noFault      strike = "none, for comparison"
	killServe    strike = "ingot serve"
	killBare     strike = "ingot serve, sockets lost"
	killTemporal strike = "Temporal child"
	killWorker   strike = "worker"
	lockDatabase strike = "database lock"
	fillDisk     strike = "disk full"
	cutImages    strike = "image server"

	killAgent   strike = "agent process"
	cutPower    strike = "agent's machine"
	cutBMC      strike = "BMC unreachable"
	cutLink     strike = "provisioning link"
	frozenServe strike = "ingot serve frozen" // affects a whole site, too
	frozenAgent strike = "agent frozen"
	wakingAgent strike = "agent frozen, then awake"
	lossyLink   strike = "link loses frames"
	slowLink    strike = "link slow"
	slowBMC     strike = "BMC slow"
	idleBMC     strike = "BMC idle"
	lyingBMC    strike = "BMC lying"
	brokenBMC   strike = "BMC broken"
	refusedBMC  strike = "BMC refusing"

	// The same, where the BMC speaks Redfish instead of IPMI.
	cutRedfish     strike = "BMC unreachable (Redfish)"
	slowRedfish    strike = "BMC slow (Redfish)"
	idleRedfish    strike = "BMC idle (Redfish)"
	lyingRedfish   strike = "BMC lying (Redfish)"
	brokenRedfish  strike = "BMC broken (Redfish)"
	refusedRedfish strike = "BMC refusing (Redfish)"
)

// overRedfish is the fault of the BMC that each fault of a Redfish service is.
var overRedfish = map[strike]strike{
	cutRedfish: cutBMC, slowRedfish: slowBMC, idleRedfish: idleBMC, lyingRedfish: lyingBMC, brokenRedfish: brokenBMC,
	refusedRedfish: refusedBMC,
}

// kind is the fault without the protocol of the BMC.
func (s strike) kind() strike {
	if k, ok := overRedfish[s]; ok {
		return k
	}
	return s
}

var (
	siteStrikes    = []strike{noFault, killServe, killBare, killTemporal, killWorker, lockDatabase, fillDisk, cutImages}
	machineStrikes = []strike{killAgent, cutPower, cutBMC, cutRedfish, cutLink}
	// otherStrikes are not in the matrix: their parts are neither dead nor unreachable, and
	// they are used in other tests.
	otherStrikes = []strike{
		frozenServe, frozenAgent, wakingAgent, lossyLink, slowLink, slowBMC, idleBMC, lyingBMC, brokenBMC, refusedBMC,
		slowRedfish, idleRedfish, lyingRedfish, brokenRedfish, refusedRedfish,
	}
)

// phases are the phases of Provision, in order.
var phases = []string{
	inventory.PhasePlan, inventory.PhaseArm, inventory.PhasePower, inventory.PhaseDHCP, inventory.PhaseLoader, inventory.PhaseAgent,
	inventory.PhaseBind, inventory.PhaseAction, inventory.PhaseDisarm, inventory.PhaseReboot, inventory.PhaseReady,
}

// leftOut are the phases without faults, and the reasons.
var leftOut = map[string]string{
	inventory.PhaseInstall: "another installer than the agent is at work. `TestInstaller` kills the server in it, and " +
		"has installers fail and be late.",
	inventory.PhaseStopping: "an attempt that was cancelled, is overdue or has lost its agent must end before another " +
		"process writes. Runs of the table that lose their " +
		"agent in an action go through it; `TestBetweenRuns` cancels, terminates and resets in mid-write.",
}

// shortly is the short name of each fault, for machine names.
var shortly = map[strike]string{
	noFault:        "none",
	killServe:      "serve",
	killBare:       "bare",
	killTemporal:   "temp",
	killWorker:     "worker",
	lockDatabase:   "lock",
	fillDisk:       "full",
	cutImages:      "images",
	killAgent:      "agent",
	cutPower:       "power",
	cutBMC:         "bmc",
	cutLink:        "link",
	frozenServe:    "frozen",
	frozenAgent:    "asleep",
	wakingAgent:    "awake",
	lossyLink:      "lossy",
	slowLink:       "slow",
	slowBMC:        "bmc-slow",
	idleBMC:        "bmc-idle",
	lyingBMC:       "bmc-lie",
	brokenBMC:      "bmc-bad",
	refusedBMC:     "bmc-no",
	cutRedfish:     "rf",
	slowRedfish:    "rf-slow",
	idleRedfish:    "rf-idle",
	lyingRedfish:   "rf-lie",
	brokenRedfish:  "rf-bad",
	refusedRedfish: "rf-no",

	serveAndBMC:      "sv-bmc",
	serveAndAgent:    "sv-agt",
	serveAndDisk:     "sv-full",
	temporalAndLink:  "tp-link",
	serveAndPower:    "sv-pow",
	temporalAndLock:  "tp-lock",
	longOutage:       "long",
	serveRedfish:     "rf-sv",
	busyRedfish:      "rf-busy",
	fullRedfish:      "rf-full",
	muteRedfish:      "rf-mute",
	clockBack:        "back",
	replaceImage:     "repl",
	pushMachine:      "push",
	cancelAndKill:    "cancel",
	serveAgain:       "re-sv",
	powerAgain:       "re-pow",
	agentAgain:       "re-agt",
	serveRetiring:    "de-sv",
	powerRetiring:    "de-pow",
	agentRetiring:    "de-agt",
	temporalRetiring: "de-tp",
	serveProxy:       "proxy",
	serveNoDHCP:      "nodhcp",
}

// about says what each fault does, and when it ends.
var about = map[strike]string{
	noFault:   "nothing: the machine is held in the phase and released",
	killServe: "`ingot serve` is killed with SIGKILL (its Temporal child follows), and started again at once with its listening sockets, as systemd does",
	killBare: "the same on a site that keeps no sockets (a container, Kubernetes): requests are refused until `ingot serve` " +
		"listens again",
	killTemporal: "the Temporal server, a child process of `ingot serve`, is killed with SIGKILL; `ingot serve` starts it again",
	killWorker: "its connections to Temporal are destroyed and new ones refused, so that Temporal loses this " +
		"part of `ingot serve` with what it was doing, while the rest works on; until Temporal has given it up",
	lockDatabase: "another process holds the write lock of the inventory's SQLite file (as BEGIN IMMEDIATE does), " +
		"until a writer has given up waiting",
	fillDisk: "the filesystem of the data directory has no byte left, and what the server frees is taken at " +
		"once, until a write has failed",
	cutImages: "nothing that the HTTP server of boot files and images sends arrives, and its transfers are " +
		"reset; until ten frames were lost",
	killAgent: "the agent's process is killed with SIGKILL: as PID 1 of its machine a kernel panic, with a reboot after 30 s",
	cutPower:  "the machine's power is cut, and stays off until it is switched on",
	cutBMC:    "the BMC's address does not answer: until a BMC task has failed, in the phases after power to the end of the run",
	cutLink: "every frame on the machine's cable is lost, until its firmware has given up, its run has been " +
		"told that the agent is lost, or its system has called without an answer",
	frozenServe: "`ingot serve` is stopped with SIGSTOP, and its Temporal child lives, until an agent has waited " +
		"without an answer",
	frozenAgent: "the agent's process is stopped with SIGSTOP, with the disk open for writing, permanently",
	wakingAgent: "the same, until its run has been told that the agent is lost; then it writes on",
	lossyLink:   "5 % of the frames on the machine's cable are lost at random, to the end of the run",
	slowLink:    "every frame on the machine's cable takes 200 ms longer, to the end of the run",
	slowBMC:     "every answer of the BMC about power and boot device takes 3 s longer, to the end of the run",
	idleBMC:     "the BMC answers success and does nothing, until a BMC task has failed",
	lyingBMC:    "the BMC says that the machine is on, whatever it is, until a BMC task has failed",
	brokenBMC:   "the BMC answers everything with an error, until a BMC task has failed",
	refusedBMC:  "the BMC refuses the password; the operator corrects it when asked",

	cutRedfish:     "as BMC unreachable; no session of the Redfish service is open at the end of any of these faults",
	slowRedfish:    "as BMC slow",
	idleRedfish:    "as BMC idle",
	lyingRedfish:   "as BMC lying",
	brokenRedfish:  "as BMC broken",
	refusedRedfish: "as BMC refusing; the service has ended all sessions",

	serveAndBMC:      "`ingot serve` is killed and started again, and the BMC does not answer until a BMC task has failed",
	serveAndAgent:    "the agent's process and `ingot serve` are killed",
	serveAndDisk:     "the data directory is full, and `ingot serve` is killed and started again",
	temporalAndLink:  "the Temporal server is killed and the machine's cable cut",
	serveAndPower:    "`ingot serve` is killed, and the machine loses its power",
	temporalAndLock:  "the Temporal server is killed, and another process holds the inventory's write lock",
	longOutage:       "`ingot serve` is killed, and started again after 16 minutes: longer than the window of a boot",
	serveRedfish:     "as ingot serve, where the BMC speaks Redfish; no session is open at the end",
	busyRedfish:      "the Redfish service answers 503 to three requests",
	fullRedfish:      "the Redfish service answers 503 to new sessions, until one was refused",
	muteRedfish:      "the Redfish service carries out two writes and closes the connection without an answer",
	clockBack:        "the server's clock is set back by two minutes; Temporal's timers stop for so long",
	replaceImage:     "the image's name is given to another file",
	pushMachine:      "the machine's document is pushed with another disk, which is refused, and with a label",
	cancelAndKill:    "the run is cancelled and `ingot serve` killed; the machine is then installed by another run",
	serveAgain:       "as ingot serve, in a run that installs the machine again",
	powerAgain:       "as agent's machine, in a run that installs the machine again",
	agentAgain:       "as agent process, in a run that installs the machine again",
	serveRetiring:    "as ingot serve, in a decommission: the disk is blank at the end, and a protected one as it was",
	powerRetiring:    "as agent's machine, in a decommission",
	agentRetiring:    "as agent process, in a decommission",
	temporalRetiring: "as Temporal child, in a decommission",
	serveProxy:       "as ingot serve, where dnsmasq gives addresses and Ingot boot files",
	serveNoDHCP:      "as ingot serve, where ISC dhcpd gives addresses and boot files",
}

// An expected is the expected end of a cell, defined before any cell runs.
type expected struct {
	// none: the fault cannot hit anything in this phase.
	none string
	// answer is the operator's answer to the expected question; the run then reaches its expected
	// end. "" means that no question is asked.
	answer string
	// powerOns is the maximum number of power-ons of the machine, starts the maximum of power-ons and resets together. Its own
	// reboot after the installation is a reset.
	powerOns, starts int
	// within is the maximum time from the fault to the end of the run.
	within time.Duration
	// unfelt: the run may not meet the fault, because it does not need the broken part any more.
	unfelt bool
}

// right is the expected end: the run has succeeded with the phone-home of the installed
// system, the disk holds the image bit by bit, no window is open, no run owns the machine,
// and it is on.
func right(powerOns int) expected {
	return expected{powerOns: powerOns, starts: powerOns + 1, within: promptly}
}

// asked is the expected end after an operator's answer.
func asked(choice string, powerOns int) expected {
	return expected{answer: choice, powerOns: powerOns, starts: powerOns + 1, within: promptly}
}

// The maximum times from a fault to the end of a run, on two busy processors.
const (
	promptly = 4 * time.Minute  // no patience is used up
	oneBoot  = 15 * time.Minute // a boot was lost without a sign, and the run waited until firmware must have answered
	oneReady = 25 * time.Minute // an installed system was lost without a sign
)

// lostBoot is the expected end where firmware or a loader has given up without a sign. The second boot is a warm reset: a
// machine that is back before its boot is allowed gets the first boot's claim, and restarts once more.
var lostBoot = right(2).bound(oneBoot).reset()

// bound sets the maximum time.
func (e expected) bound(d time.Duration) expected { e.within = d; return e }

// reset allows one more reset.
func (e expected) reset() expected { e.starts++; return e }

// maybe: the run may not meet the fault.
func (e expected) maybe() expected { e.unfelt = true; return e }

func nothing(why string) expected { return expected{none: why} }

// A row is the expectation for a fault, by phase.
type row map[string]expected

// all returns a row with the same expectation in every phase.
func all(e expected) row {
	r := row{}
	for _, p := range phases {
		r[p] = e
	}
	return r
}

func (r row) but(e expected, phases ...string) row {
	for _, p := range phases {
		r[p] = e
	}
	return r
}

// bmcAway is the expectation for a BMC that cannot be reached.
var bmcAway = all(right(1).maybe()).but(right(1), inventory.PhasePlan, inventory.PhaseArm, inventory.PhasePower)

// expectations is the matrix.
var expectations = map[strike]row{
	noFault:   all(right(1)),
	killServe: all(right(1)),
	// Where a packet or a transfer is lost permanently, firmware or loader give up: that boot is lost.
	killBare:     all(right(1)).but(right(2), inventory.PhaseDHCP, inventory.PhaseLoader, inventory.PhaseAgent),
	killTemporal: all(right(1)),
	killWorker:   all(right(1)),
	lockDatabase: all(right(1)),
	fillDisk:     all(right(1)),
	// A loader without a script gives up: that boot is lost. From disarm on, no image is needed.
	cutImages: all(right(1)).
		but(lostBoot, inventory.PhaseLoader, inventory.PhaseAgent).
		but(right(1).maybe(), inventory.PhasePower, inventory.PhaseDisarm, inventory.PhaseReboot, inventory.PhaseReady),
	// The machine of a lost agent is switched off before another agent writes. After disarm
	// the machine's own reboot starts the installed system. Its kernel's panic is a reset.
	killAgent: all(right(1)).
		but(nothing("no agent yet"), inventory.PhasePlan, inventory.PhaseArm, inventory.PhasePower, inventory.PhaseDHCP, inventory.PhaseLoader).
		but(right(1).reset(), inventory.PhaseAgent).
		but(right(2).reset(), inventory.PhaseBind, inventory.PhaseAction).
		but(nothing("the agent has left"), inventory.PhaseReady),
	// A machine that lost its power is switched on once more.
	cutPower: all(right(2)).
		but(right(1), inventory.PhasePlan, inventory.PhaseArm, inventory.PhasePower).
		but(lostBoot, inventory.PhaseDHCP, inventory.PhaseLoader, inventory.PhaseAgent).
		but(right(2).bound(oneReady), inventory.PhaseDisarm, inventory.PhaseReboot, inventory.PhaseReady),
	// After the power-on, the run does not need the BMC any more.
	cutBMC: bmcAway,
	// A lost boot needs a second one.
	cutLink: all(lostBoot).but(right(1), inventory.PhaseDisarm, inventory.PhaseReboot, inventory.PhaseReady),

	// An agent that may still be writing is switched off before another one writes.
	frozenServe: {inventory.PhaseDHCP: right(1), inventory.PhaseAction: right(1), inventory.PhaseReady: right(1)},
	frozenAgent: {inventory.PhaseAction: right(2)},
	wakingAgent: {inventory.PhaseAction: right(2)},
	lossyLink:   {inventory.PhaseDHCP: right(1), inventory.PhaseAction: right(1)},
	slowLink:    {inventory.PhaseDHCP: right(1), inventory.PhaseAction: right(1)},

	slowBMC:    {inventory.PhasePower: right(1)},
	idleBMC:    {inventory.PhasePower: right(1)},
	lyingBMC:   {inventory.PhasePower: right(1)},
	brokenBMC:  {inventory.PhasePower: right(1)},
	refusedBMC: {inventory.PhasePower: asked(contract.Retry, 1)},

	cutRedfish:     bmcAway,
	slowRedfish:    {inventory.PhasePower: right(1)},
	idleRedfish:    {inventory.PhasePower: right(1)},
	lyingRedfish:   {inventory.PhasePower: right(1)},
	brokenRedfish:  {inventory.PhasePower: right(1)},
	refusedRedfish: {inventory.PhasePower: asked(contract.Retry, 1)},

	// The long form.
	serveAndBMC:     {inventory.PhasePower: right(1)},
	serveAndAgent:   {inventory.PhaseAction: right(2).reset()},
	serveAndDisk:    {inventory.PhaseAction: right(1)},
	temporalAndLink: {inventory.PhaseDHCP: lostBoot, inventory.PhaseAction: right(2)},
	serveAndPower:   {inventory.PhaseAction: right(2)},
	temporalAndLock: {inventory.PhaseAction: right(1)},
	longOutage: {
		inventory.PhaseDHCP: right(2).bound(outage + oneBoot), inventory.PhaseAction: right(2).bound(outage + oneBoot),
		inventory.PhaseReady: right(2).bound(outage + oneReady),
	},
	serveRedfish: {inventory.PhaseDHCP: right(1), inventory.PhasePower: right(1), inventory.PhaseAction: right(1)},
	busyRedfish:  {inventory.PhasePower: right(1)},
	fullRedfish:  {inventory.PhasePower: right(1)},
	muteRedfish:  {inventory.PhasePower: right(1)},
	clockBack: {
		inventory.PhaseDHCP: right(1).bound(promptly + setBack), inventory.PhaseAction: right(1).bound(promptly + setBack),
		inventory.PhaseReady: right(1).bound(promptly + setBack),
	},

	replaceImage:  {inventory.PhaseAction: right(1)},
	pushMachine:   {inventory.PhaseAction: right(1)},
	cancelAndKill: {inventory.PhaseDHCP: right(1), inventory.PhaseAction: right(2).reset()},

	serveAgain: {inventory.PhaseLoader: right(1), inventory.PhaseAction: right(1)},
	powerAgain: {inventory.PhaseAction: right(2)},
	agentAgain: {inventory.PhaseAction: right(2).reset()},

	serveRetiring:    {inventory.PhaseDHCP: right(1), inventory.PhaseAgent: right(1)},
	powerRetiring:    {inventory.PhaseDHCP: lostBoot},
	agentRetiring:    {inventory.PhaseAgent: right(2).reset()},
	temporalRetiring: {inventory.PhasePower: right(1), inventory.PhaseAgent: right(1)},

	serveProxy:  {inventory.PhaseLoader: right(1), inventory.PhaseAction: right(1)},
	serveNoDHCP: {inventory.PhaseLoader: right(1), inventory.PhaseAction: right(1)},
}

// TestChaosNamesEveryPhase: every phase of the inventory that is not an end or a wait for an
// operator has faults, or is left out with a reason.
func TestChaosNamesEveryPhase(t *testing.T) {
	source, err := os.ReadFile("../inventory/workflow.go")
	if err != nil {
		t.Fatal(err)
	}
	known := slices.Concat(phases, slices.Collect(maps.Keys(leftOut)),
		[]string{inventory.PhaseDone, inventory.PhaseFailed, inventory.PhaseCancelled, inventory.PhaseWaiting})
	found := regexp.MustCompile(`\tPhase\w+ += "([^"]+)"`).FindAllStringSubmatch(string(source), -1)
	for _, m := range found {
		if !slices.Contains(known, m[1]) {
			t.Errorf("nothing is said of phase %s", m[1])
		}
	}
	if len(found) != len(known) {
		t.Errorf("the inventory has %d phases, the matrix knows %d", len(found), len(known))
	}
}

// TestChaosReport: the report shows cells whose fault was not noticed, and the long form.
func TestChaosReport(t *testing.T) {
	made := func(s strike, phase string, felt bool) *cell {
		return &cell{strike: s, phase: phase, felt: felt, took: 3 * time.Second}
	}
	late := made(killServe, inventory.PhasePlan, true)
	late.late, late.took = true, 5*time.Second
	alone := func(x *cell) []*cell { return []*cell{x} }
	wrong := made(killServe, inventory.PhaseArm, true)
	wrong.err = errors.New("bad")
	asked := made(refusedBMC, inventory.PhasePower, true)
	asked.asked = "q"
	done := map[strike]map[string][]*cell{
		killServe:  {inventory.PhasePlan: {made(killServe, inventory.PhasePlan, true), late}, inventory.PhaseArm: {late, wrong}},
		cutBMC:     {inventory.PhaseReady: alone(made(cutBMC, inventory.PhaseReady, false))},
		refusedBMC: {inventory.PhasePower: alone(asked)},
	}
	defer func(was bool) { *full = was }(*full)
	for long, command := range map[bool]string{false: "make chaos", true: "make chaos FULL=1"} {
		*full = long
		text := strings.ReplaceAll(report(done, nil, time.Now(), time.Minute), "\n", " ")
		for _, want := range []string{
			"Written by `" + command + "`;", "``` " + command + "    # commit ",
			" 4 cells: 1 ended right without help, 1 after the operator", "1 did not meet their fault", "1 ended in another way",
			"| ingot serve | 5 s | WRONG |", "| not felt, 3 s |", "| BMC refusing | power | answered, 3 s |", "- `install`: ", "- `stopping`: ",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("long form %t: no %q in\n%s", long, want, text)
			}
		}
	}
}

// TestChaosExpectations compares the tables of the matrix: every cell has an end, every
// fault a description, every machine a unique name that fits a disk's serial number.
func TestChaosExpectations(t *testing.T) {
	names := map[string]string{}
	for s, r := range expectations {
		if about[s] == "" || shortly[s] == "" {
			t.Errorf("%s: what it does is %q, its name %q", s, about[s], shortly[s])
		}
		for p, want := range r {
			for _, x := range (&chaos{}).cells(s, p) {
				if twin := names[x.name()]; twin != "" {
					t.Errorf("%q is the machine of %s and of %s", x.name(), x, twin)
				}
				names[x.name()] = x.String()
				if len("DISK-"+x.name()) > 20 {
					t.Errorf("%q is too long for the serial number of a disk", "DISK-"+x.name())
				}
			}
			if want.none == "" && (want.within == 0 || want.powerOns == 0 || want.starts == 0) {
				t.Errorf("%s × %s has no limits: %+v", s, p, want)
			}
		}
	}
	for _, s := range slices.Concat(siteStrikes, machineStrikes) {
		for _, p := range phases {
			if _, ok := expectations[s][p]; !ok {
				t.Errorf("%s × %s: no end is expected", s, p)
			}
		}
	}
	for _, s := range slices.Concat(otherStrikes, fullStrikes) {
		if len(expectations[s]) == 0 {
			t.Errorf("%s is struck nowhere", s)
		}
	}
}
