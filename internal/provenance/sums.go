// Package provenance compares a file with what its publisher says about it.
package provenance

import (
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// MaxSums is how many bytes a list of digests may have.
const MaxSums = 1 << 20

var (
	// gnuLine is "DIGEST  NAME" or "DIGEST *NAME", as sha256sum writes it.
	gnuLine = regexp.MustCompile(`^([0-9A-Fa-f]{32,128}) [ *](.+)$`)
	// bsdLine is "SHA256 (NAME) = DIGEST", as sha256sum --tag writes it.
	bsdLine = regexp.MustCompile(`^(?:SHA256|SHA512|MD5) \((.+)\) = ([0-9A-Fa-f]{32,128})$`)
	// sha512Form is a SHA-512 in lower-case hex digits.
	sha512Form = regexp.MustCompile(`^[0-9a-f]{128}$`)
)

// IsSHA512 reports whether s is a SHA-512 in 128 lower-case hex digits.
func IsSHA512(s string) bool { return sha512Form.MatchString(s) }

// FindSum returns the SHA-256 of a file in a list of digests, or its SHA-512 if the list has no other, in lower-case hex
// digits. The file is found by its name, without the folders that the list may have before it. Lines of other forms are
// left out: the list may be part of a signed message. Errors name the list by source, and are inventory.ErrInvalid.
func FindSum(source string, list []byte, file string) (string, error) {
	const remedy = "give the list of the release that the file is of, or the digest itself: --sha256"
	var names []string
	number, last := 0, 0
	sums := map[int]string{} // by their length
	for line := range strings.Lines(string(list)) {
		number++
		name, digest, ok := parseSum(strings.TrimRight(line, "\r\n"))
		if !ok {
			continue
		}
		if names = append(names, name); name != file {
			continue
		}

		if before, ok := sums[len(digest)]; ok && before != digest {
			return "", invalid(source, number, "give the right one: --sha256", "%q is listed twice, with two digests", file)
		}
		sums[len(digest)], last = digest, number
	}

	switch {
	case inventory.IsDigest(sums[sha256.Size*2]):
		return sums[sha256.Size*2], nil
	case IsSHA512(sums[sha512.Size*2]):
		return sums[sha512.Size*2], nil
	case len(sums) > 0:
		return "", invalid(source, last, "give a list of SHA-256 or SHA-512 digests (SHA256SUMS)",
			"the digest of %q has neither 64 nor 128 hex digits", file)
	case len(names) == 0:
		return "", invalid(source, 0, "give a list as sha256sum writes it", "there are no digests in it")
	}
	return "", invalid(source, 0, remedy, "it does not list %q; it lists %s", file, some(names))
}

func invalid(source string, line int, remedy, format string, args ...any) error {
	return inventory.Problems{{File: source, Line: line, What: fmt.Sprintf(format, args...), Remedy: remedy}}
}

// parseSum reads a line of a list.
func parseSum(line string) (name, digest string, ok bool) {
	if m := gnuLine.FindStringSubmatch(line); m != nil {
		return path.Base(m[2]), strings.ToLower(m[1]), true
	}
	if m := bsdLine.FindStringSubmatch(line); m != nil {
		return path.Base(m[1]), strings.ToLower(m[2]), true
	}
	return "", "", false
}

// some names a few files.
func some(names []string) string {
	const most = 5
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
