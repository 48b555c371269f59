package genesis

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/systems"
	"github.com/ingotmetal/ingot/inventory"
)

// example reads the example lab; change may alter each file.
func example(t *testing.T, change func(name, content string) string) func(string) ([]byte, error) {
	t.Helper()
	return func(name string) ([]byte, error) {
		b, err := os.ReadFile(filepath.Join("../deploy/genesis", name))
		if err == nil && change != nil {
			b = []byte(change(name, string(b)))
		}
		return b, err
	}
}

// swap replaces text in one file, which must contain it.
func swap(t *testing.T, file string, pairs ...string) func(name, content string) string {
	t.Helper()
	return func(name, content string) string {
		if name != file {
			return content
		}
		for i := 0; i < len(pairs); i += 2 {
			require.Contains(t, content, pairs[i])
			content = strings.ReplaceAll(content, pairs[i], pairs[i+1])
		}
		return content
	}
}

// load returns the problems of the changed example as "file:line: field".
func load(t *testing.T, change func(name, content string) string) (map[string]inventory.Problem, Lab) {
	t.Helper()
	l, err := Load("lab.yaml", example(t, change), systems.All{})
	out := map[string]inventory.Problem{}
	var ps inventory.Problems
	if err != nil {
		require.ErrorAs(t, err, &ps)
	}
	for _, p := range ps {
		require.NotEmpty(t, p.File, "%v", p)
		require.NotZero(t, p.Line, "%v", p)
		require.NotEmpty(t, p.Field, "%v", p)
		out[p.File+" "+p.Field] = p
	}
	return out, l
}

func TestExample(t *testing.T) {
	ps, l := load(t, nil)
	require.Empty(t, ps)
	var names []string
	for _, s := range l.Steps() {
		names = append(names, s.Name)
		require.NotEmpty(t, s.Does, s.Name)
		require.NotEmpty(t, s.Ready, s.Name)
		require.NotEmpty(t, s.Undo, s.Name)
		require.Positive(t, s.Budget, s.Name)
	}
	require.Equal(
		t,
		[]string{"preflight", "router", "relay", "platform", "kubernetes", "migrate", "create", "vip", "join-ms-02-b", "join-ms-02-c", "proven"},
		names,
	)

	router, _ := l.Machine("vp6630")
	require.Equal(t, "vyos", router.Template)
	require.Contains(t, router.UserData.Reveal(), "dhcp-relay")
	require.Equal(t, "https://192.168.1.2", l.Router.API)
	require.Equal(t, "EXAMPLE-make-your-own-with-openssl-rand-hex-32", l.Router.Key.Reveal())
	require.Equal(t, "10.10.20.11:50000", l.Platform.Talos)
	require.Equal(t, "https://10.10.20.11:6443", l.Platform.Kubernetes)
	require.Equal(t, "10.10.20.11", l.Migrate.Address.String())
	require.Equal(t, "https://10.10.20.30", l.Cluster.API)
	node, _ := l.Machine("ms-02-c")
	require.Equal(t, "harvester-join", node.Template)
	require.Equal(t, "EXAMPLE-make-your-own", node.BMC.Password.Reveal())
	for _, m := range l.Inventory(false).Machines {
		require.Empty(t, inventory.Validate(m.Machine))
	}
}

// TestStepsSayWhatIsWritten: only the machines' steps write disks, and each names the disk
// and the images.
func TestStepsSayWhatIsWritten(t *testing.T) {
	_, l := load(t, swap(t, "lab.yaml", "cluster:\n", "budgets: {vip: 90m}\ncluster:\n"))
	for _, s := range l.Steps() {
		writes := s.Kind == StepRouter || s.Kind == StepPlatform || s.Kind == StepCreate || s.Kind == StepJoin
		require.Equal(t, writes, s.Writes(), s.Name)
		require.Equal(t, writes, len(s.Images) > 0, s.Name)
		if s.Name == StepVIP {
			require.Equal(t, 90*time.Minute, s.Budget)
		}
		if s.Kind == StepRouter {
			require.Equal(t, "serial EXAMPLE-VP6630-0001", s.Disk)
			require.Equal(t, []StepImage{{Name: "vyos", SHA256: strings.Repeat("1", 64)}}, s.Images)
			require.Contains(t, s.Waits, "an operator")
		}
		if s.Kind == StepCreate {
			require.Contains(t, s.Disk, "nvme-EXAMPLE_MS02_DATA_000A", "Harvester's second disk is overwritten, too")
			require.Contains(t, s.Waits, "amt at 10.10.20.21")
		}
	}
	require.Len(t, l.Destroys(), 5)
}

