package documents

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/internal/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

var errPanic = errors.New("the YAML parser gave up")

// harvester is Harvester's installation configuration, scheme version 1, with
// every key that its installer documents or reads (1.2 to 1.6).
type harvester struct {
	SchemeVersion  int               `json:"scheme_version"`
	ServerURL      string            `json:"server_url"`
	Token          string            `json:"token"`
	SANs           []string          `json:"sans"`
	OS             harvesterOS       `json:"os"`
	Install        *harvesterInstall `json:"install"`
	SystemSettings map[string]string `json:"system_settings"`
	// Versions of charts: of images that somebody built.
	RuntimeVersion         string `json:"runtime_version"`
	RancherVersion         string `json:"rancher_version"`
	HarvesterChartVersion  string `json:"harvester_chart_version"`
	MonitoringChartVersion string `json:"monitoring_chart_version"`
	LoggingChartVersion    string `json:"logging_chart_version"`
}

type harvesterOS struct {
	Hostname                   string            `json:"hostname"`
	Password                   string            `json:"password"`
	SSHAuthorizedKeys          []string          `json:"ssh_authorized_keys"`
	NTPServers                 []string          `json:"ntp_servers"`
	DNSNameservers             []string          `json:"dns_nameservers"`
	Modules                    []string          `json:"modules"`
	Sysctls                    map[string]string `json:"sysctls"`
	Environment                map[string]string `json:"environment"`
	Labels                     map[string]string `json:"labels"`
	WriteFiles                 []harvesterFile   `json:"write_files"`
	AfterInstallChrootCommands []string          `json:"after_install_chroot_commands"`
	PersistentStatePaths       []string          `json:"persistent_state_paths"`
	AdditionalKernelArguments  string            `json:"additional_kernel_arguments"`
	ExternalStorage            any               `json:"external_storage_config"`
	SSHD                       struct {
		SFTP                bool `json:"sftp"`
		DisablePasswordAuth bool `json:"disable_password_auth"`
	} `json:"sshd"`
}

type harvesterFile struct {
	Encoding    string `json:"encoding"`
	Content     string `json:"content"`
	Owner       string `json:"owner"`
	Path        string `json:"path"`
	Permissions string `json:"permissions"`
}

type harvesterInstall struct {
	Automatic               bool                      `json:"automatic"`
	SkipChecks              bool                      `json:"skipchecks"`
	Mode                    string                    `json:"mode"`
	ManagementInterface     *harvesterNetwork         `json:"management_interface"`
	VIP                     string                    `json:"vip"`
	VIPHwAddr               string                    `json:"vip_hw_addr"`
	VIPMode                 string                    `json:"vip_mode"`
	ClusterDNS              string                    `json:"cluster_dns"`
	ClusterPodCIDR          string                    `json:"cluster_pod_cidr"`
	ClusterServiceCIDR      string                    `json:"cluster_service_cidr"`
	ForceEFI                bool                      `json:"force_efi"`
	ForceGPT                bool                      `json:"force_gpt"`
	ForceMBR                bool                      `json:"force_mbr"`
	Device                  string                    `json:"device"`
	DataDisk                string                    `json:"data_disk"`
	WipeAllDisks            bool                      `json:"wipe_all_disks"`
	WipeDisksList           []string                  `json:"wipe_disks_list"`
	PersistentPartitionSize string                    `json:"persistent_partition_size"`
	ConfigURL               string                    `json:"config_url"`
	ISOURL                  string                    `json:"iso_url"`
	WithNetImages           bool                      `json:"with_net_images"`
	Silent                  bool                      `json:"silent"`
	PowerOff                bool                      `json:"poweroff"`
	NoFormat                bool                      `json:"no_format"`
	Debug                   bool                      `json:"debug"`
	TTY                     string                    `json:"tty"`
	Role                    string                    `json:"role"`
	Webhooks                []harvesterWebhook        `json:"webhooks"`
	Addons                  map[string]harvesterAddon `json:"addons"`
	Harvester               any                       `json:"harvester"`
	RawDiskImagePath        string                    `json:"raw_disk_image_path"`
}

