package vyos

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// example reads a document of the example lab.
func example(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../../deploy/genesis", name))
	require.NoError(t, err)
	return string(b)
}

// problems returns what Check finds in contents.
func problems(t *testing.T, contents string) inventory.Problems {
	t.Helper()
	found, _ := Document{}.Check("doc", []byte(contents))
	for _, p := range found {
		require.NotEmpty(t, p.What)
	}
	return found
}

// warningsOf returns the warnings about contents, which have no problems.
func warningsOf(t *testing.T, contents string) inventory.Problems {
	t.Helper()
	found, warnings := Document{}.Check("doc", []byte(contents))
	require.Empty(t, found)
	return warnings
}

// Each of these is wrong in one way; the line is where it is.
func TestCheck(t *testing.T) {
	good := example(t, "config.boot")
	_, foot, _ := strings.Cut(good, "\n\n\n")
	const eth = "interfaces {\n  ethernet eth0 {\n    hw-id 02:00:00:00:00:01\n  }\n}\n"
	for name, c := range map[string]struct {
		config, what string
		line         int
	}{
		"no footer":                      {eth, "vyos-config-version", 6},
		"old footer":                     {eth + "/* === vyatta-config-version: \"x@1\" === */\n", "1.2 or older", 1},
		"bad footer":                     {eth + "// vyos-config-version: \"system 29\"\n", "component@version", 6},
		"configuration after the footer": {"// vyos-config-version: \"system@29\"\n" + eth, "reads nothing after", 2},
		"two footers":                    {eth + foot + foot, "2 footers", 6},
		"unknown tree":                   {eth + "systm {\n}\n" + foot, `did you mean "system"?`, 6},
		"no interface":                   {"system {\n  host-name r\n}\n" + foot, "no Ethernet interface", 1},
		"no hw-id":                       {strings.Replace(eth, "    hw-id", "    mac", 1) + foot, "hw-id: is missing", 2},
		"bad hw-id":                      {strings.Replace(eth, ":01", ":0x", 1) + foot, "invalid hardware address", 3},
		"name of an interface":           {strings.Replace(eth, "eth0", "lo", 1) + foot, "invalid name of an Ethernet", 2},
		"not closed":                     {strings.TrimSuffix(eth, "}\n") + foot, "brace of interfaces is not closed", 1},
		"closed twice":                   {eth + "}\n" + foot, "has no opening brace", 6},
		"three words":                    {strings.Replace(eth, "hw-id", "description a b\n    hw-id", 1) + foot, "more than one value", 3},
		"brace after a leaf":             {eth + "system { host-name r }\n" + foot, "unexpected text after", 6},
		"no closing quote":               {eth + "system {\n  host-name \"r\n}\n" + foot, "quotation mark", 7},
		"comment without end":            {eth + "/* x\n" + foot, "does not end", 6},
		"comment as a word":              {"/*x */\n" + eth + foot, "reads this comment as a word", 1},
		"comment before no node":         {eth + "system {\n  host-name r\n  /* x */\n}\n" + foot, "only before a node", 8},
		"tag twice":                      {strings.Replace(eth, "  }\n", "  }\n  ethernet eth0 {\n    hw-id 02:00:00:00:00:02\n  }\n", 1) + foot, "second time", 5},
		"leaf twice":                     {eth + "system {\n  host-name r\n  host-name r\n}\n" + foot, "second time", 8},
		"quoted name":                    {eth + "\"system\" {\n}\n" + foot, "name of a node", 6},
		"two interfaces of one hw-id":    {strings.Replace(eth, "  }\n", "  }\n  ethernet eth1 {\n    hw-id 02:00:00:00:00:01\n  }\n", 1) + foot, "is already the hardware address of eth0", 6},
		"relay without server":           {eth + "service {\n  dhcp-relay {\n    listen-interface eth0\n  }\n}\n" + foot, "no server to pass", 7},
		"relay without interfaces":       {eth + "service {\n  dhcp-relay {\n    server 192.0.2.1\n  }\n}\n" + foot, "listens on no interface", 7},
		"relay without upstream":         {eth + "service {\n  dhcp-relay {\n    listen-interface eth0\n    server 192.0.2.1\n  }\n}\n" + foot, "upstream-interface: is missing: the relay cannot reach", 7},
		"relay without listener":         {eth + "service {\n  dhcp-relay {\n    upstream-interface eth0\n    server 192.0.2.1\n  }\n}\n" + foot, "listens on no interface", 7},
		"relay of both kinds":            {eth + "service {\n  dhcp-relay {\n    interface eth1\n    listen-interface eth0\n    server 192.0.2.1\n  }\n}\n" + foot, "cannot be combined with", 7},
		"relay to a name":                {eth + "service {\n  dhcp-relay {\n    interface eth0\n    server nas\n  }\n}\n" + foot, "invalid address", 9},
		"too deep":                       {eth + strings.Repeat("system {\n", 80) + foot, "deep", 70},
		"host name":                      {eth + "system {\n  host-name \"a b\"\n}\n" + foot, "invalid host name", 7},
	} {
		t.Run(name, func(t *testing.T) {
			p := problems(t, c.config)
			require.NotEmpty(t, p)
			require.Contains(t, p.Error(), c.what)
			found := false
			for _, x := range p {
				found = found || x.Line == c.line && strings.Contains(x.String(), c.what)
			}
			require.True(t, found, "line %d in %s", c.line, p.Error())
		})
	}
	require.Len(t, problems(t, "interfaces {\n  ethernet eth0 {\n  }\n  ethernet eth1 {\n  }\n}\nwhat {\n}\n"), 4, "all at once")
}

func TestParse(t *testing.T) {
	v, syntax := Parse([]byte(example(t, "config.boot")))
	require.Empty(t, syntax)
	require.Equal(t, "vp6630", v.Hostname())
	require.Equal(t, "02:00:00:66:30:02", v.Value("interfaces", "ethernet", "eth1", "hw-id"))
	require.Len(t, v.At("interfaces", "ethernet").Children, 4)
	require.Equal(t, []string{"192.168.1.10"}, v.All("service", "dhcp-relay", "server"))
	require.Equal(t, "10.10.20.1/24", v.Value("interfaces", "ethernet", "eth1", "vif", "20", "address"))
	require.NotNil(t, v.At("interfaces", "ethernet", "eth2", "disable"))
	require.Contains(t, v.Versions, "dhcp-relay@2:")
	require.Nil(t, v.At("protocols", "bgp"))

	v, p := Parse([]byte(`
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
	require.Len(t, p, 2, "the second line, and two leaves on one line: %s", p)
	require.Equal(t, []int{2, 5}, []int{p[0].Line, p[1].Line})
	require.Equal(t, []string{"http://192.0.2.1/x"}, v.All("a", "b", "with a space", "c2"))
	require.NotNil(t, v.At("a", "b", "with a space", "c"))
	require.Equal(t, []string{"1", "2"}, v.All("a", "many"))
	require.NotNil(t, v.At("a", "three"), "nodes of one name are merged")
}

func FuzzCheck(f *testing.F) {
	f.Add([]byte(example(f, "config.boot")))
	f.Add([]byte("a { b {\n}\n/* x */ }\n// vyos-config-version: \"a@1\""))
	f.Add([]byte("a 'b\\"))
	f.Fuzz(func(t *testing.T, b []byte) {
		found, _ := Document{}.Check("x", b)
		v, syntax := Parse(b)
		if len(found) == 0 && (len(syntax) > 0 || v.At("interfaces", "ethernet") == nil || v.Versions == "") {
			t.Fatalf("accepted: %q", b)
		}
	})
}
