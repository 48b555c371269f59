package systems

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

// What the machines of deploy/genesis are given, by the built-in templates:
// every document as it is served, every kernel command line, both compared with
// golden files. The documents stay valid, and nothing secret of them is on a
// command line (S44).
func TestS44ServedDocumentsAndKernelLines(t *testing.T) {
	harvester := map[string]string{
		"kernel": "harvester-v1.4.0-vmlinuz-amd64", "initrd": "harvester-v1.4.0-initrd-amd64", "rootfs": "harvester-v1.4.0-rootfs-amd64.squashfs",
	}
	for _, m := range []struct {
		name, template, file string
		labels               map[string]string
		hardwareMap          map[string]string
	}{
		{"vp6630", template.BuiltinVyOS, "config.boot", map[string]string{"version": "1.5-rolling-202411"}, nil},
		{"um760", template.BuiltinTalos, "talos.yaml", nil, map[string]string{"kernel": "talos-kernel", "initramfs": "talos-initramfs"}},
		{"um760-image", template.BuiltinTalosImage, "talos.yaml", nil, nil},
		{"ms-02-a", template.BuiltinHarvesterCreate, "harvester-create.yaml", nil, harvester},
		{"ms-02-b", template.BuiltinHarvesterJoin, "harvester-join.yaml", harvester, nil},
	} {
		t.Run(m.name, func(t *testing.T) {
			userData := string(example(t, m.file))
			secret := secretsOf(Of(map[string]string{"config.boot": inventory.DocumentVyOS}[m.file]), []byte(userData))
			require.GreaterOrEqual(t, len(secret), 2)
			lookup := func(ref string) (string, error) {
				v, ok := map[string]string{
					inventory.RefUserData: userData, inventory.RefNonce: "nonce", inventory.RefPhoneHomeURL: "http://192.0.2.1:7172/phone-home/m/nonce",
					inventory.RefDocumentsURL: "http://192.0.2.1:7172/c/m/capability/documents/", inventory.RefBootURL: "http://192.0.2.1:7080/boot/m/claim/",
					inventory.RefWebhookURL: "http://192.0.2.1:7172/c/m/capability/webhook/",
				}[ref]
				if !ok {
					return "", fmt.Errorf("%s: %w", ref, inventory.ErrNotFound)
				}
				return v, nil
			}
			machine := inventory.Machine{
				Name: m.name, Labels: m.labels, UserData: inventory.NewSecret(userData), HasUserData: true,
				Interfaces: []inventory.Interface{{MAC: "02:00:00:00:00:01", Address: netip.MustParseAddr("192.0.2.10"), Netmask: "255.255.255.0"}},
			}
			src := ""
			for _, b := range template.Builtins() {
				if b.Name == m.template {
					src = b.Source
				}
			}
			r, err := template.Render(t.Context(), m.template, src, template.Data{
				Machine:     machine,
				HardwareMap: m.hardwareMap,
				Image:       &inventory.Image{Name: "image", SHA256: strings.Repeat("ab", 32), Format: "raw"},
				ImageURL:    "http://192.0.2.1:7080/images/image",
			})
			require.NoError(t, err)

			require.Len(t, r.Documents, 1)
			for _, d := range r.Documents {
				served := []byte(d.Contents)
				if w, ok := Of(d.Kind).(Webhooks); ok {
					served, err = w.AddWebhooks([]byte(userData), inventory.RefWebhookURL)
					require.NoError(t, err)
				}
				text, err := inventory.Resolve(string(served), lookup)
				require.NoError(t, err)
				require.NoError(t, CheckDocument(d.Kind, d.Name, []byte(text)))
				golden(t, m.name+".served", []byte(text))
			}
			for _, a := range r.Actions {
				a, err := template.Resolve(a, lookup)
				require.NoError(t, err)
				if a.Image == "inject" {
					require.Equal(t, userData, a.Environment["CONFIG_BOOT"])
				}
			}
			if r.Installer == nil {
				return
			}
			line, err := inventory.Resolve(strings.Join(r.Installer.Parameters, " ")+"\n", lookup)
			require.NoError(t, err)
			golden(t, m.name+".cmdline", []byte(line))
			for _, s := range secret {
				require.NotContains(t, line, s)
			}
			require.NotContains(t, line, "nonce")
		})
	}
	t.Run("none named", func(t *testing.T) {
		for _, b := range template.Builtins() {
			if b.Name == template.BuiltinTalos || b.Name == template.BuiltinVyOS {
				_, err := template.Render(t.Context(), b.Name, b.Source, template.Data{
					Machine: inventory.Machine{Name: "m", Interfaces: []inventory.Interface{{MAC: "02:00:00:00:00:01"}}},
					Image:   &inventory.Image{Name: "image", SHA256: strings.Repeat("ab", 32)}, ImageURL: "http://192.0.2.1/x",
				})
				require.ErrorIs(t, err, inventory.ErrInvalid)
			}
		}
	})
}
