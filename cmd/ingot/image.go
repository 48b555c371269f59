package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/inventory"
)

func imageCmd(o *options) *cobra.Command {
	return group("image", "Images: what is written to disks", "  ingot image add debian-12 debian-12.raw.zst\n  ingot image list",
		imageAddCmd(o), imageListCmd(o), imageVerifyCmd(o), imageDeleteCmd(o), imagePruneCmd(o))
}

func imageAddCmd(o *options) *cobra.Command {
	var sum string
	c := &cobra.Command{
		Use: "add NAME {FILE | URL}", Short: "Store an image on the server", Args: cobra.ExactArgs(2),
		Long: `Store an image on the server: a disk image as it is (raw), or compressed by
gzip, zstd or xz. An image of that name is replaced; runs that read it go on
reading the old one.

A file is uploaded. An upload that breaks off goes on where it was when the
command runs again. A URL is fetched by the server itself.`,
		Example: "  ingot image add debian-12 debian-12.raw.zst\n  ingot image add debian-12 https://images.example.com/debian-12.raw.xz --sha256 9f86d08…",
		RunE: func(cmd *cobra.Command, args []string) error {
			// A name that is no part of a path would ask another route.
			if ps := inventory.ValidateImage(inventory.Image{Name: args[0], File: "x"}); len(ps) > 0 {
				return ps.Err()
			}
			c, err := o.client()
			if err != nil {
				return err
			}
			sum = strings.ToLower(strings.TrimPrefix(sum, "sha256:"))
			var a answer[inventory.Image]
			if u, e := url.Parse(args[1]); e == nil && (u.Scheme == "http" || u.Scheme == "https") {
				a, err = o.fetch(cmd, c, args[0], args[1], sum)
			} else {
				a, err = o.upload(cmd, c, args[0], args[1], sum)
			}
			if err != nil {
				return err
			}
			return show(cmd, o, a, func(w io.Writer, i inventory.Image) error {
				fmt.Fprintf(w, "image %s stored: %s, %s, sha256 %s", i.Name, i.Format, size(i.Size), i.SHA256)
				if i.FirstSeen {
					fmt.Fprint(w, " (as computed here: nobody declared one)")
				}
				_, err := fmt.Fprintln(w)
				return err
			})
		},
	}
	c.Flags().StringVar(&sum, "sha256", "", "digest of the file as it is; anything else is refused")
	return c
}

// received asks how much of an upload the server has.
func received(ctx context.Context, c *remote, name string) (int64, error) {
	resp, err := c.request(ctx, http.MethodHead, path("images", name, "upload"), nil, 0)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	n, err := strconv.ParseInt(resp.Header.Get("Upload-Offset"), 10, 64)
	if err != nil {
		return 0, nil // then it is sent from the start
	}
	return n, nil
}

// fetch lets the server fetch an image, and shows how far it is.
func (o *options) fetch(cmd *cobra.Command, c *remote, name, from, sum string) (answer[inventory.Image], error) {
	type result struct {
		a   answer[inventory.Image]
		err error
	}
	done := make(chan result, 1)
	go func() {
		a, err := ask[inventory.Image](cmd.Context(), c, "POST", path("images"), map[string]string{"name": name, "url": from, "sha256": sum})
		done <- result{a, err}
	}()
	say(cmd, "the server fetches %s", from)
	p := newProgress(cmd, 0)
	defer p.end()
	tick := time.NewTicker(o.poll)
	defer tick.Stop()
	for {
		select {
		case r := <-done:
			return r.a, r.err
		case <-tick.C:
			if n, err := received(cmd.Context(), c, name); err == nil && n > 0 {
				p.at(n)
			}
		}
	}
}

// maxBreaks is how often in a row an upload may break off without progress.
const maxBreaks = 5

// upload sends a file. It goes on where an earlier upload of the same file
// broke off: that it was the same, the digest proves at the end.
func (o *options) upload(cmd *cobra.Command, c *remote, name, file, sum string) (none answer[inventory.Image], err error) {
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
		return none, usage("%q is no file", file)
	}
	total := st.Size()
	have, err := received(cmd.Context(), c, name)
	if err != nil {
		return none, err
	}
	if have > total {
		have = 0 // of something else
	}
	s := sending{file: f, total: total, sum: sha256.New()}
	if have > 0 {
		say(cmd, "going on at %s of %s", size(have), size(total))
	}
	p := newProgress(cmd, total)
	defer p.end()
	for breaks := 0; ; breaks++ {
		if err := s.hashTo(cmd.Context(), have); err != nil {
			return none, err
		}
		a, err := s.send(cmd.Context(), c, name, sum, have, p)
		if err == nil {
			return a, s.same(cmd, c, name, a.v)
		}
		var e *apiError
		if cmd.Context().Err() != nil || errors.As(err, &e) && e.Status != http.StatusConflict || breaks == maxBreaks {
			return none, advice{err, "run the same command again; it goes on where it was"}
		}
		if e != nil && breaks > 0 {
			return none, err // somebody else uploads it
		}
		p.line("the upload broke off (%v), going on", err)
		select {
		case <-time.After(time.Duration(breaks+1) * o.poll):
		case <-cmd.Context().Done():
			return none, cmd.Context().Err()
		}
		now, err := received(cmd.Context(), c, name)
		if err != nil {
			continue // the next attempt tells
		}
		if now > have {
			breaks = 0
		}
		if have = now; have > total {
			have = 0
		}
	}
}

// sending is a file on its way, hashed as it goes.
type sending struct {
	file   *os.File
	total  int64
	sum    hash.Hash
	hashed int64
}

