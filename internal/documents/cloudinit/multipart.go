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

// maxUnpacked limits what is made of compressed user-data, in bytes.
const maxUnpacked = 8 << 20

// unpack returns doc as cloud-init looks at it: gzip (RFC 1952) is decompressed. What cannot be, or becomes larger
// than maxUnpacked, stays as it is.
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

// unknownType is the content type of what cloud-init does not take.
const unknownType = "text/plain"

// contentTypes are the kinds of cloud-init's documents by how they begin, longer ones first
// (INCLUSION_TYPES_MAP in cloudinit/handlers).
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

// contentType returns the kind of a document as cloud-init's type_from_starts_with does: white space before the first
// word and capital letters do not matter.
func contentType(doc []byte) string {
	text := bytes.TrimLeftFunc(doc, isSpace)
	start := strings.ToLower(string(text[:min(len(text), 64)]))
	for _, k := range contentTypes {
		if !strings.HasPrefix(start, k[0]) {
			continue
		}
		indented := len(text) < len(doc) && doc[len(doc)-len(text)-1] != '\n'
		if strings.HasPrefix(k[0], "#include") && indented {
			return unknownType // cloud-init takes the word itself for a URL, and gives up altogether
		}
		return k[1]
	}
	return unknownType
}

// isSpace reports what Python's str.lstrip removes.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

var (
	mimeHeader = regexp.MustCompile(`^[!-9;-~]+:`)
	mimeKinds  = regexp.MustCompile(`^(?i:content-type|mime-version):`)
)

// isMIME reports whether cloud-init reads doc as a MIME message, and not as one document: its first 4096 bytes contain
// a MIME-Version. The header of the message must say what the message is.
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

// boundary cannot occur in a part: parts are encoded in base64, which has no
// hyphen, and a nested multipart that we made is split first.
const boundary = "==ingot-part=="

// multipart joins documents into one that cloud-init reads in their order. It unpacks what is compressed: cloud-init
// looks for a MIME message only in what is compressed as a whole, and garbles letters beyond ASCII in a compressed part.
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
		if isMIME(d) { // its own header becomes the part's
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

// parts returns the parts of a document that multipart made.
func parts(d []byte) ([]byte, bool) {
	head, body, ok := bytes.Cut(d, []byte("\n\n"))
	if !ok || !bytes.Contains(head, []byte("boundary=\""+boundary+"\"")) {
		return nil, false
	}
	return bytes.CutSuffix(body, []byte("--"+boundary+"--\n"))
}
