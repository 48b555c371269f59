package metadatasvc

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ingotmetal/ingot/internal/seed"
	"github.com/ingotmetal/ingot/inventory"
)

var dated = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}$`)

// version reports whether s is a version of the EC2 tree: any date, latest or 1.0. All
// versions have the same content.
func version(s string) bool { return s == "latest" || s == "1.0" || dated.MatchString(s) }

// versions is the list at the root: the versions that known clients ask for.
const versions = "1.0\n2009-04-04\n2016-09-02\n2018-09-24\n2021-01-03\n2021-03-23\n2021-07-15\nlatest"

// document returns the content of a path below / or below a capability.
func (s *Server) document(p profile, seg []string) ([]byte, bool) {
	switch {
	case len(seg) == 0:
		return []byte(versions), true
	case version(seg[0]):
		t := s.tree(p)
		return t.get(strings.Join(seg[1:], "/"))
	case len(seg) == 1 && seg[0] == "metadata":
		return rootio(p.machine), true
	case p.secret && seg[0] == "nocloud":
		return s.nocloud(p).get(strings.Join(seg[1:], "/"))
	}
	return nil, false
}

// tree is leaves by path. Its listings are derived from the leaves, so that each
// listed name exists: cloud-init drops all metadata if one name answers 404.
type tree map[string][]byte

func (t tree) get(path string) ([]byte, bool) {
	if leaf, ok := t[path]; ok {
		return leaf, true
	}
	prefix := path + "/"
	if path == "" {
		prefix = ""
	}
	names := map[string]bool{}
	for k := range t {
		rest, ok := strings.CutPrefix(k, prefix)
		if !ok {
			continue
		}
		name, _, dir := strings.Cut(rest, "/")
		switch {
		case dir && strings.HasSuffix(prefix, "public-keys/"):
			names[name+"=key"+name] = true // EC2 lists keys as number=name
		case dir:
			names[name+"/"] = true
		default:
			names[name] = true
		}
	}
	if len(names) == 0 {
		return nil, false
	}
	return []byte(strings.Join(slices.Sorted(maps.Keys(names)), "\n")), true
}

// add adds a leaf unless it is empty.
func (t tree) add(path, value string) {
	if value != "" {
		t[path] = []byte(value)
	}
}

// tree returns the EC2 tree of p.
func (s *Server) tree(p profile) tree {
	m := p.machine
	t := tree{}
	const md = "meta-data/"
	t.add(md+"instance-id", seed.InstanceID(m))
	t.add(md+"hostname", hostname(m))
	t.add(md+"local-hostname", hostname(m))
	t.add(md+"instance-type", "bare-metal")
	i, ok := m.Netboot()
	if !ok && len(m.Interfaces) > 0 {
		i, ok = m.Interfaces[0], true
	}
	address := ""
	if ok {
		t.add(md+"mac", i.MAC)
		if i.Address.Is4() {
			address = i.Address.String()
			t.add(md+"local-ipv4", address)
		}
	}
	for name, value := range m.Labels {
		t.add(md+"tags/instance/"+name, value)
	}
	// cloud-init asks DHCP on each card that it finds here, and waits for it.
	for n, i := range m.Interfaces {
		if i.Address.Is4() && !i.DisableDHCP {
			card := md + "network/interfaces/macs/" + i.MAC + "/"
			t.add(card+"mac", i.MAC)
			t.add(card+"device-number", strconv.Itoa(n))
			t.add(card+"local-ipv4s", i.Address.String())
			t.add(card+"subnet-ipv4-cidr-block", seed.Prefix(i).Masked().String())
		}
	}
	for n, key := range m.SSHKeys {
		t.add(md+"public-keys/"+strconv.Itoa(n)+"/openssh-key", strings.TrimSpace(key))
	}
	t.add("dynamic/instance-identity/document", identity(m, i, address))
	if p.secret || p.byAddress {
		t.add("user-data", string(seed.Combined(m, s.phoneHome(p))))
	}
	return t
}

func identity(m inventory.Machine, i inventory.Interface, address string) string {
	arch := i.Arch
	if arch == "" {
		arch = "x86_64"
	}
	b, err := json.Marshal(map[string]string{
		"architecture": arch, "instanceId": seed.InstanceID(m), "instanceType": "bare-metal", "privateIp": address, "version": "2017-09-30",
	})
	if err != nil {
		return "" // a map of strings always encodes
	}
	return string(b)
}

// rootio returns the document for rootio's actions and Packet's clients.
func rootio(m inventory.Machine) []byte {
	type disk struct {
		Device string `json:"device"`
	}
	type address struct {
		Address string `json:"address"`
		Netmask string `json:"netmask,omitempty"`
		Gateway string `json:"gateway,omitempty"`
		Family  int    `json:"address_family"`
	}
	disks, addresses := []disk{}, []address{}
	for _, d := range m.Disks {
		disks = append(disks, disk(d))
	}
	for _, i := range m.Interfaces {
		if i.Address.Is4() {
			a := address{Address: i.Address.String(), Netmask: i.Netmask, Family: 4}
			if i.Gateway.IsValid() {
				a.Gateway = i.Gateway.String()
			}
			addresses = append(addresses, a)
		}
	}
	storage := any(map[string]any{"disks": disks})
	if m.Storage != nil {
		storage = m.Storage
	}
	instance := map[string]any{
		"id": seed.InstanceID(m), "hostname": hostname(m), "ssh_keys": append([]string{}, m.SSHKeys...), "ips": addresses,
		"storage": storage,
	}
	b, err := json.Marshal(map[string]any{"metadata": map[string]any{"instance": instance}})
	if err != nil {
		return nil // these types always encode
	}
	return b
}
