package inventory

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/ingotmetal/ingot/action"
)

// An Image is a file that the image server serves.
type Image struct {
	Name string `json:"name"` // path-safe, unique
	// File is the path below the image directory. It is the SHA-256 of the file and does not contain the image's name, so two different files
	// never have the same path.
	File   string `json:"file"`
	URL    string `json:"url,omitempty"` // where the file came from or, if File is empty, where the agent fetches it
	Size   int64  `json:"size"`          // size of the served file, in bytes
	SHA256 string `json:"sha256"`        // SHA-256 of the served file, in hex
	// FirstSeen: the digest of the given file was not declared; this server computed it from its own copy (security S18).
	FirstSeen bool   `json:"firstSeen,omitempty"`
	Format    string `json:"format"`             // format of the served file, by its first bytes: raw | gz | zst | xz | bz2
	DiskSize  int64  `json:"diskSize,omitempty"` // bytes of the unpacked image; 0 = not known
	// ContentSHA256 is the SHA-256 of the unpacked disk image; "" if it is not known.
	ContentSHA256 string `json:"contentSHA256,omitempty"`
	// InPlace is set if the file is served from a share, without a copy; nil if this server has the file.
	InPlace *InPlace `json:"inPlace,omitempty"`
	// Source is the file that was given, if another file was made from it and is served instead; nil if the given file itself is served.
	Source *ImageSource `json:"source,omitempty"`
	// SectorSize is the size in bytes of the logical sectors that the partition table of the disk image assumes; 0 if there is no table or the
	// size is not known.
	SectorSize int `json:"sectorSize,omitempty"`
	// Boots lists how firmware can start the disk image: bios, uefi-x86_64, uefi-aarch64; empty if no known loader was found.
	Boots []string `json:"boots,omitempty"`
	// Contents describes what was found in the file when it was stored; "" if it was stored by an older server, which did not look.
	Contents string `json:"contents,omitempty"`
	Warning  string `json:"warning,omitempty"` // why a machine will probably not boot from it
	Use      string `json:"use,omitempty"`     // UseInstaller, UseArchive, UseContainer, or "" for a disk image
	// Container is set if Use is UseContainer. Then DiskSize is the number of bytes of the unpacked layers.
	Container *ContainerImage `json:"container,omitempty"`
	Created   time.Time       `json:"created,omitzero"`
}

// A ContainerImage is an image of the OCI image specification 1.1, stored as one archive; see action.Container.
type ContainerImage struct {
	// Reference is REGISTRY/REPOSITORY:TAG from which it was pulled; "" if a file was given. If the reference named an index by its digest,
	// Reference has the index's digest, too.
	Reference    string `json:"reference,omitempty"`
	Digest       string `json:"digest"`       // of the manifest: sha256: and 64 hex digits
	Architecture string `json:"architecture"` // as in the image's configuration, such as amd64
}

// HasDigest reports whether digest is the digest of the manifest, or of the index by which the image was pulled.
func (c ContainerImage) HasDigest(digest string) bool {
	r, err := action.ParseContainer(c.Reference)
	return digest != "" && (digest == c.Digest || err == nil && digest == r.Digest)
}

// InPlace is a file on a share. It is served from there, without a copy.
type InPlace struct {
	Path    string    `json:"path"`    // path of the file on the server
	ModTime time.Time `json:"modTime"` // modification time of the file when its digest was computed
}

