package bmc

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

const canary = "canary-pa55w0rd"

// bench is a BMC behind the ipmitool of testdata.
type bench struct {
	t   *testing.T
	dir string
	log *bytes.Buffer
	*Driver
	bmc inventory.BMC
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{
		t: t, dir: t.TempDir(), log: &bytes.Buffer{},
		bmc: inventory.BMC{Driver: inventory.DriverIPMI, Host: "192.0.2.3", User: "admin"},
	}
	script, err := os.ReadFile("testdata/ipmitool")
	require.NoError(t, err)
	path := filepath.Join(b.dir, "ipmitool")
	writeProgram(t, path, script)
	b.set("password", canary)
	b.set("power", "off")
	b.set("boot", "0000000000")
	b.Driver = New(Config{
		Log: slog.New(slog.NewTextHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Ipmitool: path,
		Step: 5 * time.Millisecond, Hard: 50 * time.Millisecond, Soft: 100 * time.Millisecond,
		Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Resolver: names{"bmc-a": {"192.0.2.3"}}, PerMinute: 100_000,
	})
	return b
}

// writeProgram writes an executable file. No process of a parallel test is forked
// during that: it would hold the file open for writing, and the program could not be
// started (ETXTBSY, execve(2)).
func writeProgram(t *testing.T, path string, text []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	require.NoError(t, os.WriteFile(path, text, 0o755))
}

func (b *bench) set(name, text string) {
	b.t.Helper()
	require.NoError(b.t, os.WriteFile(filepath.Join(b.dir, name), []byte(text+"\n"), 0o644))
}

func (b *bench) get(name string) string {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(b.dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	require.NoError(b.t, err)
	return strings.TrimSpace(string(text))
}

// commands returns the ipmitool commands since the last call, without the options
// that are always the same.
func (b *bench) commands() []string {
	b.t.Helper()
	var out []string
	for line := range strings.Lines(b.get("argv")) {
		_, command, ok := strings.Cut(strings.TrimSpace(line), "-R 1 ")
		require.True(b.t, ok, line)
		out = append(out, command)
	}
	if err := os.Remove(filepath.Join(b.dir, "argv")); err != nil {
		require.ErrorIs(b.t, err, os.ErrNotExist)
	}
	return out
}

// names is a resolver with addresses by name. Each lookup returns the next address of
// the name, in turn.
type names map[string][]string

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	host = strings.ToLower(host)
	if len(n[host]) == 0 {
		return nil, errors.New("no such host")
	}
	a := n[host][0]
	if len(n[host]) > 1 {
		n[host] = append(slices.Clone(n[host][1:]), a)
	}
	return []netip.Addr{netip.MustParseAddr(a)}, nil
}

func password() inventory.Secret { return inventory.NewSecret(canary) }

func TestPower(t *testing.T) {
	b := newBench(t)
	ctx := t.Context()
	asked := 0
	fence := func(context.Context) error { asked++; return nil }

	require.NoError(t, b.Set(ctx, b.bmc, password(), "off", fence))
	require.Equal(t, []string{"chassis power status", "chassis power status"}, b.commands(), "off on a machine that is off writes nothing")
	require.Zero(t, asked)

	require.NoError(t, b.Set(ctx, b.bmc, password(), "on", fence))
	require.Equal(t, []string{"chassis power status", "chassis power on", "chassis power status"}, b.commands())
	require.NoError(t, b.Set(ctx, b.bmc, password(), "on", fence))
	require.Equal(t, []string{"chassis power status", "chassis power status"}, b.commands())

	state, err := b.State(ctx, b.bmc, password())
	require.NoError(t, err)
	require.Equal(t, On, state)
	b.commands()

	require.NoError(t, b.Set(ctx, b.bmc, password(), "cycle", fence))
	require.Equal(t, []string{
		"chassis power status", "chassis power off", "chassis power status", "chassis power status", "chassis power on", "chassis power status",
	}, b.commands(), "cycle is off, seen off, on, seen on")
	require.Equal(t, 3, asked, "the fence is asked before each write")

	require.NoError(t, b.Set(ctx, b.bmc, password(), "reset", nil))
	require.Equal(t, []string{"chassis power status", "chassis power reset", "chassis power status"}, b.commands())
	require.NoError(t, b.Set(ctx, b.bmc, password(), "soft", nil))
	require.Equal(t, "off", b.get("power"))
	require.ErrorIs(t, b.Set(ctx, b.bmc, password(), "reset", nil), inventory.ErrUnsupported)
	require.ErrorIs(t, b.Set(ctx, b.bmc, password(), "explode", nil), inventory.ErrInvalid)
}

// TestHomeOfIpmitool: ipmitool gets a HOME with a list of enterprise numbers, and none
// if the directory cannot be created.
func TestHomeOfIpmitool(t *testing.T) {
	b := newBench(t)
	cfg := b.cfg
	cfg.Home = filepath.Join(t.TempDir(), "home")
	for range 2 { // the second time, the directory exists
		_, err := New(cfg).State(t.Context(), b.bmc, password())
		require.NoError(t, err)
		require.Contains(t, b.get("environ"), "HOME="+cfg.Home)
	}
	list, err := os.ReadFile(filepath.Join(cfg.Home, ".local/usr/share/misc/enterprise-numbers.txt"))
	require.NoError(t, err)
	require.NotEmpty(t, list)

	cfg.Home = filepath.Join(b.dir, "password", "home") // under a file
	_, err = New(cfg).State(t.Context(), b.bmc, password())
	require.NoError(t, err)
	require.NotContains(t, b.get("environ"), "HOME="+cfg.Home)
}

func TestFenceStopsWrites(t *testing.T) {
	b := newBench(t)
	fence := func(context.Context) error { return inventory.ErrFenced }
	require.ErrorIs(t, b.Set(t.Context(), b.bmc, password(), "on", fence), inventory.ErrFenced)
	require.Equal(t, []string{"chassis power status"}, b.commands())
	_, err := b.SetBootDevice(t.Context(), b.bmc, password(), inventory.BootDevice{Device: "pxe"}, fence)
	require.ErrorIs(t, err, inventory.ErrFenced)
	require.Empty(t, b.commands())
}

// Each call in turn fails or reports a false success: no operation may succeed.
func TestNoFalseSuccess(t *testing.T) {
	unreachable := "Error: Unable to establish IPMI v2 / RMCP+ session"
	for _, power := range []string{"on", "off", "soft", "cycle", "reset"} {
		start := map[string]string{"on": "off"}[power]
		if start == "" {
			start = "on"
		}
		sent := power
		if power == "cycle" {
			sent = "off"
		}
		t.Run(power+"/status fails", func(t *testing.T) {
			b := newBench(t)
			b.set("power", start)
			b.set("fail-chassis-power-status", unreachable)
			require.ErrorIs(t, b.Set(t.Context(), b.bmc, password(), power, nil), inventory.ErrUnreachable)
			require.Equal(t, []string{"chassis power status"}, b.commands(), "nothing is written blindly")
		})
		t.Run(power+"/command fails", func(t *testing.T) {
			b := newBench(t)
			b.set("power", start)
			b.set("fail-chassis-power-"+sent, unreachable)
			require.ErrorIs(t, b.Set(t.Context(), b.bmc, password(), power, nil), inventory.ErrUnreachable)
			require.Equal(t, start, b.get("power"))
		})
		t.Run(power+"/command is not known", func(t *testing.T) {
			b := newBench(t)
			b.set("power", start)
			b.set("fail-chassis-power-"+sent, "Set Chassis Power Control failed: Command not supported in present state")
			require.ErrorIs(t, b.Set(t.Context(), b.bmc, password(), power, nil), inventory.ErrUnsupported)
			require.Len(t, b.commands(), 2, "not tried again")
		})
		if power == "reset" {
			continue // on before and after
		}
		t.Run(power+"/lies", func(t *testing.T) {
			b := newBench(t)
			b.set("power", start)
			b.set("lie", "")
			err := b.Set(t.Context(), b.bmc, password(), power, nil)
			require.ErrorContains(t, err, "power is "+start+" instead of ")
		})
	}
	for _, fault := range []string{"fail-chassis-bootdev-pxe", "fail-chassis-bootparam-get", "lie"} {
		t.Run("boot device/"+fault, func(t *testing.T) {
			b := newBench(t)
			b.set(fault, unreachable)
			_, err := b.SetBootDevice(t.Context(), b.bmc, password(), inventory.BootDevice{Device: "pxe", EFI: true}, nil)
			require.Error(t, err)
		})
	}
	t.Run("boot device/unreachable, said once", func(t *testing.T) {
		b := newBench(t)
		b.set("fail-chassis-bootdev-pxe", unreachable)
		b.set("fail-chassis-bootparam-get", unreachable)
		_, err := b.SetBootDevice(t.Context(), b.bmc, password(), inventory.BootDevice{Device: "pxe", EFI: true}, nil)
		require.ErrorIs(t, err, inventory.ErrUnreachable)
		require.Equal(t, 1, strings.Count(err.Error(), "does not answer"), err)
	})
	t.Run("lost reply", func(t *testing.T) {
		b := newBench(t)
		b.set("power", "on")
		b.set("fail-chassis-power-off", "once:"+unreachable)
		require.Error(t, b.Set(t.Context(), b.bmc, password(), "off", nil))
		require.NoError(t, b.Set(t.Context(), b.bmc, password(), "off", nil))
		require.Equal(t, "off", b.get("power"))
	})
}

func TestBootDevice(t *testing.T) {
	for name, c := range map[string]struct {
		want    inventory.BootDevice
		command string
		flags   string
		read    string
	}{
		"once efi":    {inventory.BootDevice{Device: "pxe", EFI: true}, "chassis bootdev pxe options=efiboot", "a004000000", "pxe once efi"},
		"once legacy": {inventory.BootDevice{Device: "pxe"}, "chassis bootdev pxe", "8004000000", "pxe once"},
		"persistent efi": {
			inventory.BootDevice{Device: "pxe", EFI: true, Persistent: true},
			"chassis bootdev pxe options=persistent,efiboot",
			"e004000000", "pxe persistent efi",
		},
		"disk": {
			inventory.BootDevice{Device: "disk", Persistent: true},
			"chassis bootdev disk options=persistent", "c008000000",
			"disk persistent",
		},
		"cdrom": {inventory.BootDevice{Device: "cdrom"}, "chassis bootdev cdrom", "8014000000", "cdrom once"},
		"bios":  {inventory.BootDevice{Device: "bios"}, "chassis bootdev bios", "8018000000", "bios once"},
		"none":  {inventory.BootDevice{Device: "none", EFI: true}, "chassis bootdev none", "0000000000", "none"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.set("boot", "8008000000")
			warning, err := b.SetBootDevice(t.Context(), b.bmc, password(), c.want, nil)
			require.NoError(t, err)
			require.Empty(t, warning)
			require.Equal(t, []string{"raw 0x00 0x08 0x03 0x08", c.command, "chassis bootparam get 5"}, b.commands())
			require.Equal(t, c.flags, b.get("boot"))
			report, err := b.Check(t.Context(), b.bmc, password())
			require.NoError(t, err)
			require.Equal(t, inventory.BMCReport{Power: Off, Boot: c.read, Took: report.Took}, report)
		})
	}
	t.Run("flags dropped", func(t *testing.T) {
		b := newBench(t)
		b.set("drop", "")
		warning, err := b.SetBootDevice(t.Context(), b.bmc, password(), inventory.BootDevice{Device: "pxe", EFI: true, Persistent: true}, nil)
		require.NoError(t, err)
		require.Equal(t, "boot device pxe was read back, but without these flags: persistent, EFI, valid", warning)
	})
	t.Run("raw command refused", func(t *testing.T) {
		b := newBench(t)
		b.set("refuse-raw", "")
		warning, err := b.SetBootDevice(t.Context(), b.bmc, password(), inventory.BootDevice{Device: "pxe", EFI: true}, nil)
		require.NoError(t, err)
		require.Empty(t, warning)
	})
	t.Run("once became persistent", func(t *testing.T) {
		b := newBench(t)
		b.set("lie", "")
		b.set("boot", "e004000000")
		_, err := b.SetBootDevice(t.Context(), b.bmc, password(), inventory.BootDevice{Device: "pxe", EFI: true}, nil)
		require.ErrorContains(t, err, "reads back as persistent")
	})
	b := newBench(t)
	_, err := b.SetBootDevice(t.Context(), b.bmc, password(), inventory.BootDevice{Device: "floppy"}, nil)
	require.ErrorIs(t, err, inventory.ErrInvalid)
}

