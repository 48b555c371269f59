package metadatasvc

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/inventory"
)

// isVersion reports whether s names a version of the EC2 metadata: a date, "latest" or "1.0". All versions have the same content here.
func isVersion(s string) bool { return s == "latest" || s == "1.0" || dated(s) }

// dated reports whether s has the form of a date, such as 2021-03-23.
func dated(s string) bool {
	if len(s) != len(time.DateOnly) || s[4] != '-' || s[7] != '-' {
		return false
	}
	return !strings.ContainsFunc(s[:4]+s[5:7]+s[8:], func(c rune) bool { return c < '0' || c > '9' })
}

// versions is the document at the path /. It lists the versions that known clients request.
const versions = "1.0\n2009-04-04\n2016-09-02\n2018-09-24\n2021-01-03\n2021-03-23\n2021-07-15\nlatest"

// document returns the document at a path for the profile p, or false if there is none. seg holds the segments of the path, without those
// of the capability.
func (s *Server) document(p profile, seg []string) ([]byte, bool) {
	switch {
	case len(seg) == 0:
		return []byte(versions), true
	case isVersion(seg[0]):
		return s.tree(p, strings.Join(seg[1:], "/")).get()
	case len(seg) == 1 && seg[0] == "metadata":
		return rootio(p.machine), true
	case p.secret && seg[0] == "nocloud":
		return s.nocloud(p, strings.Join(seg[1:], "/"))
	}
	return nil, false
}

// tree is the part of the EC2 metadata that a request needs. asked is the requested path. leaves holds the documents at this path or below
// it, by path. The listing of a folder is made from leaves, so every name in it exists: cloud-init drops all metadata if one listed name
// returns 404.
type tree struct {
	asked  string
	leaves map[string][]byte
}

// wants reports whether the request may need a document whose path begins with prefix. If it returns false, such documents need not be
// made: most requests are for a single document.
func (t tree) wants(prefix string) bool {
	return strings.HasPrefix(t.asked, prefix) || strings.HasPrefix(prefix, t.asked)
}

// add adds a document to the tree. It does nothing if the document is empty or if the request does not need it.
func (t tree) add(path, value string) {
	if value != "" && strings.HasPrefix(path, t.asked) {
		t.leaves[path] = []byte(value)
	}
}

// get returns the requested document, or the listing of the requested folder. It returns false if neither exists.
func (t tree) get() ([]byte, bool) {
	if leaf, ok := t.leaves[t.asked]; ok {
		return leaf, true
	}
	prefix := t.asked + "/"
	if t.asked == "" {
		prefix = ""
	}
	names := map[string]bool{}
	for k := range t.leaves {
		rest, ok := strings.CutPrefix(k, prefix)
		if !ok {
			continue
		}
		name, _, dir := strings.Cut(rest, "/")
		switch {
		case dir && strings.HasSuffix(prefix, "public-keys/"):
			names[name+"=key"+name] = true // in the list of public keys, EC2 writes number=name
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

// tree returns that part of the EC2 metadata of p which a request for path needs.
func (s *Server) tree(p profile, path string) tree {
	m := p.machine
	i, ok := m.Netboot()
	if !ok && len(m.Interfaces) > 0 {
		i, ok = m.Interfaces[0], true
	}
	t := tree{asked: path, leaves: map[string][]byte{}}
	if t.wants(metaData) {
		t.addMachine(m)
		if ok {
			t.addInterface(i)
		}
	}
	if t.wants(cards) {
		t.addCards(m)
	}
	if t.wants(identityDocument) {
		t.add(identityDocument, identity(m, i))
	}
	if t.wants(userData) && (p.secret || p.byAddress) {
		t.add(userData, string(cloudinit.Combined(m, s.phoneHomeURL(p))))
	}
	return t
}

// Paths of the EC2 tree.
const (
	metaData         = "meta-data/"
	cards            = metaData + "network/interfaces/macs/"
	tags             = metaData + "tags/instance/"
	publicKeys       = metaData + "public-keys/"
	identityDocument = "dynamic/instance-identity/document"
	userData         = "user-data"
)

func (t tree) addMachine(m inventory.Machine) {
	host := hostname(m)
	t.add(metaData+"instance-id", cloudinit.InstanceID(m))
	t.add(metaData+"hostname", host)
	t.add(metaData+"local-hostname", host)
	t.add(metaData+"instance-type", "bare-metal")
	if t.wants(tags) {
		t.addTags(m.Labels)
	}
	if t.wants(publicKeys) {
		for n, key := range m.SSHKeys {
			t.add(publicKeys+strconv.Itoa(n)+"/openssh-key", strings.TrimSpace(key))
		}
	}
}

func (t tree) addTags(labels map[string]string) {
	folders := map[string]bool{} // labels a/b need a folder a, so a label a is left out
	for name := range labels {
		if folder, _, ok := strings.Cut(name, "/"); ok {
			folders[folder] = true
		}
	}
	for name, value := range labels {
		if !folders[name] {
			t.add(tags+name, value)
		}
	}
}

func (t tree) addInterface(i inventory.Interface) {
	t.add(metaData+"mac", i.MAC)
	if i.Address.Is4() {
		t.add(metaData+"local-ipv4", i.Address.String())
	}
}

// addCards adds the network cards that can get a DHCP lease from this server. Other cards must not be listed, because cloud-init runs DHCP
// on each listed card and waits for a lease.
func (t tree) addCards(m inventory.Machine) {
	for n, i := range m.Interfaces {
		if i.Address.Is4() && !i.DisableDHCP {
			card := cards + i.MAC + "/"
			t.add(card+"mac", i.MAC)
			t.add(card+"device-number", strconv.Itoa(n))
			t.add(card+"local-ipv4s", i.Address.String())
			t.add(card+"subnet-ipv4-cidr-block", cloudinit.Prefix(i).Masked().String())
		}
	}
}

// identity returns the EC2 instance identity document of m. i is the interface from which m boots, or zero if m has none.
func identity(m inventory.Machine, i inventory.Interface) string {
	arch, address := cmp.Or(i.Arch, "x86_64"), ""
	if i.Address.Is4() {
		address = i.Address.String()
	}
	b, err := json.Marshal(map[string]string{
		"architecture": arch, "instanceId": cloudinit.InstanceID(m), "instanceType": "bare-metal", "privateIp": address, "version": "2017-09-30",
	})
	if err != nil {
		return "" // never happens: a map of strings can always be encoded
	}
	return string(b)
}

// rootio returns the document at /metadata, which Tinkerbell's rootio action and clients written for Packet read.
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
		disks = append(disks, disk{Device: d.Device})
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
		"id": cloudinit.InstanceID(m), "hostname": hostname(m), "ssh_keys": append([]string{}, m.SSHKeys...), "ips": addresses,
		"storage": storage,
	}
	b, err := json.Marshal(map[string]any{"metadata": map[string]any{"instance": instance}})
	if err != nil {
		return nil // never happens: these types can always be encoded
	}
	return b
}
