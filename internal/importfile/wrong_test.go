package importfile

import (
	"errors"
	"fmt"
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

// wrong has documents and everything that is wrong in each.
var wrong = []struct {
	name, text string
	want       []string
}{
	// The file.
	{"nothing", "", nil},
	{"comments", "# nothing\n---\n---\n~\n", nil},
	{"binary", "kind: \x00\n", nil},
	{"UTF-16", "\xff\xfek\x00i\x00", nil},
	{"tabs", "kind: Hardware\n\tapiVersion: x\n", nil},
	{"no end", "kind: \"Hardware\napiVersion: x\n", nil},
	{"unknown anchor", secretText + "data:\n  password: *hush-hush\n", nil},
	{"list", "- a\n- b\n", nil},
	{"text", "hello\n", nil},
	{"no kind", "apiVersion: tinkerbell.org/v1alpha1\nmetadata: {name: n}\n", nil},
	{"no apiVersion", "kind: Hardware\nmetadata: {name: n}\n", nil},
	{"List without items", "apiVersion: v1\nkind: List\nitems: {}\n", nil},
	{"List in a List", "apiVersion: v1\nkind: List\nitems: &a\n  - {apiVersion: v1, kind: List, items: *a}\n", nil},

	// Versions.
	{"v1alpha2", "apiVersion: tinkerbell.org/v1alpha2\nkind: Hardware\nmetadata: {name: n}\n", nil},
	{"v1alpha2 Job", "apiVersion: bmc.tinkerbell.org/v1alpha2\nkind: Job\nmetadata: {name: n}\n", nil},
	{"no version", "apiVersion: tinkerbell.org\nkind: Hardware\nmetadata: {name: n}\n", nil},
	{"EKS Anywhere v1beta1", "apiVersion: anywhere.eks.amazonaws.com/v1beta1\nkind: TinkerbellMachineConfig\nmetadata: {name: n}\n", nil},

	// Hardware.
	{"no name", "apiVersion: tinkerbell.org/v1alpha1\nkind: Hardware\nmetadata: {generateName: n-}\nspec: {interfaces: [{dhcp: {mac: \"" + mac1 + "\"}}]}\n", nil},
	{"metadata is text", "apiVersion: tinkerbell.org/v1alpha1\nkind: Hardware\nmetadata: n\nspec: []\n", nil},
	{"name", hardwareText("-N_1", mac1, ""), nil},
	{"unknown keys", head("Hardware", "n") + "spec:\n  interface: []\n  interfaces:\n    - dhcp: {mac: x, leaseTime: 1}\n      Netboot: {}\n", nil},
	{"key twice", head("Hardware", "n") + "spec:\n  disks: []\n  disks: []\n", nil},
	{"types", head("Hardware", "n") + "spec:\n  disks: /dev/sda\n  interfaces: {dhcp: {}}\n  userData: [a]\n", nil},
	{"types of an interface", head("Hardware", "n") + "spec:\n  interfaces:\n    - disableDhcp: \"false\"\n      dhcp:\n        mac: [a]\n        lease_time: a day\n" +
		"        uefi: 1\n        name_servers: [ns.example.com]\n        ip: {address: 10.0.0.300}\n        vlan_id: trunk\n      netboot: {allowPXE: maybe}\n", nil},
	{"values of an interface", head("Hardware", "n") + "spec:\n  interfaces:\n    - dhcp:\n        mac: 02-00-00\n        lease_time: -1\n" +
		"        arch: sparc\n        ip:\n          address: 10.0.0.255\n          netmask: 255.255.255.0\n          gateway: 10.0.1.1\n" +
		"        vlan_id: 4095\n        hostname: a b\n", nil},
	{"no interface", head("Hardware", "n") + "spec: {}\n", nil},
	{"no MAC", head("Hardware", "n") + "spec:\n  interfaces:\n    - netboot: {allowPXE: true}\n    - dhcp: {}\n", nil},
	{"disk", head("Hardware", "n") + "spec:\n  disks: [{device: sda}]\n  interfaces: [{dhcp: {mac: \"" + mac1 + "\"}}]\n", nil},
	{"key", head("Hardware", "n") + "spec:\n  interfaces: [{dhcp: {mac: \"" + mac1 + "\"}}]\n  metadata:\n    instance:\n      ssh_keys:\n        - ok AAAA\n        - AAAA\n", nil},
	{"label", "apiVersion: tinkerbell.org/v1alpha1\nkind: Hardware\nmetadata:\n  name: n\n  labels:\n    a: b\n    \"c d\": \"e\\nf\"\n" +
		"spec: {interfaces: [{dhcp: {mac: \"" + mac1 + "\"}}]}\n", nil},
	{"the same twice", hardwareText("n", mac1, "") + hardwareText("n", mac1, ""), nil},
	{"MAC, address and host name twice", hardwareText("n", mac1, ", hostname: h, ip: {address: 10.0.0.11, netmask: 255.255.255.0}") +
		hardwareText("m", "02-00-00-00-00-01", ", hostname: H, ip: {address: 10.0.0.11, netmask: 255.255.255.0}"), nil},
	{"several documents", hardwareText("n", "x", "") + hardwareText("m", "y", "") + head("Template", "t") + "spec: {data: \"\"}\n", nil},
	{"a bomb", head("Hardware", "n") + "spec:\n  resources:\n    a: &a [1,1,1,1,1,1,1,1,1,1]\n    b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n" +
		"    c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n    d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n    e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n" +
		"    f: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n", nil},
	{"an anchor that holds itself", head("Hardware", "n") + "spec: &a {resources: *a}\n", nil},

	// BMCs.
	{"no Secret", hardwareText("n", mac1, "") + head("Machine", "b") + bmcSpec, nil},
	{"a Secret that is wrong", secretText + "more: 1\n" + head("Machine", "b") + bmcSpec, nil},
	{"base64", "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata:\n  username: dQ==\n  password: hush-hush\n", nil},
	{"a Secret's types", "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData:\n  username: [hush-hush]\n  password: {hush-hush: 1}\n", nil},
	{"line end in a password", "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {username: dQ==, password: aHVzaC1odXNoCg==}\n" + head("Machine", "b") + bmcSpec, nil},
	{"no login", head("Machine", "b") + "spec:\n  connection:\n    host: 10.0.9.1\n", nil},
	{"no host", secretText + head("Machine", "b") + "spec:\n  connection:\n    authSecretRef: {name: s}\n", nil},
	{"connection", secretText + head("Machine", "b") + "spec:\n  connection:\n    host: a b\n    port: 70000\n    authSecretRef: {name: s}\n" +
		"    providerOptions:\n      ipmitool: {cipherSuite: \"99\"}\n", nil},
	{"types of a connection", head("Machine", "b") + "spec:\n  connection:\n    host: [a]\n    port: \"623\"\n    insecureTLS: 1\n    password: hush-hush\n", nil},
	{"Secret and Machine twice", secretText + secretText + head("Machine", "b") + bmcSpec + head("Machine", "b") + bmcSpec, nil},
	{"a BMC of two machines", secretText + head("Machine", "b") + bmcSpec + strings.Replace(hardwareText("n", mac1, ""), "spec:\n", "spec:\n  bmcRef: {name: b}\n", 1) +
		strings.Replace(hardwareText("m", mac2, ""), "spec:\n", "spec:\n  bmcRef: {name: b}\n", 1), nil},
	{"a BMC's address twice", secretText + head("Machine", "b") + bmcSpec + head("Machine", "c") + bmcSpec +
		strings.Replace(hardwareText("n", mac1, ""), "spec:\n", "spec:\n  bmcRef: {name: b}\n", 1) +
		strings.Replace(hardwareText("m", mac2, ""), "spec:\n", "spec:\n  bmcRef: {name: c}\n", 1), nil},

	// Templates.
	{"empty template", head("Template", "t") + "spec: {data: \" \"}\n", nil},
	{"no data", head("Template", "t") + "spec: {}\n", nil},
	{"template", head("Template", "t") + "spec:\n  data: |\n" + strings.Replace(templateData, "image: reboot", "image: nothing", 1), nil},
	{"template on one line", head("Template", "t") + "spec:\n  data: \"version: '0.1'\\nname: x\\ntask: []\\n\"\n", nil},
	{"template's YAML", head("Template", "t") + "spec:\n  data: |\n    a: b\n    c: d: e\n", nil},
	{"template twice", head("Template", "t") + "spec:\n  data: |\n" + templateData + head("Template", "t") + "spec:\n  data: |\n" + templateData, nil},
	{"template's name", head("Template", "../t") + "spec:\n  data: |\n" + templateData, nil},
	{"TinkerbellTemplateConfig", head("TinkerbellTemplateConfig", "t") + "spec:\n  template:\n" + strings.Replace(templateData, "timeout: 60}", "timeout: soon}", 1), nil},
	{"no template", head("TinkerbellTemplateConfig", "t") + "spec: {template: {}}\n", nil},
	{"template is text", head("TinkerbellTemplateConfig", "t") + "spec:\n  template: |\n    a: b\n", nil},

	// Workflows and Jobs.
	{"no template and machine", head("Workflow", "w") + "spec: {}\n", nil},
	{"two machines", hardwareText("n", mac1, "") + hardwareText("m", mac2, "") + head("Workflow", "w") +
		"spec:\n  templateRef: t\n  hardwareRef: n\n  hardwareMap:\n    device_1: " + mac2 + "\n", nil},
	{"terminal", head("Workflow", "w") + "spec: {templateRef: t, hardwareRef: n, hardwareMap: {a: \"\\e[2J\"}}\n", nil},
	{"flag", head("Workflow", "w") + "spec: {templateRef: --yes, hardwareRef: --yes}\n", nil},
	{"types of a Workflow", head("Workflow", "w") + "spec: {templateRef: {name: t}, hardwareRef: [n], hardwareMap: {a: [b]}}\n", nil},
	{"no task", head("Job", "j") + "spec: {machineRef: {name: b}}\n", nil},
	{"no machine", head("Job", "j") + "spec: {tasks: [{powerAction: \"on\"}]}\n", nil},
	{"tasks", head("Job", "j") + "spec:\n  machineRef: {name: b}\n  tasks:\n    - {}\n    - powerAction: off\n      bootDevice: {device: pxe}\n    - powerAction: explode\n" +
		"    - oneTimeBootDeviceAction: {device: []}\n    - bootDevice: {efiBoot: true}\n    - bootDevice: {device: floppy}\n    - oneTimeBootDeviceAction: {device: [\"a,b\"]}\n", nil},

	// EKS Anywhere's machines.
	{"users", head("TinkerbellMachineConfig", "c") + "spec:\n  hardwareSelector: {a: b}\n  users:\n    - {sshAuthorizedKeys: [k]}\n    - {name: x, password: hush-hush}\n", nil},
	{"nameless user", head("TinkerbellMachineConfig", "c") + "spec:\n  users: [{}]\n", nil},
	{"two selectors", strings.Replace(hardwareText("n", mac1, ""), "{name: n}", "{name: n, labels: {a: b, c: d}}", 1) +
		head("TinkerbellMachineConfig", "x") + "spec: {hardwareSelector: {a: b}}\n" + head("TinkerbellMachineConfig", "y") + "spec: {hardwareSelector: {c: d}}\n", nil},
	{"user's key", strings.Replace(hardwareText("n", mac1, ""), "{name: n}", "{name: n, labels: {a: b}}", 1) +
		head("TinkerbellMachineConfig", "x") + "spec: {hardwareSelector: {a: b}, users: [{name: u, sshAuthorizedKeys: [AAAA]}]}\n", nil},

	// The first Tinkerbell.
	{"stack without a name", `{"network": {"interfaces": [{"dhcp": {"mac": "` + mac1 + `"}}]}}`, nil},
	{"stack's keys", "{\"id\": \"n\", \"metadata\": {\"instance\": {\"ssh_keys\": [1, []]}, \"more\": 1},\n\"network\": {\"interfaces\": [{\"dhcp\": {\"mac\": \"" + mac1 + "\"}}]}}", nil},
	{"stack's text", "{\"id\": \"n\", \"metadata\": \"{\",\n\"network\": {\"interfaces\": [{\"dhcp\": {\"mac\": \"" + mac1 + "\"}}]}}", nil},
	{"keys in stack's text", "{\"id\": \"n\", \"metadata\": \"{\\\"more\\\": 1}\",\n\"network\": {\"interfaces\": [{\"dhcp\": {\"mac\": \"" + mac1 + "\"}}]}}", nil},

	// Ingot's own form.
	{"own", "name: n\nmac: " + mac1 + "\ninterfaces: [{mac: x}]\n", nil},
}

// TestWrong: each wrong document is refused with everything that is wrong in it, by file, line,
// field and remedy; what is secret in it is not repeated, and it does not take long.
func TestWrong(t *testing.T) {
	for _, w := range wrong {
		t.Run(w.name, func(t *testing.T) {
			begun := time.Now()
			got, err := Read([]File{{"f", []byte(w.text)}})
			require.Less(t, time.Since(begun), 10*time.Second)
			require.ErrorIs(t, err, inventory.ErrInvalid)
			require.Empty(t, got)

			var ps inventory.Problems
			require.True(t, errors.As(err, &ps))
			require.Equal(t, w.want, texts(ps), "%s", w.text)
			require.NotContains(t, err.Error(), "hush-hush")
		})
	}
}
