package template

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// setImage sets the URL and the digest of the file that an action fetches. If the action sets no URL, it is the URL of the machine's image.
// If the URL belongs to an image of this server, setImage sets the digest; it adds a problem if the action sets another digest, or if the
// image is for another use. If the URL is on another server and the action sets no digest, this server must fetch the file, because Ingot
// must know in advance what will be written.
func (p *planner) setImage(path, native string, env environment) {
	d, row := p.data, action.Describe(native)
	if env.values[row.URL] == "" {
		if d.Image == nil {
			p.check.add(path+".image", fmt.Sprintf("give machine %s an image, name one when provisioning, or set %s", d.Machine.Name, row.URL),
				"writes the machine's image, but machine %q has none", d.Machine.Name)
			return
		}
		if d.ImageURL == "" {
			p.check.add(path+".image", "configure an interface for netboot: ingot init", "image %s has no address for agents", d.Image.Name)
			return
		}
		env.setDefault(row.URL, d.ImageURL, "image "+d.Image.Name)
	}

	path += ".environment."
	given := env.values[row.URL]
	img, served := d.imageAt(given)
	if served == "" && env.values[row.Digest] == "" {
		img, served = d.fetchedFrom(given)
	}
	if served != "" {
		env.values[row.URL] = served
		p.checkOwnImage(path, native, env, img)
		return
	}
	shown := action.PublicURL(given)
	switch u, err := url.Parse(given); {
	case err != nil || u.Host == "": // the check of this variable reports the error
	case env.values[row.Digest] == "" && d.ImagesURL != "" && strings.HasPrefix(given, d.ImagesURL+"/"):
		p.check.add(path+row.URL, "see: ingot image list", "this server has no image at %s", shown)
	case env.values[row.Digest] == "" && d.RequireDigest:
		p.check.add(path+row.Digest, "set "+row.Digest+", or add the file with: ingot image add NAME URL",
			"no digest is known for %s, but require_digest is set", shown)
	case env.values[row.Digest] == "":
		p.fetch(given)
	// The agent refuses to write a qcow2 image. If the URL ends with .qcow2, report the problem now, while the run is planned.
	case action.Describe(native).Whole && strings.HasSuffix(shown, ".qcow2"):
		p.check.add(path+row.URL, "store the image on this server, which converts it (ingot image add NAME URL), and name the stored image",
			"%s is a qcow2 image on another server, and agents cannot read qcow2", shown)
	}
}

// A Fetch is a file on another server without a digest. This server must fetch it before the run can be planned.
type Fetch struct {
	URL  string // it may contain a password
	Name string // of the image that the file becomes
}

// fetch adds a file without a digest to the files that this server must fetch.
func (p *planner) fetch(address string) {
	p.addFetch(address)
	p.warn(fmt.Sprintf("%s has no digest: when the run is planned, this server fetches it as image %s, and keeps the digest that it sees",
		action.PublicURL(address), inventory.FetchedName(address)))
}

// imageAt returns the image that this server serves at address; with it, address, which is "" if there is no such image.
func (d *Data) imageAt(address string) (img inventory.Image, served string) {
	if img, ours := d.Images[address]; ours {
		return img, address
	}
	if d.Image != nil && address == d.ImageURL {
		return *d.Image, address
	}
	return inventory.Image{}, ""
}

// fetchedFrom returns the image that this server has fetched from address because a template gave no digest; with it, the URL at which this
// server serves it, which is "" if there is no such image.
func (d *Data) fetchedFrom(address string) (img inventory.Image, served string) {
	for served, img := range d.Images {
		if img.IsFetchedFrom(address) {
			return img, served
		}
	}
	return inventory.Image{}, ""
}

// checkOwnImage checks whether an action can use img, an image of this server, and sets the digest of img in env.
func (p *planner) checkOwnImage(path, native string, env environment, img inventory.Image) {
	row := action.Describe(native)
	p.checkDeclared(path+row.URL, img)
	switch {
	case row.Whole && img.Use != "":
		p.check.add(path+row.URL, "name a disk image", "image %s is for %ss (%s), not for disks", img.Name, img.Use,
			cmp.Or(img.Contents, "stored with --installer"))
	case native == action.Archive2Disk && (img.Use == "" || img.Use == inventory.UseContainer):
		p.check.add(path+row.URL, "name a tar archive", "image %s is a %s image (%s), not an archive", img.Name, cmp.Or(img.Use, "disk"),
			img.Contents)
	}

	want, err := action.SHA256(env.values, row.Digest)
	if err != nil {
		return // the check of this variable reports the error
	}
	if want != "" && !img.HasDigest(want) {
		p.check.add(path+row.Digest, "correct the digest, or store the image again: ingot image add "+img.Name+" FILE",
			"is %.12s, but image %s has the digest %.12s", want, img.Name, img.Given().SHA256)
	}
	if want == "" || want != img.SHA256 {
		env.values[row.Digest], env.from[row.Digest] = img.SHA256, "image "+img.Name
	}
}

// checkDeclared adds a warning if no operator has declared the digest of img. If RequireDigest is set, it adds a problem instead (security
// S18).
func (p *planner) checkDeclared(path string, img inventory.Image) {
	if !img.FirstSeen {
		return
	}
	if p.data.RequireDigest {
		p.check.add(path, "add the image again with its digest", "image %q was added without a digest, but require_digest is set", img.Name)
		return
	}
	p.warn(fmt.Sprintf("image %s: the digest is first-seen: this server computed it, and no one declared it", img.Name))
}

// checkUpload adds a problem if an action sends the content of a disk to a host that is not in UploadHosts (security S59).
func (p *planner) checkUpload(path, native string, env environment) {
	variable := action.Describe(native).Upload
	if variable == "" {
		return
	}
	host, err := action.UploadHost(env.values[variable])
	if err == nil && !slices.Contains(p.data.UploadHosts, host) {
		p.check.add(path+".environment."+variable, "add the host to images.upload_hosts of the configuration and start the server again, "+
			"or name a listed host", "the host %q must not receive the content of disks", host)
	}
}

// noteFetch returns a note if an action fetches a file from another server and sets no digest. It skips URLs that depend on data, and URLs
// that may be on this server.
func (l *linter) noteFetch(at place, native string, env environment) inventory.Problems {
	row := action.Describe(native)
	given, digest := env.values[row.URL], env.values[row.Digest]
	if row.URL == "" || given == "" || digest != "" || at.conditions || !at.isLiteral(row.URL, given) {
		return nil
	}
	if u, err := url.Parse(given); err != nil || u.Scheme == "http" && strings.HasPrefix(u.Path, "/images/") {
		return nil // invalid, or perhaps a URL of this server
	}
	field := at.step + ".environment." + row.URL
	return inventory.Problems{{
		File: l.check.out.file, Line: l.check.out.line(field), Field: field, Remedy: "set " + row.Digest,
		What: fmt.Sprintf("%s has no digest: the server fetches it once, and keeps the digest that it sees", action.PublicURL(given)),
	}}
}
