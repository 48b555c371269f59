package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBackup: stored backups are lost neither with the data nor to readers of images, and no copy of them has the passphrase.
func TestBackup(t *testing.T) {
	c := Default()
	c.DataDir, c.KeyFile = "/var/lib/ingot", "/etc/ingot/keys.json"
	good := Backup{Dir: "/var/backups/ingot", PassphraseFile: "/etc/ingot/backup.passphrase", KeepDays: 1}
	c.Backup = good
	require.Empty(t, c.check())
	for field, change := range map[string]func(){
		"backup.passphrase_file": func() { c.Backup.PassphraseFile = "/var/backups/ingot/passphrase" },
		"backup.keep_days":       func() { c.Backup.KeepDays = 0 },
		"backup.dir":             func() { c.Backup.Dir = "/var/lib/ingot/backups" },
		"images.shares[0]":       func() { c.Images.Shares = []string{"/var/backups"} },
	} {
		c.Backup, c.Images.Shares = good, nil
		change()
		problems := c.check()
		require.Len(t, problems, 1, field)
		require.Equal(t, field, problems[0].Field)
	}
	c.Images.Shares = nil
	for _, dir := range []string{"/", "backups", "/mnt/../etc"} {
		c.Backup = Backup{Dir: dir, PassphraseFile: "/etc/ingot/p", KeepDays: 1}
		require.NotEmpty(t, c.check(), dir)
	}
	c.Backup = Backup{PassphraseFile: "/etc/ingot/p", KeepDays: 1}
	require.Len(t, c.check(), 1)
}
