package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/hostnet"
	"github.com/ingotmetal/ingot/internal/keyring"
	"github.com/ingotmetal/ingot/internal/notify"
	"github.com/ingotmetal/ingot/internal/reserve"
	"github.com/ingotmetal/ingot/internal/server"
	"github.com/ingotmetal/ingot/internal/site"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// A finding is what doctor says about one thing.
type finding struct {
	State  string `json:"state"` // ok | warn | fail
	What   string `json:"what"`
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"`
}

const (
	isOK   = "ok"
	isWarn = "warn"
	isFail = "fail"
)

// doctor collects findings.
type doctor struct {
	cfg      config.Config
	findings []finding
}

func (d *doctor) ok(what, format string, args ...any) {
	d.findings = append(d.findings, finding{State: isOK, What: what, Text: fmt.Sprintf(format, args...)})
}

func (d *doctor) warn(what, remedy, format string, args ...any) {
	d.findings = append(d.findings, finding{isWarn, what, fmt.Sprintf(format, args...), remedy})
}

func (d *doctor) fail(what, remedy, format string, args ...any) {
	d.findings = append(d.findings, finding{isFail, what, fmt.Sprintf(format, args...), remedy})
}

func doctorCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Look for whatever stands in the way", Args: cobra.NoArgs,
		Long: `Look for whatever stands in the way of this host's server: configuration, keys,
the inventory's file, space, clock, capabilities, ports, interfaces, other DHCP
servers, boot files, who is told when a person is needed; and, through the
server when it runs, Temporal, notices, secrets, images, their URLs and the
log-in of every BMC.
One line each, with a remedy. Exits 1 if anything fails.`,
		Example: "  ingot doctor\n  ingot doctor --output json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := &doctor{}
			ctx := cmd.Context()
			cfg, err := config.Load(o.config, cmd.Flags().Changed("config"))
			if err != nil {
				d.fail("configuration", "ingot config check "+o.config, "%v", err)
			} else {
				d.cfg = cfg
				d.here(ctx, o.config)
				d.server(ctx, o)
			}
			if err := showValue(cmd, o, list[finding]{d.findings}, func(w io.Writer) error {
				t := newTable(w)
				for _, f := range d.findings {
					text := f.Text
					if f.Remedy != "" {
						text += "  → " + f.Remedy
					}
					t.row(f.State, f.What, text)
				}
				return t.flush()
			}); err != nil {
				return err
			}
			bad := 0
			for _, f := range d.findings {
				if f.State == isFail {
					bad++
				}
			}
			if bad > 0 {
				return fmt.Errorf("%s of %d failed", count(bad, "check"), len(d.findings))
			}
			return nil
		},
	}
}

// here looks at this host.
func (d *doctor) here(ctx context.Context, file string) {
	if _, err := os.Stat(file); err != nil {
		d.warn("configuration", "ingot init", "%s is not there: the defaults hold, DHCP is off", file)
	} else {
		d.ok("configuration", "%s is right", file)
	}
	if !d.site() {
		return
	}
	d.keys()
	d.inventory(ctx)
	d.space(d.cfg.DataDir, "data")
	d.reserve()
	d.powerCommands()
	d.loopback()
	d.notify()
	if dir := d.cfg.ImageDir(); !strings.HasPrefix(dir, d.cfg.DataDir+"/") {
		d.space(dir, "images")
	}
	d.clock()
	running := hostnet.ServerAnswers(ctx, d.cfg)
	if running {
		d.ok("ports", "a server answers at %s", d.cfg.Listen)
	} else {
		d.ports()
	}
	if !d.cfg.Netboot.On() {
		d.warn("netboot", "ingot init, or netboot.interfaces in "+file, "no interface is configured: DHCP is off")
		return
	}
	n, err := d.cfg.Netboot.Resolve()
	if err != nil {
		d.fail("interface", "ip address shows those that exist; correct netboot.address", "%v", err)
	}
	d.cfg.Netboot = n
	d.capabilities()
	d.interfaces(ctx)
	d.ownAddress()
	d.relays(ctx, hostnet.Routes())
	d.bootFiles()
	if running {
		d.reachable(ctx)
	}
}

