package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/template"
	"time"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	"github.com/diskfs/go-diskfs/partition/gpt"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

// harvesterConfig is the installer's configuration file, with the keys that are documented; any other is refused.
type harvesterConfig struct {
	SchemeVersion int            `yaml:"scheme_version"`
	ServerURL     string         `yaml:"server_url,omitempty"`
	Token         string         `yaml:"token"`
	SANs          []string       `yaml:"sans,omitempty"`
	OS            harvesterOS    `yaml:"os"`
	Install       harvesterSetup `yaml:"install"`
	Settings      map[string]any `yaml:"system_settings,omitempty"`
}

type harvesterOS struct {
	Hostname       string            `yaml:"hostname,omitempty"`
	Password       string            `yaml:"password,omitempty"`
	Keys           []string          `yaml:"ssh_authorized_keys,omitempty"`
	NTP            []string          `yaml:"ntp_servers,omitempty"`
	DNS            []string          `yaml:"dns_nameservers,omitempty"`
	WriteFiles     []any             `yaml:"write_files,omitempty"`
	Modules        []string          `yaml:"modules,omitempty"`
	Sysctls        map[string]string `yaml:"sysctls,omitempty"`
	Environment    map[string]string `yaml:"environment,omitempty"`
	Labels         map[string]string `yaml:"labels,omitempty"`
	SSHD           map[string]any    `yaml:"sshd,omitempty"`
	Persistent     []string          `yaml:"persistent_state_paths,omitempty"`
	AfterInstall   []string          `yaml:"after_install_chroot_commands,omitempty"`
	External       map[string]any    `yaml:"external_storage_config,omitempty"`
	KernelArgument string            `yaml:"additional_kernel_arguments,omitempty"`
	Wifi           []any             `yaml:"wifi,omitempty"`
}

type harvesterSetup struct {
	Automatic  bool   `yaml:"automatic,omitempty"`
	SkipChecks bool   `yaml:"skipchecks,omitempty"`
	ConfigURL  string `yaml:"config_url,omitempty"`
	Mode       string `yaml:"mode"`
	Management struct {
		Interfaces []struct {
			Name   string `yaml:"name,omitempty"`
			HwAddr string `yaml:"hwAddr,omitempty"`
		} `yaml:"interfaces"`
		Method       string            `yaml:"method"`
		IP           string            `yaml:"ip,omitempty"`
		SubnetMask   string            `yaml:"subnet_mask,omitempty"`
		Gateway      string            `yaml:"gateway,omitempty"`
		DefaultRoute bool              `yaml:"default_route,omitempty"`
		MTU          int               `yaml:"mtu,omitempty"`
		VLAN         int               `yaml:"vlan_id,omitempty"`
		Bond         map[string]string `yaml:"bond_options,omitempty"`
	} `yaml:"management_interface"`
	ForceEFI    bool               `yaml:"force_efi,omitempty"`
	Device      string             `yaml:"device"`
	DataDisk    string             `yaml:"data_disk,omitempty"`
	ISO         string             `yaml:"iso_url,omitempty"`
	Silent      bool               `yaml:"silent,omitempty"`
	PowerOff    bool               `yaml:"poweroff,omitempty"`
	NoFormat    bool               `yaml:"no_format,omitempty"`
	Debug       bool               `yaml:"debug,omitempty"`
	TTY         string             `yaml:"tty,omitempty"`
	ForceGPT    bool               `yaml:"force_gpt,omitempty"`
	ForceMBR    bool               `yaml:"force_mbr,omitempty"`
	Role        string             `yaml:"role,omitempty"`
	NetImages   bool               `yaml:"with_net_images,omitempty"`
	WipeAll     bool               `yaml:"wipe_all_disks,omitempty"`
	WipeList    []string           `yaml:"wipe_disks_list,omitempty"`
	VIP         string             `yaml:"vip,omitempty"`
	VIPHwAddr   string             `yaml:"vip_hw_addr,omitempty"`
	VIPMode     string             `yaml:"vip_mode,omitempty"`
	Webhooks    []harvesterWebhook `yaml:"webhooks,omitempty"`
	Addons      map[string]any     `yaml:"addons,omitempty"`
	Harvester   map[string]any     `yaml:"harvester,omitempty"`
	RawDisk     string             `yaml:"raw_disk_image_path,omitempty"`
	PartSize    string             `yaml:"persistent_partition_size,omitempty"`
	PodCIDR     string             `yaml:"cluster_pod_cidr,omitempty"`
	ServiceCIDR string             `yaml:"cluster_service_cidr,omitempty"`
	ClusterDNS  string             `yaml:"cluster_dns,omitempty"`
}

