package bmc

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// plug is an administrator's program for a machine whose power is a file. It records
// its calls.
const plug = `#!/bin/sh
dir=%DIR%
{ printf '%s|' "$@"; echo; } >>$dir/argv
env >>$dir/environ
cat >>$dir/stdin
case $1 in
  status) echo noise; cat $dir/power ;;
  on | off) echo $1 >$dir/power ;;
  idle) ;;
  fail) echo secret-output; echo secret-output >&2; exit 3 ;;
  hang) sleep 1000 & echo $! >$dir/child; wait ;;
esac
`

func newPlug(t *testing.T) (d *Driver, b inventory.BMC, read func(string) string, log *bytes.Buffer) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "plug")
	writeProgram(t, file, []byte(strings.ReplaceAll(plug, "%DIR%", dir)))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "power"), []byte("off\n"), 0o644))
	log = &bytes.Buffer{}
	status := []string{file, "status"}
	t.Setenv("INGOT_TEST_CANARY", canary)
	d = New(Config{
		Log:  slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Step: 2 * time.Millisecond, Hard: 20 * time.Millisecond, PerMinute: 100_000,
		Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
		Resolver: names{"hub": {"192.0.2.9"}},
		Commands: map[string]Command{
			"plug":    {On: []string{file, "on", "outlet={machine}@{host}", "; echo $(id)"}, Off: []string{file, "off"}, Status: status},
			"broken":  {On: []string{file, "fail"}, Off: []string{file, "idle"}, Status: status},
			"hanging": {On: []string{file, "hang"}, Off: []string{file, "off"}, Status: status, Timeout: 300 * time.Millisecond},
			"missing": {On: []string{"/nonexistent/plug"}, Off: status, Status: status},
		},
	})
	read = func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return ""
		}
		return string(text)
	}
	return d, inventory.BMC{Driver: inventory.DriverExec, Command: "plug", Host: "hub", Machine: "node-1"}, read, log
}

func TestCommands(t *testing.T) {
	d, b, read, log := newPlug(t)
	ctx := t.Context()
	state, err := d.State(ctx, b, password())
	require.NoError(t, err)
	require.Equal(t, Off, state, "the last line")
	require.NoError(t, d.Set(ctx, b, password(), "on", nil))
	require.Contains(t, read("argv"), "on|outlet=node-1@192.0.2.9|; echo $(id)|\n", "no shell; the address that was checked")
	require.NoError(t, d.Set(ctx, b, password(), "on", nil), "it is on already")
	require.Equal(t, 1, strings.Count(read("argv"), "on|outlet"))
	require.NoError(t, d.Set(ctx, b, password(), "cycle", nil))
	require.Equal(t, "on\n", read("power"))

	warning, err := d.SetBootDevice(ctx, b, password(), pxeOnce, nil)
	require.NoError(t, err)
	require.Contains(t, warning, "network boot must be first in the machine's own boot order")
	warning, err = d.SetBootDevice(ctx, b, password(), inventory.BootDevice{Device: "none"}, nil)
	require.NoError(t, err)
	require.Empty(t, warning)
	for _, device := range []string{"disk", "cdrom", "bios"} {
		_, err = d.SetBootDevice(ctx, b, password(), inventory.BootDevice{Device: device}, nil)
		require.ErrorIs(t, err, inventory.ErrUnsupported)
	}
	for _, power := range []string{"reset", "soft"} {
		require.ErrorIs(t, d.Set(ctx, b, password(), power, nil), inventory.ErrUnsupported)
	}
	require.ErrorIs(t, d.ResetBMC(ctx, b, password(), nil), inventory.ErrUnsupported)
	require.ErrorIs(t, d.Set(ctx, b, password(), "off", func(context.Context) error { return inventory.ErrFenced }), inventory.ErrFenced)
	require.Equal(t, "on\n", read("power"))

	require.Contains(t, read("stdin"), canary+"\n", "the password comes on standard input")
	for what, text := range map[string]string{"argv": read("argv"), "environ": read("environ"), "log": log.String()} {
		require.NotContains(t, text, canary, what)
	}
}

