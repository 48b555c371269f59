package cli

import (
	"bytes"
	"crypto/rand"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aead.dev/minisign"
	"github.com/stretchr/testify/require"
)

func TestS19ProofOfAnImage(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
		return filepath.Join(dir, name)
	}
	public, private, err := minisign.GenerateKey(rand.Reader)
	require.NoError(t, err)
	sign := func(content []byte) []byte {
		in := minisign.NewReader(bytes.NewReader(content))
		_, err := io.Copy(io.Discard, in)
		require.NoError(t, err)
		return in.Sign(private)
	}
	keyText, err := public.MarshalText()
	require.NoError(t, err)
	key := write("publisher.pub", keyText)

	const sum = "f2ca1bb6c7e907d06dafe4687e579fce76b37e4e93b7605022da52e6ccc26fd2" // of "test\n"
	image := write("disk.raw", []byte("test\n"))
	list := []byte(sum + "  disk.raw\n")
	sums, sumsSignature := write("SHA256SUMS", list), write("SHA256SUMS.minisig", sign(list))
	write("SHA256SUMS.changed", []byte(strings.Repeat("0", 64)+"  disk.raw\n"))
	imageSignature := write("disk.raw.minisig", sign([]byte("test\n")))
	publisher := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(publisher.Close)
	at := publisher.URL + "/"

	o := fakeServer(t, func(http.ResponseWriter, *http.Request) { t.Error("the server was asked") })
	for name, c := range map[string]struct {
		proof
		from, says string
	}{
		"a list":                  {proof{sums: sums}, image, ""},
		"a list for a URL":        {proof{sums: sums}, "https://example.org/12/disk.raw?token=s3cret", ""},
		"a signed list":           {proof{sums, sumsSignature, key}, image, ""},
		"a signed list at a URL":  {proof{at + "SHA256SUMS?a=b", at + "SHA256SUMS.minisig", public.String()}, at + "disk.raw", ""},
		"a signed file":           {proof{"", imageSignature, key}, image, ""},
		"a changed list":          {proof{filepath.Join(dir, "SHA256SUMS.changed"), sumsSignature, key}, image, "the signature does not match the file"},
		"the other's signature":   {proof{"", sumsSignature, key}, image, "the signature does not match the file"},
		"a list without the file": {proof{sums: sums}, "https://example.org/other.raw", `the list does not contain "other.raw"; it contains disk.raw`},
		"no list":                 {proof{sums: image}, image, "the list contains no digests"},
		"no such list":            {proof{sums: filepath.Join(dir, "none")}, image, "no such file"},
		"no list at the URL":      {proof{at + "none?token=s3cret", sumsSignature, key}, image, "none: the answer is 404 Not Found"},
		"no such image":           {proof{"", imageSignature, key}, filepath.Join(dir, "none"), "no such file"},
		"a wrong key":             {proof{"", imageSignature, "RWnonsense"}, image, "public key: "},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, c.check(""))
			call, _, _ := newCall(t.Context(), o)
			got, err := c.digest(call, c.from)
			if c.says == "" {
				require.NoError(t, err)
				require.Equal(t, sum, got)
				return
			}
			require.ErrorContains(t, err, c.says)
			require.NotContains(t, err.Error(), "s3cret")
		})
	}

	for _, c := range []struct {
		proof
		declared, says string
	}{
		{proof{sums: sums}, sum, "not both"},
		{proof{signature: imageSignature}, "", "give both"},
		{proof{key: key}, "", "give both"},
		{proof{sums: at + "SHA256SUMS"}, "", "use https"},
	} {
		require.ErrorContains(t, c.check(c.declared), c.says)
	}
	// The server verifies the signature of what it fetches. A declared digest that the proof contradicts is not replaced.
	none, _, _ := newCall(t.Context(), o)
	signed, u := proof{signature: imageSignature, key: key}, upload{}
	require.NoError(t, signed.declare(none, at+"disk.raw", &u))
	signature, err := os.ReadFile(imageSignature)
	require.NoError(t, err)
	require.Equal(t, []string{string(signature), string(keyText)}, []string{u.signature, u.publicKey})
	u = upload{sha256: strings.Repeat("0", 64)}
	require.ErrorContains(t, signed.declare(none, image, &u), "nothing was sent")

	got, err := proof{}.digest(none, image)
	require.NoError(t, err)
	require.Empty(t, got)
}

// S22: where a list redirects, the query of its address does not arrive, which may be a token.
func TestS22ARedirectedListKeepsItsAddress(t *testing.T) {
	var referer []string
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		referer = r.Header["Referer"]
		_, _ = w.Write([]byte("a list")) // the client asked for it
	}))
	t.Cleanup(mirror.Close)
	publisher := httptest.NewServer(http.RedirectHandler(mirror.URL, http.StatusFound))
	t.Cleanup(publisher.Close)
	b, err := readSmall(t.Context(), publisher.URL+"/SHA256SUMS?token=s3cret")
	require.NoError(t, err)
	require.Equal(t, "a list", string(b))
	require.Empty(t, referer)

	// An error does not repeat it either.
	gone := httptest.NewServer(http.NotFoundHandler())
	for range 2 {
		_, err = readSmall(t.Context(), gone.URL+"/SHA256SUMS?token=s3cret")
		require.ErrorContains(t, err, gone.URL+"/SHA256SUMS")
		require.NotContains(t, err.Error(), "s3cret")
		gone.Close() // the second time, nothing answers
	}
}

// S19: a list that came by https stays proven by it.
func TestAListIsNotFetchedOverARedirectToHTTP(t *testing.T) {
	from := httptest.NewRequest(http.MethodGet, "https://example.org/SHA256SUMS", nil)
	to := httptest.NewRequest(http.MethodGet, "http://example.org/SHA256SUMS", nil)
	require.Error(t, checkRedirect(to, []*http.Request{from}))
	require.NoError(t, checkRedirect(from, []*http.Request{from}))
}
