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

// Stage is a step of a simulated machine's boot. A boot from the network takes them in this order; one from the disk begins at
// StageDisk.
type Stage string

// The stages. Each is announced before its step, so nothing of the step has happened while Spec.Stage holds the machine.
const (
	StageDHCP      Stage = "dhcp"       // the firmware's DHCP, of PXE class
	StageLoader    Stage = "loader"     // the loader by TFTP
	StageIPXE      Stage = "ipxe"       // iPXE's DHCP
	StageScript    Stage = "script"     // the script by HTTP
	StageKernel    Stage = "kernel"     // the kernel by HTTP
	StageInitrd    Stage = "initrd"     // the initramfs by HTTP
	StageAgent     Stage = "agent"      // the agent's DHCP and process
	StageInstaller Stage = "installer"  // an installer's DHCP, and what it fetches
	StageWrite     Stage = "write"      // an installer writes the disk
	StageDisk      Stage = "disk"       // the boot sector
	StagePhoneHome Stage = "phone-home" // the installed system's call, after it has its address and its seed
)

// simInterface is the network card of a simulated machine, in a namespace of its own.
const simInterface = "eth0"

// errPower ends what a simulated machine does when its power is cut.
var errPower = errors.New("the power was cut")

// simulation is what a simulated machine has instead of QEMU.
type simulation struct {
	m      *Machine
	opened *diskWatch

	mu      sync.Mutex
	current *life
	stage   func(ctx context.Context, stage Stage)
	panics  time.Duration
}

// life is a time between power-on or reset and the next of them, or power-off.
type life struct {
	sim    *simulation
	ctx    context.Context // ends when the power is cut
	cancel context.CancelFunc
	done   chan struct{} // closed when nothing of it runs any more: the machine is off, unless another life follows

	mu      sync.Mutex
	agent   *Cmd
	console *os.File
}

// simulate gives a machine its namespace; the caller plugs in the cable.
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
	opened, err := m.lab.watchDisk(m.DiskPath())
	if err != nil {
		return nil, err
	}
	s := &simulation{m: m, opened: opened, stage: m.spec.Stage, panics: m.spec.Panic}
	if !m.lab.onClose(func() error { s.cut(); return nil }) {
		return nil, ErrClosed
	}
	return s, nil
}

// Namespace is where a simulated machine is in the network: its card is eth0 there, with an address while it has one. Other
// machines have no namespace, only a port of the Switch.
func (m *Machine) Namespace() Namespace { return Namespace("m" + strconv.Itoa(m.num)) }

// Port is the interface of the Switch that the machine's cable leads to.
func (m *Machine) Port() string { return m.tap() }

// SetStage replaces Spec.Stage of a simulated machine; nil: it never waits.
func (m *Machine) SetStage(f func(ctx context.Context, stage Stage)) {
	m.sim.mu.Lock()
	defer m.sim.mu.Unlock()
	m.sim.stage = f
}

// Agent is the agent that runs on a simulated machine, nil when none does. It may be signalled and killed: an agent that died
// is a kernel panic; see Spec.Panic.
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

// Writers is the largest number of processes that ever had the disk of a simulated machine open for writing at one time since
// the machine was made. Every open of the disk is held until it was counted, so none is missed.
func (m *Machine) Writers() int { return m.sim.opened.most() }

// running is the current life, nil when the machine is off.
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

// powerOn begins a life. The caller holds m.mu and knows that the machine is off.
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
	go l.run(first)
	return nil
}

// begin makes a life that runs nothing yet.
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

// cut takes the power away and reports whether there was any. When it returns, no process of the machine is left and the card
// is dead.
func (s *simulation) cut() bool {
	l := s.running()
	if l == nil {
		return false
	}
	l.cancel()
	<-l.done
	return true
}

// reset cuts a life off and begins the next. The caller holds m.mu.
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
	go l.run(first)
	return nil
}

// restart counts a reset and uses up the override, as firmware does whenever it starts.
func (m *Machine) restart() BootOrder {
	m.state.Lock()
	defer m.state.Unlock()
	first := m.first()
	m.resets++
	m.next = NextDefault
	return first
}

// What ends a system.
type ending int

const (
	cutOff ending = iota
	rebooted
	switchedOff
)

// run boots again and again until the power goes.
func (l *life) run(first BootOrder) {
	defer func() {
		l.cancel()
		if err := l.sim.link(false); err != nil {
			l.sim.m.lab.log.Debug("taking a link down", "machine", l.sim.m.spec.Name, "error", err) // the lab is closing
		}
		_ = l.console.Close() // each line was written at once
		close(l.done)
	}()
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

// noBoot: the firmware goes on to the next device.
const noBoot ending = -1

// stage announces a step and waits until the machine may take it.
func (l *life) stage(stage Stage) error {
	l.say("LAB-SIM stage %s", stage)
	l.sim.mu.Lock()
	f := l.sim.stage
	l.sim.mu.Unlock()
	if f != nil {
		// In a goroutine: what cuts the power from inside the hook must not wait for the hook.
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

// say writes a line on the serial console.
func (l *life) say(format string, args ...any) {
	// One write per line, so that lines of the agent do not come in between. A full disk is seen by who waits for the line.
	_, _ = l.console.WriteString(fmt.Sprintf(format, args...) + "\n")
}

// sleep waits for d and reports whether there still is power.
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

// bootNetwork is the firmware's network boot and everything that comes out of it.
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

// runAgent is the agent OS with that kernel command line: cmd/worker-agent as PID 1.
func (l *life) runAgent(cmdline string) ending {
	if l.stage(StageAgent) != nil {
		return cutOff
	}
	if err := l.lease(l.ctx, 2*time.Second, -1); err != nil {
		return cutOff // it asks for ever
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
	err := c.Wait() // it is killed with the power
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

// agentFlags are the flags of the agent as an ordinary process, which are called as its words of the kernel command line.
func agentFlags(cmdline string) []string {
	var flags []string
	for _, word := range strings.Fields(cmdline) {
		if w, ok := strings.CutPrefix(word, "ingot."); ok {
			flags = append(flags, "-"+w)
		}
	}
	return flags
}

// panic is what follows the death of PID 1.
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

// panicPause reads panic= as the kernel does: seconds, 0 for ever (here -1), below 0 at once (here 0).
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

// devices yields the names and serials of all disks, in the order of the bus.
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

// agentOutput copies what the agent says to the console, and hears from it how the machine is to go: as an ordinary process
// the agent only says so and ends.
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

// hear knows the two lines of agent.Run that come before it calls Host.
func (o *agentOutput) hear(line string) {
	switch {
	case strings.Contains(line, " msg=leaving action=poweroff"):
		o.end = "poweroff"
	case strings.Contains(line, " msg=leaving action=reboot"):
		o.end = "reboot"
	case strings.Contains(line, ` msg="the server says farewell" `):
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

// Gate is a Spec.Stage that holds a machine the first time it comes to a stage: a test waits for that with Reached, does what
// it wants to the world, and then calls Open.
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

// Stage is to be given to Spec.Stage or Machine.SetStage.
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

// Reached waits until a machine stands before the gate, or has come to it before.
func (g *Gate) Reached(ctx context.Context) error {
	select {
	case <-g.reached:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for a machine to come to stage %q: %w", g.stage, ctx.Err())
	}
}

// Open lets the machine pass, now and from then on.
func (g *Gate) Open() { g.opens.Do(func() { close(g.open) }) }