// An ImageSource is a file from which an image was made.
type ImageSource struct {
	Format string `json:"format"` // a format of Image, or qcow2
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Given returns the file that was given for the image: Source or, if Source is nil, the served file.
func (i Image) Given() ImageSource {
	if i.Source != nil {
		return *i.Source
	}
	return ImageSource{Format: i.Format, Size: i.Size, SHA256: i.SHA256}
}

// HasDigest reports whether sum is the SHA-256 of the given file or of the served file.
func (i Image) HasDigest(sum string) bool { return sum == i.SHA256 || sum == i.Given().SHA256 }

// ImagesByName returns all images in a map, by name.
func ImagesByName(all []Image) map[string]Image {
	out := make(map[string]Image, len(all))
	for _, i := range all {
		out[i.Name] = i
	}
	return out
}

// ImagesByURL returns the images in a map, by the result of urlOf: the URL from which the agent fetches the image. Images without a URL are
// left out.
func ImagesByURL(all []Image, urlOf func(Image) string) map[string]Image {
	out := make(map[string]Image, len(all))
	for _, i := range all {
		if address := urlOf(i); address != "" {
			out[address] = i
		}
	}
	return out
}

// FetchedName returns the name of the image that this server makes of the file at address, for which a template gives no digest. The name
// does not depend on the user and the password in address, and shows only the end of the path: names are not secret.
func FetchedName(address string) string {
	end := ""
	if u, err := url.Parse(address); err == nil {
		u.User = nil
		address, end = u.String(), nameForm(path.Base(u.Path))
	}
	sum := sha256.Sum256([]byte(address))
	name := "fetched-" + hex.EncodeToString(sum[:8])
	if end != "" {
		name += "-" + strings.TrimRight(end[:min(len(end), 60)], "-")
	}
	return name
}

// IsFetchedFrom reports whether this server has fetched i from address because a template gave no digest; see FetchedName.
func (i Image) IsFetchedFrom(address string) bool {
	return i.Name == FetchedName(address) && i.URL == action.PublicURL(address)
}

var urlInText = regexp.MustCompile(`https?://[^\s"'<>{}]+`)

// pulledFrom reports whether reference, a word of a template, names the container image i, by its registry or its digest.
func (i Image) pulledFrom(reference string) bool {
	r, err := action.ParseContainer(reference)
	if err != nil {
		return false
	}
	known := i.Container.HasDigest(r.Digest) || r.String() == i.Container.Reference
	r.Digest = ""
	return known || r.String() == i.Container.Reference
}

var wordInText = regexp.MustCompile(`[^\s"'<>{}\[\],]+`)

// FetchesImage reports whether text, the source of a template, names the address from which this server has fetched i.
func FetchesImage(text string, i Image) bool {
	if i.Container != nil {
		return slices.ContainsFunc(wordInText.FindAllString(text, -1), i.pulledFrom)
	}
	return strings.HasPrefix(i.Name, "fetched-") && slices.ContainsFunc(urlInText.FindAllString(text, -1), i.IsFetchedFrom)
}

// UseInstaller marks a file that installers boot or fetch: a kernel, an initramfs, an ISO. It is never written to a disk.
const UseInstaller = "installer"

// UseArchive marks a tar archive, which archive2disk extracts into a file system.
const UseArchive = "archive"

// UseContainer marks the archive of a container image, which the agent runs as an action.
const UseContainer = "container"

// PinnedPath returns the path of the image's file below the images' base URL. The path contains the digest, so it still means the same file
// if another image gets the name.
func (i Image) PinnedPath() string { return i.SHA256 + "/" + i.Name }

// A PlannedImage is a file of this server that the plan of a run needs.
type PlannedImage struct {
	Run, Machine string
	Name         string // name of the image when the plan was made
	SHA256       string
}

var (
	digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)
	pinnedForm = regexp.MustCompile(`^/([0-9a-f]{64})/([A-Za-z0-9._+-]+)`)
)

// Images returns the files of this server that are needed by the actions p.Actions[from:], the installer and the documents, sorted by
// digest. If a digest has several names, only the first one is returned.
func (p Plan) Images(from int) []PlannedImage {
	var out []PlannedImage
	add := func(name, sum string) {
		sum, err := action.SHA256(map[string]string{"IMG_SHA256": sum}, "IMG_SHA256")
		if err == nil && sum != "" && !slices.ContainsFunc(out, func(i PlannedImage) bool { return i.SHA256 == sum }) {
			out = append(out, PlannedImage{Run: p.Run, Name: name, SHA256: sum})
		}
	}

	pinned := func(text string) {
		for p.ImagesURL != "" {
			_, rest, found := strings.Cut(text, p.ImagesURL)
			if !found {
				return
			}
			if m := pinnedForm.FindStringSubmatch(rest); m != nil {
				add(m[2], m[1])
			}
			text = rest
		}
	}

	for _, x := range p.Actions[min(from, len(p.Actions)):] {
		for _, k := range slices.Sorted(maps.Keys(x.Environment)) {
			pinned(x.Environment[k])
		}
		for _, v := range slices.Concat(x.Command, x.OnFailure, x.OnTimeout) {
			pinned(v)
		}

		if x.Container != nil {
			pinned(x.Container.URL)
		}

		// In plans of older servers, the URL of an image does not contain the digest. IMG_SHA256 contains it.
		if u := x.Environment["IMG_URL"]; p.ImagesURL != "" && strings.HasPrefix(u, p.ImagesURL+"/") {
			add(path.Base(u), x.Environment["IMG_SHA256"])
		}
	}

	if p.Installer != nil {
		for _, name := range slices.Sorted(maps.Keys(p.Installer.Digests)) {
			add(name, p.Installer.Digests[name])
		}
		for _, v := range p.Installer.Parameters {
			pinned(v)
		}
	}

	for _, d := range p.Documents {
		pinned(d.Contents)
	}
	slices.SortFunc(out, func(a, b PlannedImage) int { return strings.Compare(a.SHA256, b.SHA256) })
	return out
}

// NamesImage reports whether name is the machine's image or the value of one of its labels, because a template of an installer may take the
// name of an image from a label.
func (m Machine) NamesImage(name string) bool {
	return m.Image == name || slices.Contains(slices.Collect(maps.Values(m.Labels)), name)
}

// NamesImage reports whether text contains name as a whole word, such as in a URL or between quotes.
func NamesImage(text, name string) bool {
	part := func(r rune) bool {
		return r == '-' || r == '_' || r == '.' || unicode.IsLetter(r) || unicode.IsDigit(r)
	}
	return slices.Contains(strings.FieldsFunc(text, func(r rune) bool { return !part(r) }), name)
}

// IsDigest reports whether s is a SHA-256 in 64 lower-case hex digits.
func IsDigest(s string) bool { return digestForm.MatchString(s) }
