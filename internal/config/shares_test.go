package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// S51: a share holds no file of the server.
func TestS51SharesHoldImagesAlone(t *testing.T) {
	c := Default()
	c.DataDir, c.KeyFile = "/var/lib/ingot", "/etc/ingot/keys.json"
	c.Images.Shares = []string{"/mnt/images", "/srv/nfs/os", "/var/lib/images"}
	require.Empty(t, c.check())
	for _, dir := range []string{"/", "images", "/mnt/../etc", "/var/lib/ingot", "/var/lib/ingot/images", "/var", "/var/lib", "/etc", "/etc/ingot", "/mnt/"} {
		c.Images.Shares = []string{"/mnt/images", dir}
		problems := c.check()
		require.NotEmpty(t, problems, dir)
		require.Equal(t, "images.shares[1]", problems[0].Field, dir)
	}
}
