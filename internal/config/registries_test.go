package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRegistries(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	for field, i := range map[string]Images{
		"": {
			Registries: []Registry{
				{Host: "docker.io", Mirror: "registry.lan:5000/docker.io"},
				{Host: "registry.lan:5000", Username: "ingot", PasswordFile: "/etc/ingot/registry", CAFile: "/etc/ingot/ca.pem"},
				{Host: "10.0.0.5:5000", PlainHTTP: true},
			},
			PrivilegedContainers: []string{digest},
		},
		"images.registries[0].host":          {Registries: []Registry{{Host: "https://registry.lan"}}},
		"images.registries[1].host":          {Registries: []Registry{{Host: "registry.lan"}, {Host: "registry.lan", PlainHTTP: true}}},
		"images.registries[0].mirror":        {Registries: []Registry{{Host: "docker.io", Mirror: "registry.lan", PlainHTTP: true}}},
		"images.registries[1].mirror":        {Registries: []Registry{{Host: "x"}, {Host: "docker.io", Mirror: "http://registry.lan"}}},
		"images.registries[0].password_file": {Registries: []Registry{{Host: "docker.io", Username: "ingot"}}},
		"images.registries[0].plain_http":    {Registries: []Registry{{Host: "docker.io", Username: "a", PasswordFile: "/a", PlainHTTP: true}}},
		"images.registries[0].ca_file":       {Registries: []Registry{{Host: "docker.io", CAFile: "ca.pem"}}},
		"images.privileged_containers[1]":    {PrivilegedContainers: []string{digest, digest[7:]}},
	} {
		c := Default()
		c.DataDir, c.KeyFile, c.Images = "/var/lib/ingot", "/etc/ingot/keys.json", i
		problems := c.check()
		if field == "" {
			require.Empty(t, problems)
			continue
		}
		require.Len(t, problems, 1, field)
		require.Equal(t, field, problems[0].Field)
	}
}
