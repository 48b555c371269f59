package documents

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/documents/talos"
	"github.com/ingotmetal/ingot/inventory"
)

const examples = "../../deploy/genesis"

func example(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(examples, name))
	require.NoError(t, err)
	return b
}

var isoLine = regexp.MustCompile(`(?m)^  iso_url: .*\n`)

// problems returns what Check finds, as "line field".
func problems(t *testing.T, kind string, contents string) inventory.Problems {
	t.Helper()
	err := Check(kind, "doc", []byte(contents))
	var p inventory.Problems
	if err != nil {
		require.ErrorAs(t, err, &p)
		require.ErrorIs(t, err, inventory.ErrInvalid)
	}
	for _, x := range p {
		require.Equal(t, "doc", x.File)
		require.NotEmpty(t, x.What)
	}
	return p
}

func TestExamplesAreRight(t *testing.T) {
	for name, kind := range map[string]string{
		"config.boot": KindVyOS, "talos.yaml": KindTalos, "harvester-create.yaml": KindHarvester, "harvester-join.yaml": KindHarvester,
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, Check(kind, name, example(t, name)))
			require.Empty(t, warningsOf(t, kind, name, example(t, name)))
		})
	}
}

func TestKinds(t *testing.T) {
	for _, kind := range Kinds() {
		require.NotEmpty(t, problems(t, kind, " \n"), "an empty %s", kind)
		require.NotEmpty(t, problems(t, kind, "a\x00b"), "binary %s", kind)
		require.NotEmpty(t, problems(t, kind, strings.Repeat("#", maxDocument+1)), "a big %s", kind)
	}
	require.Empty(t, problems(t, KindText, "{{ what ever"))
	require.Contains(t, problems(t, "ignition", "{}").Error(), "harvester, talos, text, vyos")
}

// Each of these is wrong in one way; the line is where it is.
func TestVyOSRefuses(t *testing.T) {
	good := string(example(t, "config.boot"))
	_, foot, _ := strings.Cut(good, "\n\n\n")
	const eth = "interfaces {\n  ethernet eth0 {\n    hw-id 02:00:00:00:00:01\n  }\n}\n"
	for name, c := range map[string]struct {
		config, what string
		line         int
	}{
		"no footer":            {eth, "vyos-config-version", 6},
		"old footer":           {eth + "/* === vyatta-config-version: \"x@1\" === */\n", "1.2 or older", 1},
		"footer of what":       {eth + "// vyos-config-version: \"system 29\"\n", "component@version", 6},
		"config behind it":     {"// vyos-config-version: \"system@29\"\n" + eth, "reads nothing after", 2},
		"two footers":          {eth + foot + foot, "2 footers", 6},
		"unknown tree":         {eth + "systm {\n}\n" + foot, `did you mean "system"?`, 6},
		"no interface":         {"system {\n  host-name r\n}\n" + foot, "no Ethernet interface", 1},
		"no hw-id":             {strings.Replace(eth, "    hw-id", "    mac", 1) + foot, "hw-id: is missing", 2},
		"hw-id of what":        {strings.Replace(eth, ":01", ":0x", 1) + foot, "no hardware address", 3},
		"name of an interface": {strings.Replace(eth, "eth0", "lo", 1) + foot, "no name of an Ethernet", 2},
		"not closed":           {strings.TrimSuffix(eth, "}\n") + foot, "brace of interfaces is not closed", 1},
		"closed twice":         {eth + "}\n" + foot, "not opened", 6},
		"three words":          {strings.Replace(eth, "hw-id", "description a b\n    hw-id", 1) + foot, "more than one value", 3},
		"brace behind a leaf":  {eth + "system { host-name r }\n" + foot, "cannot stand there", 6},
		"no closing quote":     {eth + "system {\n  host-name \"r\n}\n" + foot, "quotation mark", 7},
		"comment without end":  {eth + "/* x\n" + foot, "does not end", 6},
		"comment as a word":    {"/*x */\n" + eth + foot, "takes this comment for a word", 1},
		"comment of nothing":   {eth + "system {\n  host-name r\n  /* x */\n}\n" + foot, "belongs to no node", 8},
		"tag twice":            {strings.Replace(eth, "  }\n", "  }\n  ethernet eth0 {\n    hw-id 02:00:00:00:00:02\n  }\n", 1) + foot, "second time", 5},
		"leaf twice":           {eth + "system {\n  host-name r\n  host-name r\n}\n" + foot, "second time", 8},
		"quoted name":          {eth + "\"system\" {\n}\n" + foot, "name of a node", 6},
		"the same socket":      {strings.Replace(eth, "  }\n", "  }\n  ethernet eth1 {\n    hw-id 02:00:00:00:00:01\n  }\n", 1) + foot, "of eth0 already", 6},
		"relay to nobody":      {eth + "service {\n  dhcp-relay {\n    listen-interface eth0\n  }\n}\n" + foot, "nobody to pass", 7},
		"relay from nowhere":   {eth + "service {\n  dhcp-relay {\n    server 192.0.2.1\n  }\n}\n" + foot, "listens nowhere", 7},
		"relay of one side":    {eth + "service {\n  dhcp-relay {\n    listen-interface eth0\n    server 192.0.2.1\n  }\n}\n" + foot, "upstream-interface: the relay has no way", 7},
		"relay of the other":   {eth + "service {\n  dhcp-relay {\n    upstream-interface eth0\n    server 192.0.2.1\n  }\n}\n" + foot, "listens nowhere", 7},
		"relay of both kinds":  {eth + "service {\n  dhcp-relay {\n    interface eth1\n    listen-interface eth0\n    server 192.0.2.1\n  }\n}\n" + foot, "VyOS refuses it beside", 7},
		"relay to a name":      {eth + "service {\n  dhcp-relay {\n    interface eth0\n    server nas\n  }\n}\n" + foot, "is none", 9},
		"too deep":             {eth + strings.Repeat("system {\n", 80) + foot, "deep", 70},
		"host name":            {eth + "system {\n  host-name \"a b\"\n}\n" + foot, "no host name", 7},
	} {
		t.Run(name, func(t *testing.T) {
			p := problems(t, KindVyOS, c.config)
			require.NotEmpty(t, p)
			require.Contains(t, p.Error(), c.what)
			found := false
			for _, x := range p {
				found = found || x.Line == c.line && strings.Contains(x.String(), c.what)
			}
			require.True(t, found, "line %d in %s", c.line, p.Error())
		})
	}
	require.Len(t, problems(t, KindVyOS, "interfaces {\n  ethernet eth0 {\n  }\n  ethernet eth1 {\n  }\n}\nwhat {\n}\n"), 4, "all at once")
}

