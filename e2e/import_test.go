package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/documents/importfile"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
)

// tinkerbellHardware is a machine as Tinkerbell has it: number N of address, name, MAC, UEFI, BMC.
const tinkerbellHardware = `---
apiVersion: tinkerbell.org/v1alpha1
kind: Hardware
metadata: {name: %[1]s, namespace: tink-system, labels: {type: lab}}
spec:
  bmcRef: {apiGroup: bmc.tinkerbell.org, kind: Machine, name: %[1]s-bmc}
  disks: [{device: /dev/sda}]
  interfaces:
    - netboot: {allowPXE: true, allowWorkflow: true}
      dhcp:
        mac: "%[2]s"
        hostname: %[1]s
        arch: x86_64
        uefi: %[3]t
        lease_time: 86400
        name_servers: [10.10.20.1]
        ip: {address: 10.10.20.%[4]d, netmask: 255.255.255.0, gateway: %[5]s, family: 4}
  metadata:
    instance: {id: "%[2]s", hostname: %[1]s, allow_pxe: true}
  userData: |
    #cloud-config
    {}
---
apiVersion: bmc.tinkerbell.org/v1alpha1
kind: Machine
metadata: {name: %[1]s-bmc, namespace: tink-system}
spec:
  connection:
    host: %[6]s
    port: 623
    authSecretRef: {name: %[1]s-login, namespace: tink-system}
    insecureTLS: true
    providerOptions: {ipmitool: {cipherSuite: "%[7]d"}}
---
apiVersion: v1
kind: Secret
metadata: {name: %[1]s-login, namespace: tink-system}
type: kubernetes.io/basic-auth
stringData: {username: "%[8]s", password: "%[9]s"}
`

// TestImportedDocuments: machines and templates in the forms of Tinkerbell and EKS Anywhere are imported, and the
// templates install QEMU machines: the one that users of the first Tinkerbell start with, and the chain of EKS Anywhere
// for Ubuntu with another image's address and without its digest, on an image of the same layout.
func TestImportedDocuments(t *testing.T) {
	runInTurn(t, 120, 12)
	ctx := needLab(t)
	image := mini(ctx, t)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "mini", image.Zst)

	hardware := ""
	machines := map[string]*lab.Machine{}
	for name, firmware := range map[string]lab.Firmware{"tink": lab.BIOS, "eksa": lab.UEFI} {
		m, err := s.Machine(ctx, lab.Spec{Name: name, Firmware: firmware})
		require.NoError(t, err)
		machines[name] = m
		spec, b := m.Spec(), m.BMC()
		number, err := strconv.ParseInt(spec.MAC[strings.LastIndexByte(spec.MAC, ':')+1:], 16, 32)
		require.NoError(t, err)
		hardware += fmt.Sprintf(tinkerbellHardware, name, spec.MAC, firmware == lab.UEFI, 100+number, lab.DirectGateway, b.Address,
			lab.BMCCipher, b.User, b.Password)
	}

	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	files := []string{write("hardware.yaml", hardware), write("templates.yaml", s.tinkerbellTemplates(t))}

	s.must(ctx, t, append([]string{"import", "--dry-run"}, files...)...)
	require.NotContains(t, s.must(ctx, t, "machine", "list"), "tink", "a dry run changes nothing")
	out := s.must(ctx, t, append([]string{"import"}, files...)...)
	require.NotContains(t, out, machines["tink"].BMC().Password)
	for name, m := range machines {
		s.closed(ctx, t, name)
		require.Zero(t, m.PowerOns(), "an import starts nothing")
	}

	s.must(ctx, t, "workflow", "create", "--template", "basic-provision", "--hardware", machines["tink"].Spec().MAC, "--image", "mini")
	s.must(ctx, t, "machine", "provision", "eksa", "--template", "workflow-ubuntu", "--image", "mini",
		"--hardware-map", "bootstrap=http://"+s.Address+":7172")
	for name, m := range machines {
		w := s.ended(ctx, t, name, inventory.StateSuccess)
		for _, a := range w.Actions {
			require.Equal(t, "SUCCESS", string(a.State), "%s: %s", name, a.Name)
		}
		booted, err := m.WaitSerial(ctx, "LAB-MINI-BOOTED")
		require.NoError(t, err)
		require.Contains(t, booted, "hostname="+name)
		require.Equal(t, 1, m.PowerOns())
		s.closed(ctx, t, name)
	}

	eksa := machines["eksa"]
	require.NoError(t, eksa.PowerOff(ctx))
	require.Contains(t, readRoot(ctx, t, eksa, "/etc/netplan/config.yaml"), eksa.Spec().MAC)
	require.Contains(t, readRoot(ctx, t, eksa, "/etc/cloud/cloud.cfg.d/10_tinkerbell.cfg"), s.Address+":7172")
	require.Equal(t, "datasource: Ec2\n", readRoot(ctx, t, eksa, "/etc/cloud/ds-identify.cfg"))

	// What is exported imports to the same state.
	site := write("site.yaml", s.must(ctx, t, "export"))
	s.must(ctx, t, "import", site)
	require.Equal(t, s.must(ctx, t, "export"), string(mustRead(t, site)))
	s.must(ctx, t, "bmc", "check", "tink") // its password is still there
}

// tinkerbellTemplates returns the two templates as documents of Tinkerbell. The image of EKS Anywhere lies on this
// server, under the address that the operator would write.
func (s *Site) tinkerbellTemplates(t *testing.T) string {
	t.Helper()
	basic := string(mustRead(t, "../template/testdata/basic-provision.yaml"))
	ubuntu := string(mustRead(t, "../template/testdata/eks-a-ubuntu.yaml"))
	var lines []string
	for line := range strings.Lines(ubuntu) {
		switch {
		case strings.Contains(line, "IMG_URL:"):
			line = "          IMG_URL: http://" + s.Address + "/images/mini\n"
		case strings.Contains(line, "IMG_SHA256:"): // EKS Anywhere has none
			continue
		}
		lines = append(lines, line)
	}
	b, err := importfile.Export(nil, []inventory.Template{
		{Name: "basic-provision", Source: basic}, {Name: "workflow-ubuntu", Source: strings.Join(lines, "")},
	})
	require.NoError(t, err)
	return string(b)
}

func mustRead(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return b
}

// readRoot reads a file of the root file system of a machine that is off.
func readRoot(ctx context.Context, t *testing.T, m *lab.Machine, file string) string {
	t.Helper()
	return debugfs(ctx, t, m, "cat "+file)
}