type harvesterWebhook struct {
	Event     string              `yaml:"event"`
	Method    string              `yaml:"method"`
	URL       string              `yaml:"url"`
	Headers   map[string][]string `yaml:"headers,omitempty"`
	Payload   string              `yaml:"payload,omitempty"`
	Insecure  bool                `yaml:"insecure,omitempty"`
	BasicAuth struct {
		User     string `yaml:"user"`
		Password string `yaml:"password"`
	} `yaml:"basicAuth,omitempty"`
}

// harvesterRelease is in the live system and in no other: who has it runs from the squashfs.
const harvesterRelease = "/etc/harvester-release.yaml"

// harvesterMain is the initrd, the live system's installer or the installed system, as the kernel command line says.
func harvesterMain(ctx context.Context, h *host) error {
	root := first(h.word("root"))
	if root == "LABEL=COS_STATE" {
		return h.harvesterRun(ctx)
	}
	url, live := strings.CutPrefix(root, "live:")
	if !live {
		return fmt.Errorf("booting: root=%q is neither live:URL nor the installed system", root)
	}
	if _, err := os.Stat(harvesterRelease); err != nil || !h.real {
		if first(h.word("ip")) != "dhcp" {
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

// liveRoot fetches the root file system and goes on in it, with a tmpfs above it. In a simulated machine it is only fetched.
func (h *host) liveRoot(ctx context.Context, url string) error {
	h.stage("initrd", "fetching the live system")
	dir := "/run"
	if !h.real {
		dir = os.TempDir()
	}
	f, err := os.CreateTemp(dir, "rootfs-*.squashfs")
	if err != nil {
		return err
	}
	path := f.Name()
	n, err := fetchTo(ctx, url, 1<<40, f)
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("fetching the live system: %w", err), os.Remove(path))
	}
	head := make([]byte, 4)
	f, err = os.Open(path)
	if err == nil {
		_, err = io.ReadFull(f, head)
		err = errors.Join(err, f.Close())
	}
	if err != nil || string(head) != "hsqs" {
		return fmt.Errorf("reading the live system: invalid squashfs (%w)", err)
	}
	h.say("live system of %d bytes", n)
	if !h.real {
		return os.Remove(path)
	}
	if err := mountSquash(path, "/run/live"); err != nil {
		return err
	}
	return switchRoot("/run/live", "/run/rw/upper", "/run/rw/work")
}

// mountSquash mounts a squashfs file by way of a loop device.
func mountSquash(path, at string) error {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer control.Close() // nothing was written
	n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return fmt.Errorf("asking for a loop device: %w", err)
	}
	loop, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer loop.Close() // the mount holds it
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() // the loop device holds it
	if err := unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_FD, int(f.Fd())); err != nil {
		return fmt.Errorf("setting up a loop device: %w", err)
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(loop.Name(), at, "squashfs", unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mounting %q: %w", path, err)
	}
	return nil
}

// switchRoot runs /sbin/init of an overlay of lower and upper. It returns only with an error.
func switchRoot(lower, upper, work string) error {
	const at = "/mnt" // not below /run, which moves
	if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755), os.MkdirAll(at, 0o755)); err != nil {
		return err
	}
	if err := unix.Mount("overlay", at, "overlay", 0, "lowerdir="+lower+",upperdir="+upper+",workdir="+work); err != nil {
		return fmt.Errorf("mounting the root: %w", err)
	}
	for _, d := range []string{"/proc", "/sys", "/dev", "/run", "/tmp"} {
		if err := os.MkdirAll(filepath.Join(at, d), 0o755); err != nil {
			return err
		}
		if err := unix.Mount(d, filepath.Join(at, d), "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("moving %q: %w", d, err)
		}
	}
	if err := errors.Join(unix.Chdir(at), unix.Mount(".", "/", "", unix.MS_MOVE, ""), unix.Chroot("."), unix.Chdir("/")); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	err := unix.Exec("/sbin/init", []string{"/sbin/init"}, os.Environ())
	return fmt.Errorf("starting /sbin/init: %w", err)
}

