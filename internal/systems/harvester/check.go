package harvester

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

var (
	stableDisk  = regexp.MustCompile(`^/dev/disk/by-(id|path)/[^/]+$`)
	movingDisk  = regexp.MustCompile(`^/dev/(sd[a-z]+|nvme[0-9]+n[0-9]+)$`)
	virtualDisk = regexp.MustCompile(`^/dev/([a-z]+/)?[A-Za-z0-9._-]+$`)
	nodeName    = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	nicName     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,14}$`)
)

// A checker collects the problems of a configuration.
type checker struct {
	configuration
	problems, warnings inventory.Problems
}

// Check finds problems in the settings on which Ingot depends: how the nodes find each other, their addresses, disks and webhooks. The
// installer checks the other settings.
func (Document) Check(file string, contents []byte) (problems, warnings inventory.Problems) {
	c := checker{}
	err := strictyaml.Decode(file, contents, &c.configuration)
	if err != nil && !errors.As(err, &problems) {
		problems.Add("", "", "cannot be read: %s", err)
		return problems, nil
	}
	if len(problems) > 0 && c.Install == nil && c.Token == "" {
		return problems, nil // nothing was readable
	}

	c.checkNode()
	c.checkOS()
	if c.Install == nil {
		c.problems.Add("install", "write it as docs/genesis.md shows", "is missing")
	} else {
		c.checkInstall()
		c.checkWebhooks()
		c.checkDisks()
		c.checkNetwork()
	}

	// If a field could not be read, do not also report it as missing.
	unread := problems
	for _, p := range strictyaml.Locate(file, contents, c.problems) {
		if !slices.ContainsFunc(unread, func(q inventory.Problem) bool { return q.Field == p.Field }) {
			problems = append(problems, p)
		}
	}
	return problems, strictyaml.Locate(file, contents, c.warnings)
}

// oneOf reports whether value is one of the allowed values, and adds a problem if not.
func (c *checker) oneOf(field, what, value string, allowed ...string) bool {
	switch {
	case slices.Contains(allowed, value):
		return true
	case value == "":
		c.problems.Add(field, "use one of: "+strings.Join(allowed, ", "), "is missing")
	default:
		c.problems.Add(field, "use one of: "+strings.Join(allowed, ", "), "invalid %s %q", what, value)
	}
	return false
}

// checkNode checks the settings by which the node finds its cluster.
func (c *checker) checkNode() {
	if c.SchemeVersion != 1 {
		c.problems.Add("scheme_version", "write scheme_version: 1",
			"is %d, but only scheme version 1 is supported", c.SchemeVersion)
	}
	if strings.TrimSpace(c.Token) == "" {
		c.problems.Add("token", "give all nodes of the cluster the same token", "is missing: nodes join the cluster with this token")
	}
	if c.Install == nil || !c.oneOf("install.mode", "mode", c.Install.Mode, "create", "join") {
		return
	}

	const remedy = "write server_url: https://VIP:443"
	switch creates := c.Install.Mode == "create"; {
	case creates && c.ServerURL != "":
		c.problems.Add("server_url", "remove it, or write install.mode: join", "is only for a node that joins a cluster")
	case !creates && c.ServerURL == "":
		c.problems.Add("server_url", remedy, "is missing: a node that joins needs the cluster's URL")
	case !creates && !isURL(c.ServerURL, "https"):
		c.problems.Add("server_url", remedy, "must be an https URL")
	}
	if c.Install.Mode == "create" {
		c.checkVIP()
	}
}

func (c *checker) checkVIP() {
	in := c.Install
	a, err := netip.ParseAddr(in.VIP)
	switch {
	case in.VIP == "":
		c.problems.Add("install.vip", "give a free address outside of all DHCP ranges",
			"is missing: the node that creates the cluster sets the cluster's address")
	case err != nil || !a.Is4() || a.IsUnspecified() || a.IsLoopback() || a.IsMulticast():
		c.problems.Add("install.vip", "give an IPv4 address", "invalid cluster address %q", in.VIP)
	}

	if c.oneOf("install.vip_mode", "mode", in.VIPMode, "static", "dhcp") && in.VIPMode == "dhcp" {
		if _, err := inventory.ParseMAC(in.VIPHwAddr); err != nil {
			c.problems.Add("install.vip_hw_addr", "write it as aa:bb:cc:dd:ee:ff",
				"must be a MAC address: the DHCP server finds the VIP's reservation by it")
		}
	}
}

func (c *checker) checkOS() {
	system := c.OS
	switch {
	case system.Hostname == "":
		c.warnings.Add("os.hostname", "give a host name", "is missing: the installer would invent a name")
	case !nodeName.MatchString(system.Hostname):
		c.problems.Add("os.hostname", "use lower-case letters, digits and -", "invalid node name %q", system.Hostname)
	}
	if system.Password == "" && len(system.SSHAuthorizedKeys) == 0 {
		c.problems.Add("os.ssh_authorized_keys", "give an SSH key, or os.password", "no one could log in to the installed system")
	}
	if len(system.NTPServers) == 0 {
		c.warnings.Add("os.ntp_servers", "give NTP servers", "is missing: nodes whose clocks differ do not form a cluster")
	}
}

func (c *checker) checkInstall() {
	in := c.Install
	switch {
	case in.ISOURL == "":
		c.problems.Add("install.iso_url", "give the URL of the ISO of the same version",
			"is missing: without it the node installs and never comes up")
	case !isURL(in.ISOURL, "http", "https"):
		c.problems.Add("install.iso_url", "use http:// or https://", "must be an http or https URL")
	}
}

func (c *checker) checkWebhooks() {
	for i, w := range c.Install.Webhooks {
		field := fmt.Sprintf("install.webhooks[%d]", i)
		c.oneOf(field+".event", "event", w.Event, events...)
		if w.URL == "" {
			c.problems.Add(field+".url", "give it", "is missing")
		}
	}
}

// checkDisks checks the disks that the document names. If it names several disks, their names must not depend on the order in which the
// kernel finds disks.
func (c *checker) checkDisks() {
	in := c.Install
	if in.Device == "" {
		c.problems.Add("install.device", "write /dev/disk/by-id/…, as the machine's inspection shows it",
			"is missing: the installer must not choose a disk")
	}

	fields := map[string]string{} // field by disk
	add := func(field, disk string) {
		if disk == "" {
			return
		}
		if other, ok := fields[disk]; ok && !strings.HasPrefix(field, "install.wipe") {
			c.problems.Add(field, "name another disk, or leave it out", "names the same disk as %s", other)
		}
		fields[disk] = field
		if !stableDisk.MatchString(disk) && !virtualDisk.MatchString(disk) {
			c.problems.Add(field, "write /dev/disk/by-id/…", "invalid disk path %q", disk)
		}
	}
	add("install.device", in.Device)
	add("install.data_disk", in.DataDisk)
	for i, d := range in.WipeDisksList {
		add(fmt.Sprintf("install.wipe_disks_list[%d]", i), d)
	}

	found := &c.warnings
	if len(fields) > 1 {
		found = &c.problems
	}
	for disk, field := range fields {
		if movingDisk.MatchString(disk) {
			found.Add(field, "write /dev/disk/by-id/…", "%s may name another disk at the next start", disk)
		}
	}
	if in.WipeAllDisks && len(in.WipeDisksList) > 0 {
		c.problems.Add("install.wipe_disks_list", "remove it, or wipe_all_disks", "contradicts wipe_all_disks")
	}
}

const network = "install.management_interface"

func (c *checker) checkNetwork() {
	n := c.Install.ManagementInterface
	if n == nil {
		c.problems.Add(network, "name the interfaces of the management network by hwAddr", "is missing")
		return
	}
	c.checkInterfaces(n)
	if c.oneOf(network+".method", "method", n.Method, "dhcp", "static", "none") && n.Method == "static" {
		c.checkStatic(n)
	}
	if n.VLANID < 0 || n.VLANID > 4094 {
		c.problems.Add(network+".vlan_id", "use 1–4094, or leave it out where the network is untagged",
			"invalid VLAN %d", n.VLANID)
	}
}

func (c *checker) checkInterfaces(n *managementInterface) {
	if len(n.Interfaces) == 0 {
		c.problems.Add(network+".interfaces", "name an interface by hwAddr", "is empty")
	}
	seen := map[string]bool{}
	for i, x := range n.Interfaces {
		field := fmt.Sprintf("%s.interfaces[%d]", network, i)
		mac, err := inventory.ParseMAC(x.HwAddr)
		switch {
		case x.Name == "" && x.HwAddr == "":
			c.problems.Add(field, "give hwAddr", "has neither hwAddr nor name")
			continue
		case x.HwAddr != "" && err != nil:
			c.problems.Add(field+".hwAddr", "write it as aa:bb:cc:dd:ee:ff", "invalid hardware address %q", x.HwAddr)
		case x.Name != "" && !nicName.MatchString(x.Name):
			c.problems.Add(field+".name", "give hwAddr instead", "invalid interface name %q", x.Name)
		case x.HwAddr == "":
			c.warnings.Add(field+".name", "give hwAddr instead",
				"the name of an interface depends on the kernel and on the cards in the machine")
		}
		if seen[mac+x.Name] {
			c.problems.Add(field, "remove it", "names the same interface as an earlier entry")
		}
		seen[mac+x.Name] = true
	}
}

func (c *checker) checkStatic(n *managementInterface) {
	for _, x := range []struct{ name, value string }{
		{"ip", n.IP}, {"subnet_mask", n.SubnetMask}, {"gateway", n.Gateway},
	} {
		a, err := netip.ParseAddr(x.value)
		switch {
		case x.value == "":
			c.problems.Add(network+"."+x.name, "give it, or write method: dhcp", "is missing, but method: static needs it")
		case err != nil || !a.Is4():
			c.problems.Add(network+"."+x.name, "write it as 192.0.2.11", "invalid IPv4 address %q", x.value)
		}
	}
}

// isURL reports whether s is a URL of one of the schemes, or begins with a reference that the run replaces by a
// URL.
func isURL(s string, schemes ...string) bool {
	for _, ref := range []string{inventory.RefBootURL, inventory.RefDocumentsURL, inventory.RefWebhookURL} {
		if strings.HasPrefix(s, ref) {
			return true
		}
	}
	u, err := url.Parse(s)
	return err == nil && u.Host != "" && slices.Contains(schemes, u.Scheme) && u.User == nil &&
		!strings.ContainsAny(s, " \t\r\n")
}
