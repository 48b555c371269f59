package lab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

var (
	realLab = flag.Bool("lab", false, "run the tests that need root, QEMU and the packages of `make deps`")
	debian  = flag.Bool("debian", false, "with -lab: boot the Debian image as well (three minutes)")
)

// TestMain lets a test start this test binary as a separate program that owns a lab and is killed.
func TestMain(m *testing.M) {
	if dir := os.Getenv("LAB_TEST_VICTIM"); dir != "" {
		victim(dir)
		return
	}
	os.Exit(m.Run())
}

// newLab returns a lab that ends with the test.
func newLab(t *testing.T) *Lab {
	t.Helper()
	if !*realLab {
		t.Skip("a lab is made only with -lab")
	}
	l, err := New(t.Context(), Options{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, f := range []string{"dhcrelay.log", "*/qemu.log", "*/bmc/ipmi_sim.log", "sim*/serial.log"} {
				paths, _ := filepath.Glob(filepath.Join(l.Dir(), f)) // a constant pattern
				for _, p := range paths {
					b, err := os.ReadFile(p)
					t.Logf("%s (%v):\n%s", p, err, b)
				}
			}
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if out, err := exec.Command("ip", "netns", "list").Output(); err != nil || strings.Contains(string(out), l.Name()+"-") {
			t.Errorf("namespaces after Close: %s (%v)", out, err)
		}
	})
	return l
}

