package importfile

import (
	"cmp"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
)

// An object is a Kubernetes document with kind, namespace and name, by which other documents refer to it.
type object struct {
	doc       strictyaml.Document
	kind      string
	namespace string
	name      string
}

// String returns kind and name, for messages.
func (o object) String() string { return o.kind + " " + clip(o.name) }

// key returns "namespace/name", the key of the object in the maps of bmcs.
func (o object) key() string { return o.namespace + "/" + o.name }

// A reference names an object. Without Namespace, the object is in the namespace of the document that holds the reference.
type reference struct {
	APIGroup  string `json:"apiGroup"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

func (x reference) key(from object) string { return cmp.Or(x.Namespace, from.namespace) + "/" + x.Name }

// find returns the key, in the map objects, of the object that the reference x names. from is the object that holds x.
// An object without a namespace matches a reference from any namespace.
func find[T any](objects map[string]T, x reference, from object) (string, bool) {
	for _, key := range []string{x.key(from), "/" + x.Name} {
		if _, ok := objects[key]; ok {
			return key, true
		}
	}
	return "", false
}

// objectMeta is the metadata of a Kubernetes object that is read; see ofKubernetes for the rest.
type objectMeta struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels"`
}

// typeMeta holds the keys of every Kubernetes document that are read.
type typeMeta struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Metadata   objectMeta `json:"metadata"`
}

// place returns the first line of the object's document.
func (o object) place() Place { return Place{o.doc.File, cmp.Or(o.doc.FirstLine(), 1)} }

// shortName returns the first label of name, and whether it has cut off a domain. The name of a machine must be one label.
func shortName(name string) (string, bool) {
	short, _, cut := strings.Cut(name, ".")
	return short, cut
}

// quote returns word quoted for a POSIX shell, if it needs quotes.
func quote(word string) string {
	if word != "" && !strings.ContainsFunc(word, func(c rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-", c)
	}) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// command joins words to a command line for a POSIX shell.
func command(words ...string) string {
	words = slices.Clone(words)
	for i := range words {
		words[i] = quote(words[i])
	}
	return strings.Join(words, " ")
}

// clip cuts s to 60 bytes, for a message.
func clip(s string) string { return plaintext.Clip(s, 60) }

// byID is the directory of udev's links to disks, named by model, serial number or WWN.
const byID = "/dev/disk/by-id/"
