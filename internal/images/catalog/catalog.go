// Package catalog reads lists of images that can be downloaded from their publishers.
package catalog

import (
	_ "embed"
	"fmt"
	"net/url"
	"os"
	"regexp"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/internal/images/provenance"
	"github.com/ingotmetal/ingot/inventory"
)

//go:embed catalog.yaml
var builtin []byte

// An Image describes an image file that a publisher offers, and how a download of the file is verified.
type Image struct {
	Name  string `json:"name"`            // name of the image in the inventory
	About string `json:"about,omitempty"` // a sentence for operators
	URL   string `json:"url"`             // URL of the file at its publisher
	Use   string `json:"use,omitempty"`   // installer: files for another installer; default: a disk image

	// One of these verifies a download of the file: a list of digests, a digest, or a minisign signature.

	Sums      string `json:"sums,omitempty"`      // URL of a list of digests
	SHA256    string `json:"sha256,omitempty"`    // digest of the file, 64 hex digits
	SHA512    string `json:"sha512,omitempty"`    // digest of the file, 128 hex digits
	Signature string `json:"signature,omitempty"` // URL of a minisign signature: of the list in sums if there is one, otherwise of the file
	PublicKey string `json:"publicKey,omitempty"` // public key of the signature: the line that begins with RW

	// What an operator has to know about the installed system.

	User     string `json:"user,omitempty"`     // user who can log in
	Metadata string `json:"metadata,omitempty"` // what configures the system at its first boot: cloud-init, ignition, talos or harvester
	Template string `json:"template,omitempty"` // a stored template that installs the image
}

// A Catalog is a list of images, in the form of a catalog file.
type Catalog struct {
	Images []Image `json:"images"` // the list
}

// Read returns the catalog in a file, or the built-in catalog of this version if path is "". Errors in the file
// are inventory.Problems.
func Read(path string) (Catalog, error) {
	if path == "" {
		return parse("catalog.yaml", builtin)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return Catalog{}, fmt.Errorf("reading the image catalog: %w", err)
	}
	return parse(path, b)
}

// Schema returns the JSON Schema of a catalog file.
func Schema() strictyaml.Schema {
	return strictyaml.SchemaOf[Catalog]("A catalog of images for ingot serve", strictyaml.Rules{
		"images[].use": strictyaml.OneOf(inventory.UseInstaller),
	})
}

// parse reads the catalog in b. Errors contain name, the name of the file.
func parse(name string, b []byte) (Catalog, error) {
	var c Catalog
	if err := strictyaml.Decode(name, b, &c); err != nil {
		return Catalog{}, err
	}

	var problems inventory.Problems
	seen := map[string]bool{}
	for n, i := range c.Images {
		at := fmt.Sprintf("images[%d].", n)
		for _, p := range i.Check() {
			p.Field = at + p.Field
			problems = append(problems, p)
		}
		if seen[i.Name] {
			problems.Add(at+"name", "give each image another name", "%q is listed twice", i.Name)
		}
		seen[i.Name] = true
	}
	if len(problems) > 0 {
		return Catalog{}, strictyaml.Locate(name, b, problems)
	}
	return c, nil
}

// keyForm matches a minisign public key.
var keyForm = regexp.MustCompile(`^RW[A-Za-z0-9+/]{54}$`)

// Check returns the problems of i. A client also checks an image that a server has sent: otherwise a value that should
// be a URL could be a path on the client's computer.
func (i Image) Check() inventory.Problems {
	problems := append(inventory.ValidateImageName(i.Name), inventory.ValidateImageUse(i.Use)...)
	for _, f := range [][2]string{{"url", i.URL}, {"sums", i.Sums}, {"signature", i.Signature}} {
		field, address := f[0], f[1]
		u, err := url.Parse(address)
		switch {
		case address == "" && field != "url":
		case err != nil, u.Host == "", u.Scheme != "https" && u.Scheme != "http":
			problems.Add(field, "for example https://images.example.com/disk.qcow2", "invalid URL %q", address)
		case u.Scheme == "http" && field == "sums" && i.Signature == "":
			problems.Add(field, "use https, or give signature and publicKey", "over http, the list can be changed on the way")
		}
	}

	if i.SHA256 != "" && !inventory.IsDigest(i.SHA256) {
		problems.Add("sha256", "give 64 lower-case hex digits", "invalid SHA-256 %q", i.SHA256)
	}
	if i.SHA512 != "" && !provenance.IsSHA512(i.SHA512) {
		problems.Add("sha512", "give 128 lower-case hex digits", "invalid SHA-512 %q", i.SHA512)
	}
	switch {
	case i.PublicKey != "" && !keyForm.MatchString(i.PublicKey):
		problems.Add("publicKey", "give the line of the .pub file that begins with RW", "invalid minisign key %q", i.PublicKey)
	case (i.Signature == "") != (i.PublicKey == ""):
		problems.Add("signature", "give both", "signature and publicKey must be given together")
	case i.Sums == "" && i.SHA256 == "" && i.SHA512 == "" && i.Signature == "":
		problems.Add("sums", "give sums, sha256, sha512, or signature and publicKey", "is missing: nothing else verifies the image")
	case i.Sums != "" && i.SHA256+i.SHA512 != "":
		problems.Add("sums", "give either sums or a digest", "sums and a digest cannot be combined")
	}
	return problems
}