type harvesterNetwork struct {
	Interfaces []struct {
		Name   string `json:"name"`
		HwAddr string `json:"hwAddr"`
	} `json:"interfaces"`
	Method       string            `json:"method"`
	IP           string            `json:"ip"`
	SubnetMask   string            `json:"subnet_mask"`
	Gateway      string            `json:"gateway"`
	DefaultRoute bool              `json:"default_route"` // of versions before 1.1; read and ignored
	BondOptions  map[string]string `json:"bond_options"`
	MTU          int               `json:"mtu"`
	VLANID       int               `json:"vlan_id"`
}

type harvesterWebhook struct {
	Event     string              `json:"event"`
	Method    string              `json:"method"`
	Headers   map[string][]string `json:"headers"`
	URL       string              `json:"url"`
	Payload   string              `json:"payload"`
	Insecure  bool                `json:"insecure"`
	BasicAuth struct {
		User     string `json:"user"`
		Password string `json:"password"`
	} `json:"basicAuth"`
}

type harvesterAddon struct {
	Enabled       bool   `json:"enabled"`
	ValuesContent string `json:"values_content"`
}

// A Webhook is called by Harvester's installer.
type Webhook struct {
	Event string // STARTED | SUCCEEDED | FAILED
	URL   string // may be a reference that is resolved later: it is not looked at
}

// Harvester returns the document with the webhooks added to install.webhooks,
// by POST and behind those that it has. The document is otherwise as it was,
// comments included; it is not checked.
func Harvester(contents []byte, hooks ...Webhook) ([]byte, error) {
	var doc yaml.Node
	if err := decode(yaml.NewDecoder(bytes.NewReader(contents)), &doc); err != nil {
		return nil, fmt.Errorf("adding webhooks to the Harvester document: %w", inventory.Problems{{What: "is no YAML"}})
	}
	root := doc.Content[0]
	install := entry(root, "install", yaml.MappingNode)
	if install == nil {
		return nil, fmt.Errorf("adding webhooks to the Harvester document: %w", inventory.Problems{{Field: "install", What: "is no mapping", Line: root.Line}})
	}
	list := entry(install, "webhooks", yaml.SequenceNode)
	if list == nil {
		return nil, fmt.Errorf("adding webhooks to the Harvester document: %w", inventory.Problems{{Field: "install.webhooks", What: "is no list", Line: install.Line}})
	}
	for _, h := range hooks {
		list.Content = append(list.Content, &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{
			word("event"), word(h.Event), word("method"), word("POST"), word("url"), {Kind: yaml.ScalarNode, Value: h.URL, Style: yaml.DoubleQuotedStyle},
		}})
	}
	list.Style &^= yaml.FlowStyle
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		return nil, fmt.Errorf("adding webhooks to the Harvester document: %w", err)
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("adding webhooks to the Harvester document: %w", err)
	}
	return out.Bytes(), nil
}

func word(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s} }

// entry returns the value of a key of a mapping, which it makes when there is
// none; nil when something is there that is of another kind.
func entry(m *yaml.Node, key string, kind yaml.Kind) *yaml.Node {
	if m.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value != key {
			continue
		}
		v := m.Content[i+1]
		if v.Kind == yaml.ScalarNode && v.ShortTag() == "!!null" {
			*v = yaml.Node{Kind: kind}
		}
		if v.Kind != kind {
			return nil
		}
		return v
	}
	v := &yaml.Node{Kind: kind}
	m.Content = append(m.Content, word(key), v)
	return v
}