// site tells what this server is among its peers; false when it is not the
// site, so that nothing else is asked of it.
func (d *doctor) site() bool {
	f, err := site.Open(d.cfg.DataDir)
	if err != nil {
		d.fail("site", "put the file back, or move it away if you are sure that no other server is this site", "%v", err)
		return false
	}
	_, marked, err := site.ReadMark(d.cfg.KeyFile)
	switch s := f.Site(); {
	case err != nil:
		d.fail("site", "run this as the user of ingot serve", "%v", err)
		return false
	case marked || s.Role != site.Active:
		role := s.Role
		if marked {
			role = site.Retired
		}
		d.warn("site", "ingot handover status", "this server is %s: it answers no machine", role)
		return false
	}
	return true
}

func (d *doctor) keys() {
	_, err := keyring.Load(d.cfg.KeyFile)
	_, noData := os.Stat(filepath.Join(d.cfg.DataDir, "ingot.db"))
	switch {
	case err == nil:
		d.ok("key", "%s is readable by its owner alone", d.cfg.KeyFile)
	case errors.Is(err, fs.ErrNotExist) && noData != nil:
		d.warn("key", "ingot init", "%s is not there yet", d.cfg.KeyFile)
	case errors.Is(err, fs.ErrNotExist):
		d.fail("key", "put it back from its copy; if it is lost: ingot secret reset", "%s is missing, and there are secrets that need it", d.cfg.KeyFile)
	default:
		d.fail("key", "give its owner alone access, or put it back from its copy", "%v", err)
	}
	switch b, err := os.ReadFile(d.cfg.TokenFile); {
	case errors.Is(err, fs.ErrNotExist):
		d.warn("token", "ingot init", "%s is not there yet", d.cfg.TokenFile)
	case err != nil:
		d.fail("token", "run this as the user of ingot serve", "%v", err)
	case len(strings.TrimSpace(string(b))) < 32:
		d.fail("token", "remove the file, then: ingot init", "the token in %s is shorter than 32 characters", d.cfg.TokenFile)
	default:
		d.ok("token", "%s is there", d.cfg.TokenFile)
	}
}

// inventory reads the whole database, whether or not a
// server has it open.
func (d *doctor) inventory(ctx context.Context) {
	file := server.InventoryFile(d.cfg)
	switch err := server.CheckInventory(ctx, d.cfg); {
	case err == nil:
		d.ok("inventory", "%s is sound", file)
	case errors.Is(err, fs.ErrNotExist):
		// Before the first ingot serve there is none.
	case errors.Is(err, server.ErrUnchecked):
		d.warn("inventory", "ingot backup", "%v", err)
	case errors.Is(err, sqlite.ErrDamaged):
		d.fail("inventory", "stop ingot serve, move "+d.cfg.DataDir+" away, then: ingot restore FILE", "%v", err)
	default:
		d.warn("inventory", "run this as the user of ingot serve", "%v", err)
	}
}

