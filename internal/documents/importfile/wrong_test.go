package importfile

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// head returns the first lines of a document in a form that tests write shortly.
func head(kind, name string) string {
	group := "tinkerbell.org"
	switch {
	case kind == "Machine" || kind == "Job":
		group = "bmc.tinkerbell.org"
	case strings.HasPrefix(kind, "Tinkerbell"):
		group = "anywhere.eks.amazonaws.com"
	}
	if kind == "Secret" {
		group = ""
	}
	return fmt.Sprintf("---\napiVersion: %s\nkind: %s\nmetadata: {name: %s}\n", strings.TrimPrefix(group+"/v1alpha1", "/"), kind, name)
}

// hardwareText is a Hardware with one interface; more follows its interfaces.
func hardwareText(name, mac, more string) string {
	return head("Hardware", name) + "spec:\n  interfaces: [{dhcp: {mac: \"" + mac + "\"" + more + "}}]\n"
}

const (
	mac1 = "02:00:00:00:00:01"
	mac2 = "02:00:00:00:00:02"

	secretText = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {username: u, password: hush-hush}\n"
	bmcSpec    = "spec:\n  connection: {host: 10.0.9.1, authSecretRef: {name: s}}\n"

	templateData = "    version: \"0.1\"\n    name: x\n    global_timeout: 600\n    tasks:\n      - name: os\n" +
		"        worker: \"{{.device_1}}\"\n        actions:\n          - {name: a, image: reboot, timeout: 60}\n"
)

