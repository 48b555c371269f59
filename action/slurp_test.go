package action

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestForeignEnvironments: what slurp and qemuimg2disk of Tinkerbell are given, and what is wrong
// with it. Nothing of an address is repeated, because it may have a password.
func TestForeignEnvironments(t *testing.T) {
	upload := func(more ...string) map[string]string {
		return edit(map[string]string{
			"SOURCE_DISK": "/dev/sda", "DEST_URL": "http://u:hush@store.example:8080/put?k=hush", "IMG_NAME": "a.img", "COMPRESSED": "true",
		}, more)
	}
	convert := func(more ...string) map[string]string {
		return edit(map[string]string{
			"IMG_URL": "http://store.example/a.img", "DEST_DISK": "/dev/sda", "FORMAT": "host_device", "EXTRA_ARGS": "",
		}, more)
	}
	for _, c := range []struct {
		name string
		env  map[string]string
		says string // "" if nothing is wrong
	}{
		{Slurp, upload(), ""},
		{Slurp, upload("COMPRESSED", "", "DEST_URL", "https://[2001:db8::1]/"), ""},
		{Slurp, upload("COMPRESSED", "gzip"), "COMPRESSED"},
		{Slurp, upload("DEST_URL", ""), "DEST_URL: must be an http"},
		{Slurp, upload("DEST_URL", "ftp://u:hush@store.example/"), "DEST_URL: must be an http"},
		{Slurp, upload("DEST_URL", "http:///hush"), "DEST_URL: must be an http"},
		{Slurp, upload("DEST_URL", "http://:8080/hush"), "DEST_URL: must be an http"},
		{Slurp, upload("DEST_URL", "store.example/hush"), "DEST_URL: must be an http"},
		{Slurp, upload("DEST_URL", "http://store.example:x/hush"), "DEST_URL: must be an http"},
		{Slurp, upload("DEST_URL", "http://store.example/\nhush"), "DEST_URL: must be an http"},
		{Slurp, upload("IMG_NAME", ""), "IMG_NAME"},
		{Slurp, upload("IMG_NAME", ".."), "IMG_NAME"},
		{Slurp, upload("IMG_NAME", "a/b"), "IMG_NAME"},
		{Slurp, upload("IMG_NAME", `a\b`), "IMG_NAME"},
		{Slurp, upload("IMG_NAME", `a"; name="x`), "IMG_NAME"},
		{Slurp, upload("IMG_NAME", "a\r\nX: y"), "IMG_NAME"},
		{Slurp, upload("IMG_NAME", strings.Repeat("a", 256)), "IMG_NAME"},
		{QemuImg2Disk, convert(), ""},
		{QemuImg2Disk, convert("FORMAT", "", "IMG_URL", ""), ""},
		{QemuImg2Disk, convert("IMG_SHA256", "sha256:"+strings.Repeat("0A", 32), "IMG_SHA512", "x"), ""},
		{QemuImg2Disk, convert("FORMAT", "raw"), "must be host_device"},
		{QemuImg2Disk, convert("FORMAT", "HOST_DEVICE"), "must be host_device"},
		{QemuImg2Disk, convert("EXTRA_ARGS", "-W"), "EXTRA_ARGS: it must be empty"},
		{QemuImg2Disk, convert("EXTRA_ARGS", " "), "EXTRA_ARGS: it must be empty"},
		{QemuImg2Disk, convert("IMG_SHA256", "0a"), "must be 64 hex digits"},
		{QemuImg2Disk, convert("IMG_SHA512", "x"), "give IMG_SHA256"},
	} {
		err := Check(c.name, c.env)
		if c.says == "" {
			require.NoError(t, err, c.env)
			continue
		}
		require.ErrorContains(t, err, c.says, c.env)
		require.NotContains(t, err.Error(), "hush")
	}
	err := Check(Slurp, upload("DEST_URL", "", "IMG_NAME", "", "COMPRESSED", "x"))
	for _, name := range []string{"DEST_URL", "IMG_NAME", "COMPRESSED"} {
		require.ErrorContains(t, err, name, "all at once")
	}
}

// edit sets variables of env: names and values in turn.
func edit(env map[string]string, more []string) map[string]string {
	for n := 0; n < len(more); n += 2 {
		env[more[n]] = more[n+1]
	}
	return env
}