// existing returns dir or its nearest parent that exists.
func existing(dir string) string {
	for dir != "/" && dir != "." {
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

func (d *doctor) space(dir, what string) {
	at := existing(dir)
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		d.fail("space", "", "asking for the space of %s: %v", at, err)
		return
	}
	free := int64(st.Bavail) * st.Bsize
	least := d.cfg.MinFree << 20
	switch {
	case free < least:
		d.fail("space", "ingot image prune, or a bigger disk", "%s are free for %s in %s, and %s must stay free", size(free), what, dir, size(least))
	case free < 5*least:
		d.warn("space", "ingot image prune, or a bigger disk", "%s are free for %s in %s; below %s new runs are refused", size(free), what, dir, size(least))
	default:
		d.ok("space", "%s are free for %s in %s", size(free), what, dir)
	}
	if st.Type == unix.NFS_SUPER_MAGIC || st.Type == unix.SMB2_SUPER_MAGIC || st.Type == unix.CIFS_SUPER_MAGIC {
		d.fail("space", "put data_dir on a local disk", "%s is a network file system, on which databases break", dir)
	}
	if err := unix.Access(at, unix.W_OK); err != nil {
		d.fail("space", "chown it to the user of ingot serve, or run this as that user", "%s cannot be written: %v", at, err)
	}
}

// reserve looks for the space that is kept for runs that are under way.
func (d *doctor) reserve() {
	if d.cfg.Reserve == 0 {
		d.warn("reserve", "reserve_mib: 64", "no space is kept for runs that are under way when the disk is full")
		return
	}
	switch r := reserve.Look(d.cfg.DataDir, d.cfg.Reserve<<20); {
	case r.Held:
		d.ok("reserve", "%s are kept for runs that are under way", size(r.Size))
	case existing(r.Path) != r.Path:
		d.ok("reserve", "%s are taken by the first ingot serve", size(r.Size))
	default:
		d.fail("reserve", reserve.Remedy, "the reserve of %s is in use: the disk was full, and new runs are refused", size(r.Size))
	}
}

// loopback warns when other programs of this host can use the embedded
// Temporal: on a NAS behind relays, or on a Kubernetes node.
func (d *doctor) loopback() {
	t := d.cfg.Temporal
	shared := d.cfg.Netboot.RelayOnly || os.Getenv("KUBERNETES_SERVICE_HOST") != ""
	switch {
	case t.Address != "":
	case t.MutualTLS:
		d.ok("Temporal", "requires the certificate %s; its UI is off", d.cfg.TemporalIdentity())
	case shared:
		d.warn("Temporal", "temporal.mutual_tls: true", "every program of this host can start and end workflows at %s", config.Join("127.0.0.1", t.Port))
	}
}

// clock asks the kernel whether somebody keeps the time.
func (d *doctor) clock() {
	var tx unix.Timex
	state, err := unix.Adjtimex(&tx)
	switch {
	case err != nil:
		d.warn("clock", "timedatectl status", "asking the kernel: %v", err)
	case state == unix.TIME_ERROR || tx.Status&unix.STA_UNSYNC != 0:
		d.warn("clock", "apt install chrony", "nobody keeps the clock right; it is %s now", time.Now().UTC().Format(time.RFC3339))
	default:
		d.ok("clock", "synchronised, %s", time.Now().UTC().Format(time.RFC3339))
	}
}

// ports tries every socket that ingot serve would bind.
func (d *doctor) ports() {
	// What is wrong with the provisioning network is told with its interfaces.
	sockets, _ := hostnet.Sockets(d.cfg)
	good := 0
	for _, s := range sockets {
		err := s.Try()
		switch {
		case err == nil:
			good++
		case errors.Is(err, syscall.EADDRINUSE):
			d.fail("ports", "ss -l"+s.Network[:1]+"np shows whose it is; stop that program or change "+s.Key, "%s %s (%s) is in use by another program", s.Network, s.Addr, s.Key)
		case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
			d.fail("ports", "setcap "+capabilityNames(d.cfg.Netboot.RelayOnly)+"+ep "+program(), "%s %s (%s) needs a capability", s.Network, s.Addr, s.Key)
		default:
			d.fail("ports", "correct "+s.Key+" in the configuration", "%s %s (%s): %v", s.Network, s.Addr, s.Key, err)
		}
	}
	if good == len(sockets) {
		d.ok("ports", "all %d are free", good)
	}
}

func program() string {
	if p, err := os.Executable(); err == nil {
		return p
	}
	return "ingot"
}

// capabilities that DHCP needs.
func (d *doctor) capabilities() {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		d.warn("capabilities", "", "reading /proc/self/status: %v", err)
		return
	}
	_, rest, _ := strings.Cut(string(b), "CapEff:")
	line, _, _ := strings.Cut(rest, "\n")
	have, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil {
		d.warn("capabilities", "", "reading /proc/self/status: %v", err)
		return
	}
	want := map[string]int{"cap_net_bind_service": unix.CAP_NET_BIND_SERVICE, "cap_net_raw": unix.CAP_NET_RAW}
	text := "raw sockets and low ports may be opened"
	if d.cfg.Netboot.RelayOnly {
		delete(want, "cap_net_raw")
		text = "low ports may be opened, and relays need no more"
	}
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if have&(1<<want[name]) == 0 {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		d.fail("capabilities", fmt.Sprintf("setcap %s+ep %s, or run as root", capabilityNames(d.cfg.Netboot.RelayOnly), program()), "missing: %s", strings.Join(missing, ", "))
		return
	}
	d.ok("capabilities", "%s", text)
}

// capabilityNames are those that a server without root needs.
func capabilityNames(relayOnly bool) string {
	if relayOnly {
		return "cap_net_bind_service"
	}
	return "cap_net_bind_service,cap_net_raw"
}

// ownAddress looks at the address of a server that answers relays alone.
func (d *doctor) ownAddress() {
	n := d.cfg.Netboot
	if !n.RelayOnly {
		return
	}
	here := slices.ContainsFunc(hostnet.Interfaces(), func(i hostnet.Interface) bool {
		return slices.ContainsFunc(i.Addresses, func(a string) bool { return strings.HasPrefix(a, n.Address+"/") })
	})
	switch {
	case here:
		d.ok("relay", "%s, which relays and machines reach, is of this host", n.Address)
	case n.Listen != "":
		d.ok("relay", "%s is of another host, which has to hand on its ports: netboot.listen is %s", n.Address, n.Listen)
	default:
		d.fail("relay", "correct netboot.address; in a container whose ports are published: netboot.listen: 0.0.0.0", "%s is no address of this host", n.Address)
	}
}