// deadline limits a wait, to end a test that hangs. It does not measure speed.
func deadline(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func newMachine(t *testing.T, l *Lab, spec Spec) *Machine {
	t.Helper()
	m, err := l.Machine(deadline(t, time.Minute), spec)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// ipmi runs ipmitool against a machine's BMC and returns what it prints.
func ipmi(t *testing.T, m *Machine, args ...string) string {
	t.Helper()
	out, err := m.BMC().IPMITool(deadline(t, time.Minute), args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// dhcpServerSocket receives packets for UDP port 67 of the server.
func dhcpServerSocket(t *testing.T, l *Lab) <-chan *dhcpv4.DHCPv4 {
	t.Helper()
	var c net.PacketConn
	err := l.InNamespace(Server, func() (err error) {
		var lc net.ListenConfig
		c, err = lc.ListenPacket(t.Context(), "udp4", "0.0.0.0:67")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	packets := make(chan *dhcpv4.DHCPv4, 100)
	go func() {
		defer close(packets)
		buf := make([]byte, 4096)
		for {
			n, _, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			if p, err := dhcpv4.FromBytes(buf[:n]); err == nil {
				select {
				case packets <- p:
				default: // the reader has ended
				}
			}
		}
	}()
	return packets
}

// TestDiscover switches machines on over IPMI with a one-time network boot. The firmware's DISCOVER
// with the PXE class arrives at the server, from BIOS and UEFI, directly and through the relay.
func TestDiscover(t *testing.T) {
	l := newLab(t)
	packets := dhcpServerSocket(t, l)
	for _, c := range []struct {
		name     string
		firmware Firmware
		vlan     int
	}{
		{"bios-direct", BIOS, DirectVLAN},
		{"bios-relayed", BIOS, RelayedVLAN},
		{"uefi-direct", UEFI, DirectVLAN},
		{"uefi-relayed", UEFI, RelayedVLAN},
		{"uefi-http", UEFIHTTP, DirectVLAN},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t, l, Spec{Name: c.name, Firmware: c.firmware, VLAN: c.vlan})
			if got := ipmi(t, m, "chassis", "power", "status"); got != "Chassis Power is off" {
				t.Fatalf("status = %q", got)
			}
			ipmi(t, m, "chassis", "bootdev", "pxe", "options=efiboot")
			if got := ipmi(t, m, "chassis", "bootparam", "get", "5"); !strings.Contains(got, "Force PXE") {
				t.Errorf("boot device read back = %q", got)
			}
			ipmi(t, m, "chassis", "power", "on")
			if got := ipmi(t, m, "chassis", "power", "status"); got != "Chassis Power is on" || m.PowerState() != On || m.PowerOns() != 1 {
				t.Errorf("after power on: %q, %s, %d power-ons", got, m.PowerState(), m.PowerOns())
			}
			if m.NextBoot() != NextDefault {
				t.Errorf("the one-time override outlived the power-on: %q", m.NextBoot())
			}
			p := awaitDiscover(t, packets, m)
			want := "0.0.0.0"
			if c.vlan == RelayedVLAN {
				want = RelayedGateway
			}
			if p.GatewayIPAddr.String() != want || (p.RelayAgentInfo() != nil) != (c.vlan == RelayedVLAN) {
				t.Errorf("giaddr %s (want %s), option 82: %v", p.GatewayIPAddr, want, p.RelayAgentInfo())
			}
			ipmi(t, m, "chassis", "power", "off")
			if m.PowerState() != Off {
				t.Errorf("after power off: %s", m.PowerState())
			}
		})
	}
}

// awaitDiscover waits for a DISCOVER of the machine's firmware.
func awaitDiscover(t *testing.T, packets <-chan *dhcpv4.DHCPv4, m *Machine) *dhcpv4.DHCPv4 {
	t.Helper()
	ctx := deadline(t, 2*time.Minute)
	begin := time.Now()
	for {
		select {
		case p := <-packets:
			if p != nil && p.ClientHWAddr.String() == m.Spec().MAC && p.MessageType() == dhcpv4.MessageTypeDiscover {
				class := p.ClassIdentifier()
				if !strings.HasPrefix(class, "PXEClient") && !strings.HasPrefix(class, "HTTPClient") {
					t.Errorf("option 60 = %q", class)
				}
				t.Logf("DISCOVER %s after %.1f s, giaddr %s", class, time.Since(begin).Seconds(), p.GatewayIPAddr)
				return p
			}
		case <-ctx.Done():
			text, _ := m.Serial() // for the message alone
			t.Fatalf("no DISCOVER; console: %q", tail(text, 10))
		}
	}
}

// writeDisk copies an image to a machine's disk, like an installation.
func writeDisk(t *testing.T, img Image, disk string) {
	t.Helper()
	st, err := os.Stat(disk)
	if err != nil {
		t.Fatal(err)
	}
	// dd skips zeros in the image, so the disk must be zero before.
	if err := errors.Join(os.Truncate(disk, 0), os.Truncate(disk, st.Size())); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "dd", "if="+img.Raw, "of="+disk, "bs=1M", "conv=notrunc,sparse", "status=none").
		CombinedOutput(); err != nil {
		t.Fatalf("copying the image: %v: %s", err, out)
	}
}

// addCIDATA appends a partition with a NoCloud seed to a disk, at its end.
func addCIDATA(t *testing.T, disk string, files map[string]string) {
	t.Helper()
	dir := t.TempDir()
	fat := filepath.Join(dir, "cidata")
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v: %s", name, args, err, out)
		}
		return string(out)
	}
	if err := os.WriteFile(fat, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(fat, 16<<20); err != nil {
		t.Fatal(err)
	}
	run("mkfs.vfat", "-F", "16", "-n", "CIDATA", fat)
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		run("mcopy", "-i", fat, path, "::/"+name)
	}
	run("sgdisk", "-e", "-n", "0:-16M:0", "-t", "0:0700", "-c", "0:CIDATA", disk)
	var start int64
	for line := range strings.Lines(run("sgdisk", "-p", disk)) {
		if f := strings.Fields(line); len(f) > 1 && f[len(f)-1] == "CIDATA" {
			start, _ = strconv.ParseInt(f[1], 10, 64) // 0 is caught below
		}
	}
	if start == 0 {
		t.Fatal("there is no partition CIDATA")
	}
	run("dd", "if="+fat, "of="+disk, "bs=512", "seek="+strconv.FormatInt(start, 10), "conv=notrunc", "status=none")
}

// startPhone receives phone-home requests of an installed system on the server; each body is sent
// on the channel.
func startPhone(t *testing.T, l *Lab, addr string) <-chan string {
	t.Helper()
	s, err := l.Listen(t.Context(), Server, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	calls := make(chan string, 10)
	go func() {
		_ = http.Serve(s, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // ends when s is closed
			body, err := io.ReadAll(r.Body)
			if err != nil || r.Method != http.MethodPost || r.Context().Err() != nil {
				http.Error(w, "not a phone call", http.StatusBadRequest)
				return
			}
			w.WriteHeader(http.StatusNoContent)
			calls <- r.URL.Path + " " + string(body)
		}))
	}()
	return calls
}

