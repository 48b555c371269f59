package main

import (
	"fmt"
	"io"
	"os"

	"aead.dev/minisign"

	"github.com/ingotmetal/ingot/internal/host/durablefile"
)

// sign signs a file and writes the signature next to it, to FILE.minisig. key is the path of the minisign key. "minisign
// -V" and "ingot image add --signature" can verify the signature. password decrypts an encrypted key.
func sign(version, key, password, file string) error {
	text, err := durablefile.ReadPrivate(key)
	if err != nil {
		return fmt.Errorf("reading the signing key: %w", err)
	}

	var private minisign.PrivateKey
	if minisign.IsEncrypted(text) {
		private, err = minisign.DecryptKey(password, text)
	} else {
		err = private.UnmarshalText(text)
	}
	if err != nil {
		return fmt.Errorf("reading the signing key %q: %w", key, err)
	}

	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close() // ignore the error: the file was only read
	content := minisign.NewReader(in)
	if _, err := io.Copy(io.Discard, content); err != nil {
		return err
	}

	// The signature covers the trusted comment, too. Put no time into it, so that the same release has the same signature.
	signature := content.SignWithComments(private, "Ingot "+version, "signature of Ingot "+version)
	return os.WriteFile(file+".minisig", signature, 0o644)
}
