package cli

import (
	"cmp"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// upload describes an image that is sent to the server, or that the server fetches.
type upload struct {
	name, use string
	sha256    string // as declared, or ""
	sha512    string // as declared, or ""
	content   string // digest of the local file, or ""
	catalog   bool   // the server takes all else from its catalog
	asIs      bool   // the server stores the file as it is, without a conversion for agents
	replace   bool   // replace an image of this name even if machines, templates or lab files use it

	// Texts of the minisign signature and key with which the server verifies the file that it fetches or reads.
	signature, publicKey string
}

// addImage stores an image from a file or URL on the server. p is the proof of the origin of the image.
func addImage(c *Call, u upload, from string, p proof) (a client.Answer[inventory.Image], err error) {
	if err := p.check(cmp.Or(u.sha256, u.sha512)); err != nil {
		return a, err
	}
	if err := p.declare(c, from, &u); err != nil {
		return a, err
	}
	if isURL(from) || strings.HasPrefix(from, ociScheme) {
		return fetchImage(c, u, from)
	}
	return uploadImage(c, u, from)
}

// registerImage makes the server serve a file of its own host from path, without a copy.
func registerImage(c *Call, u upload, path string, p proof) error {
	switch {
	case !filepath.IsAbs(path):
		return UsageError("--in-place: %q is not an absolute path on the server", path)
	case p.signature != "" && p.sums == "":
		signature, key, err := p.readSignature(c)
		if err != nil {
			return err
		}
		u.signature, u.publicKey = string(signature), string(key)
		p = proof{}
	}
	if err := p.check(cmp.Or(u.sha256, u.sha512)); err != nil {
		return err
	}
	if err := p.declare(c, path, &u); err != nil {
		return err
	}
	c.Note("the server reads %s", path)
	in := map[string]any{
		"name": u.name, "path": path, "sha256": u.sha256, "sha512": u.sha512, "use": u.use,
		"signature": u.signature, "publicKey": u.publicKey, "replace": u.replace,
	}
	return postAndShow(c, client.Path("images"), in, text(imageStored))
}

// query returns the query for each request about this upload.
func (u upload) query() url.Values {
	q := url.Values{}
	for k, v := range map[string]string{"use": u.use, "sha256": u.sha256, "sha512": u.sha512, "content": u.content} {
		if v != "" {
			q.Set(k, v)
		}
	}
	if u.asIs {
		q.Set("asIs", "true")
	}
	if u.replace {
		q.Set("replace", "true")
	}
	return q
}

// findStored reports whether the server already has the image that the upload u would store: from the same file, in the
// same form, and with an intact stored file. It also returns the stored image.
func findStored(c *Call, u upload) (a client.Answer[inventory.Image], isStored bool, err error) {
	a, err = get[inventory.Image](c, client.Path("images", u.name))
	if errors.Is(err, inventory.ErrNotFound) {
		return a, false, nil
	}

	i := a.Value
	kept := u.asIs || u.use == inventory.UseInstaller
	if err != nil || i.File == "" || i.Given().SHA256 != u.content || i.Use != u.use || kept != (i.Source == nil) ||
		i.FirstSeen && u.sha256+u.sha512 != "" {
		return a, false, err
	}
	check, err := post[imageCheck](c, client.Path("images", u.name, "verify"), nil)
	if check.Value.OK {
		c.Note("the server has this file already")
	}
	return a, check.Value.OK, err
}

// fetchImage makes the server fetch an image from a URL, or its catalog's image for the URL "", and shows the progress. The server fetches
// no file whose declared digest it has under this name already.
func fetchImage(c *Call, u upload, from string) (client.Answer[inventory.Image], error) {
	c.Note("the server fetches %s", cmp.Or(from, "image "+u.name+" of its catalog"))
	p := newProgress(c, 0, "")
	defer p.end()
	sent := make(chan struct{})
	close(sent) // closed now: this program sends no bytes, so the server's progress is shown at once
	defer watchUpload(c, upload{name: u.name}, p, sent)()

	in := map[string]any{
		"name": u.name, "url": from, "sha256": u.sha256, "sha512": u.sha512, "use": u.use, "asIs": u.asIs, "replace": u.replace,
		"signature": u.signature, "publicKey": u.publicKey, "catalog": u.catalog,
	}
	return post[inventory.Image](c, client.Path("images"), in)
}

// maxBreaks is how many times in a row sendAll retries an upload that breaks off without progress.
const maxBreaks = 5

// uploadImage sends a file to the server. If an earlier upload of the same file broke off, it sends only the rest; the
// server recognizes the file by the digest.
func uploadImage(c *Call, u upload, file string) (none client.Answer[inventory.Image], err error) {
	f, err := os.Open(file)
	if err != nil {
		return none, UsageError("%v", err)
	}

	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return none, err
	}
	if !st.Mode().IsRegular() {
		return none, UsageError("%q is not a file", file)
	}

	if u.content, err = hashFile(c, f); err != nil {
		return none, err
	}
	if u.sha256 != "" && u.sha256 != u.content {
		return none, UsageError("%s has the SHA-256 %s, but %s was declared; nothing was sent: "+
			"correct --sha256, or get the file again", file, u.content, u.sha256)
	}

	a, isStored, err := findStored(c, u)
	if err != nil || isStored {
		return a, err
	}
	have, _, err := readUpload(c, u)
	if err != nil {
		return none, err
	}
	if have > 0 {
		c.Note("resuming the upload at %s of %s", human.Size(have), human.Size(st.Size()))
	}

	s := sending{c: c, upload: u, file: f, have: have, total: st.Size(), progress: newProgress(c, st.Size(), "")}
	defer s.progress.end()
	return s.sendAll()
}