func TestVyOSReads(t *testing.T) {
	v, err := ParseVyOS("config.boot", example(t, "config.boot"))
	require.NoError(t, err)
	require.Equal(t, "vp6630", v.Hostname())
	require.Equal(t, "02:00:00:66:30:02", v.Ethernet()["eth1"])
	require.Len(t, v.Ethernet(), 4)
	require.Equal(t, []string{"192.168.1.10"}, v.All("service", "dhcp-relay", "server"))
	require.Equal(t, "10.10.20.1/24", v.Value("interfaces", "ethernet", "eth1", "vif", "20", "address"))
	require.NotNil(t, v.At("interfaces", "ethernet", "eth2", "disable"))
	require.Contains(t, v.Versions, "dhcp-relay@2:")
	require.Nil(t, v.At("protocols", "bgp"))

	v, err = ParseVyOS("x", []byte(`
# is a word like any other
/* of a */
a {
    one 'x "y" \z\'' ; two "l1
l2"
    b 'with a space' {
        c   // what is behind two slashes is not read
        c2 http://192.0.2.1/x
    }
    many 1
    many 2
}
a {
    three
}
// vyos-config-version: "a@1"
`))
	var p inventory.Problems
	require.ErrorAs(t, err, &p)
	require.Len(t, p, 2, "the second line, and two leaves on one line: %s", p)
	require.Equal(t, []int{2, 5}, []int{p[0].Line, p[1].Line})
	require.Equal(t, []string{"http://192.0.2.1/x"}, v.All("a", "b", "with a space", "c2"))
	require.NotNil(t, v.At("a", "b", "with a space", "c"))
	require.Equal(t, []string{"1", "2"}, v.All("a", "many"))
	require.NotNil(t, v.At("a", "three"), "nodes of one name are merged")
}

