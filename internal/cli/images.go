package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/images/catalog"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

func imageCommand(o *Options) *cobra.Command {
	return addHabits(Group("image", "Images: the files that are written to disks",
		"  ingot image add debian-12 debian-12.raw.zst\n  ingot image list",
		imageAddCommand(o), imagePullCommand(o), imageCatalogCommand(o), imageListCommand(o), imageGetCommand(o), imageVerifyCommand(o),
		imageDeleteCommand(o), imagePruneCommand(o)), imageHabits())
}

func imageAddCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "add NAME [FILE | URL]", Short: "Store an image on the server", Args: cobra.RangeArgs(1, 2),
		Long: `Store an image on the server: a raw disk image, which may be compressed with gzip, zstd,
xz or bzip2, or a qcow2 image. The server reads the whole image, refuses an image that
is damaged or cannot be written to a disk, and shows what the image contains.

A disk image is converted to zstd frames, which agents decompress in parallel; the
converted file has its own digest. With --as-is, agents get the original file. A file
for installers (--installer) is never converted.

An existing image of the same name is replaced after the new image is verified. Runs
whose plan names the old image continue with the old image. If machines, templates or
lab files name the image, --replace is required.

A FILE is uploaded. To resume an interrupted upload, run the command again with the same
file. A URL is fetched by the server. A file that the server already has is not uploaded
again; from a URL, it is not fetched again if you give the file's digest.

A container image, which actions run, comes from a registry (oci://…, see "ingot image
pull") or from a FILE in the OCI image layout, as "docker save" writes it.

--sums is the publisher's list of digests (such as SHA256SUMS), in which the image is
found by its file name. --signature is the minisign signature of that list or, without
--sums, of the image.

With --in-place, FILE is a path on the server's host, in one of the directories in
images.shares of the server's configuration. The server inspects the file and serves it
from there, without a copy. Do not change the file afterwards: a run whose plan names
the image would stop and ask the operator.

With NAME alone, the server fetches the image of that name from the catalog ("ingot
image catalog"). The catalog also defines how the image is verified.`,
		Example: "  ingot image add ubuntu-24.04\n" +
			"  ingot image add tools tools.tar\n" +
			"  ingot image add debian-12 debian-12-generic-amd64.qcow2\n" +
			"  ingot image add debian-12 https://images.example.com/debian-12.raw.xz --sha256 9f86d08…\n" +
			"  ingot image add debian-12 https://images.example.com/12/disk.qcow2 --sums https://images.example.com/12/SHA256SUMS\n" +
			"  ingot image add appliance disk.raw.zst --signature disk.raw.zst.minisig --public-key publisher.pub\n" +
			"  ingot image add harvester-v1.4.0-amd64.iso harvester.iso --installer\n" +
			"  ingot image add debian-12 /mnt/images/debian-12.raw.zst --in-place",
	}

	sum := cmd.Flags().String("sha256", "", "SHA-256 of the file; a file with another digest is refused")
	sum512 := cmd.Flags().String("sha512", "", "SHA-512 of the file, for publishers that give no SHA-256")
	installer := cmd.Flags().Bool("installer", false,
		"the file is for an installer to boot or fetch: a kernel, an initramfs or an ISO")
	inPlace := cmd.Flags().Bool("in-place", false, "FILE is an absolute path on the server's host; the server serves the file from there")
	replace := cmd.Flags().Bool("replace", false, "replace the image even if machines, templates or lab files name it")
	asIs := cmd.Flags().Bool("as-is", false, "do not convert the disk image; not possible with qcow2")

	var p proof
	cmd.Flags().StringVar(&p.sums, "sums", "", "file or URL of a list of digests (SHA-256 or SHA-512) that contains the image's file")
	cmd.Flags().StringVar(&p.signature, "signature", "",
		"file or URL of the minisign signature of the list in --sums or, without --sums, of the image")
	cmd.Flags().StringVar(&p.key, "public-key", "", "the publisher's minisign public key, or a file that contains the key")

	return o.NewCommand(cmd, func(c *Call) error {
		// Check the name first: with an invalid name, the request would go to another route.
		if err := inventory.ValidateImageName(c.Args[0]).Err(); err != nil {
			return err
		}

		i := upload{
			name: c.Args[0], asIs: *asIs, replace: *replace,
			sha256: strings.ToLower(strings.TrimPrefix(*sum, "sha256:")),
			sha512: strings.ToLower(strings.TrimPrefix(*sum512, "sha512:")),
		}
		if *installer {
			i.use = inventory.UseInstaller
		}

		return storeImage(c, i, p, *inPlace)
	})
}

