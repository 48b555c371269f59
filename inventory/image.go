package inventory

import (
	"maps"
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
	// File is its path below the image directory: its SHA256, so that two images never share a path by their names.
	File   string `json:"file"`
	URL    string `json:"url,omitempty"` // where it came from, or is fetched from by the agent when File is empty
	Size   int64  `json:"size"`          // bytes of the file as served
	SHA256 string `json:"sha256"`        // hex, of the file as served
	// FirstSeen: the digest of the file that was given was computed by this server from its own copy and
	// not declared (security S18).
	FirstSeen bool   `json:"firstSeen,omitempty"`
	Format    string `json:"format"`             // of the file as served: raw | gz | zst | xz | bz2, by magic bytes
	DiskSize  int64  `json:"diskSize,omitempty"` // bytes when unpacked, if known
	// ContentSHA256 is the digest of a disk image when unpacked; "" if it is not known.
	ContentSHA256 string `json:"contentSHA256,omitempty"`
	// InPlace is the file of another program that is served as it is; nil for a file of this server.
	InPlace *InPlace `json:"inPlace,omitempty"`
	// Source is the file that was given, if another one was made of it to be served.
	Source *ImageSource `json:"source,omitempty"`
	// SectorSize is the size of the disk's logical sectors, in bytes, that the partition table of a disk image is made for;
	// 0 if there is no table or it is not known.
	SectorSize int `json:"sectorSize,omitempty"`
	// Boots lists how firmware can start the disk image: bios, uefi-x86_64, uefi-aarch64; empty if no known loader was found.
	Boots []string `json:"boots,omitempty"`
	// Contents says what was found in it when it was stored; "" for images that were stored before that was looked for.
	Contents string    `json:"contents,omitempty"`
	Warning  string    `json:"warning,omitempty"` // why a machine will hardly boot from it
	Use      string    `json:"use,omitempty"`     // UseInstaller, UseArchive, or "" for a disk image
	Created  time.Time `json:"created,omitzero"`
}

// InPlace is a file of a share that is served where it lies.
type InPlace struct {
	Path    string    `json:"path"`    // on the server
	ModTime time.Time `json:"modTime"` // when its digest was computed
}

// An ImageSource is a file from which an image was made.
type ImageSource struct {
	Format string `json:"format"` // as of Image, or qcow2
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Given returns the file that was given: the source, or what is served.
func (i Image) Given() ImageSource {
	if i.Source != nil {
		return *i.Source
	}
	return ImageSource{Format: i.Format, Size: i.Size, SHA256: i.SHA256}
}

// HasDigest reports whether sum is the SHA-256 of the file as it was given or as it is served.
func (i Image) HasDigest(sum string) bool { return sum == i.SHA256 || sum == i.Given().SHA256 }

// ImagesByName returns images by their names.
func ImagesByName(all []Image) map[string]Image {
	out := make(map[string]Image, len(all))
	for _, i := range all {
		out[i.Name] = i
	}
	return out
}

// ImagesByURL returns images by where the agent fetches them, as urlOf returns it; without those that have no address.
func ImagesByURL(all []Image, urlOf func(Image) string) map[string]Image {
	out := make(map[string]Image, len(all))
	for _, i := range all {
		if address := urlOf(i); address != "" {
			out[address] = i
		}
	}
	return out
}

// UseInstaller marks a file that installers boot or fetch: a kernel, an initramfs, an ISO. It is never written to a disk.
const UseInstaller = "installer"

// UseArchive marks a tar archive, which archive2disk extracts into a file system.
const UseArchive = "archive"

// PinnedPath returns the path of the image's file below the images' base URL. The
// path contains the digest, so it names the same file after the name is reused.
func (i Image) PinnedPath() string { return i.SHA256 + "/" + i.Name }

// A PlannedImage is a file of this server that an open run has planned.
type PlannedImage struct {
	Run, Machine string
	Name         string // of the image at that time
	SHA256       string
}

var (
	digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)
	pinnedForm = regexp.MustCompile(`^/([0-9a-f]{64})/([A-Za-z0-9._+-]+)`)
)

// Images returns the files of this server that the plan needs from action
// number from on, each digest once, under the first of its names.
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

		// Plans of older servers have unpinned URLs; the digest is in IMG_SHA256.
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

// NamesImage reports whether the machine is installed with the image called name:
// as its image, or by a label from which an installer's template takes it.
func (m Machine) NamesImage(name string) bool {
	return m.Image == name || slices.Contains(slices.Collect(maps.Values(m.Labels)), name)
}

// NamesImage reports whether text contains name as a whole word, as in URLs and
// quotes.
func NamesImage(text, name string) bool {
	part := func(r rune) bool {
		return r == '-' || r == '_' || r == '.' || unicode.IsLetter(r) || unicode.IsDigit(r)
	}
	return slices.Contains(strings.FieldsFunc(text, func(r rune) bool { return !part(r) }), name)
}

// IsDigest reports whether s is a SHA-256 in 64 lower-case hex digits.
func IsDigest(s string) bool { return digestForm.MatchString(s) }
