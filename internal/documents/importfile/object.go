package importfile

import (
	"cmp"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
)

// An object is a document with the identity that others refer to it by.
type object struct {
	doc       strictyaml.Document
	kind      string
	namespace string
	name      string
}

// String returns the kind and name for messages.
func (o object) String() string { return o.kind + " " + clip(o.name) }

// key is how bmcs finds the object.
func (o object) key() string { return o.namespace + "/" + o.name }

// A reference names an object; without a namespace, one in the namespace of the document.
type reference struct {
	APIGroup  string `json:"apiGroup"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

func (x reference) key(from object) string { return cmp.Or(x.Namespace, from.namespace) + "/" + x.Name }

// find returns the key in objects of what x refers to: an object of that namespace, or one whose
// document names none and so goes into any.
func find[T any](objects map[string]T, x reference, from object) (string, bool) {
	for _, key := range []string{x.key(from), "/" + x.Name} {
		if _, ok := objects[key]; ok {
			return key, true
		}
	}
	return "", false
}

// objectMeta is a Kubernetes metadata; what only Kubernetes writes is any.
type objectMeta struct {
	Name              string            `json:"name"`
	GenerateName      any               `json:"generateName"`
	Namespace         string            `json:"namespace"`
	Labels            map[string]string `json:"labels"`
	Annotations       map[string]string `json:"annotations"`
	CreationTimestamp any               `json:"creationTimestamp"`
	DeletionTimestamp any               `json:"deletionTimestamp"`
	Finalizers        any               `json:"finalizers"`
	Generation        any               `json:"generation"`
	ManagedFields     any               `json:"managedFields"`
	OwnerReferences   any               `json:"ownerReferences"`
	ResourceVersion   any               `json:"resourceVersion"`
	SelfLink          any               `json:"selfLink"`
	UID               any               `json:"uid"`
}

// typeMeta begins each document.
type typeMeta struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Metadata   objectMeta `json:"metadata"`
	Status     any        `json:"status"`
}

// place returns where a document starts.
func (o object) place() Place { return Place{o.doc.File, o.doc.FirstLine()} }

// shortName returns a name without its domain, and whether it had one: machines have names
// of one label.
func shortName(name string) (string, bool) {
	short, _, cut := strings.Cut(name, ".")
	return short, cut
}

// quote writes a word for a shell.
func quote(word string) string {
	if word != "" && !strings.ContainsFunc(word, func(c rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-", c)
	}) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// command joins the words of a command for a shell.
func command(words ...string) string {
	words = slices.Clone(words)
	for i := range words {
		words[i] = quote(words[i])
	}
	return strings.Join(words, " ")
}

// clip shortens text of a file for a message.
func clip(s string) string { return plaintext.Clip(s, 60) }

// byID is the folder of the links that name disks by their identity.
const byID = "/dev/disk/by-id/"
