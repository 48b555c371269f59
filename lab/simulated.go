package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Stage is a step of a simulated machine's boot. A network boot has the steps in this order; a boot
// from disk begins at StageDisk.
type Stage string

// The stages. Each is announced before its step: while Spec.Stage holds the machine, nothing of the
// step has happened.
const (
	StageDHCP      Stage = "dhcp"       // the firmware's DHCP, of PXE class
	StageLoader    Stage = "loader"     // the loader by TFTP
	StageIPXE      Stage = "ipxe"       // iPXE's DHCP
	StageScript    Stage = "script"     // the script by HTTP
	StageKernel    Stage = "kernel"     // the kernel by HTTP
	StageInitrd    Stage = "initrd"     // the initramfs by HTTP
	StageAgent     Stage = "agent"      // the agent's DHCP and process
	StageInstaller Stage = "installer"  // an installer's DHCP and downloads
	StageWrite     Stage = "write"      // an installer writes the disk
	StageDisk      Stage = "disk"       // the boot sector
	StagePhoneHome Stage = "phone-home" // the installed system's call, after it has an address and its seed
)

// simInterface is the network card of a simulated machine, in a separate namespace.
const simInterface = "eth0"

// errPower ends the programs of a simulated machine when its power is cut.
var errPower = errors.New("the power was cut")

// simulation is the part of a simulated machine that replaces QEMU.
type simulation struct {
	m      *Machine
	opened map[string]*diskWatch // by the serial number of the disk

	mu      sync.Mutex
	current *life
	stage   func(ctx context.Context, stage Stage)
	panics  time.Duration
}

// life is the time from a power-on or reset to the next one, or to the power-off.
type life struct {
	sim    *simulation
	ctx    context.Context // ends when the power is cut
	cancel context.CancelFunc
	done   chan struct{} // closed when all programs of this life have ended: the machine is off, unless another life follows

	mu      sync.Mutex
	agent   *Cmd
	console *os.File
}

// simulate creates the namespace of a machine; the caller connects the cable.
func (m *Machine) simulate(ctx context.Context) (*simulation, error) {
	for _, program := range []string{m.spec.Agent, m.spec.Guest} {
		if program == "" {
			continue
		}
		if _, err := os.Stat(program); err != nil {
			return nil, fmt.Errorf("finding the agent: %w", err)
		}
	}
	if err := m.lab.addNamespace(ctx, m.Namespace()); err != nil {
		return nil, err
	}
	opened := map[string]*diskWatch{}
	for _, serial := range m.serials() {
		w, err := m.lab.watchDisk(m.DiskPathOf(serial))
		if err != nil {
			return nil, err
		}
		opened[serial] = w
	}
	s := &simulation{m: m, opened: opened, stage: m.spec.Stage, panics: m.spec.Panic}
	if !m.lab.onClose(func() error { s.cut(); return nil }) {
		return nil, ErrClosed
	}
	return s, nil
}

// Namespace returns the namespace of a simulated machine. Its card is eth0 there, with an address
// while it has one. Other machines have no namespace, only a port of the Switch.
func (m *Machine) Namespace() Namespace { return Namespace("m" + strconv.Itoa(m.num)) }

// Port returns the interface of the Switch that is connected to the machine.
func (m *Machine) Port() string { return m.tap() }

// SetStage replaces Spec.Stage of a simulated machine; with nil, the machine never waits.
func (m *Machine) SetStage(f func(ctx context.Context, stage Stage)) {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	m.sim.stage = f
}

// Agent returns the process of the agent on a simulated machine, or nil if none is running. It may
// be signalled and killed: the death of the agent is a kernel panic, see Spec.Panic.
func (m *Machine) Agent() *Cmd {
	l := m.sim.running()
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.agent == nil {
		return nil
	}
	select {
	case <-l.agent.Done():
		return nil
	default:
		return l.agent
	}
}

// Writers returns the largest number of processes that have had the disk of a simulated machine
// open for writing at the same time since the machine was created. Every open of the disk waits
// until it is counted, so none is missed.
func (m *Machine) Writers() int { return m.sim.opened[m.spec.DiskSerial].most() }

