package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/inventory"
)

func imageCmd(o *options) *cobra.Command {
	return group("image", "Images: what is written to disks", "  ingot image add debian-12 debian-12.raw.zst\n  ingot image list",
		imageAddCmd(o), imageListCmd(o), imageVerifyCmd(o), imageDeleteCmd(o), imagePruneCmd(o))
}

func imageAddCmd(o *options) *cobra.Command {
	var sum string
	var installer bool
	c := &cobra.Command{
		Use: "add NAME {FILE | URL}", Short: "Store an image on the server", Args: cobra.ExactArgs(2),
		Long: `Store an image on the server: a disk image as it is (raw), or compressed by
gzip, zstd, xz or bzip2. The server reads it to its end, refuses what is
damaged or cannot be written to a disk, and says what is in it.

An image of that name is replaced when the new one is proven; runs that have
planned the old one go on with it.

A file is uploaded. An upload that breaks off goes on where it was when the
command runs again with the same file. A URL is fetched by the server itself.`,
		Example: "  ingot image add debian-12 debian-12.raw.zst\n  ingot image add debian-12 https://images.example.com/debian-12.raw.xz --sha256 9f86d08…",
		RunE: func(cmd *cobra.Command, args []string) error {
			// A name that is no part of a path would ask another route.
			if err := inventory.ValidateImageName(args[0]).Err(); err != nil {
				return err
			}
			i := sentImage{name: args[0], sha256: strings.ToLower(strings.TrimPrefix(sum, "sha256:"))}
			if installer {
				i.use = inventory.UseInstaller
			}
			c, err := o.client()
			if err != nil {
				return err
			}
			var a answer[inventory.Image]
			if u, e := url.Parse(args[1]); e == nil && (u.Scheme == "http" || u.Scheme == "https") {
				a, err = o.fetch(cmd, c, i, args[1])
			} else {
				a, err = o.upload(cmd, c, i, args[1])
			}
			if err != nil {
				return err
			}
			return show(cmd, o, a, func(w io.Writer, i inventory.Image) error {
				fmt.Fprintf(w, "image %s stored: %s, %s, sha256 %s", i.Name, i.Format, size(i.Size), i.SHA256)
				if i.FirstSeen {
					fmt.Fprint(w, " (computed by the server: none was declared)")
				}
				fmt.Fprintf(w, "\ncontents: %s", orText(i.Contents, "not looked at"))
				if i.DiskSize > 0 {
					fmt.Fprintf(w, ", %s on a disk", size(i.DiskSize))
				}
				if i.Use == inventory.UseInstaller {
					fmt.Fprint(w, "; for installers, never written to a disk")
				}
				if i.Warning != "" {
					fmt.Fprintf(w, "\nwarning: %s", i.Warning)
				}
				_, err := fmt.Fprintln(w)
				return err
			})
		},
	}
	c.Flags().StringVar(&sum, "sha256", "", "digest of the file as it is; anything else is refused")
	c.Flags().BoolVar(&installer, "installer", false, "the file is a kernel, an initramfs or an ISO that an installer boots or fetches")
	return c
}

// sentImage is an image on its way to the server.
type sentImage struct {
	name, use string
	sha256    string // as declared, or ""
	content   string // digest of the file at hand, or ""
}

// query is what each request about the upload says of it.
func (i sentImage) query() url.Values {
	q := url.Values{}
	for k, v := range map[string]string{"use": i.use, "sha256": i.sha256, "content": i.content} {
		if v != "" {
			q.Set(k, v)
		}
	}
	return q
}

// received asks how much of an upload the server has, and how much of the
// complete file it has checked.
func received(ctx context.Context, c *remote, i sentImage) (have, checked int64, err error) {
	resp, err := c.request(ctx, http.MethodHead, path("images", i.name, "upload")+"?"+i.query().Encode(), nil, 0)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	// A header that is missing or wrong is 0: then it is sent from the start.
	have, _ = strconv.ParseInt(resp.Header.Get("Upload-Offset"), 10, 64)
	checked, _ = strconv.ParseInt(resp.Header.Get("Upload-Checked"), 10, 64)
	return have, checked, nil
}