func TestErrors(t *testing.T) {
	t.Run("wrong password", func(t *testing.T) {
		b := newBench(t)
		err := b.Set(t.Context(), b.bmc, inventory.NewSecret("other"), "on", nil)
		require.ErrorIs(t, err, inventory.ErrRefused)
		require.ErrorContains(t, err, "check user and password")
		require.Len(t, b.commands(), 1, "a second try could lock the account")
	})
	t.Run("password changed on the way", func(t *testing.T) {
		b := newBench(t)
		err := b.Set(t.Context(), b.bmc, password(), "on", func(context.Context) error { b.set("password", "new"); return nil })
		require.ErrorIs(t, err, inventory.ErrRefused)
		require.Len(t, b.commands(), 2)
	})
	t.Run("no password", func(t *testing.T) {
		b := newBench(t)
		_, err := b.State(t.Context(), b.bmc, inventory.Secret{})
		require.ErrorIs(t, err, inventory.ErrRefused)
		require.Empty(t, b.commands())
	})
	t.Run("cipher", func(t *testing.T) {
		b := newBench(t)
		b.set("cipher", "3")
		_, err := b.State(t.Context(), b.bmc, password())
		require.ErrorIs(t, err, inventory.ErrUnsupported)
		require.Contains(t, b.get("argv"), "-C 17 ", "17 unless given, and no search")
		require.Len(t, b.commands(), 1)
		b.bmc.CipherSuite = "3"
		_, err = b.State(t.Context(), b.bmc, password())
		require.NoError(t, err)
		require.Contains(t, b.get("argv"), "-I lanplus -H 192.0.2.3 -p 623 -U admin -f /proc/self/fd/3 -C 3 -N 5 -R 1 chassis power status")
	})
	t.Run("ipmitool is missing", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		x := newBench(t).bmc
		x.Host = "10.0.0.3"
		_, err := New(Config{}).State(t.Context(), x, password())
		require.ErrorIs(t, err, inventory.ErrUnsupported)
		require.ErrorContains(t, err, "ipmitool")
	})
	for name, c := range map[string]struct {
		change func(*inventory.BMC)
		want   error
	}{
		"cipher 0":       {func(b *inventory.BMC) { b.CipherSuite = "0" }, inventory.ErrUnsupported},
		"cipher 00":      {func(b *inventory.BMC) { b.CipherSuite = "00" }, inventory.ErrUnsupported},
		"cipher x":       {func(b *inventory.BMC) { b.CipherSuite = "x" }, inventory.ErrInvalid},
		"manual":         {func(b *inventory.BMC) { b.Driver = inventory.DriverManual }, inventory.ErrUnsupported},
		"unknown driver": {func(b *inventory.BMC) { b.Driver = "ilo" }, inventory.ErrUnsupported},
		"wake-on-LAN":    {func(b *inventory.BMC) { b.Driver = inventory.DriverWOL }, inventory.ErrUnsupported},
		"no such entry":  {func(b *inventory.BMC) { b.Driver, b.Command = inventory.DriverExec, "x" }, inventory.ErrInvalid},
		"no host":        {func(b *inventory.BMC) { b.Host = "" }, inventory.ErrInvalid},
		"option as host": {func(b *inventory.BMC) { b.Host = "-I" }, inventory.ErrInvalid},
		"port":           {func(b *inventory.BMC) { b.Port = 70000 }, inventory.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			c.change(&b.bmc)
			_, err := b.State(t.Context(), b.bmc, password())
			require.ErrorIs(t, err, c.want)
			require.Empty(t, b.commands())
		})
	}
}

