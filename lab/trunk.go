package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Trunk is how a machine's cards are connected to a switch with VLAN tags (IEEE 802.1Q): its VLAN is
// untagged on each port, TaggedVLAN is tagged.
type Trunk string

// The kinds of trunk. The switch is Open vSwitch in user space, because not every kernel has the modules.
const (
	TrunkPorts Trunk = "ports" // each card at a port of its own
	// TrunkLACP joins the ports to one aggregated link (IEEE 802.1AX) with active LACP. Until the machine
	// speaks LACP, the first card works alone, so that firmware can boot (LACP fallback).
	TrunkLACP Trunk = "lacp"
)

// TaggedVLAN is the VLAN that only trunks have. Router routes to it from TaggedGateway.
const (
	TaggedVLAN    = 40
	TaggedGateway = "10.10.40.1"
)

// ovs prepares a program of Open vSwitch in the Switch namespace.
func (l *Lab) ovs(ctx context.Context, path string, args ...string) *Cmd {
	root, run := PackageDir("ovs"), l.ovsDir()
	c := l.Command(ctx, Switch, filepath.Join(root, path), args...)
	c.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(root, "usr/lib/x86_64-linux-gnu"),
		"OVS_RUNDIR="+run, "OVS_LOGDIR="+run, "OVS_DBDIR="+run, "OVS_SYSCONFDIR="+run)
	return c
}

func (l *Lab) ovsDir() string { return filepath.Join(l.run, "ovs") }

// startTrunks starts Open vSwitch, and connects TaggedVLAN to Router, if that was not done yet. The caller
// holds l.trunks.
func (l *Lab) startTrunks(ctx context.Context) error {
	run := l.ovsDir()
	db := filepath.Join(run, "db.sock")
	if _, err := os.Stat(db); err == nil {
		return nil
	}
	if _, err := os.Stat(filepath.Join(PackageDir("ovs"), ".stamp")); err != nil {
		return fmt.Errorf("finding Open vSwitch: %w; %s", err, remedy)
	}
	sw := append(bridge(TaggedVLAN), l.plug(port{Router, "eth40", TaggedVLAN})...)
	if err := l.ipBatch(ctx, Switch, sw...); err != nil {
		return err
	}
	if err := l.ipBatch(ctx, Router, "link set eth40 up", "addr add "+TaggedGateway+"/24 dev eth40"); err != nil {
		return err
	}
	if err := os.MkdirAll(run, 0o700); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(l.dir, "ovs.log"))
	if err != nil {
		return err
	}
	defer log.Close() // the processes have their own descriptors

	schema := filepath.Join(PackageDir("ovs"), "usr/share/openvswitch/vswitch.ovsschema")
	if _, err := l.ovs(ctx, "usr/bin/ovsdb-tool", "create", filepath.Join(run, "conf.db"), schema).Output(); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"usr/sbin/ovsdb-server", filepath.Join(run, "conf.db"), "--remote=punix:" + db},
		{"usr/lib/openvswitch-switch/ovs-vswitchd", "--pidfile", "unix:" + db},
	} {
		c := l.ovs(l.ctx, args[0], args[1:]...)
		c.Stdout, c.Stderr = log, log
		if err := c.Start(); err != nil {
			return err
		}
		err := poll(ctx, func() (bool, error) {
			select {
			case <-c.Done():
				return false, fmt.Errorf("%s ended; see %s", args[0], log.Name())
			default:
			}
			_, err := os.Stat(db)
			return err == nil, ignoreMissing(err)
		})
		if err != nil {
			return err
		}
	}
	_, err = l.ovs(ctx, "usr/bin/ovs-vsctl", "--db=unix:"+db, "--no-wait", "init").Output()
	return err
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// connectTrunk connects the taps of m's cards to a switch of their own. Its uplinks are taps of the switch:
// unlike those of a veth, frames that the kernel sends through them have complete checksums.
func (m *Machine) connectTrunk(ctx context.Context) error {
	l := m.lab
	l.trunks.Lock()
	defer l.trunks.Unlock()
	if err := l.startTrunks(ctx); err != nil {
		return fmt.Errorf("starting Open vSwitch: %w", err)
	}

	sw, tagged := fmt.Sprintf("trunk%d", m.num), fmt.Sprintf("trunk%d-%d", m.num, TaggedVLAN)
	vlans := fmt.Sprintf("vlan_mode=native-untagged tag=%d trunks=%d", m.spec.VLAN, TaggedVLAN)
	taps := []string{m.tap()}
	for i := range m.spec.Cards {
		taps = append(taps, m.cardTap(i))
	}
	args := []string{
		fmt.Sprintf("add-br %s -- set bridge %s datapath_type=netdev -- set port %s tag=%d", sw, sw, sw, m.spec.VLAN),
		fmt.Sprintf("add-port %s %s tag=%d -- set interface %s type=internal", sw, tagged, TaggedVLAN, tagged),
	}
	if m.spec.Trunk == TrunkLACP {
		args = append(args, fmt.Sprintf("add-bond %s %s %s %s lacp=active bond_mode=balance-tcp other_config:lacp-time=fast "+
			"other_config:lacp-fallback-ab=true other_config:bond-primary=%s", sw, m.lacpPort(), strings.Join(taps, " "), vlans, taps[0]))
	} else {
		for _, tap := range taps {
			args = append(args, fmt.Sprintf("add-port %s %s %s", sw, tap, vlans))
		}
	}
	vsctl := []string{"--db=unix:" + filepath.Join(l.ovsDir(), "db.sock"), "--timeout=60"}
	for _, a := range args {
		vsctl = append(append(vsctl, "--"), strings.Fields(a)...)
	}
	if _, err := l.ovs(ctx, "usr/bin/ovs-vsctl", vsctl...).Output(); err != nil {
		return err
	}
	lines := []string{
		fmt.Sprintf("link set %s master br%d up", sw, m.spec.VLAN), fmt.Sprintf("link set %s master br%d up", tagged, TaggedVLAN),
	}
	for _, tap := range taps {
		lines = append(lines, fmt.Sprintf("link set %s up", tap))
	}
	return l.ipBatch(ctx, Switch, lines...)
}

// netdev returns QEMU's end of the tap of a card. Open vSwitch in user space passes frames on as they are, so on a trunk the
// guest has to complete their checksums itself.
func (m *Machine) netdev(card int, tap string) string {
	out := fmt.Sprintf("tap,id=n%d,ifname=%s,script=no,downscript=no", card, tap)
	if m.spec.Trunk != "" {
		out += ",vnet_hdr=off"
	}
	return out
}

func (m *Machine) lacpPort() string { return fmt.Sprintf("lacp%d", m.num) }

// LACP returns what the switch reports about the machine's aggregated link, in the form of "ovs-appctl
// lacp/show". The machine has Trunk LACP.
func (m *Machine) LACP(ctx context.Context) (string, error) {
	out, err := m.lab.ovs(ctx, "usr/bin/ovs-appctl", "-t", "ovs-vswitchd", "lacp/show", m.lacpPort()).Output()
	return string(out), err
}

// PlugCard plugs the cable of a card in or out while the machine is on: its system sees the carrier. 0 is the
// first card, 1 the first of Spec.Cards.
func (m *Machine) PlugCard(ctx context.Context, card int, in bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running() == nil {
		return fmt.Errorf("plugging a card of %q: the machine is off", m.spec.Name)
	}
	_, err := m.qmp.call(ctx, "set_link", map[string]any{"name": fmt.Sprintf("n%d", card), "up": in})
	return err
}
