package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ingotmetal/ingot/worker-agent/container"
	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/efi"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
	"github.com/ingotmetal/ingot/worker-agent/facts"
	"golang.org/x/sys/unix"

	agent "github.com/ingotmetal/ingot/worker-agent"
)

// deathPause is how long a fatal error is on the screen before the machine reboots.
const deathPause = 30 * time.Second

// bootMachine runs as PID 1: it sets up the machine and runs the agent. It does not return, because the machine reboots or
// powers off at the end.
func bootMachine() {
	log := console()
	defer func() {
		if p := recover(); p != nil {
			fmt.Printf("ingot: panic: %v\n%s\n", p, debug.Stack())
		}
		fmt.Println("ingot: booting again in", deathPause)
		time.Sleep(deathPause)
		_ = realHost{}.Reboot() // an error cannot be reported anywhere
	}()

	began := time.Now()
	mountAll(log)

	// A panic in another goroutine ends PID 1, and then the kernel panics. Make the kernel reboot 30 s after that.
	_ = os.WriteFile("/proc/sys/kernel/panic", []byte("30"), 0) // if this fails, the watchdog resets the machine
	raw, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		panic(err)
	}

	var children sync.Mutex
	go reap(&children)
	ctx := context.Background()
	mods, err := loadModuleIndex(moduleDir())
	if err != nil {
		log.Error("reading the index of modules", "error", err)
	}

	seen := newHotplug(log, mods)
	go seen.listen()
	seen.coldplug()
	log.Info("modules loaded", "count", mods.count(), "took", time.Since(began).Round(time.Millisecond))
	go watchdog(log)

	cfg := agent.CommandLine(string(raw))
	cfg.Logger = log
	finder := facts.HostFinder{}
	if cfg.Discover {
		if finder.Neighbours, err = facts.ListenLLDP(ctx, log); err != nil {
			log.Warn("listening for neighbours", "error", err)
		}
	}
	cfg.Finder = finder
	cfg.Disks = disk.BlockDisks{}
	cfg.Files = filesys.HostFilesystems{Load: mods.load, Children: &children}
	cfg.Containers = &container.Runner{Dir: "/run/ingot", Children: &children}
	cfg.Host = realHost{}
	cfg.EFI = efi.HostVariables()
	cfg.Linger = 10 * time.Second
	if cfg.Rescue {
		go rescueShell(log)
	}

	a, err := agent.New(cfg)
	if err != nil {
		panic(fmt.Errorf("reading the kernel command line: %w", err))
	}

	network(ctx, log, cfg.MAC)
	seen.settle()
	log.Info("ready", "machine", cfg.Machine, "server", cfg.Server, "memory", memory())
	if err := a.Run(ctx); err != nil {
		panic(err)
	}

	panic("the agent has ended without restarting the machine")
}

// console returns a logger that writes to the system's console. It logs the uptime instead of the time, as the kernel
// does, because the clock is wrong until the server answers the agent's first request.
func console() *slog.Logger {
	return slog.New(slog.NewTextHandler(prefixed{},
		&slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.String("up", uptime())
			}
			return a
		}}))
}

type prefixed struct{}

func (prefixed) Write(p []byte) (int, error) {
	// Write prefix and line with one call: otherwise a line of the kernel could come between them.
	_, err := os.Stdout.Write(append([]byte("ingot: "), p...))
	return len(p), err
}

func uptime() string {
	b, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return "?"
	}
	s, _, _ := strings.Cut(string(b), " ")
	return s
}

// memory returns the current and the peak memory use of the agent, as text.
func memory() string {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "?"
	}
	var words []string
	for _, line := range strings.Split(string(b), "\n") {
		if f := strings.Fields(line); len(f) == 3 && (f[0] == "VmRSS:" || f[0] == "VmHWM:") {
			words = append(words, f[0]+f[1]+f[2])
		}
	}
	return strings.Join(words, " ")
}

