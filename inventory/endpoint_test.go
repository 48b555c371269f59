package inventory

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBaseProblem(t *testing.T) {
	for base, want := range map[string]string{
		"https://10.10.20.1":         "",
		"https://10.10.20.1:8443/":   "",
		"https://lab.example.org/k8": "",
		"https://[2001:db8::1]:6443": "",
		"http://10.10.20.1":          "is not https",
		"ftp://10.10.20.1":           "is not https",
		"10.10.20.1":                 "is no address",
		"https://":                   "is no address",
		"https://:443":               "is no address",
		"https://a b":                "is no address",
		"https://me:pw@10.10.20.1":   "has more than",
		"https://10.10.20.1?x=1":     "has more than",
		"https://10.10.20.1?":        "has more than",
		"https://10.10.20.1#x":       "has more than",
	} {
		got := BaseProblem(base)
		if want == "" {
			require.Empty(t, got, base)
		} else {
			require.Contains(t, got, want, base)
		}
	}
}

func TestPinProblem(t *testing.T) {
	require.Empty(t, PinProblem("sha256:"+strings.Repeat("0f", 32)))
	for _, bad := range []string{"", "sha256:", "sha256:00", strings.Repeat("0f", 32), "sha1:" + strings.Repeat("0f", 32), "sha256:" + strings.Repeat("0g", 32)} {
		require.NotEmpty(t, PinProblem(bad), bad)
	}
}
