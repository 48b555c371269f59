package strictyaml

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

func TestDecodesMachine(t *testing.T) {
	const doc = `# a machine
name: ms-02-a
labels: {rack: 7, prod: true}
defaults: &d {netmask: 255.255.255.0}
`
	var wrong inventory.Machine
	require.ErrorContains(t, Decode("m.yaml", []byte(doc), &wrong), `m.yaml:4: defaults: unknown key`)

	var m inventory.Machine
	require.NoError(t, Decode("m.yaml", []byte(`
name: ms-02-a
labels: {rack: 7, prod: true}
interfaces:
  - &first
    mac: 02:00:00:00:00:01
    address: 192.0.2.10
    nameservers: [192.0.2.1, "2001:db8::1"]
    leaseTime: 24h
    uefi: true
  - <<: *first
    mac: "02:00:00:00:00:02"
    leaseTime: 3600
    vlan: 100
diskSelector: {minSize: 1000000000000}
bmc: {driver: ipmi, host: 192.0.2.3, port: 623, password: 1234}
userData: |
  #cloud-config
created: 2026-01-02T03:04:05Z
`), &m))
	require.Equal(t, map[string]string{"rack": "7", "prod": "true"}, m.Labels)
	require.Equal(t, netip.MustParseAddr("2001:db8::1"), m.Interfaces[0].Nameservers[1])
	require.Equal(t, inventory.Lease(24*time.Hour), m.Interfaces[0].LeaseTime)
	require.Equal(t, "02:00:00:00:00:02", m.Interfaces[1].MAC)
	require.Equal(t, netip.MustParseAddr("192.0.2.10"), m.Interfaces[1].Address)
	require.Equal(t, inventory.Lease(time.Hour), m.Interfaces[1].LeaseTime)
	require.True(t, m.Interfaces[1].UEFI)
	require.EqualValues(t, 1e12, m.DiskSelector.MinSize)
	require.Equal(t, "1234", m.BMC.Password.Reveal())
	require.Equal(t, "#cloud-config\n", m.UserData.Reveal())
	require.Equal(t, 2026, m.Created.Year())
}

func TestJSONIsYAMLToo(t *testing.T) {
	var m inventory.Machine
	require.NoError(t, Decode("m.json", []byte(`{"name": "a", "interfaces": [{"mac": "02:00:00:00:00:01", "leaseTime": 86400}]}`), &m))
	require.Equal(t, inventory.Lease(24*time.Hour), m.Interfaces[0].LeaseTime)
}

func TestReportsEverything(t *testing.T) {
	var m inventory.Machine
	err := Decode("hardware.yaml", []byte(`name: a
name: b
lables: {}
interfaces:
  - mac: 02:00:00:00:00:01
    lease_time: 3600
    address: 192.0.2.300
    vlan: many
    uefi: "true"
    nameservers: 192.0.2.1
    leaseTime: soon
bmc: [1]
userData: "[redacted]"
disks:
  - device: [1]
`), &m)
	var p inventory.Problems
	require.ErrorAs(t, err, &p)
	require.ErrorIs(t, err, inventory.ErrInvalid)
	got := map[string]int{}
	for _, x := range p {
		require.Equal(t, "hardware.yaml", x.File)
		got[x.Field] = x.Line
	}
	require.Equal(t, map[string]int{
		"name": 2, "lables": 3, "interfaces[0].lease_time": 6, "interfaces[0].address": 7, "interfaces[0].vlan": 8, "interfaces[0].uefi": 9,
		"interfaces[0].nameservers": 10, "interfaces[0].leaseTime": 11, "bmc": 12, "userData": 13, "disks[0].device": 15,
	}, got)
	require.ErrorContains(t, err, `did you mean "labels"?`)
	require.ErrorContains(t, err, `did you mean "leaseTime"?`)
}

func TestSyntax(t *testing.T) {
	var m inventory.Machine
	for src, want := range map[string]string{
		"a: [\n":                  "f:1: not valid YAML",
		"a: b: c\n":               "f:1: not valid YAML: mapping values",
		"":                        "f: is empty",
		"# nothing\n---\n":        "f: is empty",
		"name: a\n---\nname: b\n": "f:3: holds 2 documents",
		"- a\n":                   "must be a mapping",
		"a: &a [*a]\n":            "unknown key",
	} {
		err := Decode("f", []byte(src), &m)
		require.ErrorIs(t, err, inventory.ErrInvalid, src)
		require.ErrorContains(t, err, want, src)
	}
}

func TestSecretsAreNotEchoed(t *testing.T) {
	var m inventory.Machine
	err := Decode("f", []byte("bmc:\n  password: [canary-0]\nuserData: {canary-1: x}\nvendorData: !!int canary-2\n"), &m)
	require.Error(t, err)
	require.NotContains(t, err.Error(), "canary")
}