// The messages were recorded from ipmitool 1.8.19 with -v.
func TestClassify(t *testing.T) {
	exit := errors.New("exit status 1")
	for said, want := range map[string]error{
		"> RAKP 2 HMAC is invalid\nError: Unable to establish IPMI v2 / RMCP+ session":                                                                     inventory.ErrRefused,
		"RAKP 2 message indicates an error : unauthorized name\nError: Unable to establish IPMI v2 / RMCP+ session":                                        inventory.ErrRefused,
		"RAKP 2 message indicates an error : insufficient resources for session\nError: Unable to establish IPMI v2 / RMCP+ session":                       inventory.ErrUnreachable,
		"Error in open session response message : invalid authentication algorithm\nError: Unable to establish IPMI v2 / RMCP+ session":                    inventory.ErrUnsupported,
		"Get Auth Capabilities error\nError issuing Get Channel Authentication Capabilities request\nError: Unable to establish IPMI v2 / RMCP+ session":   inventory.ErrUnreachable,
		"Address lookup for no.such.host failed\nCould not open socket!\nError: Unable to establish IPMI v2 / RMCP+ session":                               inventory.ErrUnreachable,
		"Invalid completion code received: Invalid command\nUnable to send RAW command (channel=0x0 netfn=0x3e lun=0x0 cmd=0x1 rsp=0xc1): Invalid command": inventory.ErrUnsupported,
		"Running Get VSO Capabilities my_addr 0x20, transit 0, target 0x20\nInvalid completion code received: Invalid command\nsomething unexpected":       exit,
	} {
		require.ErrorIs(t, classify(said, 623, exit), want, said)
		require.NotContains(t, classify(said, 623, exit).Error(), "VSO")
	}
}