// watchCheck shows how far the server is with an image until done is closed.
// sent tells whether its bytes are still on their way from here, where their progress is shown.
func (o *options) watchCheck(cmd *cobra.Command, c *remote, i sentImage, p *progress, sent, done <-chan struct{}) {
	tick := time.NewTicker(o.poll)
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
		have, checked, err := received(cmd.Context(), c, i)
		switch {
		case err != nil:
		case checked > 0:
			if !checking {
				checking = true
				p.end()
				*p = *newProgress(cmd, have)
				p.verb = "checked "
			}
			p.at(checked)
		case have > 0:
			p.at(have)
		}
	}
}

// fetch lets the server fetch an image, and shows how far it is.
func (o *options) fetch(cmd *cobra.Command, c *remote, i sentImage, from string) (answer[inventory.Image], error) {
	say(cmd, "the server fetches %s", from)
	p := newProgress(cmd, 0)
	defer p.end()
	now := make(chan struct{})
	close(now)
	defer o.watching(cmd, c, sentImage{name: i.name}, p, now)()
	return ask[inventory.Image](cmd.Context(), c, "POST", path("images"), map[string]string{"name": i.name, "url": from, "sha256": i.sha256, "use": i.use})
}

// watching runs watchCheck until its result is called.
func (o *options) watching(cmd *cobra.Command, c *remote, i sentImage, p *progress, sent <-chan struct{}) (stop func()) {
	var w sync.WaitGroup
	done := make(chan struct{})
	w.Go(func() { o.watchCheck(cmd, c, i, p, sent, done) })
	return func() { close(done); w.Wait() }
}

// maxBreaks is how often in a row an upload may break off without progress.
const maxBreaks = 5

