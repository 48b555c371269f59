package cloudinit

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"io"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxUnpacked limits the size of user-data after decompression, in bytes.
const maxUnpacked = 8 << 20

// unpack decompresses doc if it is gzip (RFC 1952), as cloud-init does. It returns doc unchanged if that fails or if the
// result is larger than maxUnpacked.
func unpack(doc []byte) []byte {
	z, err := gzip.NewReader(bytes.NewReader(doc))
	if err != nil {
		return doc
	}
	b, err := io.ReadAll(io.LimitReader(z, maxUnpacked+1))
	if err != nil || len(b) > maxUnpacked {
		return doc
	}
	return b
}

// unknownType is the content type of a document that cloud-init does not accept.
const unknownType = "text/plain"

// contentTypes maps the first characters of a cloud-init document to its content type (INCLUSION_TYPES_MAP in
// cloudinit/handlers). The first match counts, so an entry comes before all shorter entries with which it begins.
var contentTypes = [][2]string{
	{"#cloud-config-archive", "text/cloud-config-archive"},
	{"#cloud-config-jsonp", "text/cloud-config-jsonp"},
	{"#cloud-config", "text/cloud-config"},
	{"#cloud-boothook", "text/cloud-boothook"},
	{"#include-once", "text/x-include-once-url"},
	{"#include", "text/x-include-url"},
	{"#part-handler", "text/part-handler"},
	{"## template: jinja", "text/jinja2"},
	{"#!", "text/x-shellscript"},
}

// contentType returns the content type of a document, as cloud-init's type_from_starts_with does: it ignores white space
// before the first word, and case. Without a match it returns unknownType.
func contentType(doc []byte) string {
	text := bytes.TrimLeftFunc(doc, isSpace)
	start := strings.ToLower(string(text[:min(len(text), 64)]))
	for _, k := range contentTypes {
		if !strings.HasPrefix(start, k[0]) {
			continue
		}
		indented := len(text) < len(doc) && doc[len(doc)-len(text)-1] != '\n'
		if strings.HasPrefix(k[0], "#include") && indented {
			return unknownType // cloud-init would read "#include" as a URL, and then ignore the whole document
		}
		return k[1]
	}
	return unknownType
}

// isSpace reports whether Python's str.lstrip removes r.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

var (
	mimeHeader = regexp.MustCompile(`^[!-9;-~]+:`)
	mimeKinds  = regexp.MustCompile(`^(?i:content-type|mime-version):`)
)

// isMIME reports whether cloud-init reads doc as a MIME message. Two conditions must hold: the first 4096 bytes contain
// "mime-version:", and the message header has a Content-Type or a MIME-Version.
func isMIME(doc []byte) bool {
	if !bytes.Contains(bytes.ToLower(doc[:min(len(doc), 4096)]), []byte("mime-version:")) || !utf8.Valid(doc) {
		return false
	}
	for line := range bytes.Lines(doc) {
		folded := line[0] == ' ' || line[0] == '\t'
		switch {
		case mimeKinds.Match(line):
			return true
		case !folded && !mimeHeader.Match(line) && !bytes.HasPrefix(line, []byte("From ")):
			return false
		}
	}
	return false
}

// boundary cannot occur in a part. Parts are encoded in base64, which has no hyphen. A document that multipart itself
// has made does not become a part: multipart adds each of its parts.
const boundary = "==ingot-part=="

// multipart joins docs into one MIME message, whose parts cloud-init reads in the order of docs. multipart decompresses each
// document, because cloud-init does not look for a MIME message in a compressed part, and garbles its characters outside ASCII.
func multipart(docs ...[]byte) []byte {
	var b bytes.Buffer
	b.WriteString("Content-Type: multipart/mixed; boundary=\"" + boundary + "\"\nMIME-Version: 1.0\n\n")
	for _, d := range docs {
		d = unpack(d)
		if inner, ok := parts(d); ok {
			b.Write(inner)
			continue
		}
		b.WriteString("--" + boundary + "\n")
		if isMIME(d) { // the header of d becomes the header of the part
			b.Write(d)
		} else {
			b.WriteString("Content-Type: " + contentType(d) + "; charset=\"utf-8\"\nMIME-Version: 1.0\nContent-Transfer-Encoding: base64\n\n")
			enc := base64.StdEncoding.EncodeToString(d)
			for len(enc) > 76 {
				b.WriteString(enc[:76] + "\n")
				enc = enc[76:]
			}
			b.WriteString(enc)
		}
		b.WriteString("\n")
	}
	b.WriteString("--" + boundary + "--\n")
	return b.Bytes()
}

// parts returns the parts of a document that multipart has made, still encoded, without the header and the end of the
// document. For any other document it returns false.
func parts(d []byte) ([]byte, bool) {
	head, body, ok := bytes.Cut(d, []byte("\n\n"))
	if !ok || !bytes.Contains(head, []byte("boundary=\""+boundary+"\"")) {
		return nil, false
	}
	return bytes.CutSuffix(body, []byte("--"+boundary+"--\n"))
}