// ociScheme begins the URL of a container image.
const ociScheme = "oci://"

func imagePullCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "pull REFERENCE", Short: "Fetch a container image from its registry", Args: cobra.ExactArgs(1),
		Long: `Fetch the container image for linux/amd64 that actions run, and store it on the server.
Agents get it from there. A run fetches the images of its template by itself; fetch them
before if the registry will not be reachable.

The server verifies the digests of the manifest, of the configuration and of every layer.
Mirrors, credentials and registries without TLS are in its configuration
(images.registries).`,
		Example: "  ingot image pull docker.io/library/busybox:1.36\n" +
			"  ingot image pull registry.example.com:5000/tools@sha256:9f86d08… --name tools",
	}
	name := cmd.Flags().String("name", "", "name of the image; default: the name that runs use")
	replace := cmd.Flags().Bool("replace", false, "replace the image even if machines, templates or lab files name it")

	return o.NewCommand(cmd, func(c *Call) error {
		ref, err := action.ParseContainer(strings.TrimPrefix(c.Args[0], ociScheme))
		if err != nil {
			return UsageError("%v", err)
		}
		address := ociScheme + ref.String()
		u := upload{name: cmp.Or(*name, inventory.FetchedName(address)), replace: *replace}
		if err := inventory.ValidateImageName(u.name).Err(); err != nil {
			return err
		}
		a, err := fetchImage(c, u, address)
		if err != nil {
			return err
		}
		return show(c, a, text(imageStored))
	})
}

// storeImage stores the image from the file or URL in the second argument or, without one, from the catalog.
func storeImage(c *Call, i upload, p proof, inPlace bool) (err error) {
	var a client.Answer[inventory.Image]
	switch {
	case len(c.Args) == 2 && inPlace:
		return registerImage(c, i, c.Args[1], p)
	case len(c.Args) == 2:
		a, err = addImage(c, i, c.Args[1], p)
	case inPlace:
		return UsageError("--in-place: give the path of the file on the server")
	case p != (proof{}) || i.sha256+i.sha512+i.use != "":
		return UsageError("the catalog says what its images are and how they are verified: give FILE or URL, " +
			"or leave out --sums, --sha256, --sha512, --signature and --installer")
	default:
		i.catalog = true
		a, err = fetchImage(c, i, "")
	}
	if err != nil {
		return err
	}
	return show(c, a, text(imageStored))
}

// imageStored returns the text that "image add" prints about a stored image.
func imageStored(i inventory.Image) string {
	var b strings.Builder
	given := i.Given()
	stored := "stored"
	if i.InPlace != nil {
		stored = "served from " + i.InPlace.Path
	}
	fmt.Fprintf(&b, "image %s %s: %s, %s, sha256 %s", i.Name, stored, given.Format, human.Size(given.Size), given.SHA256)
	if i.FirstSeen {
		b.WriteString(" (computed by the server; no digest was declared)")
	}
	if i.Source != nil {
		fmt.Fprintf(&b, "\nserved as: %s, %s, sha256 %s", i.Format, human.Size(i.Size), i.SHA256)
	}

	fmt.Fprintf(&b, "\ncontents: %s", cmp.Or(i.Contents, "not inspected"))
	if i.DiskSize > 0 {
		place := "on a disk"
		if i.Use == inventory.UseContainer {
			place = "unpacked in memory"
		}
		fmt.Fprintf(&b, ", %s %s", human.Size(i.DiskSize), place)
	}
	if i.SectorSize > 0 {
		fmt.Fprintf(&b, ", for disks with %d-byte sectors", i.SectorSize)
	}
	switch i.Use {
	case inventory.UseInstaller:
		b.WriteString("; for installers, never written to a disk")
	case inventory.UseArchive:
		b.WriteString("; for archive2disk")
	case inventory.UseContainer:
		b.WriteString("; for actions")
		if i.Container != nil && i.Container.Reference != "" {
			b.WriteString("\nfrom: " + i.Container.Reference)
		}
	}
	if i.Warning != "" {
		fmt.Fprintf(&b, "\nwarning: %s", i.Warning)
	}

	return b.String()
}