// readUpload returns how many bytes of an upload the server has received and, once the file is complete, how many of
// them the server has checked. A missing or invalid header counts as 0, so that the whole file is sent.
func readUpload(c *Call, u upload) (have, checked int64, err error) {
	route := client.WithQuery(client.Path("images", u.name, "upload"), u.query())
	resp, err := c.Request(http.MethodHead, route, nil, 0)
	if err != nil {
		return 0, 0, err
	}

	defer resp.Body.Close()
	have, _ = strconv.ParseInt(resp.Header.Get("Upload-Offset"), 10, 64)
	checked, _ = strconv.ParseInt(resp.Header.Get("Upload-Checked"), 10, 64)
	return have, checked, nil
}

// sending is an upload of a file in progress.
type sending struct {
	c      *Call
	upload upload
	file   *os.File

	have, total int64 // bytes that the server has received, and size of the file
	progress    *progress
}

// sendAll sends the file until the server has all of it, and retries after interruptions.
func (s *sending) sendAll() (client.Answer[inventory.Image], error) {
	for breaks := 0; ; breaks++ {
		a, err := s.send()
		if err == nil || !s.mayRepeat(err) {
			return a, err
		}
		var refused *client.Error
		if errors.As(err, &refused) && (refused.Status != http.StatusConflict || breaks > 0) ||
			breaks == maxBreaks || s.c.Context().Err() != nil {
			return a, human.Advise(err, "run the same command again; it continues where it stopped")
		}

		s.progress.Note("the upload was interrupted (%v), resuming", err)
		select {
		case <-time.After(time.Duration(breaks+1) * s.c.pollEvery):
		case <-s.c.Context().Done():
			return a, s.c.Context().Err()
		}
		now, _, err := readUpload(s.c, s.upload)
		if err != nil {
			continue // the next call of send fails with the same error
		}
		if now > s.have {
			breaks = 0
		}
		s.have = now
	}
}

// mayRepeat reports whether sending may succeed after err: there was no answer, or the answer is a temporary error.
func (s *sending) mayRepeat(err error) bool {
	var e *client.Error
	if !errors.As(err, &e) {
		return true
	}
	temporary := e.Status >= 500 || e.Status == http.StatusConflict || e.Status == http.StatusTooManyRequests
	return temporary && e.Next == ""
}

// send sends the part of the file that the server has not received.
func (s *sending) send() (none client.Answer[inventory.Image], err error) {
	q := s.upload.query()
	q.Set("offset", strconv.FormatInt(s.have, 10))
	q.Set("size", strconv.FormatInt(s.total, 10))
	sent := make(chan struct{})
	var body io.Reader = http.NoBody
	if s.total > s.have {
		rest := io.NewSectionReader(s.file, s.have, s.total-s.have)
		body = &countingReader{r: rest, ctx: s.c.Context(), n: s.have, at: func(n int64) {
			s.progress.at(n)
			if n == s.total {
				close(sent)
			}
		}}
	} else {
		close(sent)
	}

	defer watchUpload(s.c, s.upload, s.progress, sent)()

	route := client.WithQuery(client.Path("images", s.upload.name), q)
	resp, err := s.c.Request(http.MethodPut, route, body, s.total-s.have)
	if err != nil {
		return none, err
	}

	return client.Decode[inventory.Image](resp)
}

// watchUpload waits until sent is closed, and then shows the server's progress until stop is called.
func watchUpload(c *Call, u upload, p *progress, sent <-chan struct{}) (stop func()) {
	var w sync.WaitGroup
	done := make(chan struct{})
	w.Go(func() {
		tick := time.NewTicker(c.pollEvery)
		defer tick.Stop()
		select {
		case <-sent:
		case <-done:
			return
		}

		for checking := false; ; {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			have, checked, err := readUpload(c, u)
			switch {
			case err != nil:
			case checked > 0:
				if !checking {
					checking = true
					p.end()
					*p = *newProgress(c, have, "checked ")
				}
				p.at(checked)
			case have > 0:
				p.at(have)
			}
		}
	})

	return func() {
		close(done)
		w.Wait()
	}
}
