package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/pin/tftp/v3"
)

const bootScript = `#!ipxe
echo Ingot boots node1 (${platform}, iPXE ${version})
set tries:int32 0
:try
kernel http://s/vmlinuz initrd=initramfs ingot.server=https://s:7443 panic=30 || goto again
initrd --name initramfs http://s/initramfs || goto again
boot || goto again
:again
imgfree
inc tries
iseq ${tries} 3 && goto fail ||
sleep 5
goto try
:fail
echo giving up
sleep 2
iseq ${platform} efi && exit 1 || exit 0
`

// TestIPXE: boot scripts run as in iPXE, with the number of attempts that they request.
func TestIPXE(t *testing.T) {
	for _, c := range []struct {
		name, script string
		failing      int // number of fetches that fail first
		cmdline, err string
		fetched      []string
		said         string
		slept        time.Duration
	}{
		{
			"boots", bootScript, 0, "initrd=initramfs ingot.server=https://s:7443 panic=30", "",
			[]string{"kernel http://s/vmlinuz", "initrd http://s/initramfs"},
			"Ingot boots node1 (pcbios, iPXE 2.0.0)", 0,
		},
		{
			"second try", bootScript, 1, "initrd=initramfs ingot.server=https://s:7443 panic=30", "",
			[]string{"kernel http://s/vmlinuz", "kernel http://s/vmlinuz", "initrd http://s/initramfs"},
			"no route",
			5 * time.Second,
		},
		{
			"asks again",
			"#!ipxe\nisset ${tries} || set tries 0\ninc tries\n" +
				"kernel http://s/${tries} try=${tries} || chain --replace --autofree http://s/again || exit\nboot\n",
			1, "try=2", "",
			[]string{"kernel http://s/1", "script http://s/again", "kernel http://s/2"},
			"no route", 0,
		},
		{
			"asks without an answer", "#!ipxe\nkernel http://s/vmlinuz || chain --replace http://s/again || exit\nboot\n", 2, "", "",
			[]string{"kernel http://s/vmlinuz", "script http://s/again"},
			"no route", 0,
		},
		{"three failures", bootScript, 9, "", "", slices.Repeat([]string{"kernel http://s/vmlinuz"}, 3), "giving up", 12 * time.Second},
		{"disk", "#!ipxe\necho not armed\niseq ${platform} efi && exit 1 || exit 0\n", 0, "", "", nil, "not armed", 0},
		{"sanboot", "#!ipxe\niseq ${platform} efi && goto efi ||\nsanboot --no-describe --drive 0x80 ||\n:efi\nboot\n", 0, "", "", nil, "", 0},
		{"a line fails", "#!ipxe\niseq a b\nboot\n", 0, "", "not equal", nil, "", 0},
		{"no kernel", "#!ipxe\nboot\n", 0, "", "no kernel", nil, "", 0},
		{"no script", "<html>", 0, "", "#!ipxe", nil, "", 0},
		{"unknown command", "#!ipxe\nlaunch\n", 0, "", "no command", nil, "", 0},
		{"circle", "#!ipxe\n:a\ngoto a\n", 0, "", "does not end", nil, "", 0},
		{"lost label", "#!ipxe\ngoto b\n", 0, "", "no label", nil, "", 0},
		{"nested settings", "#!ipxe\nset a pc\niseq ${a} pc && echo is ${a}\nexit\n", 0, "", "", nil, "is pc", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var fetched, said []string
			var slept time.Duration
			failing := c.failing
			x := &ipxe{
				vars:  map[string]string{"platform": "pcbios", "version": "2.0.0"},
				say:   func(s string) { said = append(said, s) },
				pause: func(d time.Duration) bool { slept += d; return true },
				fetch: func(kind, url string) error {
					fetched = append(fetched, kind+" "+url)
					if failing--; failing >= 0 {
						return fmt.Errorf("no route")
					}
					return nil
				},
			}
			x.load = func(url string) (string, error) { return c.script, x.fetch("script", url) }
			got, err := x.run(c.script)
			if got != c.cmdline || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q, %v; want %q, %q", got, err, c.cmdline, c.err)
			}
			if !slices.Equal(fetched, c.fetched) || slept != c.slept || c.said != "" && !slices.Contains(said, c.said) {
				t.Errorf("fetched %q, slept %s, said %q", fetched, slept, said)
			}
		})
	}
}

