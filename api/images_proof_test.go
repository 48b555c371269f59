package api

import (
	"cmp"
	"crypto/rand"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"aead.dev/minisign"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/images/catalog"
	"github.com/ingotmetal/ingot/inventory"
)

func sum512(text string) string {
	h := sha512.Sum512([]byte(text))
	return hex.EncodeToString(h[:])
}

// signFile returns the text of a .minisig file.
func signFile(t *testing.T, key minisign.PrivateKey, content string) string {
	t.Helper()
	in := minisign.NewReader(strings.NewReader(content))
	_, err := io.Copy(io.Discard, in)
	require.NoError(t, err)
	return string(in.Sign(key))
}

// S19: what is not what its publisher declared or signed does not become an image.
func TestS19ImagesAreProven(t *testing.T) {
	public, private, err := minisign.GenerateKey(rand.Reader)
	require.NoError(t, err)
	text := strings.Repeat("a disk image ", 1000)
	sign := func(content string) string { return signFile(t, private, content) }
	signature, key := sign(text), strings.TrimSpace(public.String())

	publisher := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, text) // the client's test tells
	}))
	t.Cleanup(publisher.Close)
	s := newSite(t, func(c *siteConfig) { c.FetchHosts = []string{"127.0.0.1"} })

	for name, c := range map[string]struct {
		declared map[string]string
		says     string
	}{
		"SHA-512":            {map[string]string{"sha512": strings.ToUpper(sum512(text))}, ""},
		"another SHA-512":    {map[string]string{"sha512": sum512("another")}, "SHA-512 is " + sum512(text)},
		"not a SHA-512":      {map[string]string{"sha512": "beef"}, "128 hex digits"},
		"signed":             {map[string]string{"signature": signature, "publicKey": key}, ""},
		"signed and digest":  {map[string]string{"signature": signature, "publicKey": key, "sha256": sumOf(text)}, ""},
		"another SHA-256":    {map[string]string{"signature": signature, "publicKey": key, "sha256": sumOf("another")}, "was declared"},
		"without its key":    {map[string]string{"signature": signature}, "must be given together"},
		"not a signature":    {map[string]string{"signature": "RW", "publicKey": key}, "give the .minisig file"},
		"of another content": {map[string]string{"signature": sign("another"), "publicKey": key}, "the signature does not match the file"},
	} {
		t.Run(name, func(t *testing.T) {
			body := map[string]string{"name": "debian-12", "url": publisher.URL + "/disk.raw"}
			for k, v := range c.declared {
				body[k] = v
			}
			before := s.files()
			if c.says != "" {
				a := decode[answer](t, s.do(http.MethodPost, "/v1/images", body), http.StatusBadRequest)
				require.Contains(t, a.Error, c.says)
				require.Equal(t, before, s.files(), "nothing is kept")
				return
			}
			i := decode[inventory.Image](t, s.do(http.MethodPost, "/v1/images", body), http.StatusCreated)
			require.False(t, i.FirstSeen)
			require.Equal(t, sumOf(text), i.Given().SHA256)
		})
	}

	require.Equal(t, http.StatusBadRequest, s.do(http.MethodPut, "/v1/images/x?sha512="+sum512("another"), text).Code)
	i := decode[inventory.Image](t, s.do(http.MethodPut, "/v1/images/x?sha512="+sum512(text), text), http.StatusCreated)
	require.False(t, i.FirstSeen)
}

