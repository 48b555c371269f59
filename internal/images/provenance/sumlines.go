package provenance

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"regexp"
	"strings"
	"unicode/utf16"
)

// A sum is a digest in a list, with the name of its file.
type sum struct {
	name   string // name of the file, without folders; "" if the line has none
	digest string // lower-case hex digits
	line   int    // from 1
}

const (
	hexDigest = `([0-9A-Fa-f]{32,128})`
	// algorithm matches the names of the algorithms that this package reads, and MD5 and SHA-1 for a better error
	// message. Digests of other algorithms can have as many digits, so lines with other names are ignored.
	algorithm = `(?:SHA(?:2-)?(?:256|512)|SHA1|MD5)`
)

var (
	// gnuLine is "DIGEST  NAME" or "DIGEST *NAME", as sha256sum writes it. A backslash at the beginning of the line
	// means that the name is escaped (GNU Coreutils, "cksum general options"). Other programs write one space or a
	// tab, and shasum writes ? or ^ before the name.
	gnuLine = regexp.MustCompile(`^(\\?)(?:sha(?:256|512):)?` + hexDigest + `[ \t]+[*?^]?(.+)$`)
	// bsdLine is "SHA256 (NAME) = DIGEST", as sha256sum --tag writes it, or "SHA2-256(NAME)= DIGEST", as openssl dgst
	// writes it.
	bsdLine = regexp.MustCompile(`^(\\?)` + algorithm + ` ?\((.+)\) ?= ` + hexDigest + `$`)
	// base64Line is bsdLine with a digest in base64, as cksum --base64 writes it.
	base64Line = regexp.MustCompile(`^(\\?)SHA(?:256|512) \((.+)\) = ([0-9A-Za-z+/]{43}=|[0-9A-Za-z+/]{86}==)$`)
	// tableLine is a row of the table that PowerShell's Get-FileHash prints.
	tableLine = regexp.MustCompile(`^` + algorithm + `[ \t]+` + hexDigest + `[ \t]+(.+)$`)
	// hashField and pathField are the two lines that Get-FileHash | Format-List prints for a file.
	hashField = regexp.MustCompile(`^Hash +: ` + hexDigest + `$`)
	pathField = regexp.MustCompile(`^Path +: (.+)$`)
	// certutilLine is the line that certutil -hashfile prints before the digest. It contains the name of the file.
	certutilLine = regexp.MustCompile(`^` + algorithm + ` hash of (?:file )?(.+):$`)
	// aloneLine is a line with a digest and no name.
	aloneLine = regexp.MustCompile(`^(?:(?i:sha-?(?:256|512))[:=] ?)?` + hexDigest + `$`)
	// certutilHex is a digest in pairs of hex digits, as older versions of certutil print it.
	certutilHex = regexp.MustCompile(`^(?:[0-9a-f]{2} ){31,63}[0-9a-f]{2}$`)

	unescape = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\r`, "\r")
)

// readSums returns the digests of a list.
func readSums(list []byte) ([]sum, error) {
	text, err := decodeText(list)
	if err != nil {
		return nil, err
	}
	var out []sum
	var name, hash string // from the line before, for certutil and Format-List, which write the name and the digest on separate lines
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if m := certutilLine.FindStringSubmatch(line); m != nil {
			name = baseName(m[1])
			continue
		}
		if m := hashField.FindStringSubmatch(line); m != nil {
			hash = m[1]
			continue
		}
		x, ok := parseSum(line)
		if m := pathField.FindStringSubmatch(line); m != nil && hash != "" {
			x, ok = sum{name: baseName(m[1]), digest: strings.ToLower(hash)}, true
		}
		if ok && x.name == "" {
			x.name = name
		}
		name, hash = "", ""
		if x.line = number; ok {
			out = append(out, x)
		}
	}
	return out, nil
}

// parseSum reads one line of a list; ok is false for a line without a digest. If the name in the line is "-", the
// program has read its standard input, so name is "" then.
func parseSum(line string) (x sum, ok bool) {
	var escaped string
	if m := gnuLine.FindStringSubmatch(line); m != nil {
		escaped, x.digest, x.name = m[1], m[2], m[3]
	} else if m := bsdLine.FindStringSubmatch(line); m != nil {
		escaped, x.name, x.digest = m[1], m[2], m[3]
	} else if m := base64Line.FindStringSubmatch(line); m != nil {
		b, err := base64.StdEncoding.DecodeString(m[3])
		if err != nil {
			return x, false
		}
		escaped, x.name, x.digest = m[1], m[2], hex.EncodeToString(b)
	} else if m := tableLine.FindStringSubmatch(line); m != nil {
		x.digest, x.name = m[1], m[2]
	} else if m := aloneLine.FindStringSubmatch(line); m != nil {
		x.digest = m[1]
	} else if certutilHex.MatchString(line) {
		x.digest = strings.ReplaceAll(line, " ", "")
	} else {
		return x, false
	}
	if escaped != "" {
		x.name = unescape.Replace(x.name)
	}
	if x.name = baseName(x.name); x.name == "-" || x.name == "stdin" {
		x.name = ""
	}
	x.digest = strings.ToLower(x.digest)
	return x, true
}

// baseName returns the last part of a Unix or Windows path.
func baseName(path string) string { return path[strings.LastIndexAny(path, `/\`)+1:] }

// decodeText returns b as UTF-8 without a byte order mark. If the mark is one of UTF-16, as PowerShell writes it,
// the text is converted.
func decodeText(b []byte) (string, error) {
	var order binary.ByteOrder
	switch {
	case bytes.HasPrefix(b, []byte{0xff, 0xfe}):
		order = binary.LittleEndian
	case bytes.HasPrefix(b, []byte{0xfe, 0xff}):
		order = binary.BigEndian
	default:
		return strings.TrimPrefix(string(b), "\ufeff"), nil
	}
	if len(b)%2 != 0 {
		return "", errors.New("it has the byte order mark of UTF-16 and an odd number of bytes")
	}
	units := make([]uint16, len(b)/2-1)
	for i := range units {
		units[i] = order.Uint16(b[2+2*i:])
	}
	return string(utf16.Decode(units)), nil
}
