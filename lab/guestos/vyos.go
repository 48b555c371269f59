package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Paths of the running system.
const (
	vyosEtc      = "/opt/vyatta/etc/config"
	vyosConfig   = vyosEtc + "/config.boot"
	vyosDefault  = "/opt/vyatta/etc/config.boot.default"
	vyosScript   = vyosEtc + "/scripts/vyos-postconfig-bootup.script"
	vyosFailures = "/var/lib/ingotlab-failures"
	dhcrelay     = "/usr/sbin/dhcrelay"
)

// vyosMain runs the initrd, which assembles the root file system, or the router.
func vyosMain(ctx context.Context, h *host) error {
	if _, err := os.Stat(h.at(vyosDefault)); err == nil {
		return (&router{h: h, has: map[string]string{}}).run(ctx)
	}
	h.stage("initrd", "looking for the persistence partition")
	union := first(h.parameter("vyos-union"))
	if !slices.Contains(h.parameters, "boot=live") || !regexp.MustCompile(`^/boot/[^/]+$`).MatchString(union) {
		return errors.New("booting: the command line has no boot=live and vyos-union=/boot/VERSION")
	}
	const at = "/run/persistence"
	dev, err := h.labelled(ctx, "persistence")
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(at, 0o755), unix.Mount(dev, at, "ext4", 0, "")); err != nil {
		return fmt.Errorf("mounting %q: %w", dev, err)
	}
	conf, err := os.ReadFile(filepath.Join(at, "persistence.conf"))
	if err != nil || strings.TrimSpace(string(conf)) != "/ union" {
		return fmt.Errorf("reading persistence.conf: it does not say / union (%w)", err)
	}
	dir := filepath.Join(at, union)
	if err := mountSquash(filepath.Join(dir, filepath.Base(union)+".squashfs"), "/run/live"); err != nil {
		return err
	}
	h.say("version %s on %s", filepath.Base(union), dev)
	return switchRoot("/run/live", filepath.Join(dir, "rw"), filepath.Join(dir, "work"))
}

// at returns the path of a file of the router.
func (h *host) at(path string) string { return filepath.Join(h.root, path) }

// labelled finds the partition whose ext4 file system has the label. It waits, because disks appear after their modules are loaded.
func (h *host) labelled(ctx context.Context, label string) (string, error) {
	for range 100 {
		found, err := filepath.Glob("/sys/class/block/*/partition")
		if err != nil {
			return "", err
		}
		for _, p := range found {
			dev := "/dev/" + filepath.Base(filepath.Dir(p))
			f, err := os.Open(dev)
			if err != nil {
				continue
			}
			sb := make([]byte, 136) // of the superblock at 1024: the magic number at 56, the label at 120
			_, err = f.ReadAt(sb, 1024)
			_ = f.Close() // only read from
			if err == nil && sb[56] == 0x53 && sb[57] == 0xef && strings.TrimRight(string(sb[120:136]), "\x00") == label {
				return dev, nil
			}
		}
		if !pause(ctx, 100*time.Millisecond) {
			return "", ctx.Err()
		}
	}
	return "", fmt.Errorf("booting: there is no file system %q", label)
}

// router is a running VyOS.
type router struct {
	h      *host
	footer string
	has    map[string]string // "eth0 10.0.0.1/24" and the like: what was configured, and what it is

	mu     sync.Mutex
	config *vnode
	relay  *exec.Cmd
	args   []string      // of the relay that runs
	ended  chan struct{} // closed when relay has ended
	keys   map[string]string
	stops  map[string]func() // servers by what they listen on
}

func (r *router) run(ctx context.Context) error {
	h := r.h
	h.stage("booting", "mounting the configuration")
	path := os.Getenv("PATH")
	if h.real {
		path = tools + ":/usr/sbin:/usr/bin:/sbin:/bin"
		if err := link(); err != nil {
			return err
		}
	}
	r.stops = map[string]func(){}
	text, err := os.ReadFile(h.at(vyosConfig))
	if errors.Is(err, os.ErrNotExist) {
		h.say("no config.boot: the default configuration")
		text, err = os.ReadFile(h.at(vyosDefault))
	}
	if err != nil {
		return err
	}
	std, err := os.ReadFile(h.at(vyosDefault))
	if err != nil {
		return err
	}
	_, want, err := parseVyOS(string(std))
	if err != nil {
		return err
	}
	config, footer, err := parseVyOS(string(text))
	if err == nil && h.fails("config") {
		err = errors.New("told to fail")
	}
	if err != nil {
		h.say("config.boot: %v: the default configuration", err) // as VyOS: it boots and can be reached on its console only
		h.detail("config", err.Error())
		if config, footer, err = parseVyOS(string(std)); err != nil {
			return err
		}
	}
	line := func(s string) string {
		return regexp.MustCompile(`(?m)^// vyos-config-version:.*$`).FindString(s)
	}
	migrated := line(footer) != line(want)
	h.detail("migrated", migrated)
	if migrated {
		h.say("config.boot is of other versions: it is migrated")
		footer = want
	}
	r.footer, r.config = footer, &vnode{}
	kept, err := os.ReadFile(h.at(vyosFailures))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := h.keepFailures(split(strings.TrimSpace(string(kept))), func(words []string) error {
		return os.WriteFile(h.at(vyosFailures), []byte(strings.Join(words, ",")), 0o644)
	}); err != nil {
		return err
	}
	if h.real { // the lab names the cards of a simulated machine
		if err := r.renameCards(config); err != nil {
			return err
		}
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return err
	}
	r.serveHealth()
	if err := r.commit(ctx, config); err != nil {
		h.say("configuration: %v", err)
		h.detail("config", err.Error())
	}
	h.stage("running", r.config.value("vyos", "system", "host-name"))
	if h.fails("phone-home") {
		h.say("no bootup script: told to fail")
	} else if st, err := os.Stat(h.at(vyosScript)); err == nil && st.Mode()&0o111 != 0 {
		c := exec.Command(h.at(vyosScript))
		c.Env = []string{"PATH=" + path}
		out, err := c.CombinedOutput() // what it leaves in the background runs on
		h.say("bootup script ended: %v %s", err, strings.TrimSpace(string(out)))
	}
	<-ctx.Done()
	return ctx.Err()
}

