package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/fat16"
	"github.com/diskfs/go-diskfs/partition/gpt"
	"go.yaml.in/yaml/v3"
)

// talosConfig is what the stand-in obeys of a machine configuration.
type talosConfig struct {
	Version string `yaml:"version"`
	Machine struct {
		Type     string   `yaml:"type"`
		CA       keyPair  `yaml:"ca"`
		CertSANs []string `yaml:"certSANs"`
		Network  struct {
			Hostname   string `yaml:"hostname"`
			Interfaces []struct {
				Interface      string `yaml:"interface"`
				DeviceSelector struct {
					HardwareAddr string `yaml:"hardwareAddr"`
				} `yaml:"deviceSelector"`
				DHCP      bool     `yaml:"dhcp"`
				Addresses []string `yaml:"addresses"`
				Routes    []struct {
					Network string `yaml:"network"`
					Gateway string `yaml:"gateway"`
				} `yaml:"routes"`
				VIP struct {
					IP string `yaml:"ip"`
				} `yaml:"vip"`
			} `yaml:"interfaces"`
		} `yaml:"network"`
		Install struct {
			Disk         string         `yaml:"disk"`
			DiskSelector map[string]any `yaml:"diskSelector"`
			Image        string         `yaml:"image"`
			Wipe         bool           `yaml:"wipe"`
		} `yaml:"install"`
	} `yaml:"machine"`
	Cluster struct {
		ID           string  `yaml:"id"`
		Secret       string  `yaml:"secret"`
		ClusterName  string  `yaml:"clusterName"`
		CA           keyPair `yaml:"ca"`
		ControlPlane struct {
			Endpoint string `yaml:"endpoint"`
		} `yaml:"controlPlane"`
		APIServer struct {
			CertSANs []string `yaml:"certSANs"`
		} `yaml:"apiServer"`
	} `yaml:"cluster"`
	hostname string // of the document HostnameConfig, or of machine.network
}

type keyPair struct {
	Crt string `yaml:"crt"`
	Key string `yaml:"key"`
}

// The keys of a v1alpha1 document and of its machine; any other is refused, as Talos does.
var (
	talosKeys   = strings.Fields("version debug persist machine cluster")
	machineKeys = strings.Fields(
		`type token ca acceptedCAs certSANs controlPlane kubelet pods network disks install files env time sysctls sysfs
		registries systemDiskEncryption features udev logging kernel seccompProfiles baseRuntimeSpecOverrides
		nodeLabels nodeAnnotations nodeTaints`,
	)
	clusterKeys = strings.Fields(
		`id secret controlPlane clusterName network token aescbcEncryptionSecret secretboxEncryptionSecret ca acceptedCAs
		aggregatorCA serviceAccount apiServer controllerManager proxy scheduler discovery etcd coreDNS externalCloudProvider extraManifests
		extraManifestHeaders inlineManifests adminKubeconfig allowSchedulingOnMasters allowSchedulingOnControlPlanes`,
	)
)

// parseTalos reads a machine configuration of one or more documents.
func parseTalos(b []byte) (*talosConfig, error) {
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var c *talosConfig
	hostname := ""
	for {
		var node yaml.Node
		if err := dec.Decode(&node); err != nil {
			if c != nil && err.Error() == "EOF" {
				break
			}
			return nil, fmt.Errorf("reading the machine configuration: %w", err)
		}
		var top map[string]yaml.Node
		if err := node.Decode(&top); err != nil {
			return nil, fmt.Errorf("reading the machine configuration: %w", err)
		}
		if _, other := top["apiVersion"]; other {
			var d struct {
				Kind     string `yaml:"kind"`
				Hostname string `yaml:"hostname"`
			}
			if err := node.Decode(&d); err != nil || d.Kind == "" {
				return nil, fmt.Errorf("reading the machine configuration: a document without kind (%w)", err)
			}
			if d.Kind == "HostnameConfig" {
				hostname = d.Hostname
			}
			continue
		}
		c = &talosConfig{}
		if err := node.Decode(c); err != nil {
			return nil, fmt.Errorf("reading the machine configuration: %w", err)
		}
		for _, in := range []struct {
			node  yaml.Node
			known []string
		}{{node, talosKeys}, {top["machine"], machineKeys}, {top["cluster"], clusterKeys}} {
			var keys map[string]yaml.Node
			if err := in.node.Decode(&keys); err != nil {
				return nil, fmt.Errorf("reading the machine configuration: %w", err)
			}
			for k := range keys {
				if !slices.Contains(in.known, k) {
					return nil, fmt.Errorf("reading the machine configuration: unknown key %q", k)
				}
			}
		}
	}
	switch {
	case c.Version != "v1alpha1":
		return nil, fmt.Errorf("reading the machine configuration: version %q", c.Version)
	case !slices.Contains([]string{"init", "controlplane", "worker"}, c.Machine.Type):
		return nil, fmt.Errorf("reading the machine configuration: machine.type %q", c.Machine.Type)
	case c.Cluster.ControlPlane.Endpoint == "":
		return nil, errors.New("reading the machine configuration: cluster.controlPlane.endpoint is missing")
	}
	if c.hostname = hostname; hostname == "" {
		c.hostname = c.Machine.Network.Hostname
	}
	return c, nil
}