func TestImageCatalog(t *testing.T) {
	s := newSite(t)
	require.NotEmpty(t, decode[catalog.Catalog](t, s.do(http.MethodGet, "/v1/image-catalog", nil), http.StatusOK).Images)

	file := filepath.Join(t.TempDir(), "site.yaml")
	ours := "images:\n- {name: ours, url: 'https://mirror.lan/a', sums: 'https://mirror.lan/s'}\n"
	require.NoError(t, os.WriteFile(file, []byte(ours), 0o600))
	s.restart(func(c *siteConfig) { c.Catalog = file })
	want := []catalog.Image{{Name: "ours", URL: "https://mirror.lan/a", Sums: "https://mirror.lan/s"}}
	require.Equal(t, want, decode[catalog.Catalog](t, s.do(http.MethodGet, "/v1/image-catalog", nil), http.StatusOK).Images)

	require.NoError(t, os.WriteFile(file, []byte("images:\n- {name: ours}\n"), 0o600))
	a := decode[answer](t, s.do(http.MethodGet, "/v1/image-catalog", nil), http.StatusBadRequest)
	require.Contains(t, a.Error, "site.yaml:2")
}

// S19: an image of the catalog is verified as the catalog says.
func TestS19ImageOfTheCatalog(t *testing.T) {
	public, private, err := minisign.GenerateKey(rand.Reader)
	require.NoError(t, err)
	const text = "a disk image"
	list := sumOf(text) + "  good.raw\n" + sumOf("another") + "  bad.raw\n"
	served := map[string]string{
		"/SUMS": list, "/SUMS.minisig": signFile(t, private, list), "/other.minisig": signFile(t, private, "other"),
	}
	var fetched atomic.Int32
	publisher := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".raw") {
			fetched.Add(1)
		}
		_, _ = io.WriteString(w, cmp.Or(served[r.URL.Path], text)) // the client's test tells
	}))
	t.Cleanup(publisher.Close)
	file := filepath.Join(t.TempDir(), "site.yaml")
	entry := func(name, sums string) string {
		return fmt.Sprintf("- {name: %s, url: '%s/%s.raw', publicKey: %q, %s}\n", name, publisher.URL, name, strings.TrimSpace(public.String()),
			strings.ReplaceAll(sums, "URL", publisher.URL))
	}
	const signed = "sums: 'URL/SUMS', signature: 'URL/SUMS.minisig'"
	require.NoError(t, os.WriteFile(file, []byte("images:\n"+entry("good", signed)+entry("bad", signed)+entry("absent", signed)+
		entry("forged", "sums: 'URL/SUMS', signature: 'URL/other.minisig'")+entry("file", "signature: 'URL/other.minisig'")), 0o600))
	s := newSite(t, func(c *siteConfig) { c.FetchHosts, c.Catalog = []string{"127.0.0.1"}, file })

	fetch := func(asIs bool) inventory.Image {
		in := map[string]any{"name": "good", "catalog": true, "asIs": asIs}
		return decode[inventory.Image](t, s.do(http.MethodPost, "/v1/images", in), http.StatusCreated)
	}
	i := fetch(false)
	require.False(t, i.FirstSeen)
	require.Equal(t, i, fetch(false))
	require.EqualValues(t, 1, fetched.Load(), "it is stored already")
	fetch(true)
	require.EqualValues(t, 2, fetched.Load(), "in another form")
	before := s.files()
	for name, says := range map[string]string{
		"bad": "was declared", "absent": "absent.raw", "forged": "the signature does not match", "file": "the signature does not match",
		"other": "the catalog has no image",
	} {
		a := decode[answer](t, s.do(http.MethodPost, "/v1/images", map[string]any{"name": name, "catalog": true}), http.StatusBadRequest)
		require.Contains(t, a.Error, says, name)
	}
	a := decode[answer](
		t,
		s.do(http.MethodPost, "/v1/images", map[string]any{"name": "good", "catalog": true, "sha256": sumOf("x")}),
		http.StatusBadRequest,
	)
	require.Contains(t, a.Error, "the catalog says")
	require.Equal(t, before, s.files(), "nothing is kept")

	s.restart(func(c *siteConfig) { c.FetchHosts, c.Catalog = nil, file })
	a = decode[answer](t, s.do(http.MethodPost, "/v1/images", map[string]any{"name": "good", "catalog": true}), http.StatusBadRequest)
	require.Contains(t, a.Error, "are not allowed")
}
