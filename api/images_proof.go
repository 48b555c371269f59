package api

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/ingotmetal/ingot/internal/images/diskimage"
	"github.com/ingotmetal/ingot/internal/images/provenance"
	"github.com/ingotmetal/ingot/inventory"
)

// A proof holds what a publisher gives, in addition to the SHA-256, for verifying a file. Each field may be empty.
type proof struct {
	SHA512    string `json:"sha512"`
	Signature string `json:"signature"` // the text of a .minisig file
	PublicKey string `json:"publicKey"` // the minisign key that made the signature
}

// check returns the problems of the fields. It also converts p.SHA512 to lower-case hex without a prefix. It does not
// read the file.
func (p *proof) check() (problems inventory.Problems) {
	p.SHA512 = strings.ToLower(strings.TrimPrefix(p.SHA512, "sha512:"))
	if p.SHA512 != "" && !provenance.IsSHA512(p.SHA512) {
		problems.Add("sha512", "128 hex digits", "invalid SHA-512 %q", p.SHA512)
	}
	if (p.Signature == "") != (p.PublicKey == "") {
		problems.Add("signature", "give both", "signature and publicKey must be given together")
	}
	return problems
}

func (p proof) isEmpty() bool { return p == proof{} }

// verify reads a file of dir and checks it against p. If the file does not match, the error is inventory.ErrInvalid. An
// empty proof matches every file.
func (p proof) verify(ctx context.Context, dir *os.Root, file string) error {
	if p.isEmpty() {
		return nil
	}
	f, err := dir.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return p.verifyContent(ctx, f)
}

func (p proof) verifyContent(ctx context.Context, f io.Reader) (err error) {
	sum := sha512.New()
	content := io.TeeReader(diskimage.EndWith(ctx, f), sum)
	if p.Signature == "" {
		_, err = io.Copy(io.Discard, content)
	} else {
		err = provenance.VerifyMinisign(content, []byte(p.Signature), []byte(p.PublicKey))
	}
	if err != nil {
		return fmt.Errorf("verifying the upload: %w", err)
	}

	if got := hex.EncodeToString(sum.Sum(nil)); p.SHA512 != "" && p.SHA512 != got {
		return inventory.Invalid("sha512", "correct the declared digest, or get the file again",
			"the file's SHA-512 is %s, but %s was declared; nothing was kept", got, p.SHA512)
	}
	return nil
}