// wrong has documents. Everything that is wrong in each is in testdata/wrong.golden.
var wrong = []struct{ name, text string }{
	// The file.
	{"nothing", ""},
	{"comments", "# nothing\n---\n---\n~\n"},
	{"binary", "kind: \x00\n"},
	{"UTF-16", "\xff\xfek\x00i\x00"},
	{"tabs", "kind: Hardware\n\tapiVersion: x\n"},
	{"no end", "kind: \"Hardware\napiVersion: x\n"},
	{"unknown anchor", secretText + "data:\n  password: *hush-hush\n"},
	{"list", "- a\n- b\n"},
	{"text", "hello\n"},
	{"no kind", "apiVersion: tinkerbell.org/v1alpha1\nmetadata: {name: n}\n"},
	{"no apiVersion", "kind: Hardware\nmetadata: {name: n}\n"},
	{"List without items", "apiVersion: v1\nkind: List\nitems: {}\n"},
	{"List in a List", "apiVersion: v1\nkind: List\nitems: &a\n  - {apiVersion: v1, kind: List, items: *a}\n"},

	// Versions.
	{"v1alpha3", "apiVersion: tinkerbell.org/v1alpha3\nkind: Hardware\nmetadata: {name: n}\n"},
	{"v1alpha2 Template", "apiVersion: tinkerbell.org/v1alpha2\nkind: Template\nmetadata: {name: n}\n"},
	{"v1alpha2 Hardware", `apiVersion: tinkerbell.org/v1alpha2
kind: Hardware
metadata: {name: n}
spec:
  bmc: {bootMode: CSM, connection: {host: "", credentialsRef: {name: none}}}
  networkInterfaces:
    02:00:00:00:00:01: {dhcp: {ipv4: {leaseTimeSeconds: -1, vlanID: 5000}}, ipam: {ipv4: {address: 10.0.0.5, prefix: 33}}}
    not-a-mac: {}
  storageDevices: [{name: sda}]
`},
	{"v1alpha2 Task", `apiVersion: tinkerbell.org/v1alpha2
kind: Task
metadata: {name: t}
spec:
  actions:
  - {name: a, if: "false", background: true, image: nothing, timeoutSeconds: -5}
`},
	{"v1alpha2 Workflow and Job", `apiVersion: tinkerbell.org/v1alpha2
kind: Workflow
metadata: {name: w}
spec: {tasks: [{}]}
---
apiVersion: tinkerbell.org/v1alpha2
kind: Workflow
metadata: {name: w2}
---
apiVersion: bmc.tinkerbell.org/v1alpha2
kind: Job
metadata: {name: j}
spec: {operations: [{}, {powerAction: fly}, {bootDevice: {name: tape}}]}
---
apiVersion: bmc.tinkerbell.org/v1alpha2
kind: Job
metadata: {name: j2}
`},
	{"no version", "apiVersion: tinkerbell.org\nkind: Hardware\nmetadata: {name: n}\n"},
	{"EKS Anywhere v1beta1", "apiVersion: anywhere.eks.amazonaws.com/v1beta1\nkind: TinkerbellMachineConfig\nmetadata: {name: n}\n"},

	// Hardware.
	{
		"no name",
		"apiVersion: tinkerbell.org/v1alpha1\nkind: Hardware\nmetadata: {generateName: n-}\nspec: {interfaces: [{dhcp: {mac: \"" + mac1 + "\"}}]}\n",
	},
	{"metadata is text", "apiVersion: tinkerbell.org/v1alpha1\nkind: Hardware\nmetadata: n\nspec: []\n"},
	{"name", hardwareText("-N_1", mac1, "")},
	{"unknown keys", head("Hardware", "n") + "spec:\n  interface: []\n  interfaces:\n    - dhcp: {mac: x, leaseTime: 1}\n      Netboot: {}\n"},
	{"key twice", head("Hardware", "n") + "spec:\n  disks: []\n  disks: []\n"},
	{"types", head("Hardware", "n") + "spec:\n  disks: /dev/sda\n  interfaces: {dhcp: {}}\n  userData: [a]\n"},
	{
		"types of an interface",
		head("Hardware", "n") + "spec:\n  interfaces:\n    - disableDhcp: \"false\"\n      dhcp:\n        mac: [a]\n        lease_time: a day\n" +
			"        uefi: 1\n        name_servers: [ns.example.com]\n        ip: {address: 10.0.0.300}\n        vlan_id: trunk\n      netboot: {allowPXE: maybe}\n",
	},
	{"values of an interface", head("Hardware", "n") + "spec:\n  interfaces:\n    - dhcp:\n        mac: 02-00-00\n        lease_time: -1\n" +
		"        arch: sparc\n        ip:\n          address: 10.0.0.255\n          netmask: 255.255.255.0\n          gateway: 10.0.1.1\n" +
		"        vlan_id: 4095\n        hostname: a b\n"},
	{"no interface", head("Hardware", "n") + "spec: {}\n"},
	{"no MAC", head("Hardware", "n") + "spec:\n  interfaces:\n    - netboot: {allowPXE: true}\n    - dhcp: {}\n"},
	{"disk", head("Hardware", "n") + "spec:\n  disks: [{device: sda}]\n  interfaces: [{dhcp: {mac: \"" + mac1 + "\"}}]\n"},
	{
		"key",
		head(
			"Hardware",
			"n",
		) + "spec:\n  interfaces: [{dhcp: {mac: \"" + mac1 + "\"}}]\n  metadata:\n    instance:\n      ssh_keys:\n        - ok AAAA\n        - AAAA\n",
	},
	{"label", "apiVersion: tinkerbell.org/v1alpha1\nkind: Hardware\nmetadata:\n  name: n\n  labels:\n    a: b\n    \"c d\": \"e\\nf\"\n" +
		"spec: {interfaces: [{dhcp: {mac: \"" + mac1 + "\"}}]}\n"},
	{"the same twice", hardwareText("n", mac1, "") + hardwareText("n", mac1, "")},
	{"MAC, address and host name twice", hardwareText("n", mac1, ", hostname: h, ip: {address: 10.0.0.11, netmask: 255.255.255.0}") +
		hardwareText("m", "02-00-00-00-00-01", ", hostname: H, ip: {address: 10.0.0.11, netmask: 255.255.255.0}")},
	{"several documents", hardwareText("n", "x", "") + hardwareText("m", "y", "") + head("Template", "t") + "spec: {data: \"\"}\n"},
	{"a bomb", head("Hardware", "n") + "spec:\n  resources:\n    a: &a [1,1,1,1,1,1,1,1,1,1]\n    b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n" +
		"    c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n    d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n    e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n" +
		"    f: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n"},
	{"an anchor that holds itself", head("Hardware", "n") + "spec: &a {resources: *a}\n"},

	// BMCs.
	{"no Secret", hardwareText("n", mac1, "") + head("Machine", "b") + bmcSpec},
	{"a Secret that is wrong", secretText + "more: 1\n" + head("Machine", "b") + bmcSpec},
	{"base64", "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata:\n  username: dQ==\n  password: hush-hush\n"},
	{
		"a Secret's types",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData:\n  username: [hush-hush]\n  password: {hush-hush: 1}\n",
	},
	{
		"line end in a password",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {username: dQ==, password: aHVzaC1odXNoCg==}\n" + head(
			"Machine",
			"b",
		) + bmcSpec,
	},
	{"no login", head("Machine", "b") + "spec:\n  connection:\n    host: 10.0.9.1\n"},
	{"no host", secretText + head("Machine", "b") + "spec:\n  connection:\n    authSecretRef: {name: s}\n"},
	{"connection", secretText + head("Machine", "b") + "spec:\n  connection:\n    host: a b\n    port: 70000\n    authSecretRef: {name: s}\n" +
		"    providerOptions:\n      ipmitool: {cipherSuite: \"99\"}\n"},
	{"TLS of AMT", secretText + head("Machine", "b") + "spec:\n  connection:\n    host: 10.0.9.1\n    authSecretRef: {name: s}\n" +
		"    providerOptions: {intelAMT: {port: 16992, hostScheme: https}}\n"},
	{"no password", strings.Replace(secretText, ", password: hush-hush", "", 1) + head("Machine", "b") + bmcSpec},
	{"the value of a map", head("Workflow", "w") + "spec: {templateRef: t, hardwareRef: n, hardwareMap: {a: '\"b\"', \"c=d\": e}}\n"},
	{
		"types of a connection",
		head("Machine", "b") + "spec:\n  connection:\n    host: [a]\n    port: \"623\"\n    insecureTLS: 1\n    password: hush-hush\n",
	},
	{"Secret and Machine twice", secretText + secretText + head("Machine", "b") + bmcSpec + head("Machine", "b") + bmcSpec},
	{
		"a BMC of two machines",
		secretText + head("Machine", "b") + bmcSpec + strings.Replace(hardwareText("n", mac1, ""), "spec:\n", "spec:\n  bmcRef: {name: b}\n", 1) +
			strings.Replace(hardwareText("m", mac2, ""), "spec:\n", "spec:\n  bmcRef: {name: b}\n", 1),
	},
	{"a BMC's address twice", secretText + head("Machine", "b") + bmcSpec + head("Machine", "c") + bmcSpec +
		strings.Replace(hardwareText("n", mac1, ""), "spec:\n", "spec:\n  bmcRef: {name: b}\n", 1) +
		strings.Replace(hardwareText("m", mac2, ""), "spec:\n", "spec:\n  bmcRef: {name: c}\n", 1)},

	// Templates.
	{"empty template", head("Template", "t") + "spec: {data: \" \"}\n"},
	{"no data", head("Template", "t") + "spec: {}\n"},
	{"template", head("Template", "t") + "spec:\n  data: |\n" + strings.Replace(templateData, "image: reboot", "image: nothing", 1)},
	{"template on one line", head("Template", "t") + "spec:\n  data: \"version: '0.1'\\nname: x\\ntask: []\\n\"\n"},
	{"template's YAML", head("Template", "t") + "spec:\n  data: |\n    a: b\n    c: d: e\n"},
	{
		"template twice",
		head("Template", "t") + "spec:\n  data: |\n" + templateData + head("Template", "t") + "spec:\n  data: |\n" + templateData,
	},
	{"template's name", head("Template", "../t") + "spec:\n  data: |\n" + templateData},
	{
		"TinkerbellTemplateConfig",
		head("TinkerbellTemplateConfig", "t") + "spec:\n  template:\n" + strings.Replace(templateData, "timeout: 60}", "timeout: soon}", 1),
	},
	{"no template", head("TinkerbellTemplateConfig", "t") + "spec: {template: {}}\n"},
	{"template is text", head("TinkerbellTemplateConfig", "t") + "spec:\n  template: |\n    a: b\n"},

	// Workflows and Jobs.
	{"no template and machine", head("Workflow", "w") + "spec: {}\n"},
	{"two machines", hardwareText("n", mac1, "") + hardwareText("m", mac2, "") + head("Workflow", "w") +
		"spec:\n  templateRef: t\n  hardwareRef: n\n  hardwareMap:\n    device_1: " + mac2 + "\n"},
	{"machines of a Workflow", hardwareText("n", mac1, "") + hardwareText("m", mac2, "") + head("Workflow", "a.b") +
		"spec:\n  templateRef: t\n  hardwareRef: other\n  hardwareMap:\n    device_1: " + mac2 + "\n    device_2: " + mac1 + "\n    device_3: " + mac2 + "\n"},
	{"terminal", head("Workflow", "w") + "spec: {templateRef: t, hardwareRef: n, hardwareMap: {a: \"\\e[2J\"}}\n"},
	{"flag", head("Workflow", "w") + "spec: {templateRef: --yes, hardwareRef: --yes}\n"},
	{"types of a Workflow", head("Workflow", "w") + "spec: {templateRef: {name: t}, hardwareRef: [n], hardwareMap: {a: [b]}}\n"},
	{"no task", head("Job", "j") + "spec: {machineRef: {name: b}}\n"},
	{"no machine", head("Job", "j") + "spec: {tasks: [{powerAction: \"on\"}]}\n"},
	{
		"tasks",
		head(
			"Job",
			"j",
		) + "spec:\n  machineRef: {name: b}\n  tasks:\n    - {}\n    - powerAction: off\n      bootDevice: {device: pxe}\n    - powerAction: explode\n" +
			"    - oneTimeBootDeviceAction: {device: []}\n    - bootDevice: {efiBoot: true}\n    - bootDevice: {device: floppy}\n    - oneTimeBootDeviceAction: {device: [\"a,b\"]}\n",
	},

	// EKS Anywhere's machines.
	{
		"users",
		head(
			"TinkerbellMachineConfig",
			"c",
		) + "spec:\n  hardwareSelector: {a: b}\n  users:\n    - {sshAuthorizedKeys: [k]}\n    - {name: x, password: hush-hush}\n",
	},
	{"nameless user", head("TinkerbellMachineConfig", "c") + "spec:\n  users: [{}]\n"},
	{"two selectors", strings.Replace(hardwareText("n", mac1, ""), "{name: n}", "{name: n, labels: {a: b, c: d}}", 1) +
		head(
			"TinkerbellMachineConfig",
			"x",
		) + "spec: {hardwareSelector: {a: b}}\n" + head("TinkerbellMachineConfig", "y") + "spec: {hardwareSelector: {c: d}}\n"},
	{"user's key", strings.Replace(hardwareText("n", mac1, ""), "{name: n}", "{name: n, labels: {a: b}}", 1) +
		head("TinkerbellMachineConfig", "x") + "spec: {hardwareSelector: {a: b}, users: [{name: u, sshAuthorizedKeys: [AAAA]}]}\n"},

	// Ingot's own form.
	{"own", "name: n\nmac: " + mac1 + "\ninterfaces: [{mac: x}]\n"},
}