func imageListCommand(o *Options) *cobra.Command {
	return listCommand(o, listing[inventory.Image]{
		cmd:   &cobra.Command{Short: "List images", Example: "  ingot image list"},
		route: client.Path("images"), sort: "name", empty: "no images; add one: ingot image add NAME FILE",
		head: []string{"NAME", "FORMAT", "SIZE", "UNPACKED", "SHA256", "DIGEST", "MADE OF", "ADDED", "FROM", "CONTENTS"},
		wide: []string{"SHA256", "MADE OF", "FROM"},
		fit:  true,
		row: func(i inventory.Image) []any {
			unpacked := ""
			if i.DiskSize > 0 {
				unpacked = human.Size(i.DiskSize)
			}
			digest := "declared"
			if i.FirstSeen {
				digest = "first seen"
			}
			from := i.URL
			if i.InPlace != nil {
				from = i.InPlace.Path + " in place"
			}
			source := ""
			if i.Source != nil {
				source = i.Source.Format + " " + shorten(i.Source.SHA256, 13)
			}
			return []any{
				i.Name, i.Format, human.Size(i.Size), unpacked, shorten(i.SHA256, 13), digest, source,
				human.Time(i.Created), from, i.Contents,
			}
		},
	})
}

func imageGetCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "get NAME", Aliases: []string{"show", "describe"}, Short: "Show an image", Args: cobra.ExactArgs(1),
		ValidArgsFunction: firstArg(o.images()),
		Example:           "  ingot image get debian-12\n  ingot image get debian-12 --output json",
	}, func(c *Call) error { return getAndShow(c, client.Path("images", c.Args[0]), text(imageStored)) })
}

// imageCheck is the answer of POST /v1/images/NAME/verify.
type imageCheck struct {
	Name    string `json:"name"`
	OK      bool   `json:"ok"`
	SHA256  string `json:"sha256,omitempty"`
	Size    int64  `json:"size"`
	Message string `json:"message,omitempty"`
}

func imageVerifyCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "verify [NAME…]", Short: "Check stored images against their digests", ValidArgsFunction: o.images(),
		Example: "  ingot image verify debian-12\n  ingot image verify      # all",
	}, func(c *Call) error {
		names, err := imagesToVerify(c)
		if err != nil {
			return err
		}

		changed := 0
		checks := []imageCheck{}
		for _, name := range names {
			a, err := post[imageCheck](c, client.Path("images", name, "verify"), nil)
			if err != nil {
				return err
			}
			if a.Value.Name = name; !a.Value.OK {
				changed++
			}
			checks = append(checks, a.Value)
		}

		err = ShowValue(c, client.List[imageCheck]{Items: checks}, func(w io.Writer) error {
			for _, v := range checks {
				if v.OK {
					fmt.Fprintf(w, "ok    %s  sha256 %s\n", v.Name, v.SHA256)
				} else {
					fmt.Fprintf(w, "fail  %s  %s\n", v.Name, v.Message)
				}
			}
			return nil
		})
		if err == nil && changed > 0 {
			err = human.Advise(
				fmt.Errorf("%s of %d changed", human.Count(changed, "image"), len(names)),
				"ingot image add NAME FILE (again)")
		}
		return err
	})
}

