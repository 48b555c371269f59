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

// healthPort is the TCP port of every guest's health page.
const healthPort = "8099"

// host is the machine that runs the guest: real (PID 1) or simulated (a process in a namespace).
type host struct {
	product    string
	parameters []string // of the kernel command line
	disks      []*disk
	real       bool
	out        io.Writer // the console
	serial     string
	uuid       string
	root       string // of a simulated router's files; "" = /
	relay      string // dhcrelay of a simulated router

	mu       sync.Mutex
	health   health
	failures []string      // words of ingotlab.fail=, of the disk and of POST /fail
	keep     func() error  // called after failures changed
	mux      http.ServeMux // of the health port; see serveHealth
}

// health is the answer of the health port.
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
	_, _ = io.WriteString(h.out, line) // there is no other place to report it
}

// stage sets what the guest is doing, for the console and the health port.
func (h *host) stage(stage, message string) {
	h.mu.Lock()
	h.health.Stage, h.health.Message = stage, message
	h.mu.Unlock()
	h.say("stage %s %s", stage, message)
}

// detail sets a value of the health port's answer; value must encode to JSON.
func (h *host) detail(name string, value any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.health.Details == nil {
		h.health.Details = map[string]any{}
	}
	h.health.Details[name] = value
}

// parameter returns the value of the last NAME=VALUE on the kernel command line.
func (h *host) parameter(name string) (value string, ok bool) {
	for _, w := range h.parameters {
		if v, found := strings.CutPrefix(w, name+"="); found {
			value, ok = v, true
		}
	}
	return value, ok
}

// fails reports whether the lab requested a failure at what.
func (h *host) fails(what string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Contains(h.failures, what)
}

// setFailures replaces the requested failures.
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

// keepFailures makes requested failures survive a reboot: save stores them, kept are those that were stored.
func (h *host) keepFailures(kept []string, save func(words []string) error) error {
	words := kept
	if v, ok := h.parameter("ingotlab.fail"); ok {
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

// serveHealth answers on the health port; it starts before the guest has an address.
func (h *host) serveHealth(ctx context.Context) {
	if v, ok := h.parameter("ingotlab.fail"); ok {
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
	_, _ = w.Write(append(body, '\n')) // an error means that the client has gone
}

// addresses returns all IPv4 addresses with their prefix lengths, without loopback.
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

// setHostname sets the host name; a simulated machine only reports it.
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

// reboot syncs the disks and reboots. It does not return.
func (h *host) reboot() { h.leave("reboot", unix.LINUX_REBOOT_CMD_RESTART) }

// powerOff syncs the disks and powers off. It does not return.
func (h *host) powerOff() { h.leave("poweroff", unix.LINUX_REBOOT_CMD_POWER_OFF) }

func (h *host) leave(how string, command int) {
	h.say("msg=leaving action=%s", how) // the agent's own line, which simulated machines wait for
	unix.Sync()
	if !h.real {
		os.Exit(0)
	}
	unplug()
	err := unix.Reboot(command)
	h.say("leaving: %v", err)
	select {}
}

// bringUp does what an init must do first: mounts, console, modules, disks.
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
	// Not every command line names the serial port as the console, and the lab reads only the serial port.
	if tty, err := os.OpenFile("/dev/ttyS0", os.O_WRONLY|unix.O_NOCTTY, 0); err == nil {
		h.out = tty
	}
	b, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	h.parameters = strings.Fields(string(b))
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

// loadModules loads the modules of a list in order. It ignores those whose hardware is missing.
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

// dmi reads a DMI value of the firmware, "" if there is none.
func dmi(name string) string {
	b, err := os.ReadFile("/sys/class/dmi/id/" + name)
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(b))
}

// pause waits for d; it returns false if ctx ends first.
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