func TestManifestIsFilledIn(t *testing.T) {
	read := example(t, nil)
	l, err := Load("lab.yaml", func(name string) ([]byte, error) {
		if name == "ingot.yaml" {
			return []byte("image: INGOT_IMAGE\naddress: INGOT_ADDRESS\n"), nil
		}
		return read(name)
	}, systems.All{})
	require.NoError(t, err)
	require.Equal(t, "image: registry.example.org/ingot:latest\naddress: 10.10.20.11\n", l.Migrate.Manifest)
}

func TestSectionsMayBeAbsent(t *testing.T) {
	b, err := os.ReadFile("../deploy/genesis/lab.yaml")
	require.NoError(t, err)
	text := string(b)
	text = text[:strings.Index(text, "\nmigrate:")]
	l, err := Load("lab.yaml", example(t, func(name, content string) string {
		if name == "lab.yaml" {
			return text
		}
		return content
	}), systems.All{})
	require.NoError(t, err)
	require.Equal(t, []string{"preflight", "router", "relay", "platform", "kubernetes", "proven"}, l.stepNames())
}

// static is what a Harvester document says of a node's own address, up to that.
const static = "method: static\n    subnet_mask: 255.255.255.0\n    gateway: 10.10.20.1\n    ip: "

// TestBadInput lists mistakes of lab files: each is reported with file, line and field.
func TestBadInput(t *testing.T) {
	for name, c := range map[string]struct {
		file  string
		swaps []string
		want  map[string]string // "file field" → part of the message
	}{
		"unknown keys": {"lab.yaml", []string{"  vlan: 20\n", "  vlann: 20\n", "labels: {role: router,", "lables: {role: router,"}, map[string]string{
			"lab.yaml network.vlann": "unknown key", "lab.yaml machines[0].lables": "unknown key", "lab.yaml machines[0].labels": "needs a version as label version",
		}},
		"unknown machines": {"lab.yaml", []string{"machine: vp6630", "machine: vp6631", "join: [ms-02-b, ms-02-c]", "join: [ms-02-b, ms-02-d, ms-02-a]"}, map[string]string{
			"lab.yaml router.machine": `unknown machine "vp6631"`, "lab.yaml cluster.join[1]": `unknown machine "ms-02-d"`, "lab.yaml cluster.join[2]": `"ms-02-a" is already named in cluster.create`,
		}},
		"two owners": {"lab.yaml", []string{
			"02:00:00:02:0c:02", "02:00:00:02:0b:02", "address: 10.10.20.33", "address: 10.10.20.11", "name: ms-02-c", "name: ms-02-b", "host: 10.10.20.23", "host: 10.10.20.22",
			"join: [ms-02-b, ms-02-c]", "join: [ms-02-b]",
		}, map[string]string{
			"lab.yaml machines[4].name": "is given at lab.yaml:", "lab.yaml machines[4].interfaces[0].mac": "MAC 02:00:00:02:0b:02 is given at lab.yaml:",
			"lab.yaml machines[4].interfaces[1].address": "address 10.10.20.11 is given at lab.yaml:", "lab.yaml machines[4].bmc.host": "address 10.10.20.22 is given",
			"lab.yaml machines[4].interfaces[1].hostname": "host name ms-02-b is given",
		}},
		"the VIP of a machine": {"lab.yaml", []string{"vip: 10.10.20.30", "vip: 10.10.20.11"}, map[string]string{
			"lab.yaml cluster.vip": "address 10.10.20.11 is given at lab.yaml:", "harvester-create.yaml install.vip": "the cluster's VIP is 10.10.20.11",
			"harvester-join.yaml server_url": "does not lead", "harvester-join-c.yaml server_url": "does not lead",
		}},
		"the new server at a machine's address": {"lab.yaml", []string{"manifestFile: ingot.yaml", "address: 10.10.20.22\n  manifestFile: ingot.yaml"}, map[string]string{
			"lab.yaml migrate.address": "address 10.10.20.22 is given at lab.yaml:",
		}},
		"the VIP of the new server": {"lab.yaml", []string{"manifestFile: ingot.yaml", "address: 10.10.20.30\n  manifestFile: ingot.yaml"}, map[string]string{
			"lab.yaml cluster.vip": "address 10.10.20.30 is given at lab.yaml:",
		}},
		"a node at another's address": {"harvester-join.yaml", []string{"method: dhcp", static + "10.10.20.21"}, map[string]string{
			"harvester-join.yaml install.management_interface.ip": "address 10.10.20.21 is given at lab.yaml:",
		}},
		"a node at a later one's address": {"harvester-join.yaml", []string{"method: dhcp", static + "10.10.20.23"}, map[string]string{
			"lab.yaml machines[4].interfaces[0].address": "address 10.10.20.23 is given at harvester-join.yaml:23",
		}},
		"the VIP of a node": {"harvester-join.yaml", []string{"method: dhcp", static + "10.10.20.30"}, map[string]string{
			"lab.yaml cluster.vip": "address 10.10.20.30 is given at harvester-join.yaml:23",
		}},
		"a node at its own address": {"harvester-join.yaml", []string{"method: dhcp", static + "10.10.20.32"}, nil},
		"VIP inside the DHCP range": {"lab.yaml", []string{"from: 10.10.20.200", "from: 10.10.20.30"}, map[string]string{
			"lab.yaml cluster.vip": "lies in the DHCP range", "lab.yaml machines[2].interfaces[1].address": "lies in the DHCP range",
			"lab.yaml machines[3].interfaces[1].address": "lies in the DHCP range", "lab.yaml machines[4].interfaces[1].address": "lies in the DHCP range",
		}},
		"images": {"lab.yaml", []string{"sha256: 1111", "sha256: xyz", "image: vyos\n", "image: vyoss\n", "name: talos-kernel", "name: vyos"}, map[string]string{
			"lab.yaml machines[1].labels.kernel": `unknown image "talos-kernel"`,
			"lab.yaml images[0].sha256":          "invalid SHA-256", "lab.yaml images[1].name": "image name vyos is given at lab.yaml:", "lab.yaml machines[0].image": `unknown image "vyoss"`,
		}},
		"two disks and no selector": {"lab.yaml", []string{"    diskSelector: {serial: EXAMPLE_MS02_SYSTEM_000A}\n", ""}, map[string]string{
			"lab.yaml machines[2].diskSelector": `"ms-02-a" has 2 disks`,
		}},
		"missing files": {"lab.yaml", []string{"config: talos.yaml", "config: gone.yaml", "keyFile: vyos.key", "keyFile: ../../LICENSE", "talosconfigFile: talosconfig", "talosconfigFile: lab.yaml"}, map[string]string{
			"lab.yaml machines[1].config": `"gone.yaml" does not exist`, "lab.yaml router.keyFile": "is not inside", "lab.yaml platform.talosconfigFile": "the lab file itself",
		}},
		"secrets inline": {"lab.yaml", []string{"user: admin}\n    bmcPasswordFile: amt.password", "user: admin, password: canary}\n    userData: canary"}, map[string]string{
			"lab.yaml machines[2].bmc.password": "must not contain secrets", "lab.yaml machines[2].userData": "must not contain secrets",
			"lab.yaml machines[3].userData": "must not contain secrets", "lab.yaml machines[4].userData": "must not contain secrets",
			"lab.yaml machines[2].bmcPasswordFile": "needs a password", "lab.yaml machines[3].bmcPasswordFile": "needs a password", "lab.yaml machines[4].bmcPasswordFile": "needs a password",
		}},
		"places": {"lab.yaml", []string{"address: 192.168.1.2,", "address: 10.10.20.2,", "prefix: 10.10.20.0/24", "prefix: 10.10.0.0/16", "gateway: 10.10.20.1            #", "gateway: 10.11.20.1            #"}, map[string]string{
			"lab.yaml machines[0].interfaces[0].address": "does not lie in 192.168.1.0/24", "lab.yaml machines[0].interfaces[0].gateway": "lies outside",
			"lab.yaml network.gateway": "does not lie in 10.10.0.0/16",
		}},
		"budgets": {"lab.yaml", []string{"cluster:\n", "budgets: {vipp: 1h, relay: -1m}\ncluster:\n"}, map[string]string{
			"lab.yaml budgets.vipp": `unknown step "vipp"`, "lab.yaml budgets.relay": "invalid duration",
		}},
		"Harvester without ISO": {"harvester-create.yaml", []string{"  iso_url: ", "  # "}, map[string]string{"harvester-create.yaml install.iso_url": "missing"}},
		"join without server":   {"harvester-join-c.yaml", []string{"server_url: ", "# "}, map[string]string{"harvester-join-c.yaml server_url": "missing"}},
		"another ISO": {"harvester-join-c.yaml", []string{"10.10.20.11:7080/images/harvester-v1.4.0-amd64.iso", "192.168.1.10:7080/images/harvester-v1.4.1-amd64.iso"}, map[string]string{
			"harvester-join-c.yaml install.iso_url": "will move from 192.168.1.10 to 10.10.20.11",
		}},
		"another token":        {"harvester-join.yaml", []string{"token: EXAMPLE", "token: OTHER"}, map[string]string{"harvester-join.yaml token": "differs from the token in harvester-create.yaml"}},
		"a stranger's port":    {"harvester-join.yaml", []string{"02:00:00:02:0b:26", "02:00:00:02:0a:26"}, map[string]string{"harvester-join.yaml install.management_interface.interfaces[1].hwAddr": `not an interface of machine "ms-02-b"`}},
		"no relay to us":       {"config.boot", []string{"server \"192.168.1.10\"", "server \"192.168.1.11\""}, map[string]string{"config.boot service dhcp-relay server": "192.168.1.10"}},
		"relay switched off":   {"config.boot", []string{"    dhcp-relay {\n", "    dhcp-relay {\n        disable\n"}, map[string]string{"config.boot service dhcp-relay disable": "switched off"}},
		"a key of VyOS":        {"config.boot", []string{"listen-interface ", "listen-intface "}, map[string]string{"config.boot service dhcp-relay listen-intface": `did you mean "listen-interface"?`}},
		"another talosconfig":  {"talosconfig", []string{"ca: LS0t", "ca: AAAA"}, map[string]string{"talosconfig ca": "the certificate authority differs from the one in talos.yaml"}},
		"Talos with a mistake": {"talos.yaml", []string{"kubelet:\n", "kublet:\n"}, map[string]string{"talos.yaml machine.kublet": "does not know this key"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := load(t, swap(t, c.file, c.swaps...))
			for field, what := range c.want {
				require.Contains(t, got, field, "%v", got)
				require.Contains(t, got[field].String(), what)
			}
			for field, p := range got {
				require.Contains(t, c.want, field, "%v", p)
				require.NotContains(t, p.String(), "canary", "secrets are not echoed")
			}
		})
	}
}

