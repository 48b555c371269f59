package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"time"

	"github.com/ingotmetal/ingot/internal/images/provenance"
)

// proof holds the sources with which the origin of an image file is verified. Each source may be "".
type proof struct {
	sums      string // list of digests that includes the image: a file or a URL
	signature string // minisign signature of the list or, without a list, of the image: a file or a URL
	key       string // public key of the signature: its text or a file
}

// check returns an error for a combination of sources that is contradictory, incomplete or insecure. declared is the
// digest that the operator gave, or "".
func (p proof) check(declared string) error {
	switch {
	case p.sums != "" && declared != "":
		return UsageError("give either --sums or a digest (--sha256, --sha512), not both")
	case (p.signature == "") != (p.key == ""):
		return UsageError("--signature and --public-key belong together: give both")
	}
	if u, err := url.Parse(p.sums); err == nil && u.Scheme == "http" && p.signature == "" {
		return UsageError("--sums over http can be changed on the way: use https, or give --signature and --public-key")
	}
	return nil
}

// declare sets the digest of an image in u. from is the image's file or URL. If there is a signature, declare verifies
// it first. But if from is a URL and the signature is of the image itself, declare only sets signature and key in u,
// and the server verifies the image.
func (p proof) declare(c *Call, from string, u *upload) (err error) {
	if p.signature != "" && p.sums == "" && isURL(from) {
		signature, key, err := p.readSignature(c)
		u.signature, u.publicKey = string(signature), string(key)
		return err
	}

	sum, err := p.digest(c, from)
	switch {
	case err != nil || sum == "":
		return err
	case provenance.IsSHA512(sum):
		u.sha512 = sum
		return nil
	case u.sha256 != "" && u.sha256 != sum:
		return UsageError("%s has the SHA-256 %s, but %s was declared; nothing was sent", from, sum, u.sha256)
	}
	u.sha256 = sum
	return nil
}

// digest returns the SHA-256 or SHA-512 of an image, from the list of digests. Without a list, it returns the SHA-256
// of the signed file. It verifies the signature, if there is one. It returns "" if the proof is empty.
func (p proof) digest(c *Call, from string) (string, error) {
	if p.sums == "" && p.signature == "" {
		return "", nil
	}
	if p.sums == "" {
		return p.verifyFile(c, from)
	}

	list, err := readSmall(c.Context(), p.sums)
	if err != nil {
		return "", err
	}
	if p.signature != "" {
		if err := p.verify(c, bytes.NewReader(list)); err != nil {
			return "", err
		}
		c.Note("the signature of %s is valid", shownSource(p.sums))
	}
	name := path.Base(from)
	if u, err := url.Parse(from); err == nil && isURL(from) {
		name = path.Base(u.Path)
	}
	return provenance.FindSum(shownSource(p.sums), list, name)
}

// verifyFile verifies the signature of a file and returns the SHA-256 of the file. It reads the file only once, so that
// signature and digest are of the same content.
func (p proof) verifyFile(c *Call, file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", UsageError("%v", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}

	shown := newProgress(c, st.Size(), "verified ")
	defer shown.end()
	sum := sha256.New()
	if err := p.verify(c, io.TeeReader(&countingReader{r: f, ctx: c.Context(), at: shown.at}, sum)); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func (p proof) verify(c *Call, content io.Reader) error {
	signature, key, err := p.readSignature(c)
	if err != nil {
		return err
	}
	return provenance.VerifyMinisign(content, signature, key)
}

func (p proof) readSignature(c *Call) (signature, key []byte, err error) {
	if signature, err = readSmall(c.Context(), p.signature); err != nil {
		return nil, nil, err
	}
	key, err = os.ReadFile(p.key)
	if errors.Is(err, fs.ErrNotExist) {
		return signature, []byte(p.key), nil
	}
	if err != nil {
		return nil, nil, UsageError("--public-key: %v", err)
	}
	return signature, key, nil
}

func isURL(from string) bool {
	u, err := url.Parse(from)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https")
}

// shownSource returns a file or URL for messages, without the URL's user, password and query, which may be
// credentials.
func shownSource(from string) string {
	u, err := url.Parse(from)
	if err != nil || !isURL(from) {
		return from
	}
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	return shown.String()
}

// smallFetch is the time-out for fetching a list or a signature.
const smallFetch = time.Minute

// readSmall reads a list or a signature from a file or a URL.
func readSmall(ctx context.Context, from string) ([]byte, error) {
	if !isURL(from) {
		f, err := os.Open(from)
		if err != nil {
			return nil, UsageError("%v", err)
		}
		defer f.Close()
		return readLimited(f, from)
	}

	ctx, cancel := context.WithTimeout(ctx, smallFetch)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, UsageError("invalid address %q", shownSource(from))
	}
	client := http.Client{CheckRedirect: checkRedirect}
	resp, err := client.Do(req)
	if err != nil {
		var dialed *url.Error // the text of a url.Error quotes the whole URL
		if errors.As(err, &dialed) {
			err = dialed.Err
		}
		return nil, fmt.Errorf("fetching %s: %w", shownSource(from), err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetching %s: the answer is %s", shownSource(from), resp.Status)
	}
	return readLimited(resp.Body, shownSource(from))
}

// checkRedirect refuses a redirect from https to http, and more than five redirects. It removes the Referer, so that the next
// server does not get the previous URL.
func checkRedirect(r *http.Request, via []*http.Request) error {
	if len(via) > 5 {
		return errors.New("more than five redirects")
	}
	if via[0].URL.Scheme == "https" && r.URL.Scheme != "https" {
		return errors.New("a redirect leads from https to http")
	}
	r.Header.Del("Referer") // the query of the previous URL may be a credential (security S22)
	return nil
}

// readLimited reads all of r. If r holds more than provenance.MaxSums bytes, it returns an error, in which name is the
// source.
func readLimited(r io.Reader, name string) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, provenance.MaxSums+1))
	if err == nil && len(b) > provenance.MaxSums {
		err = UsageError("%s has more than %d bytes: it is not a list of digests or a signature", name, provenance.MaxSums)
	}
	return b, err
}