// tools is the folder of the shell's commands.
const tools = "/run/bin"

// link makes the links that the root file system lacks: the commands of scripts and /config.
func link() error {
	if err := os.MkdirAll(tools, 0o755); err != nil {
		return err
	}
	var errs []error
	for _, name := range strings.Fields("rm sleep echo cat touch mkdir test [ expr date hostname ip ls ping sed grep " +
		"cut head tail tr logger true false kill chmod chown ln mv cp awk env id sync") {
		errs = append(errs, os.Symlink("/bin/sh", filepath.Join(tools, name)))
	}
	errs = append(errs, os.Symlink("/sbin/init", filepath.Join(tools, "curl")))
	if err := os.Symlink(vyosEtc, "/config"); err != nil && !errors.Is(err, os.ErrExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// renameCards names the cards as the configuration does by hardware address; other cards get the names that are left.
func (r *router) renameCards(config *vnode) error {
	all, err := cards()
	if err != nil {
		return err
	}
	want := map[string]string{} // by MAC
	if e := config.at("interfaces", "ethernet"); e != nil {
		for _, k := range e.kids {
			if mac, err := net.ParseMAC(k.value("", "hw-id")); err == nil {
				want[mac.String()] = k.name
			}
		}
	}
	taken := map[string]bool{}
	for _, name := range want {
		taken[name] = true
	}
	number := 0
	names := make([]string, len(all))
	for i, c := range all {
		if names[i] = want[c.HardwareAddr.String()]; names[i] == "" {
			for taken["eth"+strconv.Itoa(number)] {
				number++
			}
			names[i] = "eth" + strconv.Itoa(number)
			taken[names[i]] = true
		}
	}
	links := make([]netlink.Link, len(all))
	for i, c := range all {
		if links[i], err = netlink.LinkByName(c.Name); err != nil {
			return err
		}
		if err := errors.Join(netlink.LinkSetDown(links[i]), netlink.LinkSetName(links[i], "card"+strconv.Itoa(i))); err != nil {
			return err
		}
	}
	for i, l := range links {
		if err := netlink.LinkSetName(l, names[i]); err != nil {
			return fmt.Errorf("naming a card %q: %w", names[i], err)
		}
		r.h.say("%s is %s", names[i], all[i].HardwareAddr)
	}
	return nil
}

// commit checks a configuration and applies it.
func (r *router) commit(ctx context.Context, config *vnode) error {
	if err := config.verify(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.config = config
	r.h.setHostname(config.value("vyos", "system", "host-name"))
	return errors.Join(r.interfaces(ctx), r.routes(), r.relaying(), r.services(ctx))
}

// interfaces adds the configured addresses and removes the others.
func (r *router) interfaces(ctx context.Context) error {
	var errs []error
	want := map[string]string{}
	configure := func(name string, n *vnode) {
		if n.at("disable") != nil {
			if l, err := netlink.LinkByName(name); err == nil {
				errs = append(errs, netlink.LinkSetDown(l))
			}
			return
		}
		if err := linkUp(name); err != nil {
			errs = append(errs, fmt.Errorf("interface %q: %w", name, err))
			return
		}
		for _, a := range n.all("address") {
			key := "address " + name + " " + a
			want[key] = a
			switch {
			case r.has[key] != "":
			case a == "dhcp":
				go func() { _ = r.h.lease(ctx, name, r.h.health.Hostname) }() // it ends with the machine
			default:
				if err := addAddress(name, a); err != nil {
					errs = append(errs, err)
				}
			}
		}
	}
	if e := r.config.at("interfaces", "ethernet"); e != nil {
		for _, k := range e.kids {
			configure(k.name, k)
			vifs := k.at("vif")
			if vifs == nil {
				continue
			}
			for _, v := range vifs.kids {
				name := k.name + "." + v.name
				if _, err := netlink.LinkByName(name); err != nil {
					parent, err := netlink.LinkByName(k.name)
					id, err2 := strconv.Atoi(v.name)
					if err := errors.Join(err, err2); err != nil {
						errs = append(errs, err)
						continue
					}
					err = netlink.LinkAdd(&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: parent.Attrs().Index}, VlanId: id})
					if err != nil {
						errs = append(errs, fmt.Errorf("interface %q: %w", name, err))
						continue
					}
				}
				configure(name, v)
			}
		}
	}
	if l := r.config.at("interfaces", "loopback", "lo"); l != nil {
		configure("lo", l)
	}
	for key := range r.has {
		words := strings.Fields(key)
		if words[0] != "address" || want[key] != "" || words[2] == "dhcp" {
			continue
		}
		l, err := netlink.LinkByName(words[1])
		if err == nil {
			var a *netlink.Addr
			if a, err = netlink.ParseAddr(words[2]); err == nil {
				err = netlink.AddrDel(l, a)
			}
		}
		errs = append(errs, err)
		delete(r.has, key)
	}
	for k, v := range want {
		r.has[k] = v
	}
	return errors.Join(errs...)
}

// routes sets the static routes.
func (r *router) routes() error {
	static := r.config.at("protocols", "static", "route")
	if static == nil {
		return nil
	}
	var errs []error
	for _, dst := range static.kids {
		hops := dst.at("next-hop")
		if hops == nil {
			continue
		}
		for _, hop := range hops.kids {
			if err := addRoute(dst.name, hop.name); err != nil {
				r.h.say("route %s via %s: %v", dst.name, hop.name, err) // its interface may be down
			}
		}
	}
	return errors.Join(errs...)
}

// relaying starts ISC dhcrelay with VyOS's flags, or stops it.
func (r *router) relaying() error {
	var args []string
	if n := r.config.at("service", "dhcp-relay"); n != nil && n.at("disable") == nil {
		args = append(args, "-4", "-d", "--no-pid", "-c", n.value("10", "relay-options", "hop-count"), "-a", "-m",
			n.value("forward", "relay-options", "relay-agents-packets"), "-A", n.value("576", "relay-options", "max-size"))
		for _, i := range n.all("interface") {
			args = append(args, "-i", i)
		}
		for _, i := range n.all("listen-interface") {
			args = append(args, "-id", i)
		}
		for _, i := range n.all("upstream-interface") {
			args = append(args, "-iu", i)
		}
		args = append(args, n.all("server")...)
	}
	if slices.Equal(args, r.args) {
		return nil
	}
	r.stopRelay()
	r.args = args
	r.h.detail("relay", args)
	r.h.say("dhcrelay %s", strings.Join(args, " "))
	if args == nil {
		return nil
	}
	if r.h.fails("relay") {
		r.h.say("no relay: told to fail")
		return nil
	}
	c := exec.Command(cmp.Or(r.h.relay, dhcrelay), args...)
	if err := c.Start(); err != nil {
		return fmt.Errorf("starting dhcrelay: %w", err)
	}
	done := make(chan struct{})
	r.relay, r.ended = c, done
	go func() {
		err := c.Wait()
		close(done)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.relay == c {
			r.relay, r.args = nil, nil
			r.h.say("dhcrelay ended: %v", err)
		}
	}()
	return nil
}

// stopRelay stops dhcrelay, if it runs, and waits until its port is free.
func (r *router) stopRelay() {
	if r.relay != nil {
		_ = r.relay.Process.Kill() // it has already ended otherwise
		<-r.ended
	}
	r.relay, r.args = nil, nil
}

// services opens and closes the ports of SSH and the API.
func (r *router) services(ctx context.Context) error {
	want := map[string]func() (func(), error){}
	if n := r.config.at("service", "ssh"); n != nil {
		ports := n.all("port")
		if len(ports) == 0 {
			ports = []string{"22"}
		}
		for _, p := range ports {
			want["ssh "+p] = func() (func(), error) { return banner(ctx, ":"+p) }
		}
	}
	r.keys = map[string]string{}
	if n := r.config.at("service", "https", "api"); n != nil {
		if ids := n.at("keys", "id"); ids != nil {
			for _, id := range ids.kids {
				if k := id.value("", "key"); k != "" {
					r.keys[id.name] = k
				}
			}
		}
		port := r.config.value("443", "service", "https", "port")
		want["https "+port] = func() (func(), error) {
			cert, err := r.certificate()
			if err != nil {
				return nil, err
			}
			s, err := serveTLS(ctx, cert, ":"+port, r.api(ctx), make(chan error, 1))
			return func() { _ = s.Close() }, err
		}
	}
	var errs []error
	for k, stop := range r.stops {
		if want[k] == nil {
			stop()
			delete(r.stops, k)
		}
	}
	for k, start := range want {
		if r.stops[k] != nil {
			continue
		}
		stop, err := start()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r.stops[k] = stop
		r.h.say("listening: %s", k)
	}
	return errors.Join(errs...)
}
