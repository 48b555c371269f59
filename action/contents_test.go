package action

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// EKS Anywhere's writefile takes its contents from exactly one variable.
func TestWriteFileHasOneSourceOfContents(t *testing.T) {
	for _, x := range []struct {
		env  map[string]string
		want string // "": it is valid
	}{
		{map[string]string{"CONTENTS": ""}, ""},
		{map[string]string{"BOOTCONFIG_CONTENTS": "kernel {}"}, ""},
		{map[string]string{"HEGEL_URLS": "http://192.0.2.1:50061, https://hegel.example.org/"}, ""},
		{map[string]string{"CONTENTS": "", "STATIC_NETPLAN": "false", "STATIC_BOTTLEROCKET": "", "IFNAME": "eth0"}, ""},
		{nil, "reading CONTENTS: the contents are missing: give this variable, BOOTCONFIG_CONTENTS, HEGEL_URLS, STATIC_NETPLAN or STATIC_BOTTLEROCKET"},
		{map[string]string{"CONTENTS": "", "HEGEL_URLS": "http://x"}, "reading CONTENTS and HEGEL_URLS: give only one of them"},
		{
			map[string]string{"BOOTCONFIG_CONTENTS": "a", "HEGEL_URLS": "http://x"},
			"reading BOOTCONFIG_CONTENTS and HEGEL_URLS: give only one of them",
		},
		{map[string]string{"BOOTCONFIG_CONTENTS": strings.Repeat("x", MaxBootConfig+1)}, "32767 bytes, and the kernel reads up to 32766"},
		{map[string]string{"BOOTCONFIG_CONTENTS": "a\x00b"}, "zero byte"},
		{map[string]string{"HEGEL_URLS": "http://x,ftp://user:secret@y"}, "invalid URL 2 of HEGEL_URLS"},
		{map[string]string{"HEGEL_URLS": "http://x,"}, "invalid URL 2 of HEGEL_URLS"},
		{map[string]string{"STATIC_NETPLAN": "true"}, ""},
		{map[string]string{"STATIC_BOTTLEROCKET": "true", "IFNAME": "eno1"}, ""},
		{map[string]string{"CONTENTS": "", "STATIC_NETPLAN": "true"}, "reading CONTENTS and STATIC_NETPLAN: give only one of them"},
		{
			map[string]string{"STATIC_BOTTLEROCKET": "true", "STATIC_NETPLAN": "true"},
			"reading STATIC_NETPLAN and STATIC_BOTTLEROCKET: give only one of them",
		},
		{map[string]string{"CONTENTS": "", "STATIC_BOTTLEROCKET": "value"}, `STATIC_BOTTLEROCKET "value"; must be true or false`},
	} {
		env := map[string]string{"DEST_PATH": "/x"}
		for k, v := range x.env {
			env[k] = v
		}
		err := Check(WriteFile, env)
		if x.want == "" {
			require.NoError(t, err, "%v", x.env)
			continue
		}
		require.ErrorContains(t, err, x.want)
		require.NotContains(t, err.Error(), "secret")
	}
}