// harvesterDocument fetches the configuration (30 tries, 10 s apart, as the true installer), puts the words of the kernel
// command line over it, and checks it.
func (h *host) harvesterDocument(ctx context.Context) (*harvesterConfig, error) {
	doc := map[string]any{}
	inline := map[string]any{}
	for _, w := range h.words {
		key, value, ok := strings.Cut(w, "=")
		words := strings.Split(key, ".")
		if !ok || words[0] != "harvester" || len(words) < 2 {
			continue
		}
		var v any
		if err := yaml.Unmarshal([]byte(value), &v); err != nil {
			return nil, fmt.Errorf("reading %q of the command line: %w", key, err)
		}
		at := inline
		for _, name := range words[1 : len(words)-1] {
			next, ok := at[name].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[name] = next
			}
			at = next
		}
		at[words[len(words)-1]] = v
	}
	setup, _ := inline["install"].(map[string]any)
	if setup["automatic"] != true {
		return nil, errors.New("installing: a person would have to answer questions (harvester.install.automatic is not true)")
	}
	if url, ok := setup["config_url"].(string); ok && url != "" {
		h.stage("config", "fetching the configuration")
		for try := 1; ; try++ {
			b, err := fetch(ctx, url, mib)
			if err == nil {
				if err := yaml.Unmarshal(b, &doc); err != nil {
					return nil, fmt.Errorf("reading the configuration: %w", err)
				}
				break
			}
			h.say("fetching the configuration: try %d: %v", try, err)
			if try == 30 {
				return nil, fmt.Errorf("fetching the configuration: %w", err)
			}
			if !pause(ctx, 10*time.Second) {
				return nil, ctx.Err()
			}
		}
	}
	overlay(doc, inline)
	b, err := yaml.Marshal(doc)
	if err != nil {
		return nil, err
	}
	c, err := parseHarvester(b)
	if err == nil && h.fails("config") {
		err = errors.New("reading the configuration: told to fail")
	}
	return c, err
}

// overlay puts the values of a tree over those of another.
func overlay(to, from map[string]any) {
	for k, v := range from {
		if sub, ok := v.(map[string]any); ok {
			if old, ok := to[k].(map[string]any); ok {
				overlay(old, sub)
				continue
			}
		}
		to[k] = v
	}
}

// parseHarvester reads and checks a configuration.
func parseHarvester(b []byte) (*harvesterConfig, error) {
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	c := &harvesterConfig{}
	if err := dec.Decode(c); err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	in := c.Install
	var wrong []string
	check := func(ok bool, what string) {
		if !ok {
			wrong = append(wrong, what)
		}
	}
	check(c.SchemeVersion == 1, "scheme_version is not 1")
	check(c.Token != "", "token is missing")
	check(c.OS.Password != "" || len(c.OS.Keys) > 0, "os has neither password nor ssh_authorized_keys")
	check(in.Mode == "create" || in.Mode == "join", "install.mode is neither create nor join")
	check(in.Mode != "join" || strings.HasPrefix(c.ServerURL, "https://"), "server_url is missing")
	check(in.Mode != "create" || in.VIPMode == "dhcp" && in.VIPHwAddr != "" || net.ParseIP(in.VIP) != nil, "install.vip is missing")
	check(len(in.Management.Interfaces) > 0, "install.management_interface.interfaces is missing")
	check(in.Management.Method == "dhcp" || in.Management.Method == "static",
		"install.management_interface.method is neither dhcp nor static")
	check(in.Device != "", "install.device is missing")
	for _, w := range in.Webhooks {
		check(slices.Contains([]string{"STARTED", "SUCCEEDED", "FAILED"}, w.Event), "install.webhooks: event "+w.Event)
	}
	if len(wrong) > 0 {
		return nil, fmt.Errorf("reading the configuration: %s", strings.Join(wrong, "; "))
	}
	return c, nil
}

