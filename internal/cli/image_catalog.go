package cli

import (
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/images/catalog"
	"github.com/ingotmetal/ingot/internal/text/human"
)

func imageCatalogCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "catalog", Short: "List images that publishers offer", Args: cobra.NoArgs,
		Long: `List the images that "ingot image add NAME" fetches from their publishers, and what an
operator has to know about them: who logs in, what configures the installed system, and
which template installs it.

A site with a mirror or images of its own writes this list to a file with -o yaml, edits
it, and names it in the configuration of the server (images.catalog).`,
		Example: "  ingot image catalog\n  ingot image add ubuntu-24.04\n  ingot image catalog -o yaml > /etc/ingot/images.yaml",
	}, func(c *Call) error {
		return getAndShow(c, client.Path("image-catalog"), func(w io.Writer, v catalog.Catalog) error {
			head := []string{"NAME", "LOGIN", "CONFIGURED BY", "TEMPLATE", "PROVEN BY", "ABOUT"}
			return PrintTable(w, head, v.Images, func(i catalog.Image) []any {
				return []any{i.Name, i.User, i.Metadata, i.Template, provenBy(i), i.About}
			})
		})
	})
}

// provenBy says what proves an image of the catalog.
func provenBy(i catalog.Image) string {
	switch {
	case i.Signature != "":
		return "signature"
	case i.Sums != "":
		return "list"
	}
	return "digest"
}

// findInCatalog returns the URL of the image of that name, and sets in u and p what the catalog says about it.
func (u *upload) findInCatalog(c *Call, p *proof) (from string, err error) {
	if *p != (proof{}) || u.sha256+u.sha512 != "" {
		return "", UsageError("the catalog says how its images are proven: leave --sums, --sha256, --sha512 and --signature out, " +
			"or give FILE or URL as well")
	}
	a, err := get[catalog.Catalog](c, client.Path("image-catalog"))
	if err != nil {
		return "", err
	}

	at := slices.IndexFunc(a.Value.Images, func(i catalog.Image) bool { return i.Name == u.name })
	if at < 0 {
		return "", human.Advise(UsageError("the catalog has no image %q: choose one of it, or give a FILE or URL", u.name), "ingot image catalog")
	}
	i := a.Value.Images[at]
	if err := i.Check().Err(); err != nil {
		return "", err
	}
	if i.Use != "" {
		u.use = i.Use
	}
	u.sha256, u.sha512 = i.SHA256, i.SHA512
	*p = proof{sums: i.Sums, signature: i.Signature, key: i.PublicKey}
	return i.URL, nil
}