func mountAll(log *slog.Logger) {
	for _, m := range []struct {
		fs, dir, options string
		flags            uintptr
	}{
		{"proc", "/proc", "", unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV},
		{"sysfs", "/sys", "", unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV},
		{"devtmpfs", "/dev", "mode=0755", unix.MS_NOSUID},
		{"tmpfs", "/run", "mode=0755", unix.MS_NOSUID | unix.MS_NODEV},
		{"tmpfs", "/tmp", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
	} {
		_ = os.MkdirAll(m.dir, 0o755) // if this fails, the mount fails, too, and that error is logged
		if err := unix.Mount(m.fs, m.dir, m.fs, m.flags, m.options); err != nil {
			log.Error("mounting", "directory", m.dir, "error", err)
		}
	}
}

// reap waits for orphaned processes, whose parent is PID 1, so that they do not stay as zombies. The agent holds the
// lock children while it waits for a process that it has started itself.
func reap(children sync.Locker) {
	child := make(chan os.Signal, 1)
	signal.Notify(child, syscall.SIGCHLD)
	for range child {
		children.Lock()
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if pid <= 0 || err != nil {
				break
			}
		}
		children.Unlock()
	}
}

// rescueShell runs a shell on the console for the operator who armed the machine for rescue.
func rescueShell(log *slog.Logger) {
	for {
		sh := exec.Command("/bin/sh")
		sh.Stdin, sh.Stdout, sh.Stderr = os.Stdin, os.Stdout, os.Stderr
		sh.Dir = "/"
		sh.Env = []string{"PATH=/bin:/sbin", "HOME=/", "TERM=linux"}
		sh.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := sh.Start(); err != nil {
			log.Warn("starting a shell", "error", err)
			return
		}

		// Ignore the error: if reap has waited for the shell first, Wait finds no child.
		_ = sh.Wait()
		time.Sleep(time.Second)
	}
}

// realHost controls the machine on which the agent runs.
type realHost struct{}

// SetClock implements agent.Host.
func (realHost) SetClock(t time.Time) error {
	tv := unix.NsecToTimeval(t.UnixNano())
	return unix.Settimeofday(&tv)
}

// Reboot implements agent.Host.
func (realHost) Reboot() error { return leave(unix.LINUX_REBOOT_CMD_RESTART) }

// PowerOff implements agent.Host.
func (realHost) PowerOff() error { return leave(unix.LINUX_REBOOT_CMD_POWER_OFF) }

// LoadKernel implements agent.Kexecer.
func (realHost) LoadKernel(kernel, initrd *os.File, commandLine string) error {
	if initrd == nil {
		return unix.KexecFileLoad(int(kernel.Fd()), -1, commandLine, unix.KEXEC_FILE_NO_INITRAMFS)
	}
	return unix.KexecFileLoad(int(kernel.Fd()), int(initrd.Fd()), commandLine, 0)
}

// Kexec implements agent.Kexecer.
func (realHost) Kexec() error { return leave(unix.LINUX_REBOOT_CMD_KEXEC) }

func leave(how int) error {
	fmt.Printf("ingot: up=%s memory %s\n", uptime(), memory())
	// A disk that hangs also blocks sync. After syncLimit, continue without sync.
	within(syncLimit, "a disk", unix.Sync)
	if how != unix.LINUX_REBOOT_CMD_POWER_OFF { // do not unplug before a power off: a card that is down may not receive Wake-on-LAN packets
		within(unplugLimit, "a network card", unplug)
	}
	return unix.Reboot(how)
}

// unplugLimit is how long the agent waits until all network cards are down.
const unplugLimit = 5 * time.Second

// syncLimit is how long the agent waits for the final sync. If the sync takes longer, no data is lost, because each
// action syncs its disk before it reports success.
const syncLimit = 30 * time.Second

// within calls f and returns when f has returned. If f still runs after limit, within prints a message that names what,
// and returns.
func within(limit time.Duration, what string, f func()) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(limit):
		fmt.Printf("ingot: %s hangs: not waiting for it\n", what)
	}
}

// watchdog resets the timer of the hardware watchdog every 10 s, if there is a watchdog. If the agent or the kernel
// hangs, the timer expires and the watchdog resets the machine.
func watchdog(log *slog.Logger) {
	names, err := filepath.Glob("/dev/watchdog[0-9]*")
	if err != nil || len(names) == 0 {
		return
	}

	f, err := os.OpenFile(names[0], os.O_WRONLY, 0)
	if err != nil {
		log.Warn("opening the watchdog", "error", err)
		return
	}

	// Ignore the error: not every watchdog supports this time-out, and the default is good enough.
	_ = unix.IoctlSetPointerInt(int(f.Fd()), unix.WDIOC_SETTIMEOUT, 120)
	log.Info("watchdog", "device", names[0])
	for {
		if _, err := f.Write([]byte{0}); err != nil {
			log.Warn("resetting the watchdog timer", "error", err)
		}
		time.Sleep(10 * time.Second)
	}
}
