package provenance

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// S19: a list proves a file by its own line alone.
func TestFindSum(t *testing.T) {
	one, two, long := strings.Repeat("1a", 32), strings.Repeat("2B", 32), strings.Repeat("3c", 64)
	lists := map[string]string{
		"gnu":                    one + "  debian.qcow2\n" + two + " *other.raw\n",
		"folders":                one + "  ./12/debian.qcow2\r\n" + two + "  12/other.raw\r\n",
		"bsd":                    "# debian.qcow2: 5 bytes\nSHA256 (debian.qcow2) = " + one + "\nSHA256 (other.raw) = " + two + "\n",
		"signed":                 "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n" + one + " *debian.qcow2\n" + two + " *other.raw\n-----BEGIN PGP SIGNATURE-----\n",
		"one space, tab, blanks": "  " + one + " debian.qcow2  \n" + two + "\tother.raw\n",
		"shasum":                 one + " ?debian.qcow2\n" + two + " ^other.raw\n",
		"UTF-8 with a mark":      "\ufeff" + one + "  debian.qcow2\n" + two + "  other.raw\n",
		"UTF-16, little":         utf16Text(binary.LittleEndian, one+"  debian.qcow2\r\n"+two+"  other.raw\r\n"),
		"UTF-16, big":            utf16Text(binary.BigEndian, one+"  debian.qcow2\r\n"+two+"  other.raw\r\n"),
		"escaped":                `\` + one + `  12\\x\ny/debian.qcow2` + "\n" + `\SHA256 (\\/other.raw) = ` + two + "\n",
		"openssl 1":              "SHA256(debian.qcow2)= " + one + "\nSHA256(other.raw)= " + two + "\n",
		"openssl 3":              "SHA2-256(./debian.qcow2)= " + one + "\nSHA2-256(other.raw)= " + two + "\n",
		"base64":                 "SHA256 (debian.qcow2) = " + base64Of(t, one) + "\nSHA256 (other.raw) = " + base64Of(t, two) + "\n",
		"other algorithms":       "SHA3-256 (debian.qcow2) = " + two + "\nBLAKE2b-256 (debian.qcow2) = " + two + "\nSHA256 (debian.qcow2) = " + one + "\n" + two + "  other.raw\n",
		"prefixed":               "sha256:" + one + "  debian.qcow2\nsha256:" + two + "  other.raw\n",
		"Get-FileHash": "\r\nAlgorithm       Hash                     Path\r\n---------       ----                     ----\r\n" +
			"SHA256          " + strings.ToUpper(one) + "       C:\\images\\debian.qcow2\r\nSHA256          " + two + "       D:\\other.raw\r\n",
		"Get-FileHash | Format-List": "Algorithm : SHA256\r\nHash      : " + strings.ToUpper(
			one,
		) + "\r\nPath      : C:\\images\\debian.qcow2\r\n\r\n" +
			"Algorithm : SHA256\r\nHash      : " + two + "\r\nPath      : other.raw\r\n",
		"certutil": "SHA256 hash of debian.qcow2:\r\n" + one + "\r\nCertUtil: -hashfile command completed successfully.\r\n" +
			"SHA256 hash of file other.raw:\r\n" + strings.TrimSpace(strings.Repeat("2b ", 32)) + "\r\n",
		"with a digest alone": one + "  debian.qcow2\n" + strings.Repeat("ff", 32) + "\n" + two + "  other.raw\n",
		"twice":               one + "  debian.qcow2\n" + one + "  debian.qcow2\n" + two + "  other.raw",
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

	// A list of nothing but digests is of the file that is asked for.
	for _, list := range []string{
		one + "\n", " " + strings.ToUpper(one) + " \r\n", one + "  -\n", "sha256:" + one, "SHA256(stdin)= " + one + "\n", "\ufeff" + one,
		utf16Text(binary.LittleEndian, one+"\r\n"), one + "\n" + long + "\n", one + "\n" + one + "\n",
	} {
		sum, err := FindSum("disk.raw.sha256", []byte(list), "disk.raw")
		require.NoError(t, err, list)
		require.Equal(t, one, sum, list)
	}

	for name, c := range map[string]struct{ list, says string }{
		"two alone": {one + "\n" + two + "\n", `SHA256SUMS:2: "debian.qcow2" is listed twice`},
		"SHA-3":     {"SHA3-256 (debian.qcow2) = " + one + "\n", "the list contains no digests"},
		"odd":       {"\xff\xfea", "save it as UTF-8"},
		"none":      {"<html>404</html>\n", "SHA256SUMS: the list contains no digests"},
		"empty":     {"", "SHA256SUMS: the list contains no digests"},
		"other":     {one + "  b\n" + one + "  a\n", `SHA256SUMS: the list does not contain "debian.qcow2"; it contains a, b`},
		"many":      {strings.Repeat(one+"  a\n", 3) + one + "  b\n" + one + "  c\n" + one + "  d\n" + one + "  e\n" + one + "  f\n", "a, b, c, d, e and 1 more"},
		"MD5":       {one[:32] + "  debian.qcow2\n", "SHA256SUMS:1: the digest of \"debian.qcow2\" has neither 64 nor 128"},
		"ambiguous": {one + "  a/debian.qcow2\n" + two + "  b/debian.qcow2\n", `SHA256SUMS:2: "debian.qcow2" is listed twice`},
		"end":       {one + "  not-debian.qcow2\n", "the list does not contain"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := FindSum("SHA256SUMS", []byte(c.list), "debian.qcow2")
			require.ErrorIs(t, err, inventory.ErrInvalid)
			require.ErrorContains(t, err, c.says)
		})
	}
}

// utf16Text returns a text in UTF-16 with its byte order mark.
func utf16Text(order binary.AppendByteOrder, text string) string {
	var b []byte
	for _, u := range utf16.Encode([]rune("\ufeff" + text)) {
		b = order.AppendUint16(b, u)
	}
	return string(b)
}

// base64Of returns hex digits as base64.
func base64Of(t *testing.T, digits string) string {
	b, err := hex.DecodeString(digits)
	require.NoError(t, err)
	return base64.StdEncoding.EncodeToString(b)
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