// relays looks at the way to each relay, by the kernel's table of routes. A
// default route is a way, and mostly the wrong one: the router that it names
// has to know the machines' network.
func (d *doctor) relays(ctx context.Context, routes string) {
	n := d.cfg.Netboot
	for _, r := range n.Relays {
		a, err := netip.ParseAddr(r)
		if err != nil {
			continue // a prefix: one of its relays has to be asked
		}
		// Connecting a UDP socket sends nothing: the kernel only looks for the way.
		var dial net.Dialer
		c, err := dial.DialContext(ctx, "udp4", net.JoinHostPort(r, "67"))
		if err != nil {
			d.fail("relay", "ip route add NETWORK/BITS via ROUTER, or a default route", "there is no way to relay %s: %v", r, err)
			continue
		}
		_ = c.Close() // nothing was sent
		way, known := hostnet.RouteTo(routes, a)
		switch {
		case known && way.To.Bits() == 0 && n.Listen != "":
			d.ok("relay", "replies to relay %s leave this container; its host needs a route to that network", r)
		case known && way.To.Bits() == 0:
			d.warn("relay", "ip route add NETWORK/BITS via ROUTER (DSM: Control Panel → Network → Static Route), unless that gateway has this route",
				"only the default route leads to relay %s, by %s: is the machines' network known there?", r, way)
		default:
			d.ok("relay", "replies to relay %s have a way", r)
		}
	}
}

func (d *doctor) interfaces(ctx context.Context) {
	all := hostnet.Interfaces()
	for _, name := range d.cfg.Netboot.Interfaces {
		i := slices.IndexFunc(all, func(x hostnet.Interface) bool { return x.Name == name })
		switch {
		case i < 0:
			d.fail("interface", "ip link shows those that exist; correct netboot.interfaces", "%s does not exist", name)
			continue
		case !all[i].Up:
			d.fail("interface", "ip link set "+name+" up", "%s is down", name)
			continue
		case len(all[i].Addresses) == 0:
			d.fail("interface", "ip address add ADDRESS/BITS dev "+name, "%s has no IPv4 address", name)
		default:
			d.ok("interface", "%s is up with %s", name, strings.Join(all[i].Addresses, ", "))
		}
		found, err := bootsvc.ProbeDHCP(ctx, name)
		if err != nil && len(found) == 0 {
			d.warn("foreign DHCP", "run this as root", "%v", err)
			continue
		}
		for _, f := range found {
			d.warn("foreign DHCP", "exclude Ingot's machines on "+f.Server.String()+", or turn it off", "%s", foreignText(name, f))
		}
		if len(found) == 0 {
			d.ok("foreign DHCP", "no other server answers on %s", name)
		}
	}
}

func (d *doctor) bootFiles() {
	n := d.cfg.Netboot
	for _, f := range []struct{ dir, key, file, remedy string }{
		{n.Loaders, "netboot.loaders", "undionly.kpxe", "apt install ipxe, and loaders: /usr/lib/ipxe"},
		{n.Loaders, "netboot.loaders", "snponly.efi", "apt install ipxe, and loaders: /usr/lib/ipxe"},
		{n.AgentOS, "netboot.agent_os", "vmlinuz", "make build, and agent_os: the directory bin/agentos"},
		{n.AgentOS, "netboot.agent_os", "initramfs", "make build, and agent_os: the directory bin/agentos"},
	} {
		at := filepath.Join(f.dir, f.file)
		st, err := os.Stat(at)
		switch {
		case f.dir == "":
			d.fail("boot files", f.remedy, "%s is not set, so that there is no %s", f.key, f.file)
		case err != nil:
			d.fail("boot files", f.remedy, "%s: %v", at, errors.Unwrap(err))
		case st.Size() == 0:
			d.fail("boot files", f.remedy, "%s is empty", at)
		default:
			d.ok("boot files", "%s, %s", at, size(st.Size()))
		}
	}
}

