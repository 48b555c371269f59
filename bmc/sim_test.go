package bmc

import (
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

var lab = flag.Bool("lab", false, "run against OpenIPMI's ipmi_sim and the real ipmitool, which make deps provides")

// The driver against OpenIPMI's simulator and the real ipmitool.
func TestLabSimulator(t *testing.T) {
	if !*lab {
		t.Skip("needs ipmi_sim and ipmitool: make deps, then go test ./bmc -args -lab")
	}
	b := simulator(t)
	d := New(Config{
		Home: t.TempDir(), Step: 50 * time.Millisecond, Hard: 5 * time.Second, Soft: 5 * time.Second, Settle: time.Second,
		Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, PerMinute: 100_000,
	})
	pw := inventory.NewSecret("pa55w0rd")
	ctx := t.Context()

	require.Eventually(t, func() bool { _, err := d.State(ctx, b, pw); return err == nil }, 60*time.Second, 50*time.Millisecond)
	state, err := d.State(ctx, b, pw)
	require.NoError(t, err)
	require.Equal(t, Off, state)
	for _, power := range []string{"on", "on", "reset", "cycle", "off", "off"} {
		require.NoError(t, d.Set(ctx, b, pw, power, nil), power)
	}
	for _, device := range []string{"pxe", "disk", "cdrom", "bios"} {
		warning, err := d.SetBootDevice(ctx, b, pw, inventory.BootDevice{Device: device, EFI: true}, nil)
		require.NoError(t, err)
		require.Equal(t, "boot device "+device+" was read back, but without these flags: EFI, valid", warning, "the simulator drops them")
	}
	warning, err := d.SetBootDevice(ctx, b, pw, inventory.BootDevice{Device: "none"}, nil)
	require.NoError(t, err)
	require.Empty(t, warning)
	report, err := d.Check(ctx, b, pw)
	require.NoError(t, err)
	require.Equal(t, "none", report.Boot)

	require.NoError(t, d.ResetBMC(ctx, b, pw, nil))
	state, err = d.State(ctx, b, pw)
	require.NoError(t, err)
	require.Equal(t, Off, state, "the machine stays as it is")

	_, err = d.State(ctx, b, inventory.NewSecret("wrong"))
	require.ErrorIs(t, err, inventory.ErrRefused)
	stranger := b
	stranger.User = "nobody"
	_, err = d.State(ctx, stranger, pw)
	require.ErrorIs(t, err, inventory.ErrRefused)
	b.CipherSuite = "17"
	_, err = d.State(ctx, b, pw)
	require.ErrorIs(t, err, inventory.ErrUnsupported, "the simulator knows suite 3 only")
}

// simulator starts an ipmi_sim whose chassis is a file.
func simulator(t *testing.T) inventory.BMC {
	t.Helper()
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, err := os.UserHomeDir()
		require.NoError(t, err)
		cache = filepath.Join(home, ".cache")
	}
	root := filepath.Join(cache, "ingot-lab", "pkg", "openipmi", "usr")
	libs, err := filepath.Glob(filepath.Join(root, "lib", "*-linux-gnu"))
	require.NoError(t, err)
	require.NotEmpty(t, libs, "ipmi_sim is missing: make deps")

	l, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	addr, ok := l.LocalAddr().(*net.UDPAddr)
	require.True(t, ok)
	require.NoError(t, l.Close())

	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), mode))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "state"), 0o755))
	write("power", "0\n", 0o644)
	write("boot", "default\n", 0o644)
	write("chassis", fmt.Sprintf(`#!/bin/sh
cd %s || exit 1
shift
op=$1
shift
while [ $# -gt 0 ]; do
  if [ "$op" = get ]; then
    echo "$1:$(cat "$1")"
    shift
  else
    echo "$2" >"$1"
    shift 2
  fi
done
`, dir), 0o755)
	write("lan.conf", fmt.Sprintf(`name "t"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 %d
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
  chassis_control "%s/chassis 0x20"
  user 1 true  ""      "test"     user  10 none md2 md5 straight
  user 2 true  "admin" "pa55w0rd" admin 10 none md2 md5 straight
`, addr.Port, dir), 0o644)
	write(
		"bmc.emu",
		"mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr\nsel_enable 0x20 1000 0x0a\nmc_enable 0x20\n",
		0o644,
	)

	sim := exec.Command(filepath.Join(root, "bin", "ipmi_sim"), "-c", filepath.Join(dir, "lan.conf"), "-f", filepath.Join(dir, "bmc.emu"),
		"-s", filepath.Join(dir, "state"), "-n")
	sim.Env = append(os.Environ(), "LD_LIBRARY_PATH="+libs[0])
	require.NoError(t, sim.Start())
	t.Cleanup(func() {
		if err := sim.Process.Kill(); err != nil {
			t.Error(err)
		}
		_, err := sim.Process.Wait()
		if err != nil {
			t.Error(err)
		}
	})
	return inventory.BMC{Driver: inventory.DriverIPMI, Host: "127.0.0.1", Port: addr.Port, User: "admin", CipherSuite: "3"}
}

// A BMC whose first packets are lost is unreachable and not unsupported, although
// ipmitool reports both by the same message.
func TestLabLostPackets(t *testing.T) {
	if !*lab {
		t.Skip("needs ipmi_sim and ipmitool: make deps, then go test ./bmc -args -lab")
	}
	b := simulator(t)
	d := New(Config{Home: t.TempDir(), Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, PerMinute: 100_000})
	pw := inventory.NewSecret("pa55w0rd")
	require.Eventually(t, func() bool { _, err := d.State(t.Context(), b, pw); return err == nil }, 60*time.Second, 50*time.Millisecond)
	for lost := 1; lost <= 3; lost++ {
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			t.Parallel()
			lossy := b
			lossy.Port = lossyProxy(t, b.Port, lost)
			var err error
			for range lost + 1 { // each loses one packet at least
				if _, err = d.State(t.Context(), lossy, pw); err == nil {
					break
				}
				require.ErrorIs(t, err, inventory.ErrUnreachable)
			}
			require.NoError(t, err)
		})
	}
}

// lossyProxy forwards packets to and from a port of loopback, except for the first
// lose packets to it. It returns its own port.
func lossyProxy(t *testing.T, port, lose int) int {
	t.Helper()
	loopback := net.IPv4(127, 0, 0, 1)
	front, err := net.ListenUDP("udp4", &net.UDPAddr{IP: loopback})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, front.Close()) })
	go func() {
		backs := map[string]*net.UDPConn{} // by client
		buffer := make([]byte, 2048)
		for n := 0; ; n++ {
			size, from, err := front.ReadFromUDP(buffer)
			if err != nil {
				for _, back := range backs {
					_ = back.Close()
				}
				return
			}
			back := backs[from.String()]
			if back == nil {
				if back, err = net.DialUDP("udp4", nil, &net.UDPAddr{IP: loopback, Port: port}); err != nil {
					t.Error(err)
					return
				}
				backs[from.String()] = back
				go answers(front, back, from)
			}
			if n >= lose {
				_, _ = back.Write(buffer[:size])
			}
		}
	}()
	address, ok := front.LocalAddr().(*net.UDPAddr)
	require.True(t, ok)
	return address.Port
}

// answers forwards packets from back to the client until back is closed.
func answers(front, back *net.UDPConn, client *net.UDPAddr) {
	buffer := make([]byte, 2048)
	for {
		size, err := back.Read(buffer)
		if err != nil {
			return
		}
		_, _ = front.WriteToUDP(buffer[:size], client)
	}
}
