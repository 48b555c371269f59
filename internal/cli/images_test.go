package cli

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// An image of the catalog is fetched by its name alone: what it is, says the server's catalog.
func TestAddImageOfTheCatalog(t *testing.T) {
	fetched := make(chan map[string]any, 1)
	o := fakeServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			var body map[string]any
			require.NoError(t, json.NewDecoder(r.Body).Decode(&body))
			fetched <- body
		}
		require.NoError(t, json.NewEncoder(w).Encode(inventory.Image{Name: "router.iso"}))
	})
	add := func(u upload, p proof) error {
		c, _, _ := newCall(t.Context(), o)
		c.Args = []string{u.name}
		return storeImage(c, u, p, false)
	}
	require.NoError(t, add(upload{name: "router.iso", replace: true}, proof{}))
	require.Equal(t, map[string]any{
		"name": "router.iso", "catalog": true, "replace": true, "asIs": false,
		"url": "", "sha512": "", "use": "", "sha256": "", "signature": "", "publicKey": "",
	}, <-fetched)
	require.ErrorContains(t, add(upload{name: "router.iso"}, proof{sums: "x"}), "leave out --sums")
	require.ErrorContains(t, add(upload{name: "router.iso", use: inventory.UseInstaller}, proof{}), "--installer")
}