func TestHarvesterRefuses(t *testing.T) {
	create, join := string(example(t, "harvester-create.yaml")), string(example(t, "harvester-join.yaml"))
	replace := func(s, old, with string) string {
		require.Contains(t, s, old)
		return strings.Replace(s, old, with, 1)
	}
	for name, c := range map[string]struct{ doc, field, what string }{
		"unknown key":       {replace(create, "  tty:", "  ttyy:"), "install.ttyy", "unknown key"},
		"unknown key above": {replace(create, "scheme_version", "scheme"), "scheme", "unknown key"},
		"camel case":        {replace(create, "iso_url", "isoUrl"), "install.isoUrl", "unknown key"},
		"scheme":            {replace(create, "scheme_version: 1", "scheme_version: 2"), "scheme_version", "is 2"},
		"iso_url":           {isoLine.ReplaceAllString(create, ""), "install.iso_url", "never comes up"},
		"iso_url a path":    {replace(create, "iso_url: http://", "iso_url: /"), "install.iso_url", "no URL"},
		"token":             {replace(create, "token: EXAMPLE-the-same-on-all-three-nodes\n", ""), "token", "is missing"},
		"mode":              {replace(create, "mode: create", "mode: upgrade"), "install.mode", "no mode"},
		"vip":               {replace(create, "  vip: 10.10.20.30\n", ""), "install.vip", "is missing"},
		"vip no address":    {replace(create, "vip: 10.10.20.30", "vip: cluster"), "install.vip", "cannot be"},
		"vip_mode":          {replace(create, "  vip_mode: static\n", ""), "install.vip_mode", "is missing"},
		"vip by dhcp":       {replace(create, "vip_mode: static", "vip_mode: dhcp"), "install.vip_hw_addr", "reservation"},
		"join without":      {replace(join, "server_url: https://10.10.20.30:443\n", ""), "server_url", "is missing"},
		"join in the clear": {replace(join, "https://10.10.20.30", "http://10.10.20.30"), "server_url", "no such URL"},
		"create and join":   {replace(create, "token:", "server_url: https://10.10.20.30:443\ntoken:"), "server_url", "joins none"},
		"device":            {replace(create, "  device: /dev/disk/by-id/nvme-EXAMPLE_MS02_SYSTEM_000A\n", ""), "install.device", "is missing"},
		"moving device":     {replace(create, "/dev/disk/by-id/nvme-EXAMPLE_MS02_SYSTEM_000A", "/dev/sda"), "install.device", "another disk"},
		"device of what":    {replace(create, "/dev/disk/by-id/nvme-EXAMPLE_MS02_SYSTEM_000A", "nvme0n1"), "install.device", "no path"},
		"the same disk":     {replace(create, "MS02_DATA", "MS02_SYSTEM"), "install.data_disk", "already"},
		"wipe both":         {replace(create, "  tty:", "  wipe_all_disks: true\n  wipe_disks_list: [/dev/disk/by-id/x]\n  tty:"), "install.wipe_disks_list", "contradicts"},
		"no interface":      {replace(create, "- hwAddr: \"02:00:00:02:0a:25\"", "- {}"), "install.management_interface.interfaces[0]", "neither"},
		"hwAddr":            {replace(create, "02:00:00:02:0a:25", "02:00"), "install.management_interface.interfaces[0].hwAddr", "no hardware"},
		"static":            {replace(create, "method: dhcp", "method: static"), "install.management_interface.ip", "static"},
		"bond":              {replace(create, "active-backup", "lacp"), "install.management_interface.bond_options.mode", "no mode"},
		"miimon":            {replace(create, "miimon: 100", "miimon: fast"), "install.management_interface.bond_options.miimon", "no number"},
		"vlan":              {replace(create, "method: dhcp", "method: dhcp\n    vlan_id: 5000"), "install.management_interface.vlan_id", "no VLAN"},
		"webhook":           {replace(create, "  tty:", "  webhooks: [{event: DONE, url: 'http://192.0.2.1'}]\n  tty:"), "install.webhooks[0].event", "no event"},
		"log-in":            {strings.NewReplacer("  password: EXAMPLE-make-your-own\n", "", "  ssh_authorized_keys:\n", "  modules:\n").Replace(create), "os.ssh_authorized_keys", "log in"},
		"type":              {replace(create, "method: dhcp", "method: [dhcp]"), "install.management_interface.method", "must be text"},
		"hostname":          {replace(create, "hostname: ms-02-a", "hostname: MS_02"), "os.hostname", "no name"},
	} {
		t.Run(name, func(t *testing.T) {
			p := problems(t, KindHarvester, c.doc)
			found := false
			for _, x := range p {
				found = found || x.Field == c.field && strings.Contains(x.What, c.what) && x.Line > 0
			}
			require.True(t, found, "%s: %s in: %s", c.field, c.what, p)
		})
	}
	require.GreaterOrEqual(t, len(problems(t, KindHarvester, "install:\n  mode: join\n")), 7, "all at once")
	require.Len(t, problems(t, KindHarvester, "- a"), 1)
	require.Len(t, problems(t, KindHarvester, "a: [b"), 1)

	one := strings.NewReplacer("/dev/disk/by-id/nvme-EXAMPLE_MS02_SYSTEM_000A", "/dev/sda", "  data_disk: /dev/disk/by-id/nvme-EXAMPLE_MS02_DATA_000A\n", "").Replace(create)
	require.Empty(t, problems(t, KindHarvester, one))
	require.Contains(t, warningsOf(t, KindHarvester, "doc", []byte(one)).Error(), "install.device", "the only disk is warned of")
	require.Empty(t, problems(t, KindHarvester, isoLine.ReplaceAllString(create, "  iso_url: "+inventory.RefBootURL+"x.iso\n")), "a reference becomes a URL")
}

