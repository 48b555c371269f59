package main

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
)

// talos is a Talos node.
type talos struct {
	h      *host
	disk   *disk
	config *talosConfig
	store  *store

	mu    sync.Mutex
	state talosState
}

// talosState is the state that a node keeps next to its configuration.
type talosState struct {
	Boots        int               `json:"boots"`
	Bootstrapped bool              `json:"bootstrapped"`
	Bootstraps   int               `json:"bootstraps"` // how often it was asked
	Objects      map[string]object `json:"objects"`
	Applied      []string          `json:"applied"` // paths, in the order in which they came first
	ReadyAll     bool              `json:"ready"`   // see POST /ready
	Failures     []string          `json:"failures"`
}

// talosMain follows Talos: an installation on the disk is started; otherwise the platform's configuration is fetched and installed.
func talosMain(ctx context.Context, h *host) error {
	h.stage("booting", "platform "+first(h.parameter("talos.platform")))
	d, state := h.installed("STATE")
	if d != nil {
		if v, _ := h.parameter("talos.experimental.wipe"); v == "system" {
			for _, label := range []string{"META", "STATE", "EPHEMERAL"} {
				if p := d.find(label); p.size > 0 {
					if err := d.clear(p); err != nil {
						return err
					}
				}
			}
			h.say("wiped the system partitions of %s", d.name)
			h.parameters = slices.DeleteFunc(h.parameters, func(w string) bool { return strings.HasPrefix(w, "talos.experimental.wipe=") })
		}
		if b, err := d.getFile(state, "config.yaml"); err == nil && len(b) > 0 {
			if v, _ := h.parameter("talos.halt_if_installed"); v == "1" {
				h.stage("halted", "Talos is installed")
				<-ctx.Done()
				return ctx.Err()
			}
			c, err := parseTalos(b)
			if err != nil {
				return err
			}
			h.say("configuration from STATE of %s", d.name)
			return (&talos{h: h, disk: d, config: c, store: &store{d: d, p: d.find("META")}}).run(ctx)
		}
	}
	doc, err := h.talosDocument(ctx)
	if err != nil {
		return err
	}
	c, err := parseTalos(doc)
	if err == nil && h.fails("config") {
		err = errors.New("reading the machine configuration: told to fail")
	}
	if err != nil {
		return err
	}
	h.detail("config", len(doc))
	if boot, _ := h.installed("EFI"); boot != nil && boot.find("BIOS").size > 0 && first(h.parameter("talos.config")) == "" {
		// An image that was written whole (path B): the configuration goes to its disk, machine.install is ignored.
		if err := h.talosGrow(boot, doc); err != nil {
			return err
		}
		h.say("configuration written to STATE of %s", boot.name)
		return (&talos{h: h, disk: boot, config: c, store: &store{d: boot, p: boot.find("META")}}).run(ctx)
	}
	if err := h.talosInstall(ctx, c, doc); err != nil {
		return err
	}
	h.reboot()
	return nil
}

func first(v string, _ bool) string { return v }

// The partitions of Talos. The real ones are larger (EFI 100 MiB, BOOT 1000 MiB, STATE 100 MiB).
const (
	talosEFI       = 64 * mib
	talosBoot      = 4 * mib
	talosMeta      = 2 * slotSize
	talosStateSize = 16 * mib
)

// run runs the installed node.
func (t *talos) run(ctx context.Context) error {
	h := t.h
	if t.store.p.size < 2*slotSize {
		return errors.New("reading META: it is too small")
	}
	t.store.load(&t.state)
	t.state.Boots++
	if err := h.keepFailures(t.state.Failures, func(words []string) error {
		return t.update(func(s *talosState) error { s.Failures = words; return nil })
	}); err != nil {
		return err
	}
	h.detail("boots", t.state.Boots)
	h.detail("machineType", t.config.Machine.Type)
	h.setHostname(t.config.hostname)
	h.stage("network", t.config.hostname)
	if err := t.network(ctx); err != nil {
		return err
	}
	if h.fails("api") {
		h.stage("running", "told to have no API")
		<-ctx.Done()
		return ctx.Err()
	}
	if t.config.Machine.Type == "worker" {
		h.stage("running", "a worker")
		<-ctx.Done()
		return ctx.Err()
	}
	t.serveHealth()
	stopped := make(chan error, 1)
	if err := t.serveAPI(ctx, stopped); err != nil {
		return err
	}
	t.mu.Lock()
	bootstrapped := t.state.Bootstrapped
	t.mu.Unlock()
	if bootstrapped {
		go t.runKubernetes(ctx)
	} else {
		h.stage("running", "waiting for Bootstrap")
	}
	return <-stopped
}

// update changes the state and stores it.
func (t *talos) update(f func(s *talosState) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := f(&t.state); err != nil {
		return err
	}
	return t.store.save(&t.state)
}

// network configures the cards that the configuration names; if it names none, all cards by DHCP.
func (t *talos) network(ctx context.Context) error {
	all, err := cards()
	if err != nil {
		return err
	}
	named := false
	for _, n := range t.config.Machine.Network.Interfaces {
		name := ""
		for _, c := range all {
			if c.Name == n.Interface ||
				n.DeviceSelector.HardwareAddr != "" && strings.EqualFold(c.HardwareAddr.String(), n.DeviceSelector.HardwareAddr) {
				name = c.Name
			}
		}
		if name == "" {
			t.h.say("there is no card %q %q", n.Interface, n.DeviceSelector.HardwareAddr)
			continue
		}
		if err := linkUp(name); err != nil {
			return err
		}
		for _, a := range n.Addresses {
			if !strings.Contains(a, "/") {
				a += "/32"
			}
			if err := addAddress(name, a); err != nil {
				return err
			}
			named = true
		}
		for _, r := range n.Routes {
			if err := addRoute(r.Network, r.Gateway); err != nil {
				return err
			}
		}
		if n.DHCP {
			named = true
			if err := t.h.lease(ctx, name, t.config.hostname); err != nil {
				return err
			}
		}
	}
	if named {
		return nil
	}
	return t.h.leaseAll(ctx, t.config.hostname)
}

// takeVIP adds the shared address of the configuration. A node does so once etcd runs.
func (t *talos) takeVIP() {
	all, err := cards()
	if err != nil {
		return
	}
	for _, n := range t.config.Machine.Network.Interfaces {
		if net.ParseIP(n.VIP.IP) == nil {
			continue
		}
		for _, c := range all {
			if c.Name == n.Interface || strings.EqualFold(c.HardwareAddr.String(), n.DeviceSelector.HardwareAddr) {
				if err := addAddress(c.Name, n.VIP.IP+"/32"); err != nil {
					t.h.say("taking the shared address: %v", err)
				}
			}
		}
	}
}