// TestWrong (S25): each wrong document is refused with everything that is wrong in it, by file, line,
// field and remedy; what is secret in it is not repeated, and it does not take long.
func TestWrong(t *testing.T) {
	var b strings.Builder
	for _, w := range wrong {
		begun := time.Now()
		got, err := Read([]File{{"f", []byte(w.text)}})
		require.Less(t, time.Since(begun), 10*time.Second, w.name)
		require.ErrorIs(t, err, inventory.ErrInvalid, w.name)
		require.Empty(t, got)
		require.NotContains(t, err.Error(), "hush-hush")

		fmt.Fprintf(&b, "# %s\n", w.name)
		for n, line := range strings.Split(strings.TrimSuffix(w.text, "\n"), "\n") {
			fmt.Fprintf(&b, "%2d| %s\n", n+1, strings.Trim(fmt.Sprintf("%+q", line), `"`))
		}
		var ps inventory.Problems
		require.True(t, errors.As(err, &ps))
		for _, p := range ps {
			require.Equal(t, "f", p.File)
			fmt.Fprintf(&b, "%s\n", p)
		}
		b.WriteString("\n")
	}
	compareGolden(t, "testdata/wrong.golden", b.String())
}

// TestForms: what is written in another way is the same.
func TestForms(t *testing.T) {
	text := head("Template", "t") + "spec:\n  data: |\n" + templateData + secretText + head("Machine", "b") + bmcSpec +
		strings.Replace(hardwareText("n", mac1, ", vlan_id: 5"), "spec:\n", "spec:\n  bmcRef: {name: b}\n", 1)
	want, err := Read([]File{{"f", []byte(text)}})
	require.NoError(t, err)
	require.Len(t, want.Machines, 1)
	require.Len(t, want.Templates, 1)
	require.Equal(t, "hush-hush", want.Machines[0].BMC.Password.Reveal())

	for name, other := range map[string]string{
		"BOM":             "\ufeff" + text,
		"CRLF":            strings.ReplaceAll(text, "\n", "\r\n"),
		"empty documents": strings.ReplaceAll(text, "---\n", "---\n---\n# nothing\n---\n"),
		"document ends":   strings.ReplaceAll(text, "\n---\n", "\n...\n---\n"),
		"no line end":     strings.TrimSuffix(text, "\n"),
		"MAC":             strings.Replace(text, mac1, "02-00-00-00-00-01", 1),
		"quoted VLAN":     strings.Replace(text, "vlan_id: 5", `vlan_id: "5"`, 1),
		"null":            strings.Replace(text, "spec:\n  bmcRef", "spec:\n  userData: ~\n  disks: null\n  metadata:\n  bmcRef", 1),
		"base64": strings.Replace(text, "stringData: {username: u, password: hush-hush}",
			"data: {username: dQ==, password: aHVzaC1odXNo}", 1),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Read([]File{{"f", []byte(other)}})
			require.NoError(t, err)
			require.Equal(t, withoutPlaces(t, want), withoutPlaces(t, got))
		})
	}
}

// withoutPlaces describes an import without its files and lines.
func withoutPlaces(t testing.TB, i Import) string {
	t.Helper()
	return places.ReplaceAllString(describe(t, i), "")
}

var places = regexp.MustCompile(`(?m)^[a-z-]+(\.[a-z]+)?:\d+: `)
