// Package provenance verifies files with the digests and signatures of their publishers.
package provenance

import (
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// MaxSums limits the size of a list of digests in bytes.
const MaxSums = 1 << 20

// sha512Form matches a SHA-512 in lower-case hex digits.
var sha512Form = regexp.MustCompile(`^[0-9a-f]{128}$`)

// IsSHA512 reports whether s is a SHA-512 in 128 lower-case hex digits.
func IsSHA512(s string) bool { return sha512Form.MatchString(s) }

// FindSum returns the SHA-256 of a file in a list of digests, in lower-case hex digits, or its SHA-512 if the list has
// no SHA-256. It compares only the file's name, without the folders that the list may contain. If the list contains no
// names, its digest counts as the digest of the file. Lines in forms that readSums does not know are ignored, because
// the list may be part of a signed message. Errors are inventory.ErrInvalid and contain source, the name of the list.
func FindSum(source string, list []byte, file string) (string, error) {
	const remedy = "give the list of the file's release, or the digest itself: --sha256"
	all, err := readSums(list)
	if err != nil {
		return "", invalid(source, 0, "save it as UTF-8", "the list is not text: %v", err)
	}
	named := slices.ContainsFunc(all, func(x sum) bool { return x.name != "" })
	var names []string
	last := 0
	sums := map[int]string{} // digests by their length
	for _, x := range all {
		if x.name == "" && named {
			continue // a digest without a name, next to others with names
		}
		if names = append(names, x.name); x.name != file && x.name != "" {
			continue
		}

		if before, ok := sums[len(x.digest)]; ok && before != x.digest {
			return "", invalid(source, x.line, "give the correct digest: --sha256", "%q is listed twice, with different digests", file)
		}
		sums[len(x.digest)], last = x.digest, x.line
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
		return "", invalid(source, 0, "give a list as sha256sum writes it", "the list contains no digests")
	}
	return "", invalid(source, 0, remedy, "the list does not contain %q; it contains %s", file, some(names))
}

func invalid(source string, line int, remedy, format string, args ...any) error {
	return inventory.Problems{{File: source, Line: line, What: fmt.Sprintf(format, args...), Remedy: remedy}}
}

// some returns a text with at most five of the names and the number of further ones.
func some(names []string) string {
	const most = 5
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