// upload sends a file. It goes on where an earlier upload of the same file
// broke off, which its digest tells; the server publishes nothing else.
func (o *options) upload(cmd *cobra.Command, c *remote, i sentImage, file string) (none answer[inventory.Image], err error) {
	f, err := os.Open(file)
	if err != nil {
		return none, usage("%v", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return none, err
	}
	if !st.Mode().IsRegular() {
		return none, usage("%q is not a file", file)
	}
	total := st.Size()
	if i.content, err = fileDigest(cmd, f, total); err != nil {
		return none, fmt.Errorf("reading %q: %w", file, err)
	}
	if i.sha256 != "" && i.sha256 != i.content {
		return none, usage("%s has the SHA-256 %s, and %s was declared; nothing was sent: correct --sha256, or get the file again", file, i.content, i.sha256)
	}
	have, _, err := received(cmd.Context(), c, i)
	if err != nil {
		return none, err
	}
	if have > 0 {
		say(cmd, "going on at %s of %s", size(have), size(total))
	}
	p := newProgress(cmd, total)
	defer p.end()
	for breaks := 0; ; breaks++ {
		a, err := o.send(cmd, c, i, f, have, total, p)
		if err == nil {
			return a, nil
		}
		var e *apiError
		refused := errors.As(err, &e)
		switch {
		case refused && e.Status < 500 && e.Status != http.StatusConflict && e.Status != http.StatusTooManyRequests:
			return none, err // the same file would be refused again
		case refused && e.Next != "":
			return none, err
		case refused && (e.Status != http.StatusConflict || breaks > 0), cmd.Context().Err() != nil, breaks == maxBreaks:
			return none, advice{err, "run the same command again; it goes on where it was"}
		}
		p.line("the upload broke off (%v), going on", err)
		select {
		case <-time.After(time.Duration(breaks+1) * o.poll):
		case <-cmd.Context().Done():
			return none, cmd.Context().Err()
		}
		now, _, err := received(cmd.Context(), c, i)
		if err != nil {
			continue // the next attempt tells
		}
		if now > have {
			breaks = 0
		}
		have = now
	}
}

// fileDigest returns the SHA-256 of a file, and shows how far it is.
func fileDigest(cmd *cobra.Command, f *os.File, total int64) (string, error) {
	p := newProgress(cmd, total)
	p.verb = "read "
	defer p.end()
	sum := sha256.New()
	for at := int64(0); ; {
		n, err := io.CopyN(sum, f, 16<<20)
		if at += n; errors.Is(err, io.EOF) {
			return hex.EncodeToString(sum.Sum(nil)), nil
		}
		if err == nil {
			err = cmd.Context().Err()
		}
		if err != nil {
			return "", err
		}
		p.at(at)
	}
}

// send sends the file from offset on.
func (o *options) send(cmd *cobra.Command, c *remote, i sentImage, f *os.File, offset, total int64, p *progress) (answer[inventory.Image], error) {
	q := i.query()
	q.Set("offset", strconv.FormatInt(offset, 10))
	q.Set("size", strconv.FormatInt(total, 10))
	sent := make(chan struct{})
	body := io.Reader(&counted{r: io.NewSectionReader(f, offset, total-offset), p: p, at: offset, total: total, sent: sent})
	if total == offset {
		body = http.NoBody
		close(sent)
	}
	defer o.watching(cmd, c, i, p, sent)()
	resp, err := c.request(cmd.Context(), http.MethodPut, path("images", i.name)+"?"+q.Encode(), body, total-offset)
	if err != nil {
		return answer[inventory.Image]{}, err
	}
	return decode[inventory.Image](resp)
}

// counted is the body of an upload. It closes sent when all of it was read.
type counted struct {
	r         io.Reader
	p         *progress
	at, total int64
	sent      chan struct{}
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	if n > 0 {
		c.at += int64(n)
		c.p.at(c.at)
		if c.at == c.total {
			close(c.sent)
		}
	}
	return n, err
}

// progress shows on standard error how far a transfer is: on a terminal in one
// line, otherwise every ten seconds.
type progress struct {
	cmd   *cobra.Command
	raw   *os.File // the terminal
	total int64
	verb  string // what is being done, with a space at its end; "": sent

	begun, told time.Time
	first       int64 // bytes that were there at the beginning
	started     bool
	drawn       bool
}

func newProgress(cmd *cobra.Command, total int64) *progress {
	p := &progress{cmd: cmd, total: total, begun: time.Now(), told: time.Now()}
	p.raw, _ = tty(cmd.ErrOrStderr())
	return p
}

func (p *progress) at(n int64) {
	if !p.started {
		p.started, p.first, p.begun = true, n, time.Now()
	}
	every := tellEvery
	if p.raw != nil {
		every = 200 * time.Millisecond
	}
	now := time.Now()
	if now.Sub(p.told) < every && (p.raw == nil || n != p.total) {
		return
	}
	p.told = now
	text := p.verb + size(n)
	if p.total > 0 {
		text += fmt.Sprintf(" of %s, %d %%", size(p.total), n*100/p.total)
	}
	text += speed(n-p.first, now.Sub(p.begun), p.total-n)
	if p.raw == nil {
		p.cmd.PrintErrln(text)
		return
	}
	p.drawn = true
	_, _ = fmt.Fprintf(p.raw, "\r\x1b[K%s", text) // only a picture
}

func (p *progress) line(format string, args ...any) {
	p.end()
	say(p.cmd, format, args...)
}

func (p *progress) end() {
	if p.drawn {
		_, _ = fmt.Fprintln(p.raw) // only a picture
		p.drawn = false
	}
}

func imageListCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List images", Args: cobra.NoArgs, Aliases: []string{"ls"}, Example: "  ingot image list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return askAndShow(cmd, o, "GET", path("images"), nil, func(w io.Writer, l list[inventory.Image]) error {
				if len(l.Items) == 0 {
					say(cmd, "no images; add one: ingot image add NAME FILE")
					return nil
				}
				t := newTable(w, "NAME", "FORMAT", "SIZE", "UNPACKED", "CONTENTS", "SHA256", "DIGEST", "ADDED", "FROM")
				for _, i := range l.Items {
					unpacked := ""
					if i.DiskSize > 0 {
						unpacked = size(i.DiskSize)
					}
					by := "declared"
					if i.FirstSeen {
						by = "first seen"
					}
					t.row(i.Name, i.Format, size(i.Size), unpacked, i.Contents, shorten(i.SHA256, 13), by, when(i.Created), i.URL)
				}
				return t.flush()
			})
		},
	}
}