// imagesToVerify returns the images that the arguments name or, without arguments, all images whose file
// the server has.
func imagesToVerify(c *Call) ([]string, error) {
	if len(c.Args) > 0 {
		return c.Args, nil
	}

	a, err := getAll[inventory.Image](c, client.Path("images"))
	var names []string
	for _, i := range a.Value.Items {
		if i.File != "" {
			names = append(names, i.Name)
		}
	}

	return names, err
}

func imageDeleteCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete NAME", Short: "Delete an image and its file", ValidArgsFunction: firstArg(o.images()),
		Long: `Delete an image and its file; a file that is served in place is kept. An image is not
deleted while the plan of an open run, a machine (in its image, a label or its user
data), a template or a stored lab file names the image.`,
		Example: "  ingot image delete debian-11 --yes",
	}

	force := cmd.Flags().Bool("force", false, "delete the image even if a machine, a template or a lab file names it")

	return deleteCommand(o, cmd, func(c *Call) (deletion, error) {
		route := client.Path("images", c.Args[0])
		a, err := get[inventory.Image](c, route)
		if *force {
			route += "?force=true"
		}
		lost := " (" + human.Size(a.Value.Size) + ")"
		if x := a.Value.InPlace; x != nil {
			lost = " (its file " + x.Path + " stays)"
		}
		return deletion{what: "image " + c.Args[0], lost: lost, route: route}, err
	})
}

func imagePruneCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "prune", Short: "Delete unused images", Args: cobra.NoArgs,
		Long: `Delete every image that is not named by the plan of an open run, a machine (in its
image, a label or its user data), a template or a stored lab file.`,
		Example: "  ingot image prune",
	}

	yes := YesFlag(cmd)

	return o.NewCommand(cmd, func(c *Call) error {
		a, err := getAll[inventory.Image](c, client.Path("images")+"?unused=true")
		if err != nil {
			return err
		}
		if len(a.Value.Items) == 0 {
			c.Note("every image is named by a machine, a template, a lab file or a run")
			return nil
		}

		var names []string
		var bytes int64
		for _, i := range a.Value.Items {
			names, bytes = append(names, i.Name), bytes+i.Size
		}

		what := fmt.Sprintf("deletes %s (%s): %s",
			human.Count(len(names), "image"), human.Size(bytes), strings.Join(names, ", "))
		if err := c.Confirm(*yes, what, "prune"); err != nil {
			return err
		}

		for _, name := range names {
			err := remove(c, client.Path("images", name))
			switch {
			case errors.Is(err, inventory.ErrConflict): // a new use of the image was added after the list was read
				c.Note("image %s was not deleted: %v", name, err)
			case err != nil:
				return err
			default:
				c.Note("image %s deleted", name)
			}
		}
		return nil
	})
}

func imageCatalogCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "catalog", Short: "List the catalog of downloadable OS images", Args: cobra.NoArgs,
		Long: `List the images that "ingot image add NAME" fetches from their publishers. For each
image, the list shows the login user, the program that configures the installed system,
and the template that installs the image.

To use a mirror or your own images, write this list to a file with -o yaml, edit the
file, and name it in the server's configuration (images.catalog).`,
		Example: "  ingot image catalog\n  ingot image add ubuntu-24.04\n  ingot image catalog -o yaml > /etc/ingot/images.yaml",
	}, func(c *Call) error {
		return getAndShow(c, client.Path("image-catalog"), func(w io.Writer, v catalog.Catalog) error {
			return listing[catalog.Image]{
				head: []string{"NAME", "LOGIN", "CONFIGURED BY", "TEMPLATE", "PROVEN BY", "ABOUT"},
				fit:  true,
				row: func(i catalog.Image) []any {
					return []any{i.Name, i.User, i.Metadata, i.Template, provenBy(i), i.About}
				},
			}.printRows(c, w, v.Images)
		})
	})
}

// provenBy returns the kind of proof with which an image of the catalog is verified: signature, list or digest.
func provenBy(i catalog.Image) string {
	switch {
	case i.Signature != "":
		return "signature"
	case i.Sums != "":
		return "list"
	}
	return "digest"
}
