package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

// harvesterRelease is a file of the live system only: where it exists, the guest runs from the squashfs.
const harvesterRelease = "/etc/harvester-release.yaml"

// harvesterMain runs the initrd, the live system's installer or the installed system, as the kernel command line requests.
func harvesterMain(ctx context.Context, h *host) error {
	root := first(h.parameter("root"))
	if root == "LABEL=COS_STATE" {
		return h.harvesterRun(ctx)
	}
	url, live := strings.CutPrefix(root, "live:")
	if !live {
		return fmt.Errorf("booting: root=%q is neither live:URL nor the installed system", root)
	}
	if _, err := os.Stat(harvesterRelease); err != nil || !h.real {
		if first(h.parameter("ip")) != "dhcp" {
			return errors.New("booting: a root on the network needs ip=dhcp")
		}
		h.stage("initrd", "asking for an address")
		if err := h.leaseAll(ctx, ""); err != nil {
			return err
		}
		if err := h.liveRoot(ctx, url); err != nil {
			return err
		}
	}
	return h.harvesterInstall(ctx)
}

// harvesterState is the state that an installed node keeps across boots.
type harvesterState struct {
	Boots    int                      `json:"boots"`
	Images   bool                     `json:"images"`
	Nodes    map[string]harvesterNode `json:"nodes"`    // of the cluster, on the node that created it
	Password [32]byte                 `json:"password"` // digest of the administrator's, zero before the first log-in
	// Certificate is the certificate of port 443 with its key, as PEM.
	Certificate []byte   `json:"certificate"`
	Failures    []string `json:"failures"`
}

type harvesterNode struct {
	Name    string    `json:"name"`
	Address string    `json:"address"`
	Role    string    `json:"role"`
	Created bool      `json:"created"`
	Down    bool      `json:"down"` // reported by the node
	Seen    time.Time `json:"-"`
}

// harvester is an installed node.
type harvester struct {
	h      *host
	config *harvesterConfig
	store  *store

	mu     sync.Mutex
	state  harvesterState
	seen   map[string]time.Time // when a node last called
	up     bool                 // the cluster answers
	joined bool
	tokens map[string]bool // of sessions
}

// harvesterRun runs the installed system.
func (h *host) harvesterRun(ctx context.Context) error {
	h.stage("booting", "the installed system")
	d, oem := h.installed("oem")
	if d == nil {
		return errors.New("booting: there is no partition oem")
	}
	b, err := d.getFile(oem, "harvester.config")
	if err != nil {
		return fmt.Errorf("reading harvester.config: %w", err)
	}
	c, err := parseHarvester(b)
	if err != nil {
		return err
	}
	n := &harvester{h: h, config: c, store: &store{d: d, p: d.find("persistent")}, seen: map[string]time.Time{}, tokens: map[string]bool{}}
	n.store.load(&n.state)
	if n.state.Nodes == nil {
		n.state.Nodes = map[string]harvesterNode{}
	}
	n.state.Boots++
	if err := h.keepFailures(n.state.Failures, func(words []string) error {
		return n.update(func(s *harvesterState) { s.Failures = words })
	}); err != nil {
		return err
	}
	h.detail("boots", n.state.Boots)
	h.detail("mode", c.Install.Mode)
	h.setHostname(c.OS.Hostname)
	card, err := n.network(ctx)
	if err != nil {
		return err
	}
	if h.fails("boot") || !n.state.Images {
		h.stage("running", "without the images of the ISO it never comes up")
		<-ctx.Done()
		return ctx.Err()
	}
	stopped := make(chan error, 1)
	if err := n.serve(ctx, stopped); err != nil {
		return err
	}
	if c.Install.Mode == "create" {
		go n.create(ctx, card)
	} else {
		go n.join(ctx)
	}
	return <-stopped
}

func (n *harvester) update(f func(s *harvesterState)) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(&n.state)
	return n.store.save(&n.state)
}

// network configures the management interface and returns its name.
func (n *harvester) network(ctx context.Context) (string, error) {
	m := n.config.Install.Management
	all, err := cards()
	if err != nil {
		return "", err
	}
	name := ""
	for _, want := range m.Interfaces {
		for _, c := range all {
			if name == "" &&
				(want.HwAddr != "" && strings.EqualFold(c.HardwareAddr.String(), want.HwAddr) || want.HwAddr == "" && c.Name == want.Name) {
				name = c.Name
			}
		}
	}
	if name == "" {
		return "", fmt.Errorf("finding the management interface: there is none of %+v", m.Interfaces)
	}
	if m.VLAN > 1 {
		return "", fmt.Errorf("configuring %q: tagged VLAN %d on a port that is untagged", name, m.VLAN)
	}
	n.h.stage("network", name)
	if m.Method == "dhcp" {
		return name, n.h.lease(ctx, name, n.config.OS.Hostname)
	}
	mask := net.ParseIP(m.SubnetMask).To4()
	ip := net.ParseIP(m.IP).To4()
	if ip == nil || mask == nil {
		return "", fmt.Errorf("configuring %q: ip %q, subnet_mask %q", name, m.IP, m.SubnetMask)
	}
	if err := linkUp(name); err != nil {
		return "", err
	}
	if err := addAddress(name, (&net.IPNet{IP: ip, Mask: net.IPMask(mask)}).String()); err != nil {
		return "", err
	}
	if m.Gateway != "" {
		return name, addRoute("", m.Gateway)
	}
	return name, nil
}

// address returns the node's first address that is not the VIP.
func (n *harvester) address() string {
	for _, a := range addresses() {
		if ip, _, _ := strings.Cut(a, "/"); ip != n.config.Install.VIP {
			return ip
		}
	}
	return ""
}