func TestPanicPause(t *testing.T) {
	for cmdline, want := range map[string]time.Duration{
		"quiet": -1, "panic=30 quiet": 30 * time.Second, "panic=-1": 0, "panic=0": -1, "panic=5 panic=x": 5 * time.Second,
	} {
		if got := panicPause(cmdline); got != want {
			t.Errorf("%q: %s, want %s", cmdline, got, want)
		}
	}
}

// TestAgentOutput: the agent's log lines say how the machine leaves.
func TestAgentOutput(t *testing.T) {
	for line, want := range map[string]string{
		`time=2026-01-01T00:00:00Z level=INFO msg=leaving action=reboot`:                                        "reboot",
		`time=2026-01-01T00:00:00Z level=INFO msg=leaving action=poweroff`:                                      "poweroff",
		`time=2026-01-01T00:00:00Z level=WARN msg="the server ended this boot" reason="it is over" wrote=true`:  "poweroff",
		`time=2026-01-01T00:00:00Z level=WARN msg="the server ended this boot" reason="it is over" wrote=false`: "reboot",
		`time=2026-01-01T00:00:00Z level=INFO msg=action key=1 line="msg=\"leaving action=reboot\" is a line"`:  "",
	} {
		var console strings.Builder
		o := &agentOutput{console: &console}
		for _, b := range []byte(line + "\n") {
			if _, err := o.Write([]byte{b}); err != nil {
				t.Fatal(err)
			}
		}
		if o.ending() != want || console.String() != line+"\n" {
			t.Errorf("%q: %q, want %q", line, o.ending(), want)
		}
	}
}

func TestSeedFields(t *testing.T) {
	for _, text := range []string{
		"instance-id: i-1\nlocal-hostname: one\n", `{"instance-id": "i-1", "local-hostname": "one"}`,
		"{\n  \"instance-id\": \"i-1\",\n  \"local-hostname\": \"one\"\n}\n",
	} {
		if a, b := field(text, "instance-id"), field(text, "local-hostname"); a != "i-1" || b != "one" {
			t.Errorf("%q: %q, %q", text, a, b)
		}
		if field(text, "hostname") != "" {
			t.Errorf("%q: local-hostname is no hostname", text)
		}
	}
	s := &system{
		instance: "i-1",
		seed: map[string]string{
			"vendor-data": "#cloud-config\n{\"x\": \"http://no\", \"phone_home\": {\"url\": \"http://a/b/$INSTANCE_ID\"}}",
			"user-data":   "phone_home: http://c",
		},
	}
	if got := s.phoneURL(); got != "http://a/b/i-1" {
		t.Errorf("URL = %q", got)
	}
}