func TestNormalize(t *testing.T) {
	for said, want := range map[string]string{
		"Chassis Power is on\n": On, "Chassis Power is off": Off, "On": On, "off": Off, "PoweringOn": Transitional, "PoweringOff": Transitional,
		"": Unknown, "not on": Unknown, "Chassis Power is unknown": Unknown,
	} {
		require.Equal(t, want, normalize(said), said)
	}
}

// TestS25PasswordIsNowhere: the child's arguments and environment, the log and errors do
// not contain the password.
func TestS25PasswordIsNowhere(t *testing.T) {
	b := newBench(t)
	require.NoError(t, b.Set(t.Context(), b.bmc, password(), "on", nil))
	_, err := b.SetBootDevice(t.Context(), b.bmc, password(), inventory.BootDevice{Device: "pxe"}, nil)
	require.NoError(t, err)
	b.set("password", "another")
	err = b.Set(t.Context(), b.bmc, password(), "off", nil)
	require.ErrorIs(t, err, inventory.ErrRefused)
	for _, name := range []string{"argv", "environ", "cmdline"} {
		require.NotEmpty(t, b.get(name))
		require.NotContains(t, b.get(name), canary)
	}
	require.NotEmpty(t, b.log.String())
	require.NotContains(t, b.log.String(), canary)
	require.NotContains(t, err.Error(), canary)
}

// The first part of S29: one operation at a time per BMC, by any of its names.
func TestOneOperationAtATime(t *testing.T) {
	b := newBench(t)
	var wait sync.WaitGroup
	for i := range 12 {
		wait.Go(func() {
			x := b.bmc
			if i%2 == 0 {
				x.Host = strings.ToUpper("bmc-a") // the same address in other letters
			} else {
				x.Host = "bmc-a"
			}
			if _, err := b.State(t.Context(), x, password()); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	require.Len(t, b.commands(), 12)
	require.Empty(t, b.get("overlap"))

	held := make(chan struct{})
	release := make(chan struct{})
	done := make(chan error)
	go func() {
		done <- b.Set(t.Context(), b.bmc, password(), "on", func(context.Context) error {
			close(held)
			<-release
			return nil
		})
	}()
	<-held
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.State(ctx, b.bmc, password())
	require.ErrorIs(t, err, context.Canceled, "waiting for a BMC ends with the context")
	other := b.bmc
	other.Host = "192.0.2.99"
	_, err = b.State(t.Context(), other, password())
	require.NoError(t, err, "another BMC does not wait")
	close(release)
	require.NoError(t, <-done)
}
