package cli

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/images/catalog"
	"github.com/ingotmetal/ingot/inventory"
)

// An image of the catalog is fetched by its name alone, and declared as the catalog says.
func TestAddImageOfTheCatalog(t *testing.T) {
	sum := strings.Repeat("5a", 64)
	offered := catalog.Catalog{Images: []catalog.Image{
		{Name: "router.iso", URL: "https://e.org/router.iso", SHA512: sum, Use: inventory.UseInstaller},
		{Name: "hostile", URL: "https://e.org/disk.raw", Signature: "https://e.org/disk.raw.minisig", PublicKey: "/etc/shadow"},
	}}
	var fetched map[string]any
	o := fakeServer(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + r.URL.Path {
		case "GET/v1/image-catalog":
			require.NoError(t, json.NewEncoder(w).Encode(offered))
		case "POST/v1/images":
			require.NoError(t, json.NewDecoder(r.Body).Decode(&fetched))
			w.WriteHeader(http.StatusCreated)
			require.NoError(t, json.NewEncoder(w).Encode(inventory.Image{Name: "router.iso"}))
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})

	add := func(u upload, p proof) error {
		c, _, _ := newCall(t.Context(), o)
		from, err := u.findInCatalog(c, &p)
		if err == nil {
			_, err = addImage(c, u, from, p)
		}
		return err
	}
	require.NoError(t, add(upload{name: "router.iso"}, proof{}))
	require.Equal(t, map[string]any{
		"name": "router.iso", "url": "https://e.org/router.iso", "sha512": sum, "use": "installer", "asIs": false,
		"sha256": "", "signature": "", "publicKey": "", "replace": false,
	}, fetched)

	require.ErrorContains(t, add(upload{name: "other"}, proof{}), `the catalog has no image "other"`)
	require.ErrorContains(t, add(upload{name: "router.iso"}, proof{sums: "x"}), "leave out --sums")
	require.ErrorContains(t, add(upload{name: "hostile"}, proof{}), "invalid minisign key")
}
