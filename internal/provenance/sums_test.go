package provenance

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// S19: a list proves a file by its own line alone.
func TestFindSum(t *testing.T) {
	one, two, long := strings.Repeat("1a", 32), strings.Repeat("2B", 32), strings.Repeat("3c", 64)
	lists := map[string]string{
		"gnu":     one + "  debian.qcow2\n" + two + " *other.raw\n",
		"folders": one + "  ./12/debian.qcow2\r\n" + two + "  12/other.raw\r\n",
		"bsd":     "# debian.qcow2: 5 bytes\nSHA256 (debian.qcow2) = " + one + "\nSHA256 (other.raw) = " + two + "\n",
		"signed":  "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n" + one + " *debian.qcow2\n" + two + " *other.raw\n-----BEGIN PGP SIGNATURE-----\n",
		"twice":   one + "  debian.qcow2\n" + one + "  debian.qcow2\n" + two + "  other.raw",
	}
	for name, list := range lists {
		t.Run(name, func(t *testing.T) {
			sum, err := FindSum("SHA256SUMS", []byte(list), "debian.qcow2")
			require.NoError(t, err)
			require.Equal(t, one, sum)
			sum, err = FindSum("SHA256SUMS", []byte(list), "other.raw")
			require.NoError(t, err)
			require.Equal(t, strings.ToLower(two), sum)
		})
	}

	for _, list := range []string{
		long + "  debian.qcow2\n" + two + "  other.raw\n",
		"# MD5 HASH\n" + one[:32] + "  debian.qcow2\n# SHA1 HASH\n" + one[:40] + "  debian.qcow2\n# SHA512 HASH\n" + long + "  debian.qcow2\n",
	} {
		sum, err := FindSum("SHA512SUMS", []byte(list), "debian.qcow2")
		require.NoError(t, err)
		require.Equal(t, long, sum)
	}

	for name, c := range map[string]struct{ list, says string }{
		"none":      {"<html>404</html>\n", "SHA256SUMS: there are no digests in it"},
		"empty":     {"", "SHA256SUMS: there are no digests in it"},
		"other":     {one + "  b\n" + one + "  a\n", `SHA256SUMS: it does not list "debian.qcow2"; it lists a, b`},
		"many":      {strings.Repeat(one+"  a\n", 3) + one + "  b\n" + one + "  c\n" + one + "  d\n" + one + "  e\n" + one + "  f\n", "a, b, c, d, e and 1 more"},
		"MD5":       {one[:32] + "  debian.qcow2\n", "SHA256SUMS:1: the digest of \"debian.qcow2\" has neither 64 nor 128"},
		"ambiguous": {one + "  a/debian.qcow2\n" + two + "  b/debian.qcow2\n", `SHA256SUMS:2: "debian.qcow2" is listed twice`},
		"end":       {one + "  not-debian.qcow2\n", "it does not list"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := FindSum("SHA256SUMS", []byte(c.list), "debian.qcow2")
			require.ErrorIs(t, err, inventory.ErrInvalid)
			require.ErrorContains(t, err, c.says)
		})
	}
}

func FuzzFindSum(f *testing.F) {
	f.Add([]byte(strings.Repeat("1a", 32)+"  f\n"), "f")
	f.Add([]byte("SHA256 (f) = "+strings.Repeat("1a", 32)), "f")
	f.Fuzz(func(t *testing.T, list []byte, file string) {
		if sum, err := FindSum("list", list, file); err == nil && !inventory.IsDigest(sum) && !IsSHA512(sum) {
			t.Fatalf("%q", sum)
		}
	})
}
