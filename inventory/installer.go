package inventory

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/ingotmetal/ingot/action"
)

// An Installer is a program other than the agent's system that installs a
// machine: the kernel, initramfs files and parameters that the machine boots over
// the network, and how the run detects its completion.
type Installer struct {
	// Kernel and Initrds are images of the inventory, by name, in the order in
	// which they are loaded.
	Kernel  string   `json:"kernel"`
	Initrds []string `json:"initrds"`
	// Payload is the image whose complete delivery spends the boot: the last one
	// fetched from the boot's address. It is one of Initrds, or an image that the
	// installer fetches from RefBootURL.
	Payload string `json:"payload"`
	// Parameters of the kernel, references unresolved: initrd= is added.
	Parameters []string `json:"parameters,omitempty"`
	// Complete says what shows completion: one of the constants below.
	Complete string `json:"complete"`
	// Timeout is how long the installer may take from its last payload on.
	Timeout action.Seconds `json:"timeout"`
	// Digests are the SHA-256 that its images had when the plan was made, by
	// name, in hex: nothing else is served under these names. Plans of older
	// servers have none.
	Digests map[string]string `json:"digests,omitempty"`
}

// What shows that an installer has ended: Installer.Complete.
const (
	CompleteWebhook   = "webhook"     // it calls the run's webhook
	CompletePhoneHome = "phone-home"  // the installed system calls with the run's nonce
	CompleteTalos     = DocumentTalos // the Talos API shows the certificate authority of the run's document
)

// Completions lists what an Installer may be completed by.
func Completions() []string { return []string{CompleteWebhook, CompletePhoneHome, CompleteTalos} }

// ProvenByDocument reports whether the installed system itself proves that the installer
// has ended: then complete is the kind of the document that the system runs with.
func ProvenByDocument(complete string) bool { return slices.Contains(DocumentKinds(), complete) }

// Images returns what is served under the address of an installer's boot.
func (i Installer) Images() []string {
	return append(append([]string{i.Kernel}, i.Initrds...), i.Payload)
}

// Kinds of documents. Package systems has a row for each but text.
const (
	DocumentHarvester = "harvester"
	DocumentTalos     = "talos"
	DocumentText      = "text" // only size and encoding are checked
	DocumentVyOS      = "vyos"
)

// DocumentKinds lists them.
func DocumentKinds() []string {
	return []string{DocumentHarvester, DocumentTalos, DocumentText, DocumentVyOS}
}

// A Document is what an installer or the installed system reads. It is served
// below the run's capability path while the secrets window is open.
type Document struct {
	Name string `json:"name"` // last element of its URL
	Kind string `json:"kind"`
	// Contents are secret: sealed in the store, never in an input, a log or a
	// history. Their references are resolved only when they are served.
	Contents string `json:"contents"`
}

// References are placeholders for values that exist only once a run holds its
// machine, and must not be stored earlier. Plans hold them; Resolve replaces them.
const (
	RefPhoneHomeURL = "ingot@@phone-home-url@@" // where the installed system reports, nonce included
	RefMetadataURL  = "ingot@@metadata-url@@"   // NoCloud seed of the machine, with / at its end
	RefNonce        = "ingot@@nonce@@"          // what the installed system proves itself with
	RefUserData     = "ingot@@user-data@@"      // the machine's user-data
	RefVendorData   = "ingot@@vendor-data@@"    // the machine's vendor-data
	RefDocumentsURL = "ingot@@documents-url@@"  // where the run's documents lie, with / at its end
	RefWebhookURL   = "ingot@@webhook-url@@"    // where an installer reports, with / at its end: add SUCCEEDED or FAILED
	RefBootURL      = "ingot@@boot-url@@"       // where the images of this boot lie, with / at its end
)

var reference = regexp.MustCompile(`ingot@@[a-z][a-z-]*@@`)

// Resolve returns text with every reference replaced by the result of lookup, which
// is called once for each. The first error of lookup is returned with the reference,
// never with a value.
func Resolve(text string, lookup func(ref string) (string, error)) (string, error) {
	known := map[string]string{}
	var failed error
	out := reference.ReplaceAllStringFunc(text, func(ref string) string {
		v, ok := known[ref]
		if ok || failed != nil {
			return v
		}

		v, err := lookup(ref)
		if err != nil {
			failed = fmt.Errorf("resolving %q: %w", ref, err)
			return ""
		}
		known[ref] = v
		return v
	})
	if failed != nil {
		return "", failed
	}
	return out, nil
}

// Refers reports whether text carries the reference ref.
func Refers(text, ref string) bool {
	found := false
	_, _ = Resolve(text, func(r string) (string, error) { // this lookup has no error
		found = found || r == ref
		return "", nil
	})
	return found
}