// Openings returns how often a disk of a simulated machine, such as a decoy, was opened for writing since the
// machine was created.
func (m *Machine) Openings(serial string) int { return m.sim.opened[serial].openings() }

// running returns the current life, or nil when the machine is off.
func (s *simulation) running() *life {
	s.mu.Lock()
	l := s.current
	s.mu.Unlock()
	if l == nil {
		return nil
	}
	select {
	case <-l.done:
		return nil
	default:
		return l
	}
}

// powerOn starts a life. The caller holds m.mu and has checked that the machine is off.
func (s *simulation) powerOn(_ context.Context, first BootOrder) error {
	mark := fileSize(s.m.SerialPath())
	l, err := s.begin()
	if err != nil {
		return err
	}
	s.m.state.Lock()
	s.m.mark = mark
	s.m.powerOns++
	s.m.next = NextDefault
	s.m.state.Unlock()
	go l.run(first, 0)
	return nil
}

// begin creates a life that does not run anything yet.
func (s *simulation) begin() (*life, error) {
	console, err := os.OpenFile(s.m.SerialPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	if err := s.link(true); err != nil {
		return nil, errors.Join(err, console.Close())
	}
	l := &life{sim: s, done: make(chan struct{}), console: console}
	l.ctx, l.cancel = context.WithCancel(s.m.lab.ctx)
	s.mu.Lock()
	s.current = l
	s.mu.Unlock()
	return l, nil
}

// cut cuts the power and reports whether it was on. When it returns, all processes of the machine
// have ended and its card is down.
func (s *simulation) cut() bool {
	l := s.running()
	if l == nil {
		return false
	}
	l.cancel()
	<-l.done
	return true
}

// reset ends a life and starts the next. The caller holds m.mu.
func (s *simulation) reset() error {
	mark := fileSize(s.m.SerialPath())
	if !s.cut() {
		return nil // it has just switched itself off
	}
	l, err := s.begin()
	if err != nil {
		return fmt.Errorf("resetting %q: %w", s.m.spec.Name, err)
	}
	first := s.m.restart()
	s.m.state.Lock()
	s.m.mark = mark
	s.m.state.Unlock()
	s.m.lab.log.Info("machine reset", "machine", s.m.spec.Name, "first", first)
	go l.run(first, selfTest)
	return nil
}

// selfTest is the time between a reset and the first packet. Every firmware takes longer. The server allows the next boot
// as soon as the BMC confirms the reset; an agent that claims its boot before is refused, and resets its machine once more.
const selfTest = time.Second

// restart counts a reset and consumes the override, as firmware does at every start.
func (m *Machine) restart() BootOrder {
	m.state.Lock()
	defer m.state.Unlock()
	first := m.first()
	m.resets++
	m.next = NextDefault
	return first
}

// Ways in which a system ends.
type ending int

const (
	cutOff ending = iota
	rebooted
	switchedOff
)

// run boots repeatedly until the power is cut, for the first time after the delay.
func (l *life) run(first BootOrder, delay time.Duration) {
	defer func() {
		l.cancel()
		if err := l.sim.link(false); err != nil {
			l.sim.m.lab.log.Debug("taking a link down", "machine", l.sim.m.spec.Name, "error", err) // the lab is closing
		}
		_ = l.console.Close() // each line was written at once
		close(l.done)
	}()
	select {
	case <-time.After(delay):
	case <-l.ctx.Done():
		return
	}
	for {
		l.say("LAB-SIM firmware: first %s", first)
		var end ending
		if first == NetworkFirst {
			end = l.bootNetwork()
		} else if end = l.bootDisk(); end == noBoot {
			end = l.bootNetwork()
		}
		if end == noBoot && first == NetworkFirst {
			end = l.bootDisk()
		}
		switch end {
		case noBoot:
			l.say("LAB-SIM no bootable device")
			<-l.ctx.Done()
			return
		case rebooted:
			l.say("LAB-SIM reboot")
			if err := l.unplugged(); err != nil {
				l.say("LAB-SIM resetting the card: %v", err)
			}
			first = l.sim.m.restart()
		case switchedOff:
			l.say("LAB-SIM power off")
			return
		default:
			return
		}
		if l.ctx.Err() != nil {
			return
		}
	}
}

// noBoot makes the firmware try the next device.
const noBoot ending = -1

// stage announces a step and waits until the machine may take it.
func (l *life) stage(stage Stage) error {
	l.say("LAB-SIM stage %s", stage)
	l.sim.mu.Lock()
	f := l.sim.stage
	l.sim.mu.Unlock()
	if f != nil {
		// Call the hook in a goroutine: if the hook cuts the power, that must not wait for the
		// hook.
		passed := make(chan struct{})
		go func() { defer close(passed); f(l.ctx, stage) }()
		select {
		case <-passed:
		case <-l.ctx.Done():
		}
	}
	if l.ctx.Err() != nil {
		return errPower
	}
	return nil
}

// say writes a line to the serial console.
func (l *life) say(format string, args ...any) {
	// Write each line with one call, so that lines of the agent do not mix with it. If the disk is
	// full, the test that waits for the line notices.
	_, _ = l.console.WriteString(fmt.Sprintf(format, args...) + "\n")
}

// sleep waits for d and reports whether the power is still on.
func (l *life) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.ctx.Done():
		return false
	}
}

