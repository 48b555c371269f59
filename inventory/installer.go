package inventory

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/ingotmetal/ingot/action"
)

// An Installer is a system that installs a machine in place of the agent: the kernel, initramfs files and parameters with which the machine
// boots over the network, and how the run detects that the installer has ended.
type Installer struct {
	// Kernel and Initrds are names of images, in the order in which they are loaded.
	Kernel  string   `json:"kernel"`
	Initrds []string `json:"initrds"`
	// Payload is the image that is fetched last from the URL of the boot. Once it is delivered whole, PXE requests no longer start the
	// installer. It is one of Initrds, or an image that the installer fetches from RefBootURL.
	Payload string `json:"payload"`
	// Parameters are the parameters of the kernel, with unresolved references. initrd= is added to them.
	Parameters []string `json:"parameters,omitempty"`
	// Complete says what shows that the installer has ended: CompleteWebhook, CompletePhoneHome or CompleteTalos.
	Complete string `json:"complete"`
	// Timeout is how long the installer may take after the delivery of Payload.
	Timeout action.Seconds `json:"timeout"`
	// Digests are the SHA-256 of the installer's images at the time of the plan, in hex, by name. The boot gets only files with these digests.
	// Plans of older servers have no digests.
	Digests map[string]string `json:"digests,omitempty"`
}

// Values of Installer.Complete: what shows that the installer has ended.
const (
	CompleteWebhook   = "webhook"     // the installer calls the run's webhook
	CompletePhoneHome = "phone-home"  // the installed system phones home with the run's nonce
	CompleteTalos     = DocumentTalos // the Talos API shows the certificate authority of the run's document
)

// Completions lists the values of Installer.Complete.
func Completions() []string { return []string{CompleteWebhook, CompletePhoneHome, CompleteTalos} }

// ProvenByDocument reports whether complete is a kind of document. If so, the installed system itself proves that the installer has ended:
// it shows that it runs with its document.
func ProvenByDocument(complete string) bool { return slices.Contains(DocumentKinds(), complete) }

// Images returns the names of the images that are served under the URL of the installer's boot.
func (i Installer) Images() []string {
	return append(append([]string{i.Kernel}, i.Initrds...), i.Payload)
}

// Kinds of documents. Package systems supports each of them except text.
const (
	DocumentHarvester = "harvester"
	DocumentTalos     = "talos"
	DocumentText      = "text" // only size and encoding are checked
	DocumentVyOS      = "vyos"
)

// DocumentKinds lists the kinds of documents, sorted.
func DocumentKinds() []string {
	return []string{DocumentHarvester, DocumentTalos, DocumentText, DocumentVyOS}
}

// A Document is a file that an installer or the installed system reads. It is served below the run's capability path while the secrets
// window of the run's grant is open.
type Document struct {
	Name string `json:"name"` // last element of the document's URL
	Kind string `json:"kind"`
	// Contents are secret: they are stored encrypted, and no input, log or history contains them. Their references are resolved only when the
	// document is served.
	Contents string `json:"contents"`
}

// References are placeholders in plans for values that exist only while a run holds its machine, and that must not be stored. Resolve
// replaces them.
const (
	RefPhoneHomeURL = "ingot@@phone-home-url@@" // URL to which the installed system reports; it contains the nonce
	RefMetadataURL  = "ingot@@metadata-url@@"   // URL of the machine's NoCloud seed, with / at its end
	RefNonce        = "ingot@@nonce@@"          // value by which the installed system proves its origin
	RefUserData     = "ingot@@user-data@@"      // the machine's user-data
	RefVendorData   = "ingot@@vendor-data@@"    // the machine's vendor-data
	RefDocumentsURL = "ingot@@documents-url@@"  // URL below which the run's documents are served, with / at its end
	RefWebhookURL   = "ingot@@webhook-url@@"    // URL to which an installer reports, with / at its end: add SUCCEEDED or FAILED
	RefBootURL      = "ingot@@boot-url@@"       // URL below which the images of this boot are served, with / at its end
)

var reference = regexp.MustCompile(`ingot@@[a-z][a-z-]*@@`)

// Resolve returns text with every reference replaced by the result of lookup, which is called once for each different reference. If lookup
// fails, Resolve returns the first error together with the reference, and never a value.
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

// Refers reports whether text contains the reference ref.
func Refers(text, ref string) bool {
	found := false
	_, _ = Resolve(text, func(r string) (string, error) { // this lookup never fails
		found = found || r == ref
		return "", nil
	})
	return found
}
