// Package provenance compares a file with what its publisher says about it.
package provenance

import (
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
)

// FindSum returns the SHA-256 of a file in a list of digests, in lower-case hex digits. The file is found by its name,
// without the folders that the list may have before it. Lines of other forms are left out: the list may be part of a
// signed message. Errors name the list by source, and are inventory.ErrInvalid.
func FindSum(source string, list []byte, file string) (sum string, err error) {
	const remedy = "give the list of the release that the file is of, or the digest itself: --sha256"
	var names []string
	number := 0
	for line := range strings.Lines(string(list)) {
		number++
		name, digest, ok := parseSum(strings.TrimRight(line, "\r\n"))
		if !ok {
			continue
		}
		if names = append(names, name); name != file {
			continue
		}

		switch {
		case !inventory.IsDigest(digest):
			return "", invalid(source, number, "give a list of SHA-256 digests (SHA256SUMS)",
				"the digest of %q has %d hex digits, and SHA-256 has 64", file, len(digest))
		case sum != "" && sum != digest:
			return "", invalid(source, number, "give the right one: --sha256", "%q is listed twice, with two digests", file)
		}
		sum = digest
	}

	switch {
	case sum != "":
		return sum, nil
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
