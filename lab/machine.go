package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Firmware of a machine.
type Firmware string

// The kinds of firmware.
const (
	BIOS       Firmware = "bios"        // SeaBIOS; the network card has iPXE 2.0 in its ROM
	UEFI       Firmware = "uefi"        // OVMF; PXE over IPv4
	UEFIHTTP   Firmware = "uefi-http"   // OVMF; HTTP boot over IPv4, no PXE
	UEFISecure Firmware = "uefi-secure" // OVMF; PXE over IPv4; Secure Boot is on, with Microsoft's keys or Spec.Snakeoil
	// Simulated is not a QEMU machine: in the lab's network, this program simulates the firmware,
	// iPXE and installed system of a BIOS machine, and runs the real agent as a process. It boots
	// in a fraction of a second. See Spec.Agent.
	Simulated Firmware = "simulated"
)

// Bus is the bus of a disk.
type Bus string

// The kinds of disk.
const (
	Virtio Bus = "virtio" // /dev/vda
	NVMe   Bus = "nvme"   // /dev/nvme0n1
	AHCI   Bus = "ahci"   // /dev/sda
)

// BootOrder is the device that the firmware tries first.
type BootOrder string

// The boot orders.
const (
	DiskFirst    BootOrder = "disk"
	NetworkFirst BootOrder = "network"
	CDFirst      BootOrder = "cd" // for one start only: see NextCD
)

// PowerState of a machine.
type PowerState string

// The power states. A machine whose system has switched it off is Off.
const (
	On  PowerState = "on"
	Off PowerState = "off"
)

// NextBoot is a one-time override of the boot order: as with a real BMC, it is used only for the
// next power-on or reset.
type NextBoot string

// The overrides, in the notation of ipmi_sim.
const (
	NextDefault NextBoot = "none"    // no override: the boot order decides
	NextNetwork NextBoot = "pxe"     // network once
	NextDisk    NextBoot = "default" // disk once ("boot device: disk" of ipmitool)
	NextCD      NextBoot = "cdrom"   // virtual drive once
)

// Spec describes a machine. Only Name is required; Machine sets the defaults.
type Spec struct {
	Name       string    // letters, digits and dashes
	VLAN       int       // DirectVLAN (default) or RelayedVLAN; HomeVLAN in a lab with Options.Home
	MAC        string    // default 52:54:00:<vlan>:00:<number>
	Cards      []Card    // additional network cards, never used for booting
	Trunk      Trunk     // default: every card is at an untagged port; not for Simulated
	Firmware   Firmware  // default BIOS
	Bus        Bus       // default Virtio; for the disk and the decoys
	DiskSize   int64     // bytes, default 4 GiB; the file is sparse
	SectorSize int       // logical sectors of its disks in bytes, default 512; not for AHCI and Simulated
	DiskSerial string    // default "DISK-<name>"; at most 20 characters
	Decoys     []string  // serial numbers of further disks of the same size, which must never be written
	Order      BootOrder // default DiskFirst
	MemoryMB   int       // default 512
	Serial     string    // SMBIOS system serial number, default "SN-<name>"
	UUID       string    // SMBIOS system UUID, default derived from the MAC
	// BMC defaults: the BMC has the name <name>, address 10.10.10.<10+number>, user "admin" and
	// password "password".
	BMCAddress  string
	BMCUser     string
	BMCPassword string // at most 20 characters
	NoBMC       bool   // a machine without a BMC: only PowerOn and similar methods switch it
	// Controller is the type of its BMC, default ControllerIPMI. The defaults of the other types are
	// the same. ControllerRedfish has the given shape, default RedfishHPE.
	Controller Controller
	Redfish    RedfishShape
	// Snakeoil makes UEFISecure trust only the key that Debian's package ovmf publishes for tests (see SnakeoilKey).
	Snakeoil bool
	// WakeOnLAN switches the machine on when a magic packet for its MAC arrives on its VLAN.
	WakeOnLAN bool
	// InsideBMC gives the machine a management controller that its own system can ask by IPMI. It has no
	// network address, and is not the one that switches the machine. It says that Dell (674)
	// made it.
	InsideBMC bool

	// The following fields are for Firmware Simulated, whose default DiskSize is 64 MiB.

	// Agent is the path of the worker-agent. It runs in place of the kernel, as an ordinary process
	// with the disk files.
	Agent string
	// Stage is called before each step. The machine continues when it returns, or when the power is
	// cut, which ends ctx. It may switch the machine itself. See Gate and Machine.SetStage.
	Stage func(ctx context.Context, stage Stage)
	// Guest is the path of the stand-in guests' program (see GuestProgram). It runs if the machine
	// has booted a kernel of Talos or Harvester from the network, or has Talos, Harvester or VyOS
	// on its disk.
	Guest string
	// Installs is the raw image that an installer on the machine writes to the disk; see
	// runInstaller.
	Installs string
	// Panic is the pause before the machine boots again after its agent has died. 0 uses the kernel
	// command line (panic=). With a negative value, the machine stays dead until it is switched.
	Panic time.Duration
}

