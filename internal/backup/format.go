// Package backup makes, checks and restores Ingot's backups.
//
// A backup is a tar file. It starts with a manifest, which contains the SHA-256 of each part. It ends with the seal,
// which contains a digest and a MAC of the manifest; only the site has the key of the MAC.
package backup

import (
	"archive/tar"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/backup/dbcopy"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
)

// Names of the parts. ImagePrefix is the start of the names of images.
const (
	manifestName  = "manifest.json"
	sealName      = "manifest.seal"
	InventoryName = "inventory.db"
	TemporalName  = "temporal.db"
	KeysName      = "keys.sealed"
	ConfigName    = "ingot.yaml"
	ImagePrefix   = "images/"
)

// Format is the version of the archive that this program writes and reads. Archives with a lower format hold
// inventories from before the first release.
const Format = 3

// maxManifest is the size limit for a manifest that is not verified yet, in bytes.
const maxManifest = 64 << 20

// A Manifest describes the content of an archive.
type Manifest struct {
	Format  int       `json:"format"`
	ID      string    `json:"id"` // id of the backup; both databases contain it, too
	Created time.Time `json:"created"`
	Version string    `json:"version"` // version of the program that made the backup
	Host    string    `json:"host,omitempty"`
	// Temporal is nil if the runs live in an external cluster; External is then the address of that cluster.
	Temporal  *dbcopy.Database `json:"temporal,omitempty"`
	External  string           `json:"external,omitempty"`
	Inventory dbcopy.Database  `json:"inventory"`
	// Key describes how the keys are encrypted. If Key is nil, the archive contains no keys, and Lost names the secrets
	// that cannot be opened without the keys.
	Key    *Wrap    `json:"key,omitempty"`
	Lost   []string `json:"lost,omitempty"`
	Images []Image  `json:"images"`
	Parts  []Part   `json:"parts"` // in the order in which they are in the archive
}

// An Image is an image of the image server. Its file may be missing from the archive.
type Image struct {
	Name     string `json:"name"`
	File     string `json:"file"`
	Size     int64  `json:"size"`
	SHA256   string `json:"sha256"`
	URL      string `json:"url,omitempty"`
	InPlace  string `json:"inPlace,omitempty"` // path of a file on a share; such a file is never in the archive
	Included bool   `json:"included"`
}

// A Part is a file of the archive.
type Part struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Describe returns the size and the digest of the file at path, as the part called name.
func Describe(name, path string) (Part, error) {
	f, err := os.Open(path)
	if err != nil {
		return Part{}, err
	}
	defer func() { _ = f.Close() }() // only read
	h := sha256.New()
	n, err := io.Copy(h, f)
	return Part{name, n, hex.EncodeToString(h.Sum(nil))}, err
}

// A Seal is the last file of an archive. Its digest proves that the manifest is unchanged; its MAC proves that a holder of the site's
// keys has written the manifest, which contains the digest of every part.
type Seal struct {
	SHA256 string `json:"sha256"`         // digest of the manifest
	HMAC   string `json:"hmac,omitempty"` // "" = the site had no key file when the backup was made
}

func sealOf(text, key []byte) Seal {
	s := Seal{SHA256: identity.Digest(text)}
	if key != nil {
		s.HMAC = hex.EncodeToString(s.mac(key))
	}
	return s
}

func (s Seal) mac(key []byte) []byte {
	m := hmac.New(sha256.New, key)
	_, _ = m.Write([]byte("ingot backup manifest\x00" + s.SHA256)) // a hash never returns an error
	return m.Sum(nil)
}

// MadeWith reports whether the seal's MAC was made with a key in keys.
func (s Seal) MadeWith(keys [][]byte) bool {
	have, err := hex.DecodeString(s.HMAC)
	if err != nil {
		return false
	}

	for _, key := range keys {
		if hmac.Equal(have, s.mac(key)) {
			return true
		}
	}

	return false
}