// simAgent is a script that replaces the agent; its arguments are its actions.
func simAgent(t *testing.T, script string) string {
	t.Helper()
	path := t.TempDir() + "/agent"
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSimulatedDisk: with a blank disk, a machine hangs. With the image, it takes its seed from a
// CIDATA volume and phones home from its own address. Reset, the override and IPMI work as with
// QEMU.
func TestSimulatedDisk(t *testing.T) {
	l := newLab(t)
	img, err := SimImage(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t, l, Spec{Name: "sim", Firmware: Simulated, Agent: simAgent(t, "exit 1\n")})
	ipmi(t, m, "chassis", "power", "on")
	if _, err := m.WaitSerial(deadline(t, time.Minute), `no boot sector`); err != nil {
		t.Fatal(err)
	}
	if m.PowerState() != On || m.PowerOns() != 1 {
		t.Errorf("%s, %d power-ons", m.PowerState(), m.PowerOns())
	}
	ipmi(t, m, "chassis", "power", "off")
	if m.PowerState() != Off {
		t.Errorf("after power off: %s", m.PowerState())
	}

	calls := startPhone(t, l, ServerAddress+":7080")
	dhcpServer(t, l, m, "10.10.20.50")
	writeDisk(t, img, m.DiskPath())
	addCIDATA(
		t,
		m.DiskPath(),
		map[string]string{
			"meta-data":   `{"instance-id": "i-1", "local-hostname": "caller-1"}`,
			"user-data":   "#cloud-config\n",
			"vendor-data": phoneVendorData,
		},
	)
	gate := NewGate(StagePhoneHome)
	m.SetStage(gate.Stage)
	ipmi(t, m, "chassis", "power", "on")
	if err := gate.Reached(deadline(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	line, err := m.WaitSerial(deadline(t, time.Minute), `LAB-MINI-BOOTED`)
	if err != nil || !strings.Contains(line, "ip=10.10.20.50/24 ") ||
		!strings.Contains(line, "instance-id=i-1 hostname=caller-1 seed=cidata") {
		t.Errorf("%q, %v", line, err)
	}
	select {
	case got := <-calls:
		t.Errorf("a call before the gate was opened: %q", got)
	default:
	}
	gate.Open()
	select {
	case got := <-calls:
		if got != "/phone-home/abc instance_id=i-1&hostname=caller-1&fqdn=caller-1" {
			t.Errorf("the call was %q", got)
		}
	case <-deadline(t, time.Minute).Done():
		t.Fatal("no call")
	}
	m.SetNextBoot(NextNetwork)
	if err := m.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The server gives an address without a boot file: the firmware continues with the disk.
	for _, want := range []string{`first network`, `boot file ""`, `LAB-MINI-PHONED-HOME`} {
		if _, err := m.WaitSerial(deadline(t, time.Minute), want); err != nil {
			t.Fatal(err)
		}
	}
	if m.PowerOns() != 2 || m.Resets() != 1 || m.NextBoot() != NextDefault {
		t.Errorf("%d power-ons, %d resets, next %s", m.PowerOns(), m.Resets(), m.NextBoot())
	}
	if n := m.Writers(); n < 1 { // this test itself has written
		t.Errorf("%d writers", n)
	}
}

// bootServer makes a machine boot its agent with that kernel command line.
func bootServer(t *testing.T, l *Lab, m *Machine, cmdline string) {
	t.Helper()
	base := "http://" + ServerAddress + ":7080"
	dhcpServer(t, l, m, "10.10.20.60", func(req *dhcpv4.DHCPv4) dhcpv4.Modifier {
		return func(rep *dhcpv4.DHCPv4) {
			rep.ServerIPAddr = net.ParseIP(ServerAddress)
			switch {
			case string(req.Options.Get(dhcpv4.OptionUserClassInformation)) == "iPXE":
				rep.UpdateOption(dhcpv4.OptBootFileName(base + "/script"))
			case strings.HasPrefix(req.ClassIdentifier(), "PXEClient"):
				rep.BootFileName = "loader"
			}
		}
	})
	serveFiles(t, l, ServerAddress+":7080", map[string]string{
		"/script":    "#!ipxe\nkernel " + base + "/vmlinuz " + cmdline + "\ninitrd " + base + "/initramfs\nboot\n",
		"/vmlinuz":   "kernel",
		"/initramfs": "initramfs",
	})
	var c net.PacketConn
	err := l.InNamespace(Server, func() (err error) {
		var lc net.ListenConfig
		c, err = lc.ListenPacket(t.Context(), "udp4", ServerAddress+":69")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := tftp.NewServer(func(name string, rf io.ReaderFrom) error {
		if name != "loader" {
			return os.ErrNotExist
		}
		_, err := rf.ReadFrom(strings.NewReader(strings.Repeat("x", 5000)))
		return err
	}, nil)
	srv.EnableSinglePort() // another port would be opened outside the namespace
	t.Cleanup(srv.Shutdown)
	go func() {
		if err := srv.Serve(c.(*net.UDPConn)); err != nil {
			t.Error(err)
		}
	}()
}

// TestSimulatedAgent boots the agent from the network. The agent's end decides what follows: a
// reboot, a power-off, or a panic. No process of the machine runs after its power was cut.
func TestSimulatedAgent(t *testing.T) {
	l := newLab(t)
	agent := simAgent(t, `echo "flags: $*"
for a; do case $a in -disk=/dev/vda=*) f=${a#*=*=}; exec 3<>"${f%%,*}";; esac; done
case $(cat "$0.mode") in
reboot) echo poweroff > "$0.mode"; echo 'level=INFO msg=leaving action=reboot'; exit 0;;
poweroff) echo 'level=INFO msg=leaving action=poweroff'; exit 0;;
esac
echo holding
sleep 1000 & wait
`)
	mode := func(s string) {
		t.Helper()
		if err := os.WriteFile(agent+".mode", []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m := newMachine(t, l, Spec{Name: "sim", Firmware: Simulated, Agent: agent, NoBMC: true})
	bootServer(t, l, m, "ingot.server=https://s:7443 ingot.rescue=1 panic=1")
	says := func(pattern string) {
		t.Helper()
		line, err := m.WaitSerial(deadline(t, time.Minute), pattern)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(line)
	}

	mode("reboot")
	m.SetNextBoot(NextNetwork)
	if err := m.PowerOn(t.Context()); err != nil {
		t.Fatal(err)
	}
	says(`loader: 5000 bytes`)
	says(`^flags: -server=https://s:7443 -rescue=1 -serial=SN-sim -disk=/dev/vda=.*,serial=DISK-sim$`)
	says(`no boot sector`) // after the reboot: the override is used up
	if err := m.WaitPower(deadline(t, time.Minute), Off); err != nil {
		t.Fatal(err)
	}
	if m.Resets() != 1 || m.PowerOns() != 1 || m.Agent() != nil {
		t.Errorf("%d resets, %d power-ons, agent %v", m.Resets(), m.PowerOns(), m.Agent())
	}

	mode("hold")
	m.SetOrder(NetworkFirst)
	gate := NewGate(StageAgent)
	m.SetStage(gate.Stage)
	if err := m.PowerOn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := gate.Reached(deadline(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	if m.Agent() != nil {
		t.Error("the agent runs before the gate was opened")
	}
	gate.Open()
	says(`^holding`)
	m.MarkSerial()
	m.Agent().Kill()
	says(`kernel panic`)
	says(`^holding`) // panic=1
	frozen := m.Agent()
	if err := frozen.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if n := m.sim.opened[m.spec.DiskSerial].holders(); n != 2 {
		t.Errorf("%d processes hold the disk: want the agent and its child", n)
	}
	if err := m.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := m.sim.opened[m.spec.DiskSerial].holders(); n != 0 || m.PowerState() != Off {
		t.Errorf("%s, %d processes hold the disk", m.PowerState(), n)
	}
	if n := m.Writers(); n != 1 {
		t.Errorf("%d writers at one time", n)
	}
	if m.Resets() != 2 || m.PowerOns() != 2 {
		t.Errorf("%d resets, %d power-ons", m.Resets(), m.PowerOns())
	}
}

// TestSimulatedHook: a hook may cut the power of the machine that waits for it.
func TestSimulatedHook(t *testing.T) {
	l := newLab(t)
	cut := make(chan error, 1)
	m := newMachine(t, l, Spec{Name: "hooked", Firmware: Simulated, Agent: simAgent(t, "exit 1\n"), NoBMC: true})
	m.SetStage(func(ctx context.Context, stage Stage) {
		if stage == StageDisk {
			cut <- m.PowerOff(ctx)
		}
	})
	if err := m.PowerOn(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-cut:
		if err != nil {
			t.Fatal(err)
		}
	case <-deadline(t, time.Minute).Done():
		t.Fatal("the hook hangs")
	}
	if m.PowerState() != Off {
		t.Error("still on")
	}
}

// TestLabWriters: processes that have a file open for writing are counted, readers are not.
func TestLabWriters(t *testing.T) {
	if !*realLab {
		t.Skip("needs root: with -lab")
	}
	path := t.TempDir() + "/disk"
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	g, err := newWatchGroup()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.close(); err != nil {
			t.Error(err)
		}
	})
	w, err := g.watch(path)
	if err != nil {
		t.Fatal(err)
	}
	// The watch of another disk does not count opens of this one.
	other := t.TempDir() + "/disk"
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	unrelated, err := g.watch(other)
	if err != nil {
		t.Fatal(err)
	}
	open := func(how string) func() {
		t.Helper()
		stop := shell(t, "exec 3"+how+path+"; echo open; exec cat")
		return stop
	}
	check := func(want int, when string) {
		t.Helper()
		if got := w.most(); got != want {
			t.Errorf("%s: %d, want %d", when, got, want)
		}
	}
	read := open("<")
	check(0, "a reader")
	one := open("<>")
	check(1, "a writer and a reader")
	one()
	two := open(">>")
	check(1, "one after the other")
	three := open("<>")
	check(2, "two at once")
	two()
	three()
	read()
	check(2, "all gone")
	if n := unrelated.most(); n != 0 {
		t.Errorf("the other disk had %d writers", n)
	}
	if n, none := w.openings(), unrelated.openings(); n != 3 || none != 0 {
		t.Errorf("opened for writing %d times, the other disk %d times; want 3 and 0", n, none)
	}
}

// shell runs a script that prints one line and then reads its input to the end; the returned
// function ends it.
func shell(t *testing.T, script string) (stop func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "open\n" {
		t.Fatalf("the shell said %q, %v", line, err)
	}
	return func() {
		t.Helper()
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Error(err)
		}
	}
}
