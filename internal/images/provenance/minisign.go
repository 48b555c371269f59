package provenance

import (
	"bytes"
	"io"

	"aead.dev/minisign"

	"github.com/ingotmetal/ingot/inventory"
)

// VerifyMinisign reads content to its end and returns nil if signature is a valid signature of the content by key.
// Otherwise the error is inventory.ErrInvalid. signature is the text of a .minisig file; key is the text of a .pub
// file, or its last line.
func VerifyMinisign(content io.Reader, signature, key []byte) error {
	var public minisign.PublicKey
	if err := public.UnmarshalText(bytes.TrimSpace(key)); err != nil {
		return inventory.Invalid("public key", "give the publisher's minisign.pub, or the line that begins with RW", "%v", err)
	}
	var made minisign.Signature
	if err := made.UnmarshalText(signature); err != nil {
		return inventory.Invalid("signature", "give the .minisig file", "%v", err)
	}
	switch {
	case made.KeyID != public.ID():
		return inventory.Invalid("signature", "give the key that the publisher names for this release",
			"the signature was made with key %016X, but the given key is %016X", made.KeyID, public.ID())
	case made.Algorithm != minisign.HashEdDSA:
		return inventory.Invalid("signature", "use a signature made with minisign 0.10 or later, or with -H",
			"the signature has the legacy form, which needs the whole file in memory")
	}

	in := minisign.NewReader(content)
	if _, err := io.Copy(io.Discard, in); err != nil {
		return err
	}
	if !in.Verify(public, signature) {
		return inventory.Invalid("signature", "get the file and the signature again; nothing was stored",
			"the signature does not match the file: one of them was changed")
	}
	return nil
}