// hashTo hashes what the server has already.
func (s *sending) hashTo(ctx context.Context, offset int64) error {
	if offset < s.hashed {
		s.sum.Reset()
		s.hashed = 0
	}
	for s.hashed < offset {
		n, err := io.Copy(s.sum, io.NewSectionReader(s.file, s.hashed, min(offset-s.hashed, 64<<20)))
		s.hashed += n
		switch {
		case err != nil:
			return fmt.Errorf("reading %q: %w", s.file.Name(), err)
		case n == 0:
			return fmt.Errorf("reading %q: it has become shorter", s.file.Name())
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
	return nil
}

func (s *sending) send(ctx context.Context, c *remote, name, sum string, offset int64, p *progress) (answer[inventory.Image], error) {
	q := url.Values{"offset": {strconv.FormatInt(offset, 10)}, "size": {strconv.FormatInt(s.total, 10)}}
	if sum != "" {
		q.Set("sha256", sum)
	}
	body := io.Reader(&counted{io.NewSectionReader(s.file, offset, s.total-offset), s, p, offset})
	if s.total == offset {
		body = http.NoBody
	}
	resp, err := c.request(ctx, http.MethodPut, path("images", name)+"?"+q.Encode(), body, s.total-offset)
	if err != nil {
		return answer[inventory.Image]{}, err
	}
	return decode[inventory.Image](resp)
}

// same tells whether the server stored this file and no mixture of two.
func (s *sending) same(cmd *cobra.Command, c *remote, name string, i inventory.Image) error {
	if err := s.hashTo(cmd.Context(), s.total); err != nil {
		return err
	}
	if got := hex.EncodeToString(s.sum.Sum(nil)); got != i.SHA256 {
		_, err := ask[struct{}](cmd.Context(), c, "DELETE", path("images", name), nil)
		return errors.Join(fmt.Errorf("the server stored sha256 %s and the file has %s: the earlier upload was of another file, and the image was removed; run the command again", i.SHA256, got), err)
	}
	return nil
}

// counted is the body of an upload.
type counted struct {
	r  io.Reader
	s  *sending
	p  *progress
	at int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	if c.s.hashed == c.at {
		_, _ = c.s.sum.Write(b[:n]) // a hash returns no error
		c.s.hashed += int64(n)
	}
	c.at += int64(n)
	c.p.at(c.at)
	return n, err
}

// progress shows on standard error how far a transfer is: on a terminal in one
// line, otherwise every ten seconds.
type progress struct {
	cmd   *cobra.Command
	raw   *os.File // the terminal
	total int64

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
	text := size(n)
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
				t := newTable(w, "NAME", "FORMAT", "SIZE", "UNPACKED", "SHA256", "DIGEST", "ADDED", "FROM")
				for _, i := range l.Items {
					unpacked := ""
					if i.DiskSize > 0 {
						unpacked = size(i.DiskSize)
					}
					by := "declared"
					if i.FirstSeen {
						by = "first seen"
					}
					t.row(i.Name, i.Format, size(i.Size), unpacked, shorten(i.SHA256, 13), by, when(i.Created), i.URL)
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
	var yes bool
	c := &cobra.Command{
		Use: "delete NAME", Short: "Delete an image and its file", Args: cobra.ExactArgs(1), ValidArgsFunction: o.imageNames,
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
			if err := confirm(cmd, yes, fmt.Sprintf("deletes image %s (%s) and its file", args[0], size(a.v.Size)), args[0]); err != nil {
				return err
			}
			if _, err := ask[struct{}](cmd.Context(), c, "DELETE", path("images", args[0]), nil); err != nil {
				return err
			}
			say(cmd, "image %s deleted", args[0])
			return nil
		},
	}
	yesFlag(c, &yes)
	return c
}

func imagePruneCmd(o *options) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "prune", Short: "Delete the images that nothing names", Args: cobra.NoArgs,
		Long:    "Delete the images that no machine, no template and no run that is not over\nnames.",
		Example: "  ingot image prune",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			unused, err := unusedImages(cmd.Context(), c)
			if err != nil {
				return err
			}
			if len(unused) == 0 {
				say(cmd, "every image is named by a machine, a template or a run")
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
				if _, err := ask[struct{}](cmd.Context(), c, "DELETE", path("images", name), nil); err != nil {
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

func unusedImages(ctx context.Context, c *remote) ([]inventory.Image, error) {
	is, err := ask[list[inventory.Image]](ctx, c, "GET", path("images"), nil)
	if err != nil {
		return nil, err
	}
	ms, err := ask[list[inventory.Machine]](ctx, c, "GET", path("machines"), nil)
	if err != nil {
		return nil, err
	}
	ts, err := ask[list[inventory.Template]](ctx, c, "GET", path("templates"), nil)
	if err != nil {
		return nil, err
	}
	ws, err := ask[list[inventory.Workflow]](ctx, c, "GET", path("workflows")+"?open=true&limit=1000", nil)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(is.v.Items, func(i inventory.Image) bool {
		return slices.ContainsFunc(ms.v.Items, func(m inventory.Machine) bool { return m.Image == i.Name }) ||
			slices.ContainsFunc(ts.v.Items, func(t inventory.Template) bool { return mentions(t.Source, i.Name) }) ||
			slices.ContainsFunc(ws.v.Items, func(w inventory.Workflow) bool { return w.Image == i.Name })
	}), nil
}

// mentions tells whether text contains name as a word of its own, the way image
// names stand in URLs and quotes.
func mentions(text, name string) bool {
	part := func(r rune) bool {
		return r == '-' || r == '_' || r == '.' || unicode.IsLetter(r) || unicode.IsDigit(r)
	}
	return slices.Contains(strings.FieldsFunc(text, func(r rune) bool { return !part(r) }), name)
}