// Card is an additional network card of a machine.
type Card struct {
	VLAN int
	MAC  string // default 52:54:00:<vlan>:<number of the card, from 1>:<number of the machine>
}

// Machine is a computer in the lab. It is off at first. Its methods may be called concurrently.
type Machine struct {
	lab  *Lab
	spec Spec
	dir  string
	num  int
	bmc  *BMC
	amt  *AMT
	fish *Redfish
	cd   string      // the image in the virtual drive, or ""
	sim  *simulation // nil means QEMU

	mu          sync.Mutex // serializes changes of power
	state       sync.Mutex // guards the following fields; never held while waiting
	next        NextBoot
	order       BootOrder
	decoysFirst bool
	removed     []string // serial numbers of disks
	woken       int
	qemu        *Cmd
	qmp         *qmp
	powerOns    int
	resets      int
	mark        int64   // offset at which WaitSerial starts to read
	failures    *string // failures requested from its guests; nil: no request
}

var machineName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,30}$`)

// Machine adds a machine to the lab: a port on its VLAN, blank disks (an existing disk file is
// kept) and a running BMC. The machine is off.
func (l *Lab) Machine(ctx context.Context, spec Spec) (*Machine, error) {
	l.mu.Lock()
	num := l.taken + 1
	_, twice := l.machines[spec.Name]
	if !twice {
		l.taken = num
	}
	l.mu.Unlock()
	if twice {
		return nil, fmt.Errorf("making machine %q: there is one of that name", spec.Name)
	}
	spec, err := spec.complete(num)
	if err != nil {
		return nil, fmt.Errorf("making machine %q: %w", spec.Name, err)
	}
	m := &Machine{lab: l, spec: spec, num: num, dir: filepath.Join(l.dir, spec.Name), next: NextDefault, order: spec.Order}
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		return nil, err
	}
	for _, serial := range m.serials() {
		if err := makeDisk(m.DiskPathOf(serial), spec.DiskSize); err != nil {
			return nil, fmt.Errorf("making machine %q: %w", spec.Name, err)
		}
	}
	if spec.Firmware == UEFI || spec.Firmware == UEFIHTTP || spec.Firmware == UEFISecure {
		store := ovmfVars
		if spec.Firmware == UEFISecure {
			store = ovmfSecureVars
		}
		if spec.Snakeoil {
			store = ovmfSnakeoilVars
		}
		vars, err := os.ReadFile(store)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(m.path("vars.fd"), vars, 0o644); err != nil {
			return nil, err
		}
	}
	port := fmt.Sprintf("tuntap add dev %s mode tap", m.tap())
	if spec.Firmware == Simulated {
		if m.sim, err = m.simulate(ctx); err != nil {
			return nil, fmt.Errorf("making machine %q: %w", spec.Name, err)
		}
		port = fmt.Sprintf("link add %s type veth peer name %s address %s netns %s", m.tap(), simInterface, spec.MAC,
			l.NamespaceName(m.Namespace()))
	}
	ports := []string{port}
	attach := func(tap string, vlan int) {
		if spec.Trunk == "" {
			ports = append(ports, fmt.Sprintf("link set %s master br%d up", tap, vlan))
		}
	}
	attach(m.tap(), spec.VLAN)
	for i, c := range spec.Cards {
		port := fmt.Sprintf("tuntap add dev %s mode tap", m.cardTap(i))
		if m.sim != nil {
			port = fmt.Sprintf("link add %s type veth peer name eth%d address %s netns %s", m.cardTap(i), i+1, c.MAC,
				l.NamespaceName(m.Namespace()))
		}
		ports = append(ports, port)
		attach(m.cardTap(i), c.VLAN)
	}
	if err := l.ipBatch(ctx, Switch, ports...); err != nil {
		return nil, err
	}
	if spec.Trunk != "" {
		if err := m.connectTrunk(ctx); err != nil {
			return nil, fmt.Errorf("making the trunk of %q: %w", spec.Name, err)
		}
	}
	l.mu.Lock()
	l.machines[spec.Name] = m
	l.mu.Unlock()
	if spec.WakeOnLAN {
		if err := m.sleep(); err != nil {
			return nil, fmt.Errorf("making machine %q: %w", spec.Name, err)
		}
	}
	switch {
	case spec.NoBMC:
	case spec.Controller == ControllerAMT || spec.Controller == ControllerAMT16:
		m.amt = NewAMT(m, spec.BMCUser, spec.BMCPassword)
		m.amt.Address, m.amt.machine = spec.BMCAddress, m
		if err := m.amt.install(ctx); err != nil {
			return nil, fmt.Errorf("making the AMT of %q: %w", spec.Name, err)
		}
	case spec.Controller == ControllerRedfish:
		m.fish = NewRedfish(m, spec.Redfish, spec.BMCUser, spec.BMCPassword)
		m.fish.Address, m.fish.machine = spec.BMCAddress, m
		if err := m.fish.install(ctx); err != nil {
			return nil, fmt.Errorf("making the Redfish service of %q: %w", spec.Name, err)
		}
	default:
		m.bmc = &BMC{Address: spec.BMCAddress, User: spec.BMCUser, Password: spec.BMCPassword, machine: m}
		if err := m.bmc.install(ctx); err != nil {
			return nil, fmt.Errorf("making the BMC of %q: %w", spec.Name, err)
		}
	}
	return m, nil
}

// complete sets the defaults of the num-th machine and checks the other fields.
func (s Spec) complete(num int) (Spec, error) {
	def := func(p *string, v string) {
		if *p == "" {
			*p = v
		}
	}
	if !machineName.MatchString(s.Name) {
		return s, fmt.Errorf("name %q: use lower-case letters, digits and dashes", s.Name)
	}
	if s.VLAN == 0 {
		s.VLAN = DirectVLAN
	}
	if s.VLAN != DirectVLAN && s.VLAN != RelayedVLAN && s.VLAN != BMCVLAN && s.VLAN != HomeVLAN {
		return s, fmt.Errorf("there is no VLAN %d", s.VLAN)
	}
	def(&s.MAC, fmt.Sprintf("52:54:00:%02d:00:%02x", s.VLAN, num))
	s.Cards = slices.Clone(s.Cards)
	if s.Trunk != "" && s.Firmware == Simulated {
		return s, errors.New("a simulated machine has no trunk: use another firmware")
	}
	for i := range s.Cards {
		if s.Trunk != "" {
			s.Cards[i].VLAN = s.VLAN
		}
		def(&s.Cards[i].MAC, fmt.Sprintf("52:54:00:%02d:%02x:%02x", s.Cards[i].VLAN, i+1, num))
	}
	def((*string)(&s.Firmware), string(BIOS))
	def((*string)(&s.Bus), string(Virtio))
	def((*string)(&s.Order), string(DiskFirst))
	def(&s.DiskSerial, "DISK-"+s.Name)
	def(&s.Serial, "SN-"+s.Name)
	def(&s.UUID, "00000000-0000-4000-8000-"+strings.ReplaceAll(s.MAC, ":", ""))
	def(&s.BMCAddress, "10.10.10."+strconv.Itoa(10+num))
	def(&s.BMCUser, "admin")
	def(&s.BMCPassword, "password")
	if s.DiskSize == 0 {
		s.DiskSize = 4 << 30
		if s.Firmware == Simulated {
			s.DiskSize = 64 << 20
		}
	}
	if s.MemoryMB == 0 {
		s.MemoryMB = 512
	}
	switch s.Firmware {
	case BIOS, UEFI, UEFIHTTP, UEFISecure:
	case Simulated:
		if s.Agent == "" && s.Guest == "" {
			return s, errors.New("a simulated machine runs an agent: give its path")
		}
	default:
		return s, fmt.Errorf("there is no firmware %q", s.Firmware)
	}
	switch def((*string)(&s.Controller), string(ControllerIPMI)); s.Controller {
	case ControllerIPMI, ControllerAMT, ControllerAMT16:
	case ControllerRedfish:
		if def((*string)(&s.Redfish), string(RedfishHPE)); redfishNames[s.Redfish] == nil &&
			!slices.Contains(RedfishOddities(), s.Redfish) {
			return s, fmt.Errorf("there is no shape %q of a Redfish service", s.Redfish)
		}
	default:
		return s, fmt.Errorf("there is no controller %q", s.Controller)
	}
	switch s.Bus {
	case Virtio, NVMe, AHCI:
	default:
		return s, fmt.Errorf("there is no disk bus %q", s.Bus)
	}
	if s.Order != DiskFirst && s.Order != NetworkFirst {
		return s, fmt.Errorf("there is no boot order %q", s.Order)
	}
	seen := map[string]bool{}
	for _, serial := range append([]string{s.DiskSerial}, s.Decoys...) {
		if seen[serial] || serial == "" || len(serial) > 20 || strings.ContainsAny(serial, ",/ ") {
			return s, fmt.Errorf("disk serial %q: each must be different, of 1 to 20 characters, without comma, slash and space", serial)
		}
		seen[serial] = true
	}
	return s, nil
}

func makeDisk(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err == nil && st.Size() < size {
		err = f.Truncate(size)
	}
	return errors.Join(err, f.Close())
}

func (m *Machine) path(name string) string { return filepath.Join(m.dir, name) }
func (m *Machine) tap() string             { return "tap" + strconv.Itoa(m.num) }
func (m *Machine) cardTap(i int) string    { return m.tap() + "-" + strconv.Itoa(i+1) }

// serials returns the serial numbers of all disks, beginning with the disk for the installation.
func (m *Machine) serials() []string { return append([]string{m.spec.DiskSerial}, m.spec.Decoys...) }

// Name returns the machine's name.
func (m *Machine) Name() string { return m.spec.Name }

// Spec returns the machine's description with all defaults.
func (m *Machine) Spec() Spec { return m.spec }

// BMC returns the machine's BMC, or nil with Spec.NoBMC or another controller.
func (m *Machine) BMC() *BMC { return m.bmc }

// AMT returns the machine's Intel AMT, or nil unless Spec.Controller requests one.
func (m *Machine) AMT() *AMT { return m.amt }

// Redfish returns the machine's Redfish service, or nil unless Spec.Controller requests one.
func (m *Machine) Redfish() *Redfish { return m.fish }

// DiskPath returns the file of the disk for the installation. Change the file only while the
// machine is off.
func (m *Machine) DiskPath() string { return m.DiskPathOf(m.spec.DiskSerial) }

// DiskPathOf returns the file of the disk with the given serial number, such as a decoy.
func (m *Machine) DiskPathOf(serial string) string { return m.path("disk-" + serial + ".raw") }

// SetOrder changes the firmware's boot order for the next power-on or reset and all later ones.
func (m *Machine) SetOrder(o BootOrder) {
	m.state.Lock()
	defer m.state.Unlock()
	m.order = o
}

// SetDecoysFirst sets whether the decoy disks come before the real one on the bus, starting at the
// next power-on. /dev/vda is then another disk. The boot order still refers to the real one.
func (m *Machine) SetDecoysFirst(first bool) {
	m.state.Lock()
	defer m.state.Unlock()
	m.decoysFirst = first
}

// RemoveDisk takes a disk out of the machine, starting at the next power-on. If it is the disk for the
// installation, the firmware boots the next one.
func (m *Machine) RemoveDisk(serial string) {
	m.state.Lock()
	defer m.state.Unlock()
	m.removed = append(m.removed, serial)
}

// SetNextBoot sets the one-time override of the boot order, as the BMC does.
func (m *Machine) SetNextBoot(n NextBoot) {
	m.state.Lock()
	defer m.state.Unlock()
	m.next = n
}

// NextBoot returns the override for the next power-on or reset.
func (m *Machine) NextBoot() NextBoot {
	m.state.Lock()
	defer m.state.Unlock()
	return m.next
}

// PowerState returns whether the machine is on.
func (m *Machine) PowerState() PowerState {
	if m.on() {
		return On
	}
	return Off
}

// PowerOns returns how many times the machine was switched on.
func (m *Machine) PowerOns() int {
	m.state.Lock()
	defer m.state.Unlock()
	return m.powerOns
}

// Resets returns the number of resets while the machine was on, by the BMC or by a reboot of its
// own system.
func (m *Machine) Resets() int {
	m.state.Lock()
	defer m.state.Unlock()
	return m.resets
}

// on reports whether the machine has power.
func (m *Machine) on() bool {
	if m.sim != nil {
		return m.sim.running() != nil
	}
	return m.running() != nil
}

// running returns the machine's process, or nil when it is off.
func (m *Machine) running() *Cmd {
	m.state.Lock()
	c := m.qemu
	m.state.Unlock()
	if c == nil {
		return nil
	}
	select {
	case <-c.Done():
		return nil
	default:
		return c
	}
}

// WaitPower waits until the machine is in the given state.
func (m *Machine) WaitPower(ctx context.Context, want PowerState) error {
	if err := poll(ctx, func() (bool, error) { return m.PowerState() == want, nil }); err != nil {
		return fmt.Errorf("waiting for %q to be %s: %w", m.spec.Name, want, err)
	}
	return nil
}

// PowerOn switches the machine on. It does nothing if the machine is on.
func (m *Machine) PowerOn(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.on() {
		return nil
	}
	m.state.Lock()
	first := m.first()
	m.state.Unlock()
	start := m.start
	if m.sim != nil {
		start = m.sim.powerOn
	}
	if err := start(ctx, first); err != nil {
		return fmt.Errorf("switching %q on: %w", m.spec.Name, err)
	}
	m.lab.log.Info("machine on", "machine", m.spec.Name, "first", first)
	return nil
}

// first returns the device that the next start tries first. The caller holds m.state.
func (m *Machine) first() BootOrder {
	switch m.next {
	case NextNetwork:
		return NetworkFirst
	case NextDisk:
		return DiskFirst
	case NextCD:
		return CDFirst
	}
	return m.order
}

// start runs QEMU, and then sets the boot order for later resets.
func (m *Machine) start(ctx context.Context, first BootOrder) error {
	log, err := os.OpenFile(m.path("qemu.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own descriptor
	socket := filepath.Join(m.lab.run, m.spec.Name+".qmp")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	args := m.qemuArgs(first, socket)
	mark := fileSize(m.SerialPath())
	c := m.lab.Command(m.lab.ctx, Switch, args[0], args[1:]...)
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		return err
	}
	m.state.Lock()
	m.qemu, m.mark = c, mark
	m.powerOns++
	m.next = NextDefault
	m.state.Unlock()
	q, err := dialQMP(ctx, socket, c.Done(), func(event string) {
		if event == "RESET" {
			m.state.Lock()
			m.resets++
			m.state.Unlock()
		}
	})
	if err == nil {
		err = m.setBootIndexes(ctx, q)
	}
	if err != nil {
		c.Kill()
		<-c.Done()
		return fmt.Errorf("%w (see %s)", err, m.path("qemu.log"))
	}
	m.state.Lock()
	m.qmp = q
	m.state.Unlock()
	return nil
}

// PowerOff cuts the power. It does nothing if the machine is off. Data that the machine has written
// before is on its disk.
func (m *Machine) PowerOff(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cut()
	return nil
}

func (m *Machine) cut() {
	if m.sim != nil {
		if m.sim.cut() {
			m.lab.log.Info("machine off", "machine", m.spec.Name)
		}
		return
	}
	c := m.running()
	if c == nil {
		return
	}
	c.Kill()
	<-c.Done()
	m.lab.log.Info("machine off", "machine", m.spec.Name)
}

// PowerCycle cuts the power and switches the machine on again.
func (m *Machine) PowerCycle(ctx context.Context) error {
	if err := m.PowerOff(ctx); err != nil {
		return err
	}
	return m.PowerOn(ctx)
}

// PressPower presses the power button briefly: the system decides whether it switches itself off.
// It does nothing if the machine is off.
func (m *Machine) PressPower(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running() == nil { // a simulated machine ignores its power button
		return nil
	}
	_, err := m.qmp.call(ctx, "system_powerdown", nil)
	return err
}

// Reset resets a machine that is on, without cutting its power. Like most BMCs, it does nothing if
// the machine is off.
func (m *Machine) Reset(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.on() {
		return nil
	}
	if m.sim != nil {
		return m.sim.reset()
	}
	m.state.Lock()
	q, first, before := m.qmp, m.first(), m.resets
	m.mark = fileSize(m.SerialPath())
	m.state.Unlock()
	if err := q.setBootOrder(ctx, first); err != nil {
		return fmt.Errorf("resetting %q: %w", m.spec.Name, err)
	}
	if _, err := q.call(ctx, "system_reset", nil); err != nil {
		return fmt.Errorf("resetting %q: %w", m.spec.Name, err)
	}
	// The firmware receives the boot order at the moment of the reset; only then can the order be
	// restored.
	if err := poll(ctx, func() (bool, error) { return m.Resets() > before || m.running() == nil, nil }); err != nil {
		return fmt.Errorf("resetting %q: %w", m.spec.Name, err)
	}
	m.SetNextBoot(NextDefault)
	m.lab.log.Info("machine reset", "machine", m.spec.Name, "first", first)
	return m.setBootIndexes(ctx, q)
}

// setBootIndexes sets QEMU's boot order for the next reset and all later ones.
func (m *Machine) setBootIndexes(ctx context.Context, q *qmp) error {
	m.state.Lock()
	order := m.order
	m.state.Unlock()
	return q.setBootOrder(ctx, order)
}

// processor has all features that QEMU emulates except AVX: Go's SHA-256 takes twice as long with
// emulated AVX2 instructions as without them.
const processor = "max,-avx,-avx2"

// qemuArgs returns the command line of the machine's process.
func (m *Machine) qemuArgs(first BootOrder, socket string) []string {
	s := m.spec
	net, disk := bootIndexes(first)
	a := []string{
		"qemu-system-x86_64", "-name", m.lab.name + "-" + s.Name,
		"-accel", "tcg,thread=multi", "-cpu", processor, "-smp", "1", "-m", strconv.Itoa(s.MemoryMB), "-nodefaults", "-display", "none",
		"-qmp", "unix:" + socket + ",server=on,wait=off",
		"-chardev", "file,id=serial,append=on,path=" + m.SerialPath(), "-serial", "chardev:serial",
		"-device", "virtio-rng-pci", // without it the first read of /dev/random takes a minute
		"-netdev", m.netdev(0, m.tap()),
		"-smbios", "type=1,manufacturer=Lab,product=VirtualMetal,serial=" + strings.ReplaceAll(s.Serial, ",", ",,") + ",uuid=" + s.UUID,
	}
	const card = "virtio-net-pci,speed=1000,duplex=full," // without a speed, a bond never starts LACP
	nic := card + "id=net0,netdev=n0,mac=" + s.MAC + ",bootindex=" + strconv.Itoa(net)
	if s.Firmware == BIOS {
		a = append(a, "-M", "pc,graphics=off", "-L", filepath.Join(PackageDir("ipxe"), "usr/share/qemu"))
	} else {
		nic += ",romfile=" // OVMF's own network stack, not the iPXE ROM
		code := ovmfCode
		if s.Firmware == UEFISecure { // the store of keys is written only in SMM
			code = ovmfSecureCode
			a = append(a, "-M", "q35,smm=on", "-global", "driver=cfi.pflash01,property=secure,value=on")
		} else {
			a = append(a, "-M", "q35")
		}
		a = append(a, "-drive", "if=pflash,format=raw,readonly=on,file="+code,
			"-drive", "if=pflash,format=raw,file="+m.path("vars.fd"),
			"-fw_cfg", "name=opt/org.tianocore/IPv6PXESupport,string=no", "-fw_cfg", "name=opt/org.tianocore/IPv6Support,string=no")
		if s.Firmware == UEFIHTTP {
			a = append(a, "-fw_cfg", "name=opt/org.tianocore/IPv4PXESupport,string=no")
		}
	}
	a = append(a, "-device", nic)
	if s.InsideBMC {
		a = append(a, "-device", "ipmi-bmc-sim,id=bmc0,mfg_id=674,fwrev1=7,fwrev2=16", "-device", "isa-ipmi-kcs,bmc=bmc0")
	}
	for i, c := range s.Cards {
		id := "n" + strconv.Itoa(i+1)
		a = append(a, "-netdev", m.netdev(i+1, m.cardTap(i)), "-device",
			card+"netdev="+id+",romfile=,mac="+c.MAC)
	}
	if s.Bus == AHCI {
		a = append(a, "-device", "ahci,id=ahci0")
	}
	serials := m.serials()
	m.state.Lock()
	if m.decoysFirst {
		serials = append(append([]string{}, s.Decoys...), s.DiskSerial)
	}
	serials = slices.DeleteFunc(serials, func(serial string) bool { return slices.Contains(m.removed, serial) })
	boot := s.DiskSerial
	if !slices.Contains(serials, boot) && len(serials) > 0 {
		boot = serials[0]
	}
	cd := m.cd
	m.state.Unlock()
	if cd != "" {
		dev := "ide-cd,drive=cd,id=" + cdDevice
		if first == CDFirst {
			dev += ",bootindex=0"
		}
		a = append(a, "-drive", "if=none,id=cd,media=cdrom,readonly=on,format=raw,file="+cd, "-device", dev)
	}
	for i, serial := range serials {
		drive := "drive" + strconv.Itoa(i)
		a = append(a, "-drive", "if=none,id="+drive+",format=raw,cache=unsafe,discard=unmap,detect-zeroes=unmap,file="+m.worn(serial))
		dev := "drive=" + drive + ",serial=" + serial
		if serial == boot {
			dev += ",id=" + diskDevice + ",bootindex=" + strconv.Itoa(disk)
		}
		if s.SectorSize != 0 {
			dev += fmt.Sprintf(",logical_block_size=%d,physical_block_size=%d", s.SectorSize, s.SectorSize)
		}
		switch s.Bus {
		case NVMe:
			a = append(a, "-device", "nvme,"+dev)
		case AHCI:
			a = append(a, "-device", fmt.Sprintf("ide-hd,bus=ahci0.%d,%s", i, dev))
		default:
			a = append(a, "-device", "virtio-blk-pci,"+dev)
		}
	}
	return a
}

// SerialPath returns the file with the output of the machine's serial console.
func (m *Machine) SerialPath() string { return m.path("serial.log") }

// Serial returns the output of the serial console since the machine was created.
func (m *Machine) Serial() (string, error) {
	b, err := os.ReadFile(m.SerialPath())
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return string(b), err
}

// MarkSerial makes WaitSerial read only output from now on. Power-on and Reset set the mark as
// well; a reboot by the machine's own system does not.
func (m *Machine) MarkSerial() {
	m.state.Lock()
	defer m.state.Unlock()
	m.mark = fileSize(m.SerialPath())
}

// WaitSerial waits until a line of the serial console after the mark (see MarkSerial) matches the regular expression, and
// returns that line without control characters.
func (m *Machine) WaitSerial(ctx context.Context, pattern string) (string, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return "", err
	}
	var last []byte
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for {
		m.state.Lock()
		mark := m.mark
		m.state.Unlock()
		b, err := os.ReadFile(m.SerialPath())
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		last = b[min(mark, int64(len(b))):]
		if line, ok := findLine(string(last), re); ok {
			return line, nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("waiting for %q on the console of %q: %w; its last lines: %q", pattern, m.spec.Name,
				ctx.Err(), tail(string(last), 5))
		case <-t.C:
		}
	}
}

var (
	escapes  = regexp.MustCompile(`\x1b(\[[0-9;?=]*[A-Za-z]|[()][A-Z0-9]|[a-zA-Z=>])`)
	controls = regexp.MustCompile(`[\x00-\x08\x0b-\x1f\x7f]`)
)

// cleanLine removes terminal sequences and control characters from a line.
func cleanLine(s string) string {
	return strings.TrimSpace(controls.ReplaceAllString(escapes.ReplaceAllString(s, ""), ""))
}

// findLine finds the first complete line that matches. It ignores an incomplete last line.
func findLine(text string, re *regexp.Regexp) (string, bool) {
	for line := range strings.Lines(text) {
		if !strings.HasSuffix(line, "\n") {
			return "", false
		}
		if line = cleanLine(line); re.MatchString(line) {
			return line, true
		}
	}
	return "", false
}

// tail returns the last n lines that are not empty.
func tail(text string, n int) []string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = cleanLine(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines[max(0, len(lines)-n):]
}

func fileSize(path string) int64 {
	st, err := os.Stat(path)
	if err != nil {
		return 0 // the file does not exist yet
	}
	return st.Size()
}