var (
	bondModes   = []string{"balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"}
	bondOption  = regexp.MustCompile(`^[a-z_]+$`)
	number      = regexp.MustCompile(`^[0-9]+$`)
	stableDisk  = regexp.MustCompile(`^/dev/disk/by-(id|path)/[^/]+$`)
	movingDisk  = regexp.MustCompile(`^/dev/(sd[a-z]+|nvme[0-9]+n[0-9]+)$`)
	virtualDisk = regexp.MustCompile(`^/dev/([a-z]+/)?[A-Za-z0-9._-]+$`)
	nodeName    = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	nicName     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,14}$`)
)

// harvesterCheck collects what is wrong with a document.
type harvesterCheck struct {
	h                  harvester
	problems, warnings inventory.Problems
}

func checkHarvester(file string, contents []byte) (problems, warnings inventory.Problems) {
	c := harvesterCheck{}
	err := strictyaml.Decode(file, contents, &c.h)
	if err != nil && !errors.As(err, &problems) {
		problems.Add("", "", "cannot be read: %s", err)
		return problems, nil
	}
	if len(problems) > 0 && c.h.Install == nil && c.h.Token == "" {
		return problems, nil // nothing could be read
	}
	c.general()
	c.install()
	// A field that could not be read is not missing as well.
	read := problems
	for _, p := range strictyaml.Locate(file, contents, c.problems) {
		if !slices.ContainsFunc(read, func(q inventory.Problem) bool { return q.Field == p.Field }) {
			problems = append(problems, p)
		}
	}
	return problems, strictyaml.Locate(file, contents, c.warnings)
}

func (c *harvesterCheck) general() {
	h, ps := c.h, &c.problems
	if h.SchemeVersion != 1 {
		ps.Add("scheme_version", "write scheme_version: 1", "is %d, but the scheme known here is 1", h.SchemeVersion)
	}
	if strings.TrimSpace(h.Token) == "" {
		ps.Add("token", "give all nodes of the cluster the same one", "is missing: nodes find each other by it")
	}
	switch {
	case h.OS.Hostname == "":
		c.warnings.Add("os.hostname", "give it", "the installer would make up a name")
	case !nodeName.MatchString(h.OS.Hostname):
		ps.Add("os.hostname", "use lower-case letters, digits and -", "%q is no name of a node", h.OS.Hostname)
	}
	if h.OS.Password == "" && len(h.OS.SSHAuthorizedKeys) == 0 {
		ps.Add("os.ssh_authorized_keys", "give one, or os.password", "nobody could log in to the installed system")
	}
	if len(h.OS.NTPServers) == 0 {
		c.warnings.Add("os.ntp_servers", "give them", "nodes whose clocks differ do not form a cluster")
	}
	for i, s := range h.OS.DNSNameservers {
		if _, err := netip.ParseAddr(s); err != nil {
			ps.Add(fmt.Sprintf("os.dns_nameservers[%d]", i), "give an address", "%q is none", s)
		}
	}
	for i, f := range h.OS.WriteFiles {
		if !strings.HasPrefix(f.Path, "/") {
			ps.Add(fmt.Sprintf("os.write_files[%d].path", i), "begin it with /", "%q is no absolute path", f.Path)
		}
	}
}

func (c *harvesterCheck) install() {
	ps, in := &c.problems, c.h.Install
	if in == nil {
		ps.Add("install", "write it as docs/genesis.md shows", "is missing")
		return
	}
	switch in.Mode {
	case "create":
		c.create()
	case "join":
		if c.h.ServerURL == "" {
			ps.Add("server_url", "write server_url: https://VIP:443", "is missing: a node that joins must know its cluster")
		}
	default:
		ps.Add("install.mode", "write create for the first node, join for the others", "there is no mode %q", in.Mode)
	}
	if c.h.ServerURL != "" {
		if in.Mode == "create" {
			ps.Add("server_url", "remove it, or write install.mode: join", "the node that creates the cluster joins none")
		} else if !isURL(c.h.ServerURL, "https") {
			ps.Add("server_url", "write it as https://VIP:443", "this is no such URL")
		}
	}
	switch {
	case in.ISOURL == "":
		ps.Add("install.iso_url", "give the URL of the ISO of the same version", "is missing: without it the node installs and never comes up")
	case !isURL(in.ISOURL, "http", "https"):
		ps.Add("install.iso_url", "use http:// or https://", "this is no URL from which an image can be fetched")
	}
	c.disks()
	c.network()
	for i, w := range in.Webhooks {
		field := fmt.Sprintf("install.webhooks[%d]", i)
		if !slices.Contains([]string{"STARTED", "SUCCEEDED", "FAILED"}, w.Event) {
			ps.Add(field+".event", "use STARTED, SUCCEEDED or FAILED", "there is no event %q", w.Event)
		}
		if w.Method != "" && !slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "DELETE"}, w.Method) {
			ps.Add(field+".method", "use POST", "there is no method %q", w.Method)
		}
		if w.URL == "" {
			ps.Add(field+".url", "give it", "is missing")
		}
	}
	if !slices.Contains([]string{"", "default", "management", "worker", "witness"}, in.Role) {
		ps.Add("install.role", "use default, management, worker or witness", "there is no role %q", in.Role)
	}
	for _, x := range []struct{ field, value string }{{"cluster_pod_cidr", in.ClusterPodCIDR}, {"cluster_service_cidr", in.ClusterServiceCIDR}} {
		if _, err := netip.ParsePrefix(x.value); x.value != "" && err != nil {
			ps.Add("install."+x.field, "write it as 10.52.0.0/16", "%q is no network", x.value)
		}
	}
	if in.PowerOff {
		c.warnings.Add("install.poweroff", "remove it", "the machine stays off after it was installed, until somebody switches it on")
	}
}

func (c *harvesterCheck) create() {
	ps, in := &c.problems, c.h.Install
	a, err := netip.ParseAddr(in.VIP)
	switch {
	case in.VIP == "":
		ps.Add("install.vip", "give a free address outside of all DHCP ranges", "is missing: the node that creates the cluster says under which address it is found")
	case err != nil || !a.Is4() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast():
		ps.Add("install.vip", "give an IPv4 address", "%q cannot be the cluster's address", in.VIP)
	}
	switch in.VIPMode {
	case "static":
	case "dhcp":
		if _, err := inventory.ParseMAC(in.VIPHwAddr); err != nil {
			ps.Add("install.vip_hw_addr", "write it as aa:bb:cc:dd:ee:ff", "the DHCP server finds the reservation of the VIP by this hardware address")
		}
	case "":
		ps.Add("install.vip_mode", "write static, or dhcp", "is missing")
	default:
		ps.Add("install.vip_mode", "write static, or dhcp", "there is no mode %q", in.VIPMode)
	}
}

// disks refuses names that depend on the order in which the kernel finds
// disks, as soon as the document names more than one.
func (c *harvesterCheck) disks() {
	ps, in := &c.problems, c.h.Install
	if in.Device == "" {
		ps.Add("install.device", "write /dev/disk/by-id/…, as the machine's inspection shows it", "is missing: the disk is never chosen by chance")
	}
	named := map[string]string{}
	add := func(field, disk string) {
		if disk == "" {
			return
		}
		if other, ok := named[disk]; ok && !strings.HasPrefix(field, "install.wipe") {
			ps.Add(field, "name another disk, or leave it out", "is the disk of %s already", other)
		}
		named[disk] = field
		if !stableDisk.MatchString(disk) && !virtualDisk.MatchString(disk) {
			ps.Add(field, "write /dev/disk/by-id/…", "%q is no path of a disk", disk)
		}
	}
	add("install.device", in.Device)
	add("install.data_disk", in.DataDisk)
	for i, d := range in.WipeDisksList {
		add(fmt.Sprintf("install.wipe_disks_list[%d]", i), d)
	}
	for disk, field := range named {
		if !movingDisk.MatchString(disk) {
			continue
		}
		const remedy, what = "write /dev/disk/by-id/…", "%s may be another disk at the next start"
		if len(named) > 1 {
			ps.Add(field, remedy, what, disk)
		} else {
			c.warnings.Add(field, remedy, what, disk)
		}
	}
	if in.WipeAllDisks && len(in.WipeDisksList) > 0 {
		ps.Add("install.wipe_disks_list", "remove it, or wipe_all_disks", "contradicts wipe_all_disks")
	}
	if in.NoFormat {
		c.warnings.Add("install.no_format", "remove it", "an earlier installation on the disk would be kept")
	}
}

func (c *harvesterCheck) network() {
	ps, n := &c.problems, c.h.Install.ManagementInterface
	const field = "install.management_interface"
	if n == nil {
		ps.Add(field, "name the interfaces of the management network by hwAddr", "is missing")
		return
	}
	if len(n.Interfaces) == 0 {
		ps.Add(field+".interfaces", "name one by hwAddr", "there is no interface")
	}
	seen := map[string]bool{}
	for i, x := range n.Interfaces {
		at := fmt.Sprintf("%s.interfaces[%d]", field, i)
		mac, err := inventory.ParseMAC(x.HwAddr)
		switch {
		case x.Name == "" && x.HwAddr == "":
			ps.Add(at, "give hwAddr", "has neither hwAddr nor name")
			continue
		case x.HwAddr != "" && err != nil:
			ps.Add(at+".hwAddr", "write it as aa:bb:cc:dd:ee:ff", "%q is no hardware address", x.HwAddr)
		case x.Name != "" && !nicName.MatchString(x.Name):
			ps.Add(at+".name", "give hwAddr instead", "%q is no name of an interface", x.Name)
		case x.HwAddr == "":
			c.warnings.Add(at+".name", "give hwAddr instead", "the name of an interface depends on the kernel and on what is plugged in")
		}
		if id := mac + x.Name; seen[id] {
			ps.Add(at, "remove it", "is the second of that name")
		} else {
			seen[id] = true
		}
	}
	switch n.Method {
	case "dhcp", "none":
	case "static":
		c.static(field, *n)
	case "":
		ps.Add(field+".method", "write dhcp, or static", "is missing")
	default:
		ps.Add(field+".method", "write dhcp, or static", "there is no method %q", n.Method)
	}
	if n.VLANID < 0 || n.VLANID > 4094 {
		ps.Add(field+".vlan_id", "use 1–4094, or leave it out where the network is untagged", "there is no VLAN %d", n.VLANID)
	}
	if n.MTU != 0 && (n.MTU < 576 || n.MTU > 9216) {
		ps.Add(field+".mtu", "leave it out for 1500", "no network has an MTU of %d", n.MTU)
	}
	for k, v := range n.BondOptions {
		switch {
		case k == "mode" && !slices.Contains(bondModes, v):
			ps.Add(field+".bond_options.mode", "use one of: "+strings.Join(bondModes, ", "), "there is no mode %q", v)
		case k == "miimon" && !number.MatchString(v):
			ps.Add(field+".bond_options.miimon", "give milliseconds", "%q is no number", v)
		case !bondOption.MatchString(k):
			ps.Add(field+".bond_options", "use the names of the kernel's bonding driver", "%q is no option of a bond", k)
		}
	}
}

func (c *harvesterCheck) static(field string, n harvesterNetwork) {
	for _, x := range []struct{ name, value string }{{"ip", n.IP}, {"subnet_mask", n.SubnetMask}, {"gateway", n.Gateway}} {
		a, err := netip.ParseAddr(x.value)
		switch {
		case x.value == "":
			c.problems.Add(field+"."+x.name, "give it, or write method: dhcp", "is missing, and the method is static")
		case err != nil || !a.Is4():
			c.problems.Add(field+"."+x.name, "write it as 192.0.2.11", "%q is no IPv4 address", x.value)
		}
	}
}

// isURL takes a text that begins with one of the run's references for a URL,
// because it becomes one.
func isURL(s string, schemes ...string) bool {
	if slices.ContainsFunc([]string{inventory.RefBootURL, inventory.RefDocumentsURL, inventory.RefWebhookURL}, func(ref string) bool { return strings.HasPrefix(s, ref) }) {
		return true
	}
	u, err := url.Parse(s)
	return err == nil && u.Host != "" && slices.Contains(schemes, u.Scheme) && u.User == nil && !strings.ContainsAny(s, " \t\r\n")
}