// bootNetwork simulates the firmware's network boot and the system that it starts.
func (l *life) bootNetwork() ending {
	cmdline, err := l.netboot()
	switch {
	case l.ctx.Err() != nil:
		return cutOff
	case err != nil:
		l.say("LAB-SIM network boot: %v", err)
		return noBoot
	case cmdline == "":
		return noBoot
	}
	if product := productOf(cmdline); product != "" && l.sim.m.spec.Guest != "" {
		if l.stage(StageInstaller) != nil {
			return cutOff
		}
		return l.runGuest(product, cmdline)
	}
	if !strings.Contains(cmdline, "ingot.server=") {
		return l.runInstaller(cmdline)
	}
	return l.runAgent(cmdline)
}

// runAgent simulates the agent OS with that kernel command line: cmd/worker-agent as PID 1.
func (l *life) runAgent(cmdline string) ending {
	if l.stage(StageAgent) != nil {
		return cutOff
	}
	if err := l.lease(l.ctx, classAgent, 2*time.Second, -1); err != nil {
		return cutOff // it asks until the power is cut
	}
	args := append(agentFlags(cmdline), "-serial="+l.sim.m.spec.Serial)
	for path, serial := range l.sim.m.devices() {
		args = append(args, "-disk="+path+"="+l.sim.m.DiskPathOf(serial)+",serial="+serial)
	}
	c := l.sim.m.lab.Command(l.ctx, l.sim.m.Namespace(), l.sim.m.spec.Agent, args...)
	out := &agentOutput{console: l.console}
	c.Stdout, c.Stderr = out, out
	if err := c.Start(); err != nil {
		l.say("LAB-SIM starting the agent: %v", err)
		<-l.ctx.Done()
		return cutOff
	}
	l.mu.Lock()
	l.agent = c
	l.mu.Unlock()
	err := c.Wait() // it is killed when the power is cut
	if l.ctx.Err() != nil {
		return cutOff
	}
	switch end := out.ending(); {
	case err == nil && end == "reboot":
		return rebooted
	case err == nil && end == "poweroff":
		return switchedOff
	}
	return l.panic(cmdline, err)
}

// agentFlags returns the flags of the agent as an ordinary process. They have the names of its
// parameters on the kernel command line.
func agentFlags(cmdline string) []string {
	var flags []string
	for _, word := range strings.Fields(cmdline) {
		if w, ok := strings.CutPrefix(word, "ingot."); ok {
			flags = append(flags, "-"+w)
		}
	}
	return flags
}