// TestS17HostsThatAreProbed: hosts that the server would contact with keys and passwords
// must not be the server itself or its link.
func TestS17HostsThatAreProbed(t *testing.T) {
	got, _ := load(t, swap(t, "lab.yaml",
		"keyFile: vyos.key", "api: https://127.0.0.1:8443\n  keyFile: vyos.key",
		"talosconfigFile: talosconfig", "talos: localhost:50000\n  kubernetes: https://[::1]:6443\n  talosconfigFile: talosconfig",
		"vip: 10.10.20.30", "vip: 10.10.20.30\n  api: https://169.254.169.254"))
	for _, field := range []string{"router.api", "platform.talos", "platform.kubernetes"} {
		require.Contains(t, got["lab.yaml "+field].String(), "is this host itself", field)
	}
	require.Contains(t, got["lab.yaml cluster.api"].String(), "is a link-local, multicast or broadcast address")
	require.Len(t, got, 4, "%v", got)
}

// TestEverythingAtOnce: mistakes in several files are reported together, those of the lab
// file by line.
func TestEverythingAtOnce(t *testing.T) {
	_, err := Load("lab.yaml", example(t, func(name, content string) string {
		content = swap(t, "lab.yaml", "  vlan: 20", "  vlan: 20\n  vlann: 20", "create: ms-02-a", "create: ms-02-x")(name, content)
		content = swap(t, "harvester-join.yaml", "server_url: ", "# ")(name, content)
		return swap(t, "talos.yaml", "kubelet:\n", "kublet:\n")(name, content)
	}), systems.All{})
	var ps inventory.Problems
	require.ErrorAs(t, err, &ps)
	require.ErrorIs(t, err, inventory.ErrInvalid)
	var files []string
	for n, p := range ps {
		files = append(files, p.File)
		if n > 0 && ps[n-1].File == p.File && p.File == "lab.yaml" {
			require.LessOrEqual(t, ps[n-1].Line, p.Line)
		}
	}
	require.Equal(t, []string{"lab.yaml", "lab.yaml", "talos.yaml", "harvester-join.yaml"}, files, "%v", ps)
}