// TestMiniBoots boots the small system from disk with every firmware and bus. It has a static
// address and no DHCP server: it cannot phone home, but it must boot.
func TestMiniBoots(t *testing.T) {
	l := newLab(t)
	img, err := MiniImage(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		firmware Firmware
		bus      Bus
		root     string
	}{{BIOS, Virtio, "/dev/vda2"}, {UEFI, NVMe, "/dev/nvme0n1p2"}, {BIOS, AHCI, "/dev/sda2"}} {
		name := fmt.Sprintf("%s-%s", c.firmware, c.bus)
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, l, Spec{Name: name, Firmware: c.firmware, Bus: c.bus, NoBMC: true})
			writeDisk(t, img, m.DiskPath())
			addCIDATA(t, m.DiskPath(),
				map[string]string{"meta-data": "instance-id: i-" + name + "\nlocal-hostname: " + name + "\n", "user-data": "#cloud-config\n{}\n"})
			begin := time.Now()
			if err := m.PowerOn(deadline(t, time.Minute)); err != nil {
				t.Fatal(err)
			}
			line, err := m.WaitSerial(deadline(t, 3*time.Minute), `LAB-MINI-(BOOTED|FAILED)`)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%.1f s: %s", time.Since(begin).Seconds(), line)
			fw := "bios"
			if c.firmware != BIOS {
				fw = "efi"
			}
			for _, want := range []string{"fw=" + fw, "root=" + c.root, "instance-id=i-" + name, "hostname=" + name, "seed=cidata"} {
				if !strings.Contains(line, want+" ") {
					t.Errorf("%q lacks %q", line, want)
				}
			}
			if err := m.PowerOff(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestDecoys swaps the order of two disks of equal size: the machine still boots from the installed
// disk.
func TestDecoys(t *testing.T) {
	l := newLab(t)
	img, err := MiniImage(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t, l, Spec{Name: "two-disks", Decoys: []string{"DECOY"}, NoBMC: true})
	writeDisk(t, img, m.DiskPath())
	for _, c := range []struct {
		decoysFirst bool
		root        string
	}{{false, "/dev/vda2"}, {true, "/dev/vdb2"}} {
		m.SetDecoysFirst(c.decoysFirst)
		if err := m.PowerCycle(deadline(t, time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := m.WaitSerial(deadline(t, 3*time.Minute), `LAB-MINI-BOOTED .*root=`+c.root+` `); err != nil {
			t.Fatal(err)
		}
	}
	if m.PowerOns() != 2 {
		t.Errorf("%d power-ons", m.PowerOns())
	}
	resets := m.Resets()
	m.MarkSerial()
	if err := m.Reset(deadline(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := m.WaitSerial(deadline(t, 3*time.Minute), `LAB-MINI-BOOTED`); err != nil {
		t.Fatal(err)
	}
	if m.Resets() <= resets || m.PowerOns() != 2 {
		t.Errorf("after a reset: %d resets, %d power-ons", m.Resets(), m.PowerOns())
	}
}

// dhcpServer answers one machine, which is all that the phone-home tests need from Ingot. options
// are additional options for a request.
func dhcpServer(t *testing.T, l *Lab, m *Machine, addr string, options ...func(req *dhcpv4.DHCPv4) dhcpv4.Modifier) {
	t.Helper()
	var c net.PacketConn
	err := l.InNamespace(Server, func() (err error) {
		lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) error {
			var serr error
			err := rc.Control(func(fd uintptr) { serr = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_BROADCAST, 1) })
			if err != nil {
				return err
			}
			return serr
		}}
		c, err = lc.ListenPacket(t.Context(), "udp4", "0.0.0.0:67")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, _, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			req, err := dhcpv4.FromBytes(buf[:n])
			if err != nil || req.ClientHWAddr.String() != m.Spec().MAC {
				continue
			}
			kind := dhcpv4.MessageTypeOffer
			if req.MessageType() == dhcpv4.MessageTypeRequest {
				kind = dhcpv4.MessageTypeAck
			}
			rep, err := dhcpv4.NewReplyFromRequest(req, dhcpv4.WithMessageType(kind), dhcpv4.WithYourIP(net.ParseIP(addr)),
				dhcpv4.WithServerIP(net.ParseIP(ServerAddress)), dhcpv4.WithLeaseTime(3600), dhcpv4.WithNetmask(net.CIDRMask(24, 32)),
				dhcpv4.WithRouter(net.ParseIP(DirectGateway)), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.ParseIP(ServerAddress))))
			if err == nil {
				for _, o := range options {
					o(req)(rep)
				}
				_, _ = c.WriteTo(rep.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: 68}) // a lost answer is asked for again
			}
		}
	}()
}