// Write writes the archive that m describes and seals it with key; paths maps the name of each part to its file. It returns
// an error if a part differs from m; the output is then not a valid archive.
func Write(w io.Writer, m Manifest, paths map[string]string, key []byte) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}

	t := tar.NewWriter(w)
	if err := write(t, manifestName, m.Created, int64(len(text)), bytes.NewReader(text)); err != nil {
		return err
	}

	for _, p := range m.Parts {
		if err := writePart(t, p, m.Created, paths[p.Name]); err != nil {
			return fmt.Errorf("writing %q into the backup: %w", p.Name, err)
		}
	}

	seal, err := json.Marshal(sealOf(text, key))
	if err != nil {
		return err
	}
	if err := write(t, sealName, m.Created, int64(len(seal)), bytes.NewReader(seal)); err != nil {
		return err
	}

	return t.Close()
}

func write(t *tar.Writer, name string, at time.Time, size int64, r io.Reader) error {
	h := &tar.Header{Name: name, Size: size, Mode: 0o600, ModTime: at, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(t, r)
	return err
}

func writePart(t *tar.Writer, p Part, at time.Time, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	h := sha256.New()
	if err := write(t, p.Name, at, p.Size, io.TeeReader(io.LimitReader(f, p.Size), h)); err != nil {
		return err
	}
	if hex.EncodeToString(h.Sum(nil)) != p.SHA256 {
		return errors.New("the file changed while the backup was made")
	}

	return nil
}

// Read reads an archive to its end and checks it. It calls take, if not nil, for each part; take must read the whole part or
// nothing of it. Until Read has returned nil, the parts may be incomplete; until [Seal.MadeWith] has returned true, the
// archive may be a forgery. Read returns inventory.ErrInvalid if the archive is damaged, cut short or of another format.
func Read(r io.Reader, take func(m Manifest, p Part, r io.Reader) error) (Manifest, Seal, error) {
	t := tar.NewReader(r)
	text, err := entry(t, manifestName, maxManifest)
	if err != nil {
		return Manifest{}, Seal{}, err
	}

	m, err := parse(text)
	if err != nil {
		return Manifest{}, Seal{}, err
	}

	for _, p := range m.Parts {
		h, err := t.Next()
		if err != nil {
			return m, Seal{}, damaged("%q is missing: %v", p.Name, err)
		}
		if h.Name != p.Name || h.Size != p.Size || h.Typeflag != tar.TypeReg {
			return m, Seal{}, damaged("found %q instead of %q with %d bytes", h.Name, p.Name, p.Size)
		}
		d := sha256.New()
		if err := pass(m, p, io.TeeReader(t, d), d, take); err != nil {
			return m, Seal{}, err
		}
	}

	seal, err := readSeal(t, text)
	if err != nil {
		return m, Seal{}, err
	}
	if _, err := t.Next(); !errors.Is(err, io.EOF) {
		return m, Seal{}, damaged("the archive does not end after manifest.seal")
	}

	return m, seal, nil
}

// readSeal reads the seal. It returns an error if the seal's digest is not the digest of the manifest.
func readSeal(t *tar.Reader, manifest []byte) (s Seal, err error) {
	text, err := entry(t, sealName, 1<<10)
	if err != nil {
		return s, err
	}

	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return s, damaged("reading %q: %v", sealName, err)
	}
	if s.SHA256 != identity.Digest(manifest) {
		return s, damaged("manifest.json was changed after the backup was made")
	}

	return s, nil
}

// pass calls take for a part, and returns an error if the part does not have the digest in m.
func pass(m Manifest, p Part, r io.Reader, d hash.Hash, take func(Manifest, Part, io.Reader) error) error {
	if take != nil {
		if err := take(m, p, r); errors.Is(err, io.ErrUnexpectedEOF) {
			return damaged("reading %q: %v", p.Name, err)
		} else if err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		return damaged("reading %q: %v", p.Name, err)
	}
	if got := hex.EncodeToString(d.Sum(nil)); got != p.SHA256 {
		return damaged("%q has the SHA-256 %.12s instead of %.12s", p.Name, got, p.SHA256)
	}

	return nil
}

