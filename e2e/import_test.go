package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
)

// tinkerbellHardware is a machine as Tinkerbell has it; see tinkerbellMachine.
const tinkerbellHardware = `---
apiVersion: tinkerbell.org/v1alpha1
kind: Hardware
metadata: {name: %[1]s, namespace: tink-system, labels: {type: %[10]s}}
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
%[11]s
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

// tinkerbellMachine returns the documents of a machine of the lab, with a label "type".
func tinkerbellMachine(t *testing.T, m *lab.Machine, label, userData string) string {
	t.Helper()
	spec, b := m.Spec(), m.BMC()
	number, err := strconv.ParseInt(spec.MAC[strings.LastIndexByte(spec.MAC, ':')+1:], 16, 32)
	require.NoError(t, err)
	indented := "    " + strings.ReplaceAll(strings.TrimSuffix(userData, "\n"), "\n", "\n    ")
	return fmt.Sprintf(tinkerbellHardware, spec.Name, spec.MAC, spec.Firmware == lab.UEFI, 100+number, lab.DirectGateway, b.Address,
		lab.BMCCipher, b.User, b.Password, label, indented)
}

// artifacts is the address of the file server that testdata/eks-anywhere.yaml names.
const artifacts = lab.DirectGateway + ":8888"

// eksAnywhere starts a site that may fetch images from artifacts, which serves files by path.
func eksAnywhere(ctx context.Context, t *testing.T, files map[string]string) *Site {
	t.Helper()
	s := siteWith(ctx, t, Options{Netboot: "  metadata: [7172, 50061]", Top: "images: {fetch_hosts: [" + lab.DirectGateway + "]}\n"})
	l, err := s.Listen(ctx, lab.Router, artifacts)
	require.NoError(t, err)
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, files[r.URL.Path])
	})}
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	go func() { _ = server.Serve(l) }() // ends with Close
	return s
}

// TestImportedDocuments: machines and templates in the forms of Tinkerbell and EKS Anywhere are imported, and the
// templates install QEMU machines: the one that users of the first Tinkerbell start with, and what the generator of EKS Anywhere
// writes for Ubuntu, on another image of the same layout.
func TestImportedDocuments(t *testing.T) {
	runInTurn(t, 120, 12)
	ctx := needLab(t)
	image := mini(ctx, t)
	s := eksAnywhere(ctx, t, map[string]string{"/ubuntu-2204-kube-v1.29.gz": image.Zst})
	s.must(ctx, t, "image", "add", "mini", image.Zst)

	hardware := ""
	machines := map[string]*lab.Machine{}
	for name, firmware := range map[string]lab.Firmware{"tink": lab.BIOS, "eksa": lab.UEFI} {
		m, err := s.Machine(ctx, lab.Spec{Name: name, Firmware: firmware})
		require.NoError(t, err)
		machines[name] = m
		hardware += tinkerbellMachine(t, m, map[string]string{"tink": "lab", "eksa": "cp"}[name], "#cloud-config\n{}\n")
	}

	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	files := []string{
		write("hardware.yaml", hardware), "testdata/eks-anywhere.yaml",
		write("basic-provision.yaml", string(mustRead(t, "../template/testdata/basic-provision.yaml"))),
	}

	s.must(ctx, t, append([]string{"import", "--dry-run"}, files...)...)
	require.NotContains(t, s.must(ctx, t, "machine", "list"), "tink", "a dry run changes nothing")
	out := s.must(ctx, t, append([]string{"import"}, files...)...)
	require.NotContains(t, out, machines["tink"].BMC().Password)
	for name, m := range machines {
		s.closed(ctx, t, name)
		require.Zero(t, m.PowerOns(), "an import starts nothing")
	}

	s.must(ctx, t, "workflow", "create", "--template", "basic-provision", "--hardware", machines["tink"].Spec().MAC, "--image", "mini")
	s.must(ctx, t, "machine", "provision", "eksa")
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
	require.Contains(t, readRoot(ctx, t, eksa, "/etc/cloud/cloud.cfg.d/10_tinkerbell.cfg"), lab.ServerAddress+":50061")
	require.Equal(t, "datasource: Ec2\n", readRoot(ctx, t, eksa, "/etc/cloud/ds-identify.cfg"))

	// What is exported imports to the same state.
	site := write("site.yaml", s.must(ctx, t, "export"))
	s.must(ctx, t, "import", site)
	require.Equal(t, s.must(ctx, t, "export"), string(mustRead(t, site)))
	s.must(ctx, t, "bmc", "check", "tink") // its password is still there
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