// reachable dials what machines dial.
func (d *doctor) reachable(ctx context.Context) {
	n := d.cfg.Netboot
	a, err := hostnet.ProvisioningAddress(n)
	if err != nil || n.Listen != "" {
		return // interfaces has told; what another host hands on is seen from the machines' side alone
	}
	var targets []string
	for _, p := range slices.Concat(n.HTTP, n.Metadata) {
		targets = append(targets, "http://"+config.Join(a.String(), p)+"/")
	}
	targets = append(targets, "https://"+config.Join(a.String(), n.Agent)+"/")
	for _, u := range targets {
		if err := answersHTTP(ctx, u, true); err != nil {
			d.fail("reachability", "a firewall on this host? nft list ruleset; the log of ingot serve", "%s, which machines use: %v", u, err)
		} else {
			d.ok("reachability", "%s answers", u)
		}
	}
}

// answersHTTP tells whether anything HTTP answers at u; with ours, under any
// certificate, because machines pin it.
func answersHTTP(ctx context.Context, u string, ours bool) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, u, nil)
	if err != nil {
		return err
	}
	t := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: ours}, DisableKeepAlives: true}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	if !ours && resp.StatusCode >= 400 {
		return fmt.Errorf("the answer is %s", resp.Status)
	}
	return nil
}

// server looks through the server, if one runs.
func (d *doctor) server(ctx context.Context, o *options) {
	c, err := o.client()
	if err != nil {
		d.warn("server", "ingot serve", "cannot be asked: %v", err)
		return
	}
	st, err := ask[api.Status](ctx, c, "GET", path("status"), nil)
	if err != nil {
		d.warn("server", "ingot serve; then run this again: Temporal, secrets, images and BMCs were not looked at", "%v", err)
		return
	}
	if away := time.Since(st.v.Time).Abs(); away > 5*time.Second {
		d.warn("clock", "apt install chrony, on both", "the server's clock and this host's are %s apart", span(away))
	}
	switch t := st.v.Temporal; {
	case t.Ready:
		d.ok("Temporal", "ready at %s", t.Address)
	default:
		d.fail("Temporal", "the log of ingot serve; an occupied port: temporal.port in the configuration", "not ready: %s", orText(t.Error, "it starts"))
	}
	d.notices(st.v.Notify)
	d.secrets(ctx, c)
	d.images(ctx, c)
	ms, err := ask[list[inventory.Machine]](ctx, c, "GET", path("machines"), nil)
	if err != nil {
		d.fail("machines", "the log of ingot serve", "%v", err)
		return
	}
	if d.isHere(c) {
		d.reservations(server.NetworkOf(d.cfg.Netboot), ms.v.Items)
	}
	d.bmcs(ctx, c, ms.v.Items)
}

// reservations looks whether machines can be answered where their addresses are.
func (d *doctor) reservations(n inventory.Network, ms []inventory.Machine) {
	for _, m := range ms {
		for _, i := range m.Interfaces {
			if whose := n.Taken(i.Address); whose != "" {
				d.warn("reservation", "unless this server runs on that machine: ingot machine push --replace, with another address", "%s: %s is %s", m.Name, i.Address, whose)
			}
		}
	}
	for _, w := range n.Warnings(ms) {
		d.warn("reservation", "correct the addresses, or netboot.interfaces, or list the relay under netboot.relays", "%s", w)
	}
}

func (d *doctor) secrets(ctx context.Context, c *remote) {
	a, err := ask[secretState](ctx, c, "GET", path("secrets"), nil)
	switch {
	case err != nil:
		d.fail("secrets", "the log of ingot serve", "%v", err)
	case a.v.State != "ok":
		d.fail("secrets", "put the right key file back; if it is lost: ingot secret reset", "the key is %s: %s cannot be read", a.v.State, count(len(a.v.Unreadable), "secret"))
	default:
		d.ok("secrets", "can be read")
	}
}

func (d *doctor) images(ctx context.Context, c *remote) {
	a, err := ask[list[inventory.Image]](ctx, c, "GET", path("images"), nil)
	if err != nil {
		d.fail("images", "the log of ingot serve", "%v", err)
		return
	}
	if len(a.v.Items) == 0 {
		d.warn("images", "ingot image add NAME FILE", "there is none")
	}
	for _, i := range a.v.Items {
		if i.File == "" {
			if err := answersHTTP(ctx, i.URL, false); err != nil {
				d.fail("images", "correct its URL: ingot image add "+i.Name+" URL", "%s at %s: %v", i.Name, i.URL, err)
			} else {
				d.ok("images", "%s answers at %s", i.Name, i.URL)
			}
			continue
		}
		// The server's directory, if this is its host.
		st, err := os.Stat(filepath.Join(d.cfg.ImageDir(), i.File))
		switch {
		case err != nil && !d.isHere(c):
			d.ok("images", "%s, %s", i.Name, size(i.Size))
		case err != nil:
			d.fail("images", "ingot image add "+i.Name+" FILE", "%s: its file is gone: %v", i.Name, errors.Unwrap(err))
		case st.Size() != i.Size:
			d.fail("images", "ingot image add "+i.Name+" FILE", "%s: its file has %d bytes and had %d", i.Name, st.Size(), i.Size)
		default:
			d.ok("images", "%s, %s (ingot image verify %s reads it all)", i.Name, size(i.Size), i.Name)
		}
	}
}