func TestHarvesterWebhooks(t *testing.T) {
	hooks := []Webhook{{"SUCCEEDED", inventory.RefWebhookURL + "SUCCEEDED"}, {"FAILED", inventory.RefWebhookURL + "FAILED"}}
	for name, doc := range map[string]string{
		"none":  string(example(t, "harvester-create.yaml")),
		"empty": string(example(t, "harvester-create.yaml")) + "  webhooks:\n",
		"some":  string(example(t, "harvester-create.yaml")) + "  webhooks: [{event: STARTED, url: 'http://192.0.2.1/{{ .x }}'}]\n",
	} {
		t.Run(name, func(t *testing.T) {
			out, err := Harvester([]byte(doc), hooks...)
			require.NoError(t, err)
			require.NoError(t, Check(KindHarvester, "x", out), "%s", out)
			require.Contains(t, string(out), "# The first MS-02")
			for _, h := range hooks {
				require.Equal(t, 1, strings.Count(string(out), h.URL))
			}
			require.Equal(t, name == "some", strings.Contains(string(out), "event: STARTED"))
			if name == "none" {
				golden(t, "harvester-webhooks.yaml", out)
			}
		})
	}
	for _, doc := range []string{"", "a: [", "- a", "install: no", "install: {webhooks: {}}"} {
		_, err := Harvester([]byte(doc), hooks...)
		require.Error(t, err, "%q", doc)
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(file, got, 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

func TestTalosRefuses(t *testing.T) {
	good := string(example(t, "talos.yaml"))
	main, _, _ := strings.Cut(good, "---")
	replace := func(old, with string) string {
		require.Contains(t, good, old)
		return strings.Replace(good, old, with, 1)
	}
	line := func(s, part string) int { return strings.Count(s[:strings.Index(s, part)], "\n") + 1 }
	for name, c := range map[string]struct{ doc, field, what, at string }{
		"unknown key":       {replace("    install:\n", "    instal: {}\n    install:\n"), "machine.instal", "does not know", "    instal:"},
		"unknown key below": {replace("wipe: true", "wipee: true"), "machine.install.wipee", "does not know", "wipee"},
		"key in snake case": {replace("certSANs:", "cert_sans:"), "machine.cert_sans", "does not know", "cert_sans"},
		"unknown key in 2":  {replace("hostname: um760", "hostnam: um760"), "hostnam", "does not know", "hostnam:"},
		"unknown kind":      {replace("kind: HostnameConfig", "kind: HostConfig"), "", "HostConfig", "apiVersion: v1alpha1"},
		"no disk":           {replace("        disk: /dev/disk/by-id/nvme-EXAMPLE_UM760_SSD_0001\n", ""), "machine.install", "disk", "    install:"},
		"no install":        {strings.Replace(good, good[strings.Index(good, "    install:"):strings.Index(good, "    features:")], "", 1), "machine", "install instructions", "machine:"},
		"type":              {replace("type: controlplane", "type: boss"), "machine.type", "unknown machine type", "    type:"},
		"wrong type":        {replace("wipe: true", "wipe: [1]"), "", "wrong type", "wipe:"},
		"no machine":        {"apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: x\n", "machine", "only documents", ""},
		"not YAML":          {"machine: [", "", "not valid YAML", "machine"},
		"no mapping":        {"- a\n", "", "no mapping", "- a"},
		"no endpoint":       {replace("endpoint: https://10.10.20.11:6443", "endpoint: \"\""), "cluster.controlPlane.endpoint", "endpoint", "endpoint:"},
		"authority":         {main[:strings.Index(main, "    ca:\n")] + main[strings.Index(main, "    certSANs"):], "machine.ca", "CA", ""},
		"two of a kind":     {good + "---\napiVersion: v1alpha1\nkind: HostnameConfig\nhostname: y\n", "", "duplicate", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := problems(t, KindTalos, c.doc)
			found := false
			for _, x := range p {
				found = found || x.Field == c.field && strings.Contains(x.What, c.what) && (c.at == "" || x.Line == line(c.doc, c.at) || name == "unknown kind" && x.Line > 100)
			}
			require.True(t, found, "%+v in: %s", c.at, p)
		})
	}
	require.Len(t, problems(t, KindTalos, strings.NewReplacer("wipe:", "wipee:", "hostname: um760", "hostnam: um760", "certSANs:", "certs:").Replace(good)), 3, "all at once, over documents")
	require.Contains(t, warningsOf(t, KindTalos, "doc", []byte(replace("/dev/disk/by-id/nvme-EXAMPLE_UM760_SSD_0001", "/dev/nvme0n1"))).Error(), "another disk")
	require.Empty(t, problems(t, KindTalos, replace("disk: /dev/disk/by-id/nvme-EXAMPLE_UM760_SSD_0001", "diskSelector: {type: nvme}")))
}

func TestTalosIdentity(t *testing.T) {
	doc := example(t, "talos.yaml")
	id, err := talos.Identify(doc)
	require.NoError(t, err)
	require.Equal(t, "controlplane", id.Type)
	require.Equal(t, "um760", id.Hostname)
	require.Equal(t, "https://10.10.20.11:6443", id.Endpoint)
	require.Contains(t, id.Image, "metal-installer")
	for _, bad := range []string{"", "a: b", "machine: [", string(doc[:200])} {
		_, err = talos.Identify([]byte(bad))
		require.Error(t, err, "%q", bad)
	}
}

// S25: whatever is wrong with a document, no message repeats a secret of it.
func TestS25NoSecretInMessages(t *testing.T) {
	const canary = "CANARY-7f3a9c1e"
	spoil := func(doc string) []string {
		out := []string{doc}
		for i, l := range strings.Split(doc, "\n") {
			if len(doc) > 5000 && i%5 != 0 && !strings.Contains(l, canary) {
				continue // Talos' is long, and its loader thorough
			}
			lines := strings.Split(doc, "\n")
			for _, with := range []string{l + " spoiled", strings.Replace(l, ": ", ": [spoiled, ", 1), strings.Replace(l, ":", "x:", 1), "", l + "\n" + l, "token: {a: " + canary + "}"} {
				lines[i] = with
				out = append(out, strings.Join(lines, "\n"))
			}
		}
		return out
	}
	plant := map[string]struct {
		kind string
		r    *strings.Replacer
	}{
		"config.boot": {KindVyOS, strings.NewReplacer("EXAMPLE-make-your-own-with-openssl-rand-hex-32", canary, "$6$EXAMPLE$make.your.own.with.mkpasswd", canary)},
		"harvester-create.yaml": {KindHarvester, strings.NewReplacer(
			"EXAMPLE-the-same-on-all-three-nodes", canary, "password: EXAMPLE-make-your-own", "password: "+canary)},
		"talos.yaml": {KindTalos, strings.NewReplacer("juhpdl.xwdywqkf0f05dato", canary)},
	}
	for name, c := range plant {
		t.Run(name, func(t *testing.T) {
			doc := c.r.Replace(string(example(t, name)))
			require.Contains(t, doc, canary)
			refused := 0
			for _, bad := range spoil(doc) {
				p, warnings := Review(c.kind, name, []byte(bad))
				if len(p) > 0 {
					refused++
				}
				for _, p := range append(p, warnings...) {
					require.NotContains(t, p.String(), canary)
				}
			}
			require.Greater(t, refused, 20)
		})
	}
}

func FuzzVyOS(f *testing.F) {
	b, err := os.ReadFile(filepath.Join(examples, "config.boot"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("a { b {\n}\n/* x */ }\n// vyos-config-version: \"a@1\""))
	f.Add([]byte("a 'b\\"))
	f.Fuzz(func(t *testing.T, b []byte) {
		err := Check(KindVyOS, "x", b)
		v, parseErr := ParseVyOS("x", b)
		if err == nil && (parseErr != nil || len(v.Ethernet()) == 0 || v.Versions == "") {
			t.Fatalf("accepted: %q", b)
		}
	})
}

func FuzzHarvester(f *testing.F) {
	b, err := os.ReadFile(filepath.Join(examples, "harvester-join.yaml"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("install: &a\n  webhooks: *a"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if Check(KindHarvester, "x", b) != nil {
			return
		}
		out, err := Harvester(b, Webhook{"FAILED", inventory.RefWebhookURL})
		if err != nil {
			t.Fatal(err)
		}
		if err := Check(KindHarvester, "x", out); err != nil {
			t.Fatalf("%s of: %s", err, out)
		}
	})
}

// warningsOf returns the warnings about a document that has no problems.
func warningsOf(t *testing.T, kind, file string, contents []byte) inventory.Problems {
	t.Helper()
	problems, warnings := Review(kind, file, contents)
	require.Empty(t, problems)
	return warnings
}
