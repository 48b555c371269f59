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
		"10.10.20.1":                 "is not a URL with a host",
		"https://":                   "is not a URL with a host",
		"https://:443":               "is not a URL with a host",
		"https://a b":                "is not a URL with a host",
		"https://me:pw@10.10.20.1":   "must contain only",
		"https://10.10.20.1?x=1":     "must contain only",
		"https://10.10.20.1?":        "must contain only",
		"https://10.10.20.1#x":       "must contain only",
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
	for _, bad := range []string{
		"", "sha256:", "sha256:00", strings.Repeat("0f", 32), "sha1:" + strings.Repeat("0f", 32),
		"sha256:" + strings.Repeat("0g", 32),
	} {
		require.NotEmpty(t, PinProblem(bad), bad)
	}
}

// TestS17HostsOfSystems: what lies inside is no system that was installed.
func TestS17HostsOfSystems(t *testing.T) {
	for host, may := range map[string]bool{
		"10.10.20.1": true, "192.168.1.2": true, "fd00::1": true, "[fd00::1]": true, "router.example.org": true, "93.184.216.34": true,
		"nolocalhost": true,
		"127.0.0.1":   false, "127.1.2.3": false, "::1": false, "[::1]": false, "0.0.0.0": false, "::": false, "localhost": false,
		"LOCALHOST": false, "a.localhost": false,
		"169.254.169.254": false, "fe80::1": false, "fe80::1%eth0": false, "::ffff:127.0.0.1": false, "::ffff:169.254.169.254": false,
		"::ffff:0.0.0.0": false, "::ffff:255.255.255.255": false,
		"224.0.0.1": false, "ff02::1": false,
		"255.255.255.255": false,
	} {
		if got := HostProblem(host); (got == "") != may {
			t.Errorf("%s: %q", host, got)
		}
	}
}

// TestS17NamesAreJudgedWhereTheyLead: one that is harmless when it is entered
// may lead inside later.
func TestS17NamesAreJudgedWhereTheyLead(t *testing.T) {
	for _, at := range []string{
		"127.0.0.1:443", "[::1]:443", "169.254.169.254:443", "[::ffff:127.0.0.1]:443", "[fe80::1%eth0]:443",
		"router.example.org:443",
	} {
		require.ErrorIs(t, MayDial("router.example.org", at), ErrInvalid, at)
	}
	for _, at := range []string{"10.10.20.1:443", "[fd00::1]:443"} {
		require.NoError(t, MayDial("router.example.org", at))
	}
	require.NoError(t, MayDial("127.0.0.1", "127.0.0.1:443"), "judged when it was entered")
}