// TestWhatIsLost: an unreadable section is one mistake; references to it are not reported as
// well.
func TestWhatIsLost(t *testing.T) {
	for section, swaps := range map[string][]string{
		"images":      {"images:  ", "images: nil\n#"},
		"machines":    {"machines:\n", "machines: nil\nmachinesx:\n"},
		"platform":    {"platform:\n  machine: um760\n  talosconfigFile: talosconfig\n", "platform: nil\n"},
		"router":      {"router:\n  machine: vp6630\n", "router: nil\nrouterx:\n"},
		"cluster.vip": {"vip: 10.10.20.30", "vip: [10.10.20.30]"},
	} {
		t.Run(section, func(t *testing.T) {
			got, _ := load(t, func(name, content string) string {
				content = swap(t, "lab.yaml", swaps...)(name, content)
				if section == "images" {
					content = regexp.MustCompile(`(?m)^  - \{name: .*sha256.*\n`).ReplaceAllString(content, "")
				}
				return swap(t, "lab.yaml", "cluster:\n", "budgets: {platform: 1h, router: 1h}\ncluster:\n")(name, content)
			})
			require.Contains(t, got, "lab.yaml "+section)
			for field, p := range got {
				if !strings.HasPrefix(field, "lab.yaml "+section) {
					t.Errorf("%v", p)
				}
			}
		})
	}
}

