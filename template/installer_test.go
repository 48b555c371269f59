package template

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

const installing = `version: "0.1"
name: foreign
documents:
  - name: config
    kind: harvester
  - name: note.txt
    contents: "{{ .webhook_url }}SUCCEEDED"
installer:
  kernel: vmlinuz-x
  initrd: [initrd-x]
  payload: rootfs-x
  parameters: ["ip=dhcp", "root=live:{{ .boot_url }}rootfs-x", "harvester.install.config_url={{ .documents_url }}config"]
  complete: webhook
`

func TestInstallerIsRendered(t *testing.T) {
	_, err := Parse("t.yaml", []byte(installing))
	require.NoError(t, err)
	r, err := Render(t.Context(), "foreign", installing, data())
	require.NoError(t, err)
	require.Equal(t, &inventory.Installer{
		Kernel:  "vmlinuz-x",
		Initrds: []string{"initrd-x"},
		Payload: "rootfs-x",
		Parameters: []string{
			"ip=dhcp",
			"root=live:" + inventory.RefBootURL + "rootfs-x",
			"harvester.install.config_url=" + inventory.RefDocumentsURL + "config",
		},
		Complete: inventory.CompleteWebhook,
		Timeout:  DefaultInstallerTimeout,
	}, r.Installer)
	require.Equal(t, []inventory.Document{
		{Name: "config", Kind: inventory.DocumentHarvester, Contents: inventory.RefUserData},
		{Name: "note.txt", Kind: inventory.DocumentText, Contents: inventory.RefWebhookURL + "SUCCEEDED"},
	}, r.Documents)
	require.Empty(t, r.Actions, "no task, no reboot")
	require.Equal(t, DefaultGlobalTimeout+DefaultInstallerTimeout, r.GlobalTimeout)
}

func TestTasksBeforeAnInstallerEndWithAReboot(t *testing.T) {
	src := installing + "tasks: [{name: clean, worker: '{{.device_1}}', actions: [{name: wipe, image: wipe}]}]\n"
	r, err := Render(t.Context(), "foreign", src, data())
	require.NoError(t, err)
	require.Len(t, r.Actions, 2)
	require.Equal(t, action.Reboot, r.Actions[1].Image)

	_, err = Parse("t.yaml", []byte(strings.Replace(src, "image: wipe", "image: poweroff", 1)))
	require.ErrorContains(t, err, "does not boot the installer")
}

func TestPayloadIsTheLastInitrd(t *testing.T) {
	src := strings.Replace(strings.Replace(installing, "  payload: rootfs-x\n", "", 1), "[initrd-x]", "[initrd-x, more]", 1)
	r, err := Render(t.Context(), "foreign", src, data())
	require.NoError(t, err)
	require.Equal(t, "more", r.Installer.Payload)
	require.Equal(t, []string{"vmlinuz-x", "initrd-x", "more", "more"}, r.Installer.Images())
}

func TestInstallerProblemsAreReportedTogether(t *testing.T) {
	for name, x := range map[string]struct{ old, new, want string }{
		"no kernel":             {"kernel: vmlinuz-x", "kernel: ''", "installer.kernel"},
		"path for a name":       {"kernel: vmlinuz-x", "kernel: ../etc/passwd", "invalid image name"},
		"no initramfs":          {"[initrd-x]", "[]", "installer.initrd"},
		"twice":                 {"[initrd-x]", "[initrd-x, initrd-x]", "is loaded twice"},
		"payload is kernel":     {"payload: rootfs-x", "payload: vmlinuz-x", "which is fetched first"},
		"completion":            {"complete: webhook", "complete: hope", "invalid value"},
		"talos without config":  {"complete: webhook", "complete: talos", "0 documents of that kind"},
		"negative time":         {"complete: webhook", "complete: webhook\n  timeout: -1", "is negative"},
		"global time":           {"complete: webhook", "complete: webhook\nglobal_timeout: 60", "ends before installer.timeout"},
		"kind":                  {"kind: harvester", "kind: rancher", "unknown kind of document"},
		"name of a document":    {"name: config", "name: a/b", "last element of a URL"},
		"two of one name":       {"name: note.txt", "name: config", "second document"},
		"boot URL in document":  {".webhook_url", ".boot_url", "is invalid after the boot"},
		"unknown key":           {"complete: webhook", "complete: webhook\n  initrds: [x]", "initrds"},
		"initrd as parameter":   {`"ip=dhcp"`, `"initrd=x"`, "is a parameter that Ingot sets itself"},
		"script as parameter":   {`"ip=dhcp"`, `"a || chain"`, "contains"},
		"setting as parameter":  {`"ip=dhcp"`, `"a=${net0/mac}"`, "contains"},
		"S44 nonce":             {`"ip=dhcp"`, `"n={{ .nonce }}"`, "secret on the kernel command line"},
		"S44 phone-home":        {`"ip=dhcp"`, `"n={{ .phone_home_url }}"`, "secret on the kernel command line"},
		"S44 user-data":         {`"ip=dhcp"`, `"n={{ .user_data }}"`, "secret on the kernel command line"},
		"S44 user-data of both": {`"ip=dhcp"`, `"n={{ .Hardware.UserData }}"`, "secret on the kernel command line"},
	} {
		t.Run(name, func(t *testing.T) {
			src := strings.Replace(installing, x.old, x.new, 1)
			require.NotEqual(t, installing, src)
			_, err := Parse("t.yaml", []byte(src))
			require.ErrorContains(t, err, x.want)
			_, err = Render(t.Context(), "foreign", src, data())
			require.ErrorContains(t, err, x.want)
		})
	}
}

// Data cannot add a document or a parameter.
func TestDataCannotChangeTheInstaller(t *testing.T) {
	d := data()
	d.HardwareMap = map[string]string{"mode": "x\", \"init_on_alloc=1"}
	src := strings.Replace(installing, `"ip=dhcp"`, `"mode={{ .mode }}"`, 1)
	_, err := Render(t.Context(), "foreign", src, d)
	require.ErrorContains(t, err, "changes the structure")
}