// harvesterInstall is the live system: it installs, tells so, and boots what it installed.
func (h *host) harvesterInstall(ctx context.Context) error {
	c, err := h.harvesterDocument(ctx)
	if err != nil {
		return err
	}
	h.detail("mode", c.Install.Mode)
	h.webhook(ctx, c, "STARTED")
	if err := h.harvesterWrite(ctx, c); err != nil {
		h.webhook(ctx, c, "FAILED")
		return err
	}
	h.stage("installed", c.Install.Device)
	h.webhook(ctx, c, "SUCCEEDED")
	if c.Install.PowerOff {
		h.powerOff()
	}
	h.reboot()
	return nil
}

// webhook calls those of an event. Nobody waits for their answers but the console.
func (h *host) webhook(ctx context.Context, c *harvesterConfig, event string) {
	if h.fails("webhook") {
		h.say("no webhook %s: told to fail", event)
		return
	}
	values := map[string]string{"Hostname": c.OS.Hostname}
	if all, err := cards(); err == nil && len(all) > 0 {
		values["MACAddr"] = all[0].HardwareAddr.String()
	}
	if all := addresses(); len(all) > 0 {
		values["IPAddrV4"], _, _ = strings.Cut(all[0], "/")
	}
	render := func(s string) (string, error) {
		t, err := template.New("webhook").Parse(s)
		if err != nil {
			return "", err
		}
		var b strings.Builder
		err = t.Execute(&b, values)
		return b.String(), err
	}
	for _, w := range c.Install.Webhooks {
		if w.Event != event {
			continue
		}
		url, err := render(w.URL)
		var payload string
		if err == nil {
			payload, err = render(w.Payload)
		}
		for try := 1; err == nil && try <= 5; try++ {
			var code int
			if code, err = post(ctx, w, url, payload); err == nil {
				h.say("webhook %s: %d", event, code)
				break
			}
			h.say("webhook %s: try %d: %v", event, try, err)
			if try < 5 && pause(ctx, 2*time.Second) {
				err = nil
			}
		}
		if err != nil {
			h.say("webhook %s: %v", event, err)
		}
	}
}

func post(ctx context.Context, w harvesterWebhook, url, payload string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, strings.ToUpper(w.Method), url, strings.NewReader(payload))
	if err != nil {
		return 0, errors.New("the webhook's URL is none")
	}
	for k, v := range w.Headers {
		req.Header[http.CanonicalHeaderKey(k)] = v
	}
	if w.BasicAuth.User != "" {
		req.SetBasicAuth(w.BasicAuth.User, w.BasicAuth.Password)
	}
	res, err := client().Do(req)
	if err != nil {
		return 0, plain(err)
	}
	return res.StatusCode, res.Body.Close()
}

// The partitions of Harvester, small. The names are those of the GPT; the file systems have the labels COS_OEM and so on.
var harvesterParts = []part{
	{label: "efi", kind: gpt.EFISystemPartition, size: 64 * mib, attributes: 1 << 2}, // "legacy BIOS bootable"
	{label: "oem", kind: gpt.LinuxFilesystem, size: 16 * mib},
	{label: "recovery", kind: gpt.LinuxFilesystem, size: 4 * mib},
	{label: "state", kind: gpt.LinuxFilesystem, size: 4 * mib},
	{label: "persistent", kind: gpt.LinuxFilesystem},
}

// harvesterWrite installs onto the disk what is in the ISO.
func (h *host) harvesterWrite(ctx context.Context, c *harvesterConfig) error {
	d, err := h.disk(c.Install.Device)
	if err != nil {
		return err
	}
	if c.Install.WipeAll {
		for _, other := range h.disks {
			if err := other.clear(part{start: 0, size: other.size}); err != nil {
				return err
			}
		}
		h.say("wiped all disks")
	}
	iso := ""
	if c.Install.ISO != "" {
		h.stage("installing", "fetching the ISO")
		dir := "/run"
		if !h.real {
			dir = os.TempDir()
		}
		iso = filepath.Join(dir, fmt.Sprintf("harvester-%d.iso", os.Getpid()))
		defer os.Remove(iso) // the machine boots again
		n, err := fetchFile(ctx, c.Install.ISO, iso)
		if err != nil {
			return fmt.Errorf("fetching the ISO: %w", err)
		}
		h.say("ISO of %d bytes", n)
	}
	h.stage("installing", "onto "+d.name)
	parts := slices.Clone(harvesterParts)
	if !h.real {
		parts[0].size = 4 * mib
	}
	var mbr []byte
	if iso != "" {
		if mbr, err = isoFile(iso, "payload/mbr.bin"); err != nil {
			return err
		}
	}
	if parts, err = d.partition(parts, mbr); err != nil {
		return err
	}
	for _, p := range parts[1:] {
		if err := d.clear(p); err != nil {
			return err
		}
	}
	if h.fails("install") {
		return errors.New("installing: told to fail")
	}
	if iso != "" {
		esp, err := isoFile(iso, "payload/esp.zst")
		if err != nil {
			return err
		}
		if h.real {
			if _, err := d.write(parts[0], bytes.NewReader(esp)); err != nil {
				return err
			}
		}
	}
	text, err := yaml.Marshal(c)
	if err != nil {
		return err
	}
	if err := d.putFiles(part{label: "COS_OEM", start: parts[1].start, size: parts[1].size},
		map[string][]byte{"harvester.config": text}); err != nil {
		return err
	}
	// Without the ISO's images the node is installed and never comes up: harvester#1439.
	return (&store{d: d, p: parts[4]}).save(harvesterState{Images: iso != "", Failures: h.health.Failures})
}