// pemOf reads a base64 PEM block, the form of certificates and keys in machine configurations.
func pemOf(s string) ([]byte, error) {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, errors.New("no PEM block")
	}
	return block.Bytes, nil
}

// talos is a Talos node.
type talos struct {
	h      *host
	disk   *disk
	config *talosConfig
	store  *store

	mu    sync.Mutex
	state talosState
}

// talosState is what a node remembers beside its configuration.
type talosState struct {
	Boots        int               `json:"boots"`
	Bootstrapped bool              `json:"bootstrapped"`
	Bootstraps   int               `json:"bootstraps"` // how often it was asked
	Objects      map[string]object `json:"objects"`
	Applied      []string          `json:"applied"` // paths, in the order in which they came first
	ReadyAll     bool              `json:"ready"`   // see POST /ready
	Failures     []string          `json:"failures"`
}

// talosMain is the sequence of Talos: what is on the disk wins; else the platform's configuration is fetched and installed.
func talosMain(ctx context.Context, h *host) error {
	h.stage("booting", "platform "+first(h.word("talos.platform")))
	d, state := h.installed("STATE")
	if d != nil {
		if v, _ := h.word("talos.experimental.wipe"); v == "system" {
			for _, label := range []string{"META", "STATE", "EPHEMERAL"} {
				if p := d.find(label); p.size > 0 {
					if err := d.clear(p); err != nil {
						return err
					}
				}
			}
			h.say("wiped the system partitions of %s", d.name)
			h.words = slices.DeleteFunc(h.words, func(w string) bool { return strings.HasPrefix(w, "talos.experimental.wipe=") })
		}
		if b, err := d.getFile(state, "config.yaml"); err == nil && len(b) > 0 {
			if v, _ := h.word("talos.halt_if_installed"); v == "1" {
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
	if boot, _ := h.installed("EFI"); boot != nil && boot.find("BIOS").size > 0 && first(h.word("talos.config")) == "" {
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

// talosDocument brings the network up and gets the configuration: from a volume labelled CIDATA (platform nocloud), or from
// the URL on the command line, again and again for as long as it takes.
func (h *host) talosDocument(ctx context.Context) ([]byte, error) {
	if platform := first(h.word("talos.platform")); platform == "nocloud" {
		for _, d := range h.disks {
			if b := d.cidata("user-data"); len(b) > 0 {
				h.say("configuration from CIDATA of %s", d.name)
				return b, h.leaseAll(ctx, "")
			}
		}
		return nil, errors.New("finding the configuration: there is no volume CIDATA with user-data")
	} else if platform != "metal" {
		return nil, fmt.Errorf("there is no platform %q", platform)
	}
	if err := h.leaseAll(ctx, ""); err != nil {
		return nil, err
	}
	from := first(h.word("talos.config"))
	if from == "" {
		h.stage("maintenance", "no configuration")
		<-ctx.Done()
		return nil, ctx.Err()
	}
	at, err := h.substitute(from)
	if err != nil {
		return nil, err
	}
	h.stage("config", "fetching the machine configuration")
	for try := 1; ; try++ {
		b, err := fetch(ctx, at, 16*mib)
		if err == nil && len(bytes.TrimSpace(b)) == 0 {
			err = errors.New("it is empty")
		}
		if err == nil {
			h.say("configuration of %d bytes fetched, try %d", len(b), try)
			return b, nil
		}
		h.say("fetching the configuration: try %d: %v", try, err)
		if !pause(ctx, min(time.Duration(try)*time.Second, 10*time.Second)) {
			return nil, ctx.Err()
		}
	}
}

// substitute puts the machine's values in the place of ${uuid}, ${serial}, ${mac} and ${hostname} in query values, and nowhere else.
func (h *host) substitute(from string) (string, error) {
	u, err := url.Parse(from)
	if err != nil {
		return "", fmt.Errorf("reading talos.config: %w", err)
	}
	q := u.Query()
	if len(q) == 0 {
		return from, nil
	}
	mac := ""
	if all, err := cards(); err == nil && len(all) > 0 {
		mac = all[0].HardwareAddr.String()
	}
	values := map[string]string{"uuid": h.uuid, "serial": h.serial, "mac": mac, "hostname": ""}
	for k := range q {
		for i, v := range q[k] {
			q[k][i] = regexp.MustCompile(`\$\{(\w+)\}`).ReplaceAllStringFunc(v, func(s string) string {
				if r, ok := values[s[2:len(s)-1]]; ok {
					return r
				}
				return s
			})
		}
	}
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// cidata reads a file of the disk's CIDATA volume.
func (d *disk) cidata(name string) []byte {
	p := d.find("CIDATA")
	if p.size == 0 {
		return nil
	}
	f, err := os.Open(d.path)
	if err != nil {
		return nil
	}
	defer f.Close() // only read from
	fs, err := fat16.Read(file.New(f, true), p.size, p.start, sector)
	if err != nil {
		return nil
	}
	b, err := fs.ReadFile("/" + name)
	if err != nil {
		return nil
	}
	if i := bytes.IndexByte(b, 0); i >= 0 { // the rest of the last cluster
		b = b[:i]
	}
	return b
}

// The partitions of Talos. The real ones are larger (EFI 100 MiB, BOOT 1000 MiB, STATE 100 MiB).
const (
	talosEFI       = 64 * mib
	talosBoot      = 4 * mib
	talosMeta      = 2 * slotSize
	talosStateSize = 16 * mib
)

// talosInstall writes the disk: partitions, loader with kernel and initramfs, configuration.
func (h *host) talosInstall(ctx context.Context, c *talosConfig, doc []byte) error {
	d, err := h.talosDisk(c)
	if err != nil {
		return err
	}
	if c.Machine.Install.Image == "" {
		return errors.New("installing: machine.install.image is missing")
	}
	h.stage("installing", c.Machine.Install.Image+" on "+d.name)
	h.say("phase install (1/3): partitions of %s (%s)", d.name, d.serial)
	efi := int64(talosEFI)
	if !h.real {
		efi = 4 * mib
	}
	parts, err := d.partition([]part{
		{label: "EFI", kind: gpt.EFISystemPartition, size: efi, attributes: 1 << 2}, // "legacy BIOS bootable": where the loader for BIOS is
		{label: "BIOS", kind: gpt.BIOSBoot, size: mib},
		{label: "BOOT", kind: gpt.LinuxFilesystem, size: talosBoot},
		{label: "META", kind: gpt.LinuxFilesystem, size: talosMeta},
		{label: "STATE", kind: gpt.LinuxFilesystem, size: talosStateSize},
		{label: "EPHEMERAL", kind: gpt.LinuxFilesystem},
	}, h.payloadFile("mbr.bin"))
	if err != nil {
		return err
	}
	for _, p := range parts[3:] {
		if err := d.clear(p); err != nil { // what an earlier installation left
			return err
		}
	}
	h.say("phase install (2/3): loader")
	if h.fails("install") {
		return errors.New("installing: told to fail")
	}
	if err := h.writeLoader(d, parts[0]); err != nil {
		return err
	}
	if !pause(ctx, 0) {
		return ctx.Err()
	}
	h.say("phase install (3/3): configuration")
	if err := d.putFiles(parts[4], map[string][]byte{"config.yaml": doc}); err != nil {
		return err
	}
	s := &store{d: d, p: parts[3]}
	if err := s.save(talosState{Failures: h.health.Failures}); err != nil {
		return err
	}
	h.stage("installed", d.name)
	return nil
}

// writeLoader fills the EFI partition with what the initramfs brought along for it.
func (h *host) writeLoader(d *disk, p part) error {
	f, err := os.Open(filepath.Join(payloadDir, "esp.zst"))
	if errors.Is(err, os.ErrNotExist) && !h.real {
		return d.clear(p) // a simulated machine reads no loader
	}
	if err != nil {
		return err
	}
	defer f.Close() // only read from
	n, err := d.write(p, f)
	h.say("loader of %d bytes written", n)
	return err
}

// payloadDir is where the initramfs has what installers write.
const payloadDir = "/payload"

func (h *host) payloadFile(name string) []byte {
	b, err := os.ReadFile(filepath.Join(payloadDir, name))
	if err != nil {
		return nil
	}
	return b
}

// talosGrow adds STATE and EPHEMERAL to a disk that was written as an image, and writes the configuration.
func (h *host) talosGrow(d *disk, doc []byte) error {
	have, err := d.partitions()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(d.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close() // synced below
	table, err := gpt.Read(file.New(f, true), sector, sector)
	if err != nil {
		return err
	}
	at, end := int64(0), d.size-mib
	for _, p := range have {
		if p.label == "CIDATA" {
			end = min(end, p.start)
		} else {
			at = max(at, p.start+p.size)
		}
	}
	at = (at + mib - 1) / mib * mib
	if at+talosStateSize+mib > end {
		return fmt.Errorf("growing %q: no room for STATE", d.name)
	}
	index := 0
	for _, p := range table.Partitions {
		index = max(index, p.Index)
	}
	for _, p := range []part{
		{label: "STATE", start: at, size: talosStateSize},
		{label: "EPHEMERAL", start: at + talosStateSize, size: (end - at - talosStateSize) / mib * mib},
	} {
		index++
		table.Partitions = append(table.Partitions, &gpt.Partition{
			Index: index, Start: uint64(p.start) / sector, End: uint64(p.start+p.size)/sector - 1,
			Type: gpt.LinuxFilesystem, Name: p.label,
		})
	}
	if err := errors.Join(table.Write(f, d.size), f.Sync()); err != nil {
		return err
	}
	if err := d.putFiles(d.find("STATE"), map[string][]byte{"config.yaml": doc}); err != nil {
		return err
	}
	return (&store{d: d, p: d.find("META")}).save(talosState{Failures: h.health.Failures})
}

// talosDisk finds the disk of machine.install.
func (h *host) talosDisk(c *talosConfig) (*disk, error) {
	in := c.Machine.Install
	if len(in.DiskSelector) == 0 {
		if in.Disk == "" {
			return nil, errors.New("finding the disk: machine.install has neither disk nor diskSelector")
		}
		return h.disk(in.Disk)
	}
	for _, d := range h.disks {
		ok, err := d.selected(in.DiskSelector)
		if err != nil {
			return nil, err
		}
		if ok {
			return d, nil
		}
	}
	return nil, fmt.Errorf("finding the disk: none matches machine.install.diskSelector %v", in.DiskSelector)
}

// selected tells whether a disk matches all of a diskSelector.
func (d *disk) selected(selector map[string]any) (bool, error) {
	for k, v := range selector {
		want := fmt.Sprint(v)
		ok := false
		switch k {
		case "serial":
			ok, _ = filepath.Match(want, d.serial)
		case "model":
			ok, _ = filepath.Match(want, d.model)
		case "name":
			ok, _ = filepath.Match(want, d.name)
		case "type":
			nvme := strings.HasPrefix(d.name, "/dev/nvme")
			ok = want == "nvme" && nvme || want == "ssd" && !d.rotary && !nvme || want == "hdd" && d.rotary && !nvme
		case "size":
			var err error
			if ok, err = sizeMatches(want, d.size); err != nil {
				return false, err
			}
		default:
			return false, fmt.Errorf("finding the disk: diskSelector by %q is not known here", k)
		}
		if !ok {
			return false, nil
		}
	}
	return true, nil
}

// sizeMatches reads ">= 10GB" and the like.
func sizeMatches(want string, size int64) (bool, error) {
	m := regexp.MustCompile(`^\s*(<=|>=|<|>|==)?\s*(\d+)\s*([KMGT]i?)?B?\s*$`).FindStringSubmatch(want)
	if m == nil {
		return false, fmt.Errorf("finding the disk: size %q", want)
	}
	n, err := strconv.ParseInt(m[2], 10, 64)
	if err != nil {
		return false, err
	}
	unit := int64(1000)
	if strings.HasSuffix(m[3], "i") {
		unit = 1024
	}
	for range strings.Index(" KMGT", (m[3] + " ")[:1]) {
		n *= unit
	}
	switch m[1] {
	case "<=":
		return size <= n, nil
	case ">=":
		return size >= n, nil
	case "<":
		return size < n, nil
	case ">":
		return size > n, nil
	}
	return size == n, nil
}

// run is the installed node.
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

// update changes the state and keeps it.
func (t *talos) update(f func(s *talosState) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := f(&t.state); err != nil {
		return err
	}
	return t.store.save(&t.state)
}

// network configures the cards that the configuration names, and asks for addresses on all when it names none.
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

// takeVIP adds the shared address of the configuration, which a node has once etcd runs.
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