const phoneVendorData = "#cloud-config\nphone_home:\n  url: \"http://" + ServerAddress + ":7080/phone-home/abc\"\n" +
	"  post: [instance_id, hostname]\n  tries: 10\n"

// TestMiniPhonesHome: the small system takes its seed from a CIDATA volume or from a metadata URL
// in its root, and calls the URL in its vendor-data.
func TestMiniPhonesHome(t *testing.T) {
	l := newLab(t)
	img, err := MiniImage(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	calls := startPhone(t, l, ServerAddress+":7080")
	m := newMachine(t, l, Spec{Name: "caller", NoBMC: true})
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
	if err := m.PowerOn(deadline(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-calls:
		if got != "/phone-home/abc instance_id=i-1&hostname=caller-1&fqdn=caller-1" {
			t.Errorf("the call was %q", got)
		}
	case <-deadline(t, 3*time.Minute).Done():
		text, _ := m.Serial() // for the message alone
		t.Fatalf("no call; console: %q", tail(text, 20))
	}
	if _, err := m.WaitSerial(deadline(t, time.Minute), `LAB-MINI-PHONED-HOME`); err != nil {
		t.Fatal(err)
	}

	if err := m.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	writeDisk(t, img, m.DiskPath())
	writeIntoRoot(t, m.DiskPath(), "/etc/ingot/metadata-url", "http://"+ServerAddress+":7081/nocloud/tok/\n")
	serveFiles(t, l, ServerAddress+":7081", map[string]string{
		"/nocloud/tok/meta-data":   "instance-id: i-2\nlocal-hostname: caller-2\n",
		"/nocloud/tok/user-data":   "#cloud-config\n",
		"/nocloud/tok/vendor-data": phoneVendorData,
	})
	if err := m.PowerOn(deadline(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	line, err := m.WaitSerial(deadline(t, 3*time.Minute), `LAB-MINI-BOOTED`)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ip=10.10.20.50/24", "instance-id=i-2", "hostname=caller-2", "seed=url"} {
		if !strings.Contains(line, want+" ") {
			t.Errorf("%q lacks %q", line, want)
		}
	}
	select {
	case got := <-calls:
		if got != "/phone-home/abc instance_id=i-2&hostname=caller-2&fqdn=caller-2" {
			t.Errorf("the call was %q", got)
		}
	case <-deadline(t, 3*time.Minute).Done():
		t.Fatal("no call")
	}
}

// writeIntoRoot writes a file into the root file system of an image on a disk, without mounting it.
func writeIntoRoot(t *testing.T, disk, path, text string) {
	t.Helper()
	src := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(src, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "sgdisk", "-i", "2", disk).Output()
	if err != nil {
		t.Fatal(err)
	}
	var start int64
	for line := range strings.Lines(string(out)) {
		if rest, ok := strings.CutPrefix(line, "First sector: "); ok {
			start, _ = strconv.ParseInt(strings.Fields(rest)[0], 10, 64) // a wrong one makes debugfs fail
		}
	}
	cmd := exec.CommandContext(t.Context(), "debugfs", "-w", "-f", "-", disk+"?offset="+strconv.FormatInt(start*512, 10))
	cmd.Stdin = strings.NewReader("rm " + path + "\nwrite " + src + " " + path + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("debugfs: %v: %s", err, out)
	}
}

// serveFiles is a web server with fixed answers on the server.
func serveFiles(t *testing.T, l *Lab, addr string, files map[string]string) {
	t.Helper()
	s, err := l.Listen(t.Context(), Server, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	go func() {
		_ = http.Serve(s, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // ends when s is closed
			text, ok := files[r.URL.Path]
			if !ok {
				http.NotFound(w, r)
				return
			}
			_, _ = io.WriteString(w, text) // a client that has gone is seen by the test
		}))
	}()
}

// TestDebian: the real Debian configures itself from a CIDATA volume or from a metadata URL in its
// root, and calls the URL in its vendor-data.
func TestDebian(t *testing.T) {
	l := newLab(t)
	if !*debian {
		t.Skip("Debian is booted only with -debian")
	}
	img, err := DebianImage(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	calls := startPhone(t, l, ServerAddress+":7080")
	seed := map[string]string{
		"meta-data":   "instance-id: i-deb\nlocal-hostname: deb-1\n",
		"user-data":   "#cloud-config\n",
		"vendor-data": phoneVendorData,
	}
	files := map[string]string{}
	for name, text := range seed {
		files["/nocloud/tok/"+name] = text
	}
	serveFiles(t, l, ServerAddress+":7081", files)
	m := newMachine(t, l, Spec{Name: "debian", MemoryMB: 768, Firmware: UEFI, NoBMC: true})
	dhcpServer(t, l, m, "10.10.20.51")
	for _, way := range []string{"cidata", "url"} {
		t.Run(way, func(t *testing.T) {
			writeDisk(t, img, m.DiskPath())
			if way == "cidata" {
				addCIDATA(t, m.DiskPath(), seed)
			} else {
				writeIntoRoot(
					t,
					m.DiskPath(),
					"/etc/cloud/cloud.cfg.d/95_ingot.cfg",
					"datasource: {NoCloud: {seedfrom: \"http://"+ServerAddress+":7081/nocloud/tok/\"}}\n",
				)
			}
			begin := time.Now()
			if err := m.PowerCycle(deadline(t, time.Minute)); err != nil {
				t.Fatal(err)
			}
			line, err := m.WaitSerial(deadline(t, 8*time.Minute), `LAB-DEBIAN-BOOTED`)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%.1f s: %s", time.Since(begin).Seconds(), line)
			if !strings.Contains(line, "host=deb-1") || !strings.Contains(line, "id=i-deb") {
				t.Errorf("the seed was not read: %q", line)
			}
			select {
			case got := <-calls:
				if !strings.Contains(got, "/phone-home/abc instance_id=i-deb") {
					t.Errorf("the call was %q", got)
				}
			case <-deadline(t, time.Minute).Done():
				t.Fatal("no call")
			}
			if err := m.PowerOff(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestNetwork: the server reaches the relayed network through the router, the host reaches the
// server through a forwarded port, and the limit of the server's link can be set and removed.
func TestNetwork(t *testing.T) {
	l := newLab(t)
	serveFiles(t, l, "127.0.0.1:8080", map[string]string{"/": "hello"})
	addr, err := l.Forward(t.Context(), Host, "127.0.0.1:0", Server, "127.0.0.1:8080")
	if err != nil {
		t.Fatal(err)
	}
	out, err := l.Command(t.Context(), Host, "curl", "-s", "--noproxy", "*", "http://"+addr+"/").Output()
	if err != nil || string(out) != "hello" {
		t.Errorf("through the forwarded port: %q, %v", out, err)
	}
	stop, err := l.Capture(deadline(t, 30*time.Second), Server, ServerInterface, "server.pcap", "tcp port 9")
	if err != nil {
		t.Fatal(err)
	}
	for _, way := range []struct {
		from, to Namespace
		addr     string
	}{
		{Router, Server, ServerAddress},
		{Router, Server, MetadataAddress},
		{Server, Router, RelayedGateway},
		{Server, BMCs, "10.10.10.10"},
	} {
		s, err := l.Listen(t.Context(), way.to, "0.0.0.0:9")
		if err != nil {
			t.Fatal(err)
		}
		c, err := l.DialContext(deadline(t, 10*time.Second), way.from, "tcp", net.JoinHostPort(way.addr, "9"))
		if err != nil {
			t.Errorf("%s to %s: %v", way.from, way.addr, err)
		} else {
			_ = c.Close()
		}
		_ = s.Close()
	}
	pcap := filepath.Join(l.Dir(), "server.pcap") // the header of the file alone has 24 bytes
	if err := poll(deadline(t, 30*time.Second), func() (bool, error) { return fileSize(pcap) > 200, nil }); err != nil {
		t.Errorf("the capture has %d bytes", fileSize(pcap))
	}
	stop()
	qdisc := func() string {
		out, err := l.Command(t.Context(), Server, "tc", "qdisc", "show", "dev", ServerInterface).Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if err := l.SlowServer(t.Context(), "40mbit"); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(qdisc(), "rate 40Mbit") {
		t.Errorf("after SlowServer: %q", qdisc())
	}
	for range 2 { // the second has nothing to do
		if err := l.UnslowServer(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Contains(qdisc(), "tbf") {
		t.Errorf("after UnslowServer: %q", qdisc())
	}
}

// TestLabBMCFaults: a stopped BMC and an unplugged one do not answer until they are started and
// plugged in again.
func TestLabBMCFaults(t *testing.T) {
	l := newLab(t)
	m := newMachine(t, l, Spec{Name: "faulty"})
	b := m.BMC()
	status := func() error {
		_, err := b.IPMITool(deadline(t, time.Minute), "-N", "1", "-R", "1", "chassis", "power", "status").Output()
		return err
	}
	if err := status(); err != nil {
		t.Fatal(err)
	}
	b.Stop()
	if status() == nil {
		t.Error("a stopped BMC answered")
	}
	if err := b.Start(deadline(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := status(); err != nil {
		t.Error(err)
	}
	if err := b.Unplug(t.Context()); err != nil {
		t.Fatal(err)
	}
	if status() == nil {
		t.Error("an unplugged BMC answered")
	}
	if err := b.Plug(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := status(); err != nil {
		t.Error(err)
	}
}

// victim is a program that owns a lab with a running machine until it is killed.
func victim(dir string) {
	ctx := context.Background()
	l, err := New(ctx, Options{})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	m, err := l.Machine(ctx, Spec{Name: "victim"})
	if err == nil {
		err = m.PowerOn(ctx)
	}
	var sim *Machine
	if err == nil {
		sim, err = l.Machine(ctx, Spec{Name: "simulated", Firmware: Simulated, Agent: "/bin/sleep", NoBMC: true})
	}
	if err == nil { // an agent that hangs
		err = l.Command(ctx, sim.Namespace(), sim.Spec().Agent, "1000").Start()
	}
	if err != nil {
		fmt.Println(err, l.Close(), dir)
		os.Exit(1)
	}
	fmt.Printf("READY %s %d %s\n", l.Name(), m.running().Pid(), l.Dir())
	select {}
}

// TestLabKilledOwner: if the program that owns a lab is killed with -9, its machines and simulators
// end with it, and the next lab removes the remains.
func TestLabKilledOwner(t *testing.T) {
	if !*realLab {
		t.Skip("a lab is made only with -lab")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), "LAB_TEST_VICTIM="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	f := strings.Fields(line)
	if err != nil || len(f) != 4 || f[0] != "READY" {
		_ = cmd.Process.Kill()
		t.Fatalf("the victim said %q (%v)", line, err)
	}
	name, dir := f[1], f[3]
	pids := func() []byte {
		var all []byte
		for _, ns := range []string{"sw", "bmc", "rtr", "m2"} {
			out, err := exec.Command("ip", "netns", "pids", name+"-"+ns).Output()
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, out...)
		}
		return bytes.TrimSpace(all)
	}
	if n := len(bytes.Fields(pids())); n < 4 {
		t.Errorf("%d processes: want machine, BMC, relay and agent at least", n)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // "signal: killed"
	if err := poll(deadline(t, time.Minute), func() (bool, error) { return len(pids()) == 0, nil }); err != nil {
		t.Errorf("processes %s outlived their owner", pids())
	}
	newLab(t)
	if _, err := os.Stat(filepath.Join(netnsDir, name+"-m2")); !os.IsNotExist(err) {
		t.Errorf("the namespace of a simulated machine is still there: %v", err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there", dir)
	}
}