// isoFile reads a file of an ISO 9660 image.
func isoFile(iso, name string) ([]byte, error) {
	f, err := os.Open(iso)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read from
	fs, err := iso9660.Read(file.New(f, true), 0, 0, 2048)
	if err != nil {
		return nil, fmt.Errorf("reading the ISO: %w", err)
	}
	b, err := fs.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("reading %q of the ISO: %w", name, err)
	}
	return b, nil
}

// harvesterState is what an installed node remembers.
type harvesterState struct {
	Boots    int                      `json:"boots"`
	Images   bool                     `json:"images"`
	Nodes    map[string]harvesterNode `json:"nodes"`    // of the cluster, on the node that created it
	Password [32]byte                 `json:"password"` // digest of the administrator's, zero before the first log-in
	// Certificate is that of port 443 with its key, as PEM.
	Certificate []byte   `json:"certificate"`
	Failures    []string `json:"failures"`
}

type harvesterNode struct {
	Name    string    `json:"name"`
	Address string    `json:"address"`
	Role    string    `json:"role"`
	Created bool      `json:"created"`
	Down    bool      `json:"down"` // by its own word
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

// harvesterRun is the installed system.
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

// network brings the management interface up and returns its name.
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

// create takes the VIP and becomes the cluster's first node.
func (n *harvester) create(ctx context.Context, card string) {
	h := n.h
	h.stage("running", "creating the cluster")
	own := n.address()
	if err := n.update(func(s *harvesterState) {
		s.Nodes[n.config.OS.Hostname] = harvesterNode{Name: n.config.OS.Hostname, Address: own, Role: n.config.Install.Role, Created: true}
	}); err != nil {
		h.say("keeping the state: %v", err)
	}
	if h.fails("vip") {
		h.say("no VIP: told to fail")
		return
	}
	if n.config.Install.VIPMode == "dhcp" {
		h.say("a VIP by DHCP is not known here")
		return
	}
	if err := addAddress(card, n.config.Install.VIP+"/32"); err != nil {
		h.say("taking the VIP: %v", err)
		return
	}
	h.say("VIP %s on %s", n.config.Install.VIP, card)
	for h.fails("ready") {
		if !pause(ctx, time.Second) {
			return
		}
	}
	n.mu.Lock()
	n.up = true
	n.mu.Unlock()
	h.stage("running", "the cluster answers")
}

// address is the node's first.
func (n *harvester) address() string {
	for _, a := range addresses() {
		if ip, _, _ := strings.Cut(a, "/"); ip != n.config.Install.VIP {
			return ip
		}
	}
	return ""
}

// join registers at server_url, and calls there from then on.
func (n *harvester) join(ctx context.Context) {
	h := n.h
	h.stage("running", "joining "+n.config.ServerURL)
	last := ""
	for ; ; pause(ctx, 5*time.Second) {
		if ctx.Err() != nil {
			return
		}
		err := errors.New("told to fail")
		if !h.fails("join") {
			err = n.register(ctx)
		}
		n.mu.Lock()
		n.joined = err == nil
		n.mu.Unlock()
		now := "joined"
		if err != nil {
			now = "joining: " + err.Error()
		}
		if now != last {
			h.stage("running", now)
			last = now
		}
	}
}

func (n *harvester) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	b, err := json.Marshal(
		harvesterNode{Name: n.config.OS.Hostname, Address: n.address(), Role: n.config.Install.Role, Down: n.h.fails("node")},
	)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost,
		strings.TrimRight(n.config.ServerURL, "/")+"/v3/connect/join", bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+n.config.Token)
	res, err := client().Do(req)
	if err != nil {
		return plain(err)
	}
	defer res.Body.Close() // only read from
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("the cluster answers %s", res.Status)
	}
	return nil
}

