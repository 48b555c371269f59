package catalog

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

func TestCatalogOfThisVersion(t *testing.T) {
	c, err := Read("")
	require.NoError(t, err)
	images := c.Images

	for _, publisher := range []string{
		"debian", "ubuntu", "rocky", "alma", "fedora", "flatcar", "opensuse", "talos", "harvester", "vyos",
	} {
		require.True(t, slices.ContainsFunc(images, func(i Image) bool { return strings.HasPrefix(i.Name, publisher) }), publisher)
	}
	var builtins []string
	for _, t := range template.Builtins() {
		builtins = append(builtins, t.Name)
	}
	for _, i := range images {
		require.NotEmpty(t, i.About, i.Name)
		require.True(t, strings.HasPrefix(i.URL, "https://"), i.Name)
		if i.Template != "" {
			require.Contains(t, builtins, i.Template, i.Name)
		}
	}
}

// What a template needs of the image that it installs.
type need struct {
	metadata string // what configures the installed system
	use      string // of the image
	platform string // in the file's name; "" for any
}

// needOf reads from a built-in template what its image must be.
func needOf(t *testing.T, name string) need {
	all := template.Builtins()
	at := slices.IndexFunc(all, func(b inventory.Template) bool { return b.Name == name })
	require.GreaterOrEqual(t, at, 0, "there is no template %s", name)
	r, err := template.Render(t.Context(), name, all[at].Source, template.Data{
		Machine: inventory.Machine{Name: "m1", Interfaces: []inventory.Interface{{MAC: "52:54:00:00:00:01"}}},
		Image:   &inventory.Image{Name: "x", SHA256: strings.Repeat("0a", 32)}, ImageURL: "http://192.0.2.1/images/x",
		HardwareMap: map[string]string{"kernel": "k", "initrd": "i", "initramfs": "i", "rootfs": "r", "version": "1"},
	})
	require.NoError(t, err)

	n := need{metadata: "cloud-init"}
	for _, d := range r.Documents {
		n.metadata = d.Kind
	}
	if r.Installer != nil {
		n.use = inventory.UseInstaller
	}
	for _, a := range r.Actions {
		// Talos reads a CIDATA partition on the platform nocloud only; an image for metal stays in maintenance mode.
		if native, _ := action.Native(a.Image); native == action.ConfigDrive && n.metadata == inventory.DocumentTalos {
			n.platform = "nocloud"
		}
	}
	return n
}

// Each row is an image that its template can install: a node whose image does not read what the template gives it stays without
// its configuration, and nothing shows it. A row without a template says what it is for.
func TestImagesFitTheirTemplates(t *testing.T) {
	c, err := Read("")
	require.NoError(t, err)
	for _, i := range c.Images {
		if i.Template == "" {
			require.Contains(t, i.About, "template", i.Name)
			continue
		}
		n := needOf(t, i.Template)
		require.Equal(t, n.metadata, i.Metadata, "%s: template %s", i.Name, i.Template)
		require.Equal(t, n.use, i.Use, "%s: template %s", i.Name, i.Template)
		require.Contains(t, filepath.Base(i.URL), n.platform, "%s: template %s needs another platform", i.Name, i.Template)
	}
	require.Equal(t, need{"talos", "", "nocloud"}, needOf(t, template.BuiltinTalosImage))
	require.Equal(t, need{"cloud-init", "", ""}, needOf(t, template.BuiltinImage))
	require.Equal(t, need{"harvester", inventory.UseInstaller, ""}, needOf(t, template.BuiltinHarvesterCreate))
}

// All that is wrong with a file is reported at once, with its lines.
func TestRefusedCatalogs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "site.yaml")
	for name, c := range map[string]struct{ file, says string }{
		"unknown key": {"images:\n- name: a\n  link: x\n", "site.yaml:3"},
		"twice": {
			"images:\n- {name: a, url: 'https://e.org/a', sha256: " + strings.Repeat("0", 64) + "}\n" +
				"- {name: a, url: 'https://e.org/b', sha512: " + strings.Repeat("0", 128) + "}\n",
			`site.yaml:3: images[1].name: "a" is listed twice`,
		},
		"not proven":    {"images:\n- name: a\n  url: https://e.org/a\n", "nothing else verifies the image"},
		"list by http":  {"images:\n- name: a\n  url: https://e.org/a\n  sums: http://e.org/SHA256SUMS\n", "site.yaml:4"},
		"two proofs":    {"images:\n- {name: a, url: 'https://e.org/a', sums: 'https://e.org/s', sha256: " + strings.Repeat("0", 64) + "}\n", "give either sums or a digest"},
		"digest":        {"images:\n- name: a\n  url: https://e.org/a\n  sha256: beef\n  sha512: beef\n", `invalid SHA-512 "beef"`},
		"half a proof":  {"images:\n- name: a\n  url: https://e.org/a\n  signature: https://e.org/a.minisig\n", "must be given together"},
		"path as a key": {"images:\n- {name: a, url: 'https://e.org/a', signature: 'https://e.org/s', publicKey: /etc/passwd}\n", "invalid minisign key"},
		"name":          {"images:\n- name: A b\n  url: https://e.org/a\n  sums: https://e.org/s\n", "invalid image name"},
		"no URL":        {"images:\n- name: a\n  sums: https://e.org/s\n", "invalid URL"},
		"use":           {"images:\n- name: a\n  url: https://e.org/a\n  sums: https://e.org/s\n  use: disk\n", "use"},
		"not a catalog": {"- a\n", "site.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(path, []byte(c.file), 0o600))
			_, err := Read(path)
			require.ErrorIs(t, err, inventory.ErrInvalid)
			require.ErrorContains(t, err, c.says)
		})
	}

	_, err := Read(filepath.Join(t.TempDir(), "none.yaml"))
	require.ErrorContains(t, err, "reading the image catalog")
}
