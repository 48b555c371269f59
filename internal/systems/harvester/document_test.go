package harvester

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

var isoLine = regexp.MustCompile(`(?m)^  iso_url: .*\n`)

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

func TestCheck(t *testing.T) {
	create, join := example(t, "harvester-create.yaml"), example(t, "harvester-join.yaml")
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
		"iso_url a path":    {replace(create, "iso_url: http://", "iso_url: /"), "install.iso_url", "must be an http or https URL"},
		"token":             {replace(create, "token: EXAMPLE-the-same-on-all-three-nodes\n", ""), "token", "is missing"},
		"mode":              {replace(create, "mode: create", "mode: upgrade"), "install.mode", "invalid mode"},
		"vip":               {replace(create, "  vip: 10.10.20.30\n", ""), "install.vip", "is missing"},
		"vip no address":    {replace(create, "vip: 10.10.20.30", "vip: cluster"), "install.vip", "invalid cluster address"},
		"vip_mode":          {replace(create, "  vip_mode: static\n", ""), "install.vip_mode", "is missing"},
		"vip by dhcp":       {replace(create, "vip_mode: static", "vip_mode: dhcp"), "install.vip_hw_addr", "reservation"},
		"join without":      {replace(join, "server_url: https://10.10.20.30:443\n", ""), "server_url", "is missing"},
		"join in the clear": {replace(join, "https://10.10.20.30", "http://10.10.20.30"), "server_url", "must be an https URL"},
		"create and join":   {replace(create, "token:", "server_url: https://10.10.20.30:443\ntoken:"), "server_url", "only for a node that joins"},
		"device":            {replace(create, "  device: /dev/disk/by-id/nvme-EXAMPLE_MS02_SYSTEM_000A\n", ""), "install.device", "is missing"},
		"moving device":     {replace(create, "/dev/disk/by-id/nvme-EXAMPLE_MS02_SYSTEM_000A", "/dev/sda"), "install.device", "another disk"},
		"bad device":        {replace(create, "/dev/disk/by-id/nvme-EXAMPLE_MS02_SYSTEM_000A", "nvme0n1"), "install.device", "invalid disk path"},
		"the same disk":     {replace(create, "MS02_DATA", "MS02_SYSTEM"), "install.data_disk", "names the same disk as"},
		"wipe both":         {replace(create, "  tty:", "  wipe_all_disks: true\n  wipe_disks_list: [/dev/disk/by-id/x]\n  tty:"), "install.wipe_disks_list", "contradicts"},
		"no interface":      {replace(create, "- hwAddr: \"02:00:00:02:0a:25\"", "- {}"), "install.management_interface.interfaces[0]", "neither"},
		"hwAddr":            {replace(create, "02:00:00:02:0a:25", "02:00"), "install.management_interface.interfaces[0].hwAddr", "invalid hardware"},
		"static":            {replace(create, "method: dhcp", "method: static"), "install.management_interface.ip", "static"},
		"vlan":              {replace(create, "method: dhcp", "method: dhcp\n    vlan_id: 5000"), "install.management_interface.vlan_id", "invalid VLAN"},
		"webhook":           {replace(create, "  tty:", "  webhooks: [{event: DONE, url: 'http://192.0.2.1'}]\n  tty:"), "install.webhooks[0].event", "invalid event"},
		"log-in":            {strings.NewReplacer("  password: EXAMPLE-make-your-own\n", "", "  ssh_authorized_keys:\n", "  modules:\n").Replace(create), "os.ssh_authorized_keys", "log in"},
		"type":              {replace(create, "method: dhcp", "method: [dhcp]"), "install.management_interface.method", "must be text"},
		"hostname":          {replace(create, "hostname: ms-02-a", "hostname: MS_02"), "os.hostname", "invalid node name"},
	} {
		t.Run(name, func(t *testing.T) {
			p := problems(t, c.doc)
			found := false
			for _, x := range p {
				found = found || x.Field == c.field && strings.Contains(x.What, c.what) && x.Line > 0
			}
			require.True(t, found, "%s: %s in: %s", c.field, c.what, p)
		})
	}
	require.GreaterOrEqual(t, len(problems(t, "install:\n  mode: join\n")), 7, "all at once")
	require.Len(t, problems(t, "- a"), 1)
	require.Len(t, problems(t, "a: [b"), 1)

	one := strings.NewReplacer("/dev/disk/by-id/nvme-EXAMPLE_MS02_SYSTEM_000A", "/dev/sda", "  data_disk: /dev/disk/by-id/nvme-EXAMPLE_MS02_DATA_000A\n", "").
		Replace(create)
	require.Empty(t, problems(t, one))
	require.Contains(t, warningsOf(t, one).Error(), "install.device", "the only disk is warned of")
	require.Empty(t, problems(t, isoLine.ReplaceAllString(create, "  iso_url: "+inventory.RefBootURL+"x.iso\n")), "a reference becomes a URL")
}

func TestAddWebhooks(t *testing.T) {
	for name, doc := range map[string]string{
		"none":  example(t, "harvester-create.yaml"),
		"empty": example(t, "harvester-create.yaml") + "  webhooks:\n",
		"some":  example(t, "harvester-create.yaml") + "  webhooks: [{event: STARTED, url: 'http://192.0.2.1/{{ .x }}'}]\n",
	} {
		t.Run(name, func(t *testing.T) {
			out, err := Document{}.AddWebhooks([]byte(doc), inventory.RefWebhookURL)
			require.NoError(t, err)
			require.Empty(t, problems(t, string(out)), "%s", out)
			require.Contains(t, string(out), "# The first MS-02")
			for _, event := range []string{"STARTED", "SUCCEEDED", "FAILED"} {
				require.Equal(t, 1, strings.Count(string(out), inventory.RefWebhookURL+event))
			}
			require.Equal(t, name == "some", strings.Contains(string(out), "{{ .x }}"), "what was there is kept")
			if name == "none" {
				golden(t, "webhooks.yaml", out)
			}
		})
	}
	for _, doc := range []string{"", "a: [", "- a", "install: no", "install: {webhooks: {}}"} {
		_, err := Document{}.AddWebhooks([]byte(doc), inventory.RefWebhookURL)
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

func FuzzAddWebhooks(f *testing.F) {
	f.Add([]byte(example(f, "harvester-join.yaml")))
	f.Add([]byte("install: &a\n  webhooks: *a"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if found, _ := (Document{}).Check("x", b); len(found) > 0 {
			return
		}
		out, err := Document{}.AddWebhooks(b, inventory.RefWebhookURL)
		if err != nil {
			t.Fatal(err)
		}
		if found, _ := (Document{}).Check("x", out); len(found) > 0 {
			t.Fatalf("%s of: %s", found, out)
		}
	})
}

// TestWrittenFilesMayBeBinary: the installer decodes the content of a file, which no check reads.
func TestWrittenFilesMayBeBinary(t *testing.T) {
	create := example(t, "harvester-create.yaml")
	for _, content := range []string{"!!binary gAD/", "text", "1"} {
		doc := strings.Replace(create, "os:\n", "os:\n  write_files: [{path: /a, content: "+content+"}]\n", 1)
		require.NotEqual(t, create, doc)
		require.Empty(t, problems(t, doc), content)
	}
	require.NotEmpty(t, problems(t, strings.Replace(create, "os:\n", "os:\n  write_files: [{path: /a, content: [x]}]\n", 1)))
}