// selfSigned is a certificate that nobody knows, as products have at first: the one that is kept as PEM, or a new one.
func selfSigned(name string, kept []byte) (cert tls.Certificate, keep []byte, err error) {
	if cert, err := tls.X509KeyPair(kept, kept); err == nil {
		return cert, kept, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return cert, nil, err
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(365 * 24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		return cert, nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return cert, nil, err
	}
	keep = append(
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})...)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, keep, nil
}

// serveTLS serves a handler; stopped gets the error that ends it.
func serveTLS(ctx context.Context, cert tls.Certificate, addr string, handler http.Handler, stopped chan<- error) (*http.Server, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp4", addr)
	if err != nil {
		return nil, err
	}
	s := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}},
	}
	go func() { stopped <- s.ServeTLS(l, "", "") }()
	return s, nil
}

// serve answers on port 443 of all addresses: on the node that created the cluster its API, on all the node's own page.
func (n *harvester) serve(ctx context.Context, stopped chan<- error) error {
	var mux http.ServeMux
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { n.page(w, "<!doctype html><title>Harvester</title>\n") })
	mux.HandleFunc("GET /ping", func(w http.ResponseWriter, _ *http.Request) { n.page(w, "pong") })
	if n.config.Install.Mode == "create" {
		for path, f := range map[string]func() object{
			"GET /v1/harvester/cluster/local": n.cluster,
			"GET /v1/harvester/nodes":         n.nodes,
			"GET /v1/nodes":                   n.nodes,
		} {
			mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
				token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
				n.mu.Lock()
				known := n.tokens[token]
				n.mu.Unlock()
				switch {
				case !n.isUp():
					refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable", "the cluster is not ready")
				case strings.HasSuffix(path, "/nodes") && !known:
					refuse(w, http.StatusUnauthorized, "Unauthorized", "must authenticate")
				default:
					reply(w, http.StatusOK, f())
				}
			})
		}
		mux.HandleFunc("POST /v3-public/localProviders/local", n.login)
		mux.HandleFunc("POST /v3/tokens", n.logout)
		n.h.mux.HandleFunc("GET /nodes", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, n.nodes()) })
		mux.HandleFunc("POST /v3/connect/join", n.joining)
	}
	cert, keep, err := selfSigned(n.config.OS.Hostname, n.state.Certificate)
	if err != nil {
		return err
	}
	if err := n.update(func(s *harvesterState) { s.Certificate = keep }); err != nil {
		return err
	}
	_, err = serveTLS(ctx, cert, ":443", &mux, stopped)
	return err
}

func (n *harvester) isUp() bool {
	down := n.h.fails("ready")
	n.mu.Lock()
	defer n.mu.Unlock()
	return (n.up || n.joined) && !down
}

func (n *harvester) page(w http.ResponseWriter, text string) {
	if !n.isUp() {
		http.Error(w, "no available server", http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, text) // the client has gone away otherwise
}

// login gives a session to the administrator. Who logs in first says what the password is, as on the page of a new cluster.
func (n *harvester) login(w http.ResponseWriter, r *http.Request) {
	var in struct{ Username, Password string }
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<16)).Decode(&in); err != nil || r.FormValue("action") != "login" {
		refuse(w, http.StatusBadRequest, "BadRequest", "no log-in")
		return
	}
	if !n.isUp() {
		refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable", "the cluster is not ready")
		return
	}
	n.mu.Lock()
	have, sum := n.state.Password, sha256.Sum256([]byte(in.Password))
	n.mu.Unlock()
	fresh := have == [32]byte{}
	if in.Username != "admin" || in.Password == "" || !fresh && have != sum {
		refuse(w, http.StatusUnauthorized, "Unauthorized", "authentication failed")
		return
	}
	if fresh {
		if err := n.update(func(s *harvesterState) { s.Password = sum }); err != nil {
			refuse(w, http.StatusInternalServerError, "InternalError", err.Error())
			return
		}
	}
	token := "token-lab:" + rand.Text()
	n.mu.Lock()
	n.tokens[token] = true
	n.mu.Unlock()
	reply(w, http.StatusCreated, object{"type": "token", "token": token})
}