func TestNotALab(t *testing.T) {
	for src, want := range map[string]string{"": "holds 0 documents", "a: [\n": "not valid YAML", "name: a\n---\nname: b\n": "holds 2 documents", "- a\n": "must be a mapping"} {
		_, err := Load("lab.yaml", func(string) ([]byte, error) { return []byte(src), nil }, systems.All{})
		require.ErrorIs(t, err, inventory.ErrInvalid, src)
		require.ErrorContains(t, err, want, src)
	}
	_, err := Load("lab.yaml", func(string) ([]byte, error) { return nil, fs.ErrNotExist }, systems.All{})
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestCheckImages(t *testing.T) {
	_, l := load(t, nil)
	one, two := strings.Repeat("1", 64), strings.Repeat("2", 64)
	stored := map[string]inventory.Image{
		"vyos":            {SHA256: two, Source: &inventory.ImageSource{SHA256: one}}, // converted
		"talos-initramfs": {SHA256: one},
	}
	ps := l.CheckImages(stored, func(i Image) (string, error) {
		switch i.Name {
		case "talos-kernel":
			return two, nil
		case "talos-initramfs":
			return one, nil
		case "harvester-v1.4.0-amd64.iso":
			return "", errors.New("no power")
		}
		return "", fmt.Errorf("opening: %w", fs.ErrNotExist)
	})
	got := map[string]string{}
	for _, p := range ps {
		require.Equal(t, "lab.yaml", p.File)
		require.NotZero(t, p.Line)
		got[p.Field] = p.What
	}
	require.Equal(t, map[string]string{
		"images[2].sha256": `"images/initramfs-amd64.xz" has the digest ` + one,
		"images[3].file":   `file "images/harvester-v1.4.0-vmlinuz-amd64" does not exist`,
		"images[4].file":   `file "images/harvester-v1.4.0-initrd-amd64" does not exist`,
		"images[5].file":   `file "images/harvester-v1.4.0-rootfs-amd64.squashfs" does not exist`,
		"images[6].file":   "no power",
	}, got)

	// On the server there are no files: images that it lacks are missing.
	ps = l.CheckImages(stored, nil)
	require.Len(t, ps, 6)
	require.Equal(t, "images[1].name", ps[0].Field)
	require.Contains(t, ps[0].Remedy, "ingot image add talos-kernel")
	require.Equal(t, "images[2].sha256", ps[1].Field)
}

// S25: a URL may hold a credential, which is never shown.
func TestS25SourceOfAnImage(t *testing.T) {
	for address, shown := range map[string]string{
		"": "", "https://example.org/a%2Fb": "https://example.org/a%2Fb", "%": "",
		"https://canary:canary@example.org:8443/vyos.zst?X-Signature=canary#canary": "https://example.org:8443/vyos.zst",
	} {
		require.Equal(t, shown, Image{URL: address}.Source())
	}
	_, l := load(t, swap(t, "lab.yaml", "file: images/kernel-amd64", `url: "https://canary:canary@example.org/kernel?X-Signature=canary"`))
	ps := l.CheckImages(nil, nil)
	require.ErrorContains(t, ps.Err(), "ingot image add talos-kernel https://example.org/kernel")
	require.NotContains(t, ps.Err().Error(), "canary")
}

// Images that must be fetched are checked before the lab is reported as valid.
func TestCheckSources(t *testing.T) {
	_, l := load(
		t,
		swap(
			t,
			"lab.yaml",
			"file: images/kernel-amd64",
			"url: https://factory.example.org/kernel-amd64",
			"file: images/vyos.raw.zst",
			"url: https://example.org/vyos",
		),
	)
	var asked []string
	ask := func(address string) error {
		asked = append(asked, address)
		return errors.New("the answer is 404 Not Found")
	}
	ps := l.CheckSources(map[string]inventory.Image{"vyos": {}}, ask)
	require.Equal(t, []string{"https://factory.example.org/kernel-amd64"}, asked)
	require.Len(t, ps, 1)
	require.Equal(t, "images[1].url", ps[0].Field)
	require.Equal(t, "lab.yaml", ps[0].File)
	require.NotZero(t, ps[0].Line)
	require.Equal(t, `image "talos-kernel" cannot be fetched: the answer is 404 Not Found`, ps[0].What)
	require.Empty(t, l.CheckSources(nil, func(string) error { return nil }))
}

// However many images a file names, few requests run at a time.
func TestCheckSourcesAFewAtATime(t *testing.T) {
	var l Lab
	for n := range 4 * askAtOnce {
		l.Images = append(l.Images, Image{Name: fmt.Sprint("i", n), URL: "https://example.org/x"})
	}
	var mu sync.Mutex
	open, most := 0, 0
	count := func(by int) {
		mu.Lock()
		defer mu.Unlock()
		open += by
		most = max(most, open)
	}
	synctest.Test(t, func(t *testing.T) {
		require.Empty(t, l.CheckSources(nil, func(string) error {
			count(1)
			defer count(-1)
			time.Sleep(time.Second) // of the test's clock: ends once all wait
			return nil
		}))
	})
	require.Equal(t, askAtOnce, most)
}

func TestBundle(t *testing.T) {
	b, l, err := Bundle("lab.yaml", example(t, nil), systems.All{})
	require.NoError(t, err)
	require.Equal(t, "home", b.Name)
	require.NoError(t, b.Check())
	require.Len(t, b.Files, 10)
	again, err := Load(b.File, b.Read, systems.All{})
	require.NoError(t, err)
	require.Equal(t, l.Machines, again.Machines)
}

// An absent field is not stated; an empty one is.
func TestInventorySaysWhatTheFileStates(t *testing.T) {
	ps, l := load(t, swap(t, "lab.yaml", "diskSelector: {serial: EXAMPLE-VP6630-0001}",
		"diskSelector: {serial: EXAMPLE-VP6630-0001}\n    sshKeys: []"))
	require.Empty(t, ps)
	at := slices.IndexFunc(l.Machines, func(m Machine) bool { return m.Name == "vp6630" })
	says := l.Inventory(false).Machines[at].Says
	require.True(t, says("sshKeys") && says("diskSelector") && says("interfaces[0].address"))
	require.False(t, says("network") || says("interfaces[0].loader") || says("userDataByAddress"))
}

func FuzzLoad(f *testing.F) {
	b, err := os.ReadFile("../deploy/genesis/lab.yaml")
	require.NoError(f, err)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := Load("lab.yaml", func(name string) ([]byte, error) {
			if name == "lab.yaml" {
				return b, nil
			}
			return nil, fs.ErrNotExist
		}, systems.All{})
		require.True(t, err == nil || errors.Is(err, inventory.ErrInvalid), "%v", err)
		l.Steps() // even of a lab with mistakes
	})
}

// Machines of a lab file have the forms of machine files, and so has its schema.
func TestFormsOfMachineFiles(t *testing.T) {
	ps, lab := load(t, swap(t, "lab.yaml",
		"address: 192.168.1.2, netmask: 255.255.255.0,", "address: 192.168.1.2/24,",
		"diskSelector: {serial: EXAMPLE-VP6630-0001}", "diskSelector: {serial: EXAMPLE-VP6630-0001, minSize: 100GB}"))
	require.Empty(t, ps)
	router, ok := lab.Machine("vp6630")
	require.True(t, ok)
	require.Equal(t, "255.255.255.0", router.Interfaces[0].Netmask)
	require.EqualValues(t, 1e11, router.DiskSelector.MinSize)
}