// entry returns the content of the next file, which must have that name and at most limit bytes.
func entry(t *tar.Reader, name string, limit int64) ([]byte, error) {
	h, err := t.Next()
	if err != nil {
		return nil, damaged("%q is missing: %v", name, err)
	}
	if h.Name != name || h.Size > limit || h.Typeflag != tar.TypeReg {
		return nil, damaged("found %q instead of %q", h.Name, name)
	}

	b, err := io.ReadAll(t)
	if err != nil {
		return nil, damaged("reading %q: %v", name, err)
	}

	return b, nil
}

// parse reads and checks a manifest.
func parse(text []byte) (m Manifest, err error) {
	var v struct{ Format int }
	if err := json.Unmarshal(text, &v); err != nil {
		return m, damaged("reading manifest.json: %v", err)
	}

	switch {
	case v.Format > Format:
		return m, refuse("the backup has format %d, but this program reads only format %d: "+
			"use the newer ingot that wrote it", v.Format, Format)
	case v.Format < Format:
		return m, refuse("the backup has format %d, from before the first release, but this program reads only format %d: "+
			"start with an empty data directory and add machines, templates and images again", v.Format, Format)
	}

	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return m, damaged("reading manifest.json: %v", err)
	}

	seen := map[string]bool{}
	for _, p := range m.Parts {
		image, isImage := strings.CutPrefix(p.Name, ImagePrefix)
		switch {
		case seen[p.Name], p.Size < 0:
			return m, damaged("manifest.json lists %q twice, or with a negative size", p.Name)
		case isImage && image == filepath.Base(image) && filepath.IsLocal(image):
		case p.Name == InventoryName, p.Name == TemporalName, p.Name == KeysName, p.Name == ConfigName:
		default:
			return m, damaged("manifest.json lists %q, which does not belong in a backup", p.Name)
		}
		seen[p.Name] = true
	}

	for _, i := range m.Images {
		if i.File != "" && (i.File != filepath.Base(i.File) || !filepath.IsLocal(i.File)) {
			return m, damaged("image %q has the invalid file name %q", i.Name, i.File)
		}
	}

	if m.Key != nil { // check before gigabytes are unpacked
		if err := m.Key.check(); err != nil {
			return m, err
		}
	}

	switch {
	case m.ID == "":
		return m, damaged("manifest.json has no id")
	case !seen[InventoryName], seen[TemporalName] != (m.Temporal != nil), seen[KeysName] != (m.Key != nil):
		return m, damaged("manifest.json lists too few or too many files")
	}

	return m, nil
}

// Judge compares the content of the databases with m, and with each other. temporal is nil if the archive has no Temporal
// database. Judge returns inventory.ErrInvalid if the contents differ, or if the databases are from two backups.
func (m Manifest) Judge(inventoryCopy dbcopy.Copy, temporal *dbcopy.Copy) error {
	if err := m.judge("the inventory", m.Inventory, inventoryCopy); err != nil || temporal == nil {
		return err
	}
	if err := m.judge("Temporal", *m.Temporal, *temporal); err != nil {
		return err
	}

	if inventoryCopy.Cluster != temporal.Cluster {
		return refuse("the backup mixes two sites: the inventory's runs are in Temporal cluster %q, but the backup contains cluster %q",
			inventoryCopy.Cluster, temporal.Cluster)
	}
	return nil
}

// judge compares a copy with its description in the manifest.
func (m Manifest) judge(what string, want dbcopy.Database, got dbcopy.Copy) error {
	if got.ID != m.ID {
		return refuse("the backup mixes two backups: %s is from backup %q, not %q", what, got.ID, m.ID)
	}
	if err := dbcopy.Differ(want.Tables, got.Tables); err != nil {
		return damaged("%s differs from manifest.json: %v", what, err)
	}
	return nil
}