// logout ends a session.
func (n *harvester) logout(w http.ResponseWriter, r *http.Request) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	n.mu.Lock()
	known := n.tokens[token]
	delete(n.tokens, token)
	n.mu.Unlock()
	switch {
	case !known:
		refuse(w, http.StatusUnauthorized, "Unauthorized", "must authenticate")
	case r.URL.Query().Get("action") != "logout":
		refuse(w, http.StatusBadRequest, "BadRequest", "no log-out")
	default:
		reply(w, http.StatusOK, object{})
	}
}

// joining lets a node in that has the cluster's token.
func (n *harvester) joining(w http.ResponseWriter, r *http.Request) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if subtle.ConstantTimeCompare([]byte(token), []byte(n.config.Token)) != 1 {
		n.h.say("a node was refused: wrong token")
		refuse(w, http.StatusUnauthorized, "Unauthorized", "the token is wrong")
		return
	}
	var node harvesterNode
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<16)).
		Decode(&node); err != nil || node.Name == "" ||
		node.Name == n.config.OS.Hostname {
		refuse(w, http.StatusBadRequest, "BadRequest", "a node needs a name of its own")
		return
	}
	if !n.isUp() {
		refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable", "the cluster is not ready")
		return
	}
	node.Created = false
	n.mu.Lock()
	n.seen[node.Name] = time.Now()
	old, known := n.state.Nodes[node.Name]
	n.mu.Unlock()
	if !known || old != node {
		if err := n.update(func(s *harvesterState) { s.Nodes[node.Name] = node }); err != nil {
			refuse(w, http.StatusInternalServerError, "InternalError", err.Error())
			return
		}
		n.h.say("node %s joined from %s", node.Name, node.Address)
	}
	reply(w, http.StatusOK, object{"type": "joined"})
}

// ready tells whether a node has called within the time in which Kubernetes gives one up.
func (n *harvester) ready(node harvesterNode) bool {
	return node.Created || !node.Down && time.Since(n.seen[node.Name]) < 40*time.Second
}

// cluster is GET /v1/harvester/cluster/local.
func (n *harvester) cluster() object {
	n.mu.Lock()
	defer n.mu.Unlock()
	return object{
		"id":   "local",
		"type": "management.cattle.io.cluster",
		"metadata": object{
			"name":  "local",
			"state": object{"name": "active", "error": false, "transitioning": false, "message": "Resource is Ready"},
		},
		"status": object{"nodeCount": len(n.state.Nodes), "conditions": []object{{"type": "Ready", "status": "True"}}},
	}
}

// nodes is GET /v1/harvester/nodes, and the same as Kubernetes says it.
func (n *harvester) nodes() object {
	n.mu.Lock()
	defer n.mu.Unlock()
	data := []object{}
	for _, name := range slices.Sorted(maps.Keys(n.state.Nodes)) {
		node := n.state.Nodes[name]
		state, condition := "active", "True"
		if !n.ready(node) {
			state, condition = "inactive", "Unknown"
		}
		data = append(data, object{
			"id":         name,
			"type":       "node",
			"kind":       "Node",
			"apiVersion": "v1",
			"metadata": object{
				"name": name, "state": object{"name": state, "error": condition != "True"},
				"labels": object{"harvesterhci.io/managed": "true", "node-role.kubernetes.io/control-plane": "true"},
			},
			"status": object{
				"conditions": []object{{"type": "Ready", "status": condition}},
				"addresses":  []object{{"type": "InternalIP", "address": node.Address}, {"type": "Hostname", "address": name}},
			},
		})
	}
	return object{
		"type":         "collection",
		"resourceType": "node",
		"kind":         "NodeList",
		"apiVersion":   "v1",
		"count":        len(data),
		"data":         data,
		"items":        data,
	}
}
