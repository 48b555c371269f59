package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// healthPort is where every guest says what it does.
const healthPort = "8099"

// host is the machine that the guest runs on: real (PID 1) or simulated (a process in a namespace).
type host struct {
	product string
	words   []string // of the kernel command line
	disks   []*disk
	real    bool
	out     io.Writer // the console
	serial  string
	uuid    string
	root    string // of a simulated router's files; "" = /
	relay   string // dhcrelay of a simulated router

	mu       sync.Mutex
	health   health
	failures []string      // words of ingotlab.fail=, of the disk and of POST /fail
	keep     func() error  // called after failures changed
	mux      http.ServeMux // of the health port; see serveHealth
}

// health is what the health port tells.
type health struct {
	Product   string         `json:"product"`
	Serial    string         `json:"serial,omitempty"`
	Hostname  string         `json:"hostname,omitempty"`
	Stage     string         `json:"stage"`
	Message   string         `json:"message,omitempty"`
	Addresses []string       `json:"addresses,omitempty"`
	Failures  []string       `json:"failures,omitempty"`
	Details   map[string]any `json:"details,omitempty"`
}

// say writes a line on the console.
func (h *host) say(format string, args ...any) {
	line := "LAB-" + strings.ToUpper(h.product) + " " + fmt.Sprintf(format, args...) + "\n"
	_, _ = io.WriteString(h.out, line) // nobody could be told
}

// stage says what the guest is doing now.
func (h *host) stage(stage, message string) {
	h.mu.Lock()
	h.health.Stage, h.health.Message = stage, message
	h.mu.Unlock()
	h.say("stage %s %s", stage, message)
}

// detail sets a value of the health port's answer; it must be fit for JSON.
func (h *host) detail(name string, value any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.health.Details == nil {
		h.health.Details = map[string]any{}
	}
	h.health.Details[name] = value
}

// word returns the value of the last NAME=VALUE on the kernel command line.
func (h *host) word(name string) (value string, ok bool) {
	for _, w := range h.words {
		if v, found := strings.CutPrefix(w, name+"="); found {
			value, ok = v, true
		}
	}
	return value, ok
}

// fails tells whether the guest is to fail at what.
func (h *host) fails(what string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Contains(h.failures, what)
}

// setFailures replaces what the guest is to fail at.
func (h *host) setFailures(words []string) error {
	h.mu.Lock()
	h.failures, h.health.Failures = words, words
	keep := h.keep
	h.mu.Unlock()
	if keep == nil {
		return nil
	}
	return keep()
}

// keepFailures gives what is to be failed at a place that outlives a boot: kept are the words that were found there.
func (h *host) keepFailures(kept []string, save func(words []string) error) error {
	words := kept
	if v, ok := h.word("ingotlab.fail"); ok {
		words = split(v)
	}
	h.mu.Lock()
	h.keep = func() error {
		h.mu.Lock()
		words := slices.Clone(h.failures)
		h.mu.Unlock()
		return save(words)
	}
	h.mu.Unlock()
	return h.setFailures(words)
}

func split(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

// serveHealth answers on the health port, from before there is an address.
func (h *host) serveHealth(ctx context.Context) {
	if v, ok := h.word("ingotlab.fail"); ok {
		h.failures = split(v)
		h.health.Failures = h.failures
	}
	h.mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		h.mu.Lock()
		h.health.Addresses = addresses()
		b, err := json.Marshal(&h.health)
		h.mu.Unlock()
		answer(w, b, err)
	})
	h.mux.HandleFunc("POST /fail", func(w http.ResponseWriter, r *http.Request) {
		words := split(r.FormValue("what"))
		err := h.setFailures(words)
		h.say("to fail at %q", words)
		answer(w, []byte("{}"), err)
	})
	h.mux.HandleFunc("POST /reboot", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, []byte("{}"), nil)
		go h.reboot()
	})
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp4", ":"+healthPort)
	if err != nil {
		h.say("no health port: %v", err)
		return
	}
	go func() {
		s := &http.Server{Handler: &h.mux, ReadHeaderTimeout: 10 * time.Second}
		h.say("health port ended: %v", s.Serve(l))
	}()
}

func answer(w http.ResponseWriter, body []byte, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n')) // the client has gone away otherwise
}

// addresses are all IPv4 addresses with their prefix, the loopback's aside.
func addresses() (all []string) {
	have, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range have {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			all = append(all, n.String())
		}
	}
	return all
}

// setHostname gives the machine a name; a simulated one has only the word for it.
func (h *host) setHostname(name string) {
	if name == "" {
		return
	}
	h.mu.Lock()
	h.health.Hostname = name
	h.mu.Unlock()
	if h.real {
		if err := unix.Sethostname([]byte(name)); err != nil {
			h.say("hostname: %v", err)
		}
	}
}

// reboot writes everything out and boots again. It does not return.
func (h *host) reboot() { h.leave("reboot", unix.LINUX_REBOOT_CMD_RESTART) }

// powerOff writes everything out and cuts the power. It does not return.
func (h *host) powerOff() { h.leave("poweroff", unix.LINUX_REBOOT_CMD_POWER_OFF) }

func (h *host) leave(how string, command int) {
	h.say("msg=leaving action=%s", how) // as the agent says it: simulated machines hear it
	unix.Sync()
	if !h.real {
		os.Exit(0)
	}
	unplug()
	err := unix.Reboot(command)
	h.say("leaving: %v", err)
	select {}
}

// bringUp makes a Linux machine out of a kernel and an initramfs: file systems, modules, console, disks.
func (h *host) bringUp() error {
	_, mounted := os.Stat("/proc/cmdline")
	if mounted != nil {
		for _, m := range [][3]string{
			{"proc", "/proc", "proc"},
			{"sys", "/sys", "sysfs"},
			{"dev", "/dev", "devtmpfs"},
			{"run", "/run", "tmpfs"},
			{"tmp", "/tmp", "tmpfs"},
		} {
			if err := os.MkdirAll(m[1], 0o755); err != nil {
				return err
			}
			if err := unix.Mount(m[0], m[1], m[2], 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
				return fmt.Errorf("mounting %q: %w", m[1], err)
			}
		}
	}
	// Not every command line names the serial port as the console; the lab reads nothing else.
	if tty, err := os.OpenFile("/dev/ttyS0", os.O_WRONLY|unix.O_NOCTTY, 0); err == nil {
		h.out = tty
	}
	b, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	h.words = strings.Fields(string(b))
	if b, err = os.ReadFile("/product"); err != nil {
		return err
	}
	h.product = strings.TrimSpace(string(b))
	if mounted != nil {
		if err := loadModules("/lib/modules.order", "/lib/mods"); err != nil {
			return err
		}
	}
	h.serial, h.uuid = dmi("product_serial"), strings.ToLower(dmi("product_uuid"))
	if err := linkUp("lo"); err != nil {
		return err
	}
	h.disks, err = findDisks()
	return err
}

// loadModules loads the files of a list in its order. A module whose hardware is missing is no error.
func loadModules(list, dir string) error {
	b, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(b)) {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		_ = unix.FinitModule(int(f.Fd()), "", 0)
		_ = f.Close() // only read from
	}
	return nil
}

// dmi reads a value of the machine's firmware, "" when there is none.
func dmi(name string) string {
	b, err := os.ReadFile("/sys/class/dmi/id/" + name)
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// pause waits; false: ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