type verified struct {
	Name    string `json:"name"`
	OK      bool   `json:"ok"`
	SHA256  string `json:"sha256,omitempty"`
	Size    int64  `json:"size"`
	Message string `json:"message,omitempty"`
}

func imageVerifyCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "verify [NAME…]", Short: "Read images again and compare their digests", ValidArgsFunction: o.imageNames,
		Example: "  ingot image verify debian-12\n  ingot image verify      # all",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			if len(args) == 0 {
				a, err := ask[list[inventory.Image]](cmd.Context(), c, "GET", path("images"), nil)
				if err != nil {
					return err
				}
				for _, i := range a.v.Items {
					if i.File != "" {
						args = append(args, i.Name)
					}
				}
			}
			bad := 0
			out := []verified{}
			for _, name := range args {
				a, err := ask[verified](cmd.Context(), c, "POST", path("images", name, "verify"), nil)
				if err != nil {
					return err
				}
				if a.v.Name = name; !a.v.OK {
					bad++
				}
				out = append(out, a.v)
			}
			if err := showValue(cmd, o, list[verified]{out}, func(w io.Writer) error {
				for _, v := range out {
					if v.OK {
						fmt.Fprintf(w, "ok    %s  sha256 %s\n", v.Name, v.SHA256)
					} else {
						fmt.Fprintf(w, "fail  %s  %s\n", v.Name, v.Message)
					}
				}
				return nil
			}); err != nil {
				return err
			}
			if bad > 0 {
				return advice{fmt.Errorf("%s of %d changed", count(bad, "image"), len(args)), "ingot image add NAME FILE (again)"}
			}
			return nil
		},
	}
}

func imageDeleteCmd(o *options) *cobra.Command {
	var yes, force bool
	c := &cobra.Command{
		Use: "delete NAME", Short: "Delete an image and its file",
		Long: `Delete an image and its file. It is refused while an open run has planned the
image, and while a machine (by its image, a label or its user data), a template
or a stored lab file names it.`, Args: cobra.ExactArgs(1), ValidArgsFunction: o.imageNames,
		Example: "  ingot image delete debian-11 --yes",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			a, err := ask[inventory.Image](cmd.Context(), c, "GET", path("images", args[0]), nil)
			if err != nil {
				return err
			}
			if err := confirm(cmd, yes, fmt.Sprintf("deletes image %s (%s)", args[0], size(a.v.Size)), args[0]); err != nil {
				return err
			}
			route := path("images", args[0])
			if force {
				route += "?force=true"
			}
			if _, err := ask[struct{}](cmd.Context(), c, "DELETE", route, nil); err != nil {
				return err
			}
			say(cmd, "image %s deleted", args[0])
			return nil
		},
	}
	yesFlag(c, &yes)
	c.Flags().BoolVar(&force, "force", false, "although a machine, a template or a lab file names it")
	return c
}

func imagePruneCmd(o *options) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "prune", Short: "Delete the images that nothing names", Args: cobra.NoArgs,
		Long: `Delete the images that no open run, no machine (by its image, a label or its
user data), no template and no stored lab file names.`,
		Example: "  ingot image prune",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			a, err := ask[list[inventory.Image]](cmd.Context(), c, "GET", path("images")+"?unused=true", nil)
			if err != nil {
				return err
			}
			unused := a.v.Items
			if len(unused) == 0 {
				say(cmd, "every image is named by a machine, a template, a lab file or a run")
				return nil
			}
			var names []string
			var bytes int64
			for _, i := range unused {
				names, bytes = append(names, i.Name), bytes+i.Size
			}
			if err := confirm(cmd, yes, fmt.Sprintf("deletes %s (%s): %s", count(len(names), "image"), size(bytes), strings.Join(names, ", ")), "prune"); err != nil {
				return err
			}
			for _, name := range names {
				_, err := ask[struct{}](cmd.Context(), c, "DELETE", path("images", name), nil)
				if errors.Is(err, inventory.ErrConflict) { // since it was listed
					say(cmd, "image %s stays: %v", name, err)
					continue
				}
				if err != nil {
					return err
				}
				say(cmd, "image %s deleted", name)
			}
			return nil
		},
	}
	yesFlag(c, &yes)
	return c
}
