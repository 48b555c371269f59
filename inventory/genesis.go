package inventory

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io/fs"
	"maps"
	"slices"
	"time"
	"unicode/utf8"
)

// A GenesisBundle is a lab file together with the files that it names. The inventory stores the files encrypted, because they contain
// passwords and keys.
type GenesisBundle struct {
	Name string `json:"name"`
	File string `json:"file"` // name of the lab file in Files
	// Files are the contents of the files, by the names that the lab file uses.
	Files map[string]Secret `json:"files,omitempty"`
	// SHA256 is the result of Digest; the store sets it.
	SHA256 string `json:"sha256"`
	// Replace: if a machine of the lab file differs from the stored machine, it replaces the stored machine.
	Replace bool      `json:"replace,omitempty"`
	Created time.Time `json:"created,omitzero"`
	Updated time.Time `json:"updated,omitzero"`
}

// Read returns the contents of the file called name, or fs.ErrNotExist if there is none.
func (b GenesisBundle) Read(name string) ([]byte, error) {
	s, ok := b.Files[name]
	if !ok {
		return nil, &fs.PathError{Op: "reading", Path: name, Err: fs.ErrNotExist}
	}
	return []byte(s.Reveal()), nil
}

// Digest returns the SHA-256, in hex, over the names and contents of all files.
func (b GenesisBundle) Digest() string {
	h := sha256.New()
	put := func(s string) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		_, _ = h.Write(n[:]) // a hash never returns an error
		_, _ = h.Write([]byte(s))
	}

	put(b.File)
	for _, n := range slices.Sorted(maps.Keys(b.Files)) {
		put(n)
		put(b.Files[n].Reveal())
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Limits of a bundle.
const (
	maxBundleFiles = 100
	maxBundleSize  = 768 << 10 // bytes
)

// Check returns the problems of the bundle that do not depend on the contents of the lab file. Package genesis finds the others.
func (b GenesisBundle) Check() error {
	var ps Problems
	if !label.MatchString(b.Name) {
		ps.Add("name", "use up to 63 of a–z, 0–9 and -", "invalid name %q", b.Name)
	}
	if _, ok := b.Files[b.File]; !ok {
		ps.Add("files", "send the lab file under this name, or correct the field file", "%q is not among the files", b.File)
	}
	if len(b.Files) > maxBundleFiles {
		ps.Add("files", "name fewer files", "%d files; at most %d are allowed", len(b.Files), maxBundleFiles)
	}

	size := 0
	for name, s := range b.Files {
		size += len(s.Reveal())
		if !utf8.ValidString(s.Reveal()) || !utf8.ValidString(name) {
			ps.Add("files", "save it as UTF-8", "%q is not text", name)
		}
	}
	if size > maxBundleSize {
		ps.Add("files", "leave out images, and store them with: ingot image add",
			"the files have %d bytes; at most %d are allowed", size, maxBundleSize)
	}
	return ps.Err()
}
