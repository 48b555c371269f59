package main

import (
	"fmt"
	"io"
	"os"

	"aead.dev/minisign"

	"github.com/ingotmetal/ingot/internal/host/durablefile"
)

// sign writes file.minisig, which "minisign -V" and "ingot image add --signature" verify. key is the file of a minisign key.
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
	defer in.Close() // only read from
	content := minisign.NewReader(in)
	if _, err := io.Copy(io.Discard, content); err != nil {
		return err
	}

	// The trusted comment is signed as well. It has no time of signing, so that the same release has the same signature.
	signature := content.SignWithComments(private, "Ingot "+version, "signature of Ingot "+version)
	return os.WriteFile(file+".minisig", signature, 0o644)
}