// powerCommands looks whether the programs of the configuration can be run.
func (d *doctor) powerCommands() {
	for _, name := range slices.Sorted(maps.Keys(d.cfg.Power.Commands)) {
		c, bad := d.cfg.Power.Commands[name], false
		for _, argv := range [][]string{c.On, c.Off, c.Status} {
			if st, err := os.Stat(argv[0]); err != nil {
				d.fail("power command", "the configuration, power.commands."+name, "%s: %v", name, err)
				bad = true
			} else if st.IsDir() || st.Mode()&0o111 == 0 {
				d.fail("power command", "chmod +x "+argv[0], "%s: %s cannot be run", name, argv[0])
				bad = true
			}
			if bad {
				break
			}
		}
		if !bad {
			d.ok("power command", "%s can be run", name)
		}
	}
}

// notify looks whether anybody is told when a person is needed.
func (d *doctor) notify() {
	n := d.cfg.Notify
	if n.URL == "" {
		d.warn("notify", "notify.url and notify.secret_file in the configuration; then: ingot notify test", "nobody is told when a person is needed: who waits is seen by ingot status alone")
		return
	}
	s, err := notify.New(notify.Config{URL: n.URL, SecretFile: n.SecretFile, CAFile: n.TLSCA})
	if err == nil {
		err = s.Check()
	}
	if err != nil {
		d.fail("notify", "correct notify in the configuration; then: ingot notify test", "%v", err)
		return
	}
	d.ok("notify", "%s is told when a person is needed", s.Receiver())
}

// notices tells how the server that runs gets rid of its notices.
func (d *doctor) notices(n *api.NotifyStatus) {
	if n == nil {
		if d.cfg.Notify.URL != "" {
			d.warn("notices", "restart ingot serve", "the server that runs tells nobody: it was started with another configuration")
		}
		return
	}
	last := "none was taken yet (ingot notify test sends one)"
	if !n.Sent.IsZero() {
		last = "the last one was taken " + ago(n.Sent)
	}
	switch {
	case n.Error != "":
		d.fail("notices", "ingot notify test; the receiver, and notify in the configuration", "%s not taken, the oldest since %s: %s; %s", count(n.Waiting, "notice"), when(n.Oldest), n.Error, last)
	case n.Dropped > 0:
		d.warn("notices", "ingot status shows who waits for a person", "%s given up; %s", count(n.Dropped, "notice"), last)
	case n.Waiting > 0:
		d.ok("notices", "%s on the way; %s", count(n.Waiting, "notice"), last)
	default:
		d.ok("notices", "none waits; %s", last)
	}
}

// isHere tells whether c talks to the server of this host's configuration.
func (d *doctor) isHere(c *remote) bool { return c.base.String() == hostnet.LocalURL(d.cfg) }

// bmcs logs in to every BMC, a few at a time.
func (d *doctor) bmcs(ctx context.Context, c *remote, ms []inventory.Machine) {
	found := make([]finding, len(ms))
	var g errgroup.Group
	g.SetLimit(8)
	for n, m := range ms {
		if m.BMC.Manual() {
			continue
		}
		g.Go(func() error {
			f := finding{State: isFail, What: "BMC", Remedy: "ingot bmc check " + m.Name}
			where := m.BMC.Host
			if m.BMC.Driver == inventory.DriverExec {
				where = "the command " + m.BMC.Command
			}
			switch a, err := checkBMC(ctx, c, m.Name); {
			case err != nil:
				f.Text = m.Name + ": " + err.Error()
			case !a.v.OK:
				f.Text = fmt.Sprintf("%s at %s: %s", m.Name, where, a.v.Message)
			default:
				f = finding{State: isOK, What: "BMC", Text: fmt.Sprintf("%s at %s lets Ingot in, power is %s", m.Name, where, a.v.Power)}
			}
			found[n] = f
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		d.fail("BMC", "", "%v", err)
	}
	for _, f := range found {
		if f.State != "" {
			d.findings = append(d.findings, f)
		}
	}
}