func TestBombs(t *testing.T) {
	src := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c <= 'j'; c++ {
		src += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+",", 10) + "]\n"
	}
	var v any
	require.ErrorContains(t, Decode("f", []byte(src), &v), "too large")
	require.ErrorContains(t, Decode("f", []byte("a: &a [*a]\n"), &v), "too large")
	require.ErrorContains(t, Decode("f", []byte(strings.Repeat("[", 5000)+strings.Repeat("]", 5000)), &v), "too")
	require.ErrorContains(t, Decode("f", []byte("&a {<<: *a}\n"), &inventory.Machine{}), "too")
}

func TestDocuments(t *testing.T) {
	src := []byte("---\nkind: Machine\nmetadata: {name: a}\n---\n---\nkind: Secret\n")
	docs, err := Documents("f", src)
	require.NoError(t, err)
	require.Len(t, docs, 2)
	require.Equal(t, "Machine", docs[0].Text("kind"))
	require.Equal(t, "a", docs[0].Text("metadata.name"))
	require.Equal(t, "", docs[0].Text("metadata"))
	require.Equal(t, 6, docs[1].FirstLine())
}

func TestLocate(t *testing.T) {
	src := []byte("name: a\ninterfaces:\n  - mac: x\n  - mac: y\n    address: 192.0.2.1\n")
	var p inventory.Problems
	p.Add("interfaces[1].address", "", "is taken")
	p.Add("interfaces.0.mac", "", "is no MAC")
	p.Add("interfaces[1].netmask", "", "is missing")
	p.Add("", "", "is bad")
	got := Locate("f", src, p)
	require.Equal(t, []int{5, 3, 4, 1}, []int{got[0].Line, got[1].Line, got[2].Line, got[3].Line})
	require.Equal(t, "f:5: interfaces[1].address: is taken", got[0].String())
	require.Zero(t, p[0].Line, "the argument stays as it is")
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("name: a\ninterfaces: [{mac: x, leaseTime: 1h}]\n"))
	f.Add([]byte("a: &a [*a]\n<<: *a\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m inventory.Machine
		err := Decode("f", b, &m)
		require.True(t, err == nil || errors.Is(err, inventory.ErrInvalid), "%v", err)
		require.Len(t, Locate("f", b, inventory.Problems{{Field: "interfaces[0].mac"}}), 1)
	})
}

// TestBinary: a secret holds bytes, in YAML's form and in JSON's; everything else holds text.
func TestBinary(t *testing.T) {
	type document struct {
		Secret inventory.Secret  `json:"secret"`
		Text   string            `json:"text"`
		Size   inventory.Size    `json:"size"`
		Map    map[string]string `json:"map"`
	}
	for file, want := range map[string]string{
		"secret: !!binary /wDx\n":                    "\xff\x00\xf1",
		"secret: !!binary |\n  /w\n  Dx\n":           "\xff\x00\xf1",
		"secret: !!binary \"/w Dx\"\n":               "\xff\x00\xf1",
		"secret: {base64: /wDx}\n":                   "\xff\x00\xf1",
		`{"secret": {"base64": "/wDx"}}`:             "\xff\x00\xf1",
		"secret: !!binary aGVsbG8=\n":                "hello",
		"secret: aGVsbG8=\n":                         "aGVsbG8=",
		"secret: 1234\n":                             "1234",
		"a: &a !!binary /wDx\nsecret: *a\n":          "",
		"secret: !!binary \"\"\ntext: !!binary aGk=": "",
	} {
		var d document
		err := Decode("f", []byte(file), &d)
		if strings.HasPrefix(file, "a:") {
			require.ErrorContains(t, err, "unknown key", file)
			require.Equal(t, "\xff\x00\xf1", d.Secret.Reveal(), file)
			continue
		}
		require.NoError(t, err, file)
		require.Equal(t, want, d.Secret.Reveal(), file)
	}
	var d document
	require.NoError(t, Decode("f", []byte("text: !!binary aGk=\nmap: {a: !!binary aGk=}\nsize: !!binary NUdC\n"), &d))
	require.Equal(t, "hi", d.Text)
	require.Equal(t, "hi", d.Map["a"])
	require.Equal(t, inventory.Size(5_000_000_000), d.Size)

	for file, want := range map[string]string{
		"text: !!binary /wDx\n":              "f:1: text: must be text, but holds bytes that are not UTF-8",
		"map: {a: !!binary /wDx}\n":          "f:1: map.a: must be text",
		"\nsecret: !!binary canary?\n":       "f:2: secret: must be base64 after !!binary",
		"secret: {base64: \"canary?\"}\n":    "f:1: secret: invalid bytes",
		"secret: {base64: aGk=, x: 1}\n":     "f:1: secret: invalid bytes",
		"secret: {bass64: canary}\n":         "f:1: secret: invalid bytes",
		"secret: [canary]\n":                 "f:1: secret: must be text, but is a list",
		"secret: !!binary [canary]\n":        "f:1: secret: must be text, but is a list",
		"secret: \"[redacted]\"\n":           "redacted form",
		"secret: {base64: W3JlZGFjdGVkXQ==}": "redacted form",
	} {
		err := Decode("f", []byte(file), &document{})
		require.ErrorContains(t, err, want, file)
		require.NotContains(t, err.Error(), "canary", file)
	}
}