func TestCommandsThatFail(t *testing.T) {
	d, b, read, log := newPlug(t)
	ctx := t.Context()
	b.Command = "broken"
	err := d.Set(ctx, b, password(), "on", nil)
	require.ErrorIs(t, err, inventory.ErrUnreachable)
	require.ErrorContains(t, err, "exit status 3")
	require.NotContains(t, err.Error()+log.String(), "secret-output", "a program's output is in no log and no error")
	require.NoError(t, d.Set(ctx, b, password(), "off", nil))
	require.NoError(t, os.WriteFile(strings.TrimSuffix(d.cfg.Commands["broken"].On[0], "plug")+"power", []byte("on\n"), 0o644))
	require.ErrorIs(t, d.Set(ctx, b, password(), "off", nil), inventory.ErrUnreachable, "the command reported a false success")
	require.NoError(t, os.WriteFile(strings.TrimSuffix(d.cfg.Commands["broken"].On[0], "plug")+"power", []byte("off\n"), 0o644))

	b.Command = "hanging"
	var child string
	for child == "" { // on a slow host the program may be stopped before it has started its child
		err = d.Set(ctx, b, password(), "on", nil)
		require.ErrorIs(t, err, inventory.ErrUnreachable)
		require.ErrorContains(t, err, "longer than 300ms")
		child = strings.TrimSpace(read("child"))
	}
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile("/proc/" + child + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	}, 10*time.Second, 10*time.Millisecond, "its child process has ended as well")

	b.Command = "missing"
	require.ErrorIs(t, d.Set(ctx, b, password(), "on", nil), inventory.ErrUnsupported)
	b.Command = "nobody's"
	err = d.Set(ctx, b, password(), "on", nil)
	require.ErrorIs(t, err, inventory.ErrInvalid)
	require.ErrorContains(t, err, "power.commands")
	require.ErrorIs(t, d.CheckCommand("nobody's"), inventory.ErrInvalid)
	require.NoError(t, d.CheckCommand("plug"))

	b.Command, b.Host = "plug", ""
	err = d.Set(ctx, b, password(), "on", nil)
	require.ErrorIs(t, err, inventory.ErrInvalid, "{host} without a host")
	b.Host = "10.0.0.1"
	require.ErrorContains(t, d.Set(ctx, b, password(), "on", nil), "bmc.networks")
}

func TestWake(t *testing.T) {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	at, err := netip.ParseAddrPort(c.LocalAddr().String())
	require.NoError(t, err)
	d := New(Config{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, WakeFrom: netip.MustParseAddr("127.0.0.3")})
	d.cfg.sleep = func(context.Context, time.Duration) error { return nil }
	b := inventory.BMC{Driver: inventory.DriverWOL, Host: "127.0.0.1", Port: int(at.Port()), MAC: "52:54:00:00:00:07"}

	asked := 0
	require.NoError(t, d.Set(t.Context(), b, inventory.Secret{}, "on", func(context.Context) error { asked++; return nil }))
	require.Equal(t, 1, asked)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	want := bytes.Repeat([]byte{0xff}, 6)
	for range 16 {
		want = append(want, 0x52, 0x54, 0, 0, 0, 7)
	}
	for range wakes {
		got := make([]byte, 200)
		n, from, err := c.ReadFromUDPAddrPort(got)
		require.NoError(t, err)
		require.Equal(t, want, got[:n])
		require.Equal(t, "127.0.0.3", from.Addr().String())
	}
	require.ErrorIs(t, d.Set(t.Context(), b, inventory.Secret{}, "on", func(context.Context) error { return inventory.ErrFenced }),
		inventory.ErrFenced)
	for _, power := range []string{"off", "soft", "cycle", "reset"} {
		require.ErrorIs(t, d.Set(t.Context(), b, inventory.Secret{}, power, nil), inventory.ErrUnsupported, power)
	}
	_, err = d.State(t.Context(), b, inventory.Secret{})
	require.ErrorIs(t, err, inventory.ErrUnsupported)
	_, err = d.SetBootDevice(t.Context(), b, inventory.Secret{}, pxeOnce, nil)
	require.ErrorIs(t, err, inventory.ErrUnsupported)
	b.Host = "192.0.2.1"
	require.ErrorContains(t, d.Set(t.Context(), b, inventory.Secret{}, "on", nil), "bmc.networks")
	b.Host, b.Broadcast = "", netip.MustParseAddr("127.0.0.1")
	d.cfg.Networks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	require.NoError(t, d.Set(t.Context(), b, inventory.Secret{}, "on", nil), "bmc.networks does not apply to the machine's own subnet")
	b.Broadcast = netip.Addr{}
	require.ErrorIs(t, d.Set(t.Context(), b, inventory.Secret{}, "on", nil), inventory.ErrInvalid)
	b.Broadcast, b.MAC = netip.MustParseAddr("127.0.0.1"), ""
	require.ErrorIs(t, d.Set(t.Context(), b, inventory.Secret{}, "on", nil), inventory.ErrInvalid)
}