// panic simulates the effect of PID 1's death.
func (l *life) panic(cmdline string, cause error) ending {
	pause := l.sim.panics
	if pause == 0 {
		pause = panicPause(cmdline)
	}
	l.say("LAB-SIM kernel panic: the agent ended (%v)", cause)
	if pause < 0 {
		<-l.ctx.Done()
		return cutOff
	}
	l.say("LAB-SIM rebooting in %s", pause)
	if !l.sleep(pause) {
		return cutOff
	}
	return rebooted
}

// panicPause parses panic= like the kernel: seconds, 0 for ever (here -1), below 0 at once (here
// 0).
func panicPause(cmdline string) time.Duration {
	pause := time.Duration(-1)
	for _, word := range strings.Fields(cmdline) {
		if v, ok := strings.CutPrefix(word, "panic="); ok {
			switch n, err := strconv.Atoi(v); {
			case err != nil:
			case n > 0:
				pause = time.Duration(n) * time.Second
			case n < 0:
				pause = 0
			default:
				pause = -1
			}
		}
	}
	return pause
}

// devices yields the names and serial numbers of all disks, in the order of the bus.
func (m *Machine) devices() func(yield func(path, serial string) bool) {
	serials := m.serials()
	m.state.Lock()
	if m.decoysFirst {
		serials = append(append([]string{}, m.spec.Decoys...), m.spec.DiskSerial)
	}
	m.state.Unlock()
	return func(yield func(path, serial string) bool) {
		for i, serial := range serials {
			path := "/dev/vd" + string(rune('a'+i))
			switch m.spec.Bus {
			case NVMe:
				path = fmt.Sprintf("/dev/nvme%dn1", i)
			case AHCI:
				path = "/dev/sd" + string(rune('a'+i))
			}
			if !yield(path, serial) {
				return
			}
		}
	}
}

// agentOutput copies the agent's output to the console and reads from it how the machine leaves: as
// an ordinary process, the agent only logs that and exits.
type agentOutput struct {
	console io.Writer
	mu      sync.Mutex
	line    []byte
	end     string
}

func (o *agentOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, b := range p {
		if b == '\n' {
			o.hear(string(o.line))
			o.line = o.line[:0]
		} else if len(o.line) < 64<<10 {
			o.line = append(o.line, b)
		}
	}
	return o.console.Write(p)
}

// hear recognizes the two lines that agent.Run logs before it calls Host.
func (o *agentOutput) hear(line string) {
	switch {
	case strings.Contains(line, " msg=leaving action=poweroff"):
		o.end = "poweroff"
	case strings.Contains(line, " msg=leaving action=reboot"):
		o.end = "reboot"
	case strings.Contains(line, ` msg="the server ended this boot" `):
		o.end = "reboot"
		if strings.HasSuffix(line, " wrote=true") {
			o.end = "poweroff"
		}
	}
}

func (o *agentOutput) ending() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.end
}

// Gate is a Spec.Stage that holds a machine the first time it reaches a stage. A test waits for
// that with Reached, makes its changes, and then calls Open.
type Gate struct {
	stage   Stage
	once    sync.Once
	opens   sync.Once
	reached chan struct{}
	open    chan struct{}
}

// NewGate returns a closed gate before stage.
func NewGate(stage Stage) *Gate {
	return &Gate{stage: stage, reached: make(chan struct{}), open: make(chan struct{})}
}

// Stage is the value for Spec.Stage or Machine.SetStage.
func (g *Gate) Stage(ctx context.Context, stage Stage) {
	if stage != g.stage {
		return
	}
	g.once.Do(func() { close(g.reached) })
	select {
	case <-g.open:
	case <-ctx.Done():
	}
}

// Reached waits until a machine is at the gate or has been there.
func (g *Gate) Reached(ctx context.Context) error {
	select {
	case <-g.reached:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for a machine to come to stage %q: %w", g.stage, ctx.Err())
	}
}

// Open lets the machine continue, now and in the future.
func (g *Gate) Open() { g.opens.Do(func() { close(g.open) }) }
