package api

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/inventory"
)

type imageStore interface {
	Image(ctx context.Context, name string) (inventory.Image, error)
	Images(ctx context.Context) ([]inventory.Image, error)
	PutImage(ctx context.Context, i inventory.Image, by string) error
	DeleteImage(ctx context.Context, name, by string) error
}

var safe = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,126}[a-z0-9])?$`)

// safeName tells whether name may stand in a path and in a URL.
func safeName(name string) bool { return safe.MatchString(name) && !strings.Contains(name, "..") }

var digest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// declaredSum reads a declared SHA-256; "" means that none was.
func declaredSum(v string) (string, error) {
	v = strings.ToLower(strings.TrimPrefix(v, "sha256:"))
	if v != "" && !digest.MatchString(v) {
		return "", invalid("sha256", "64 hex digits", "%q is no SHA-256", v)
	}
	return v, nil
}

func (s *Server) image(ctx context.Context, name string) (inventory.Image, error) {
	i, err := s.cfg.Store.Image(ctx, name)
	if errors.Is(err, inventory.ErrNotFound) {
		return i, hint{fmt.Errorf("image %q: %w", name, inventory.ErrNotFound), "ingot image list"}
	}
	return i, err
}

func (s *Server) imageURL(i inventory.Image) string {
	if s.cfg.ImageURL != nil {
		return s.cfg.ImageURL(i)
	}
	return i.URL
}

func (s *Server) listImages(c *gin.Context) {
	is, err := s.cfg.Store.Images(c.Request.Context())
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, items(is))
}

func (s *Server) getImage(c *gin.Context) {
	i, err := s.image(c.Request.Context(), c.Param("name"))
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, i)
}

// dir opens the image directory, which nothing leaves: neither "..", nor a link.
func (s *Server) dir() (*os.Root, error) {
	if s.cfg.ImageDir == "" {
		return nil, fmt.Errorf("this server has no image directory: %w", errUnavailable)
	}
	r, err := os.OpenRoot(s.cfg.ImageDir)
	if err != nil {
		return nil, fmt.Errorf("opening the image directory: %w", err)
	}
	return r, nil
}

// partName is the file of an upload that is not complete.
func partName(name string) string { return ".upload-" + name }

// received returns how many bytes of an upload are there.
func received(dir *os.Root, name string) (int64, error) {
	st, err := dir.Stat(partName(name))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("looking at the upload of %q: %w", name, err)
	}
	return st.Size(), nil
}

// uploadOffset is the header that tells how many bytes of an upload are there.
const uploadOffset = "Upload-Offset"

func (s *Server) uploadState(c *gin.Context) {
	name := c.Param("name")
	if !safeName(name) {
		c.Status(http.StatusBadRequest)
		return
	}
	dir, err := s.dir()
	if err != nil {
		s.fail(c, err)
		return
	}
	defer dir.Close()
	n, err := received(dir, name)
	if err != nil {
		s.fail(c, err)
		return
	}
	c.Header(uploadOffset, strconv.FormatInt(n, 10))
	c.Header("Content-Length", strconv.FormatInt(n, 10))
	c.Status(http.StatusOK)
}

var contentRange = regexp.MustCompile(`^bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)$`)

// uploadRange reads where the body begins and how long the whole file is, -1
// when that is not said.
func uploadRange(c *gin.Context) (offset, total int64, err error) {
	total = -1
	if v := c.GetHeader("Content-Range"); v != "" {
		m := contentRange.FindStringSubmatch(v)
		if m == nil {
			return 0, 0, invalid("Content-Range", "bytes FIRST-LAST/TOTAL", "%q is no range", v)
		}
		offset, err = strconv.ParseInt(m[1], 10, 64)
		if err == nil && m[3] != "*" {
			total, err = strconv.ParseInt(m[3], 10, 64)
		}
		return offset, total, err
	}
	offset, err = intQuery(c, "offset", 0)
	if err == nil && c.Query("size") != "" {
		total, err = intQuery(c, "size", 0)
	}
	return offset, total, err
}

// uploadImage takes the bytes of an image from offset on. A body that breaks
// off leaves what came; HEAD …/upload tells how much, and another PUT goes on
// there. Offset 0 begins again. With size (or Content-Range) the upload is
// complete when that many bytes are there, without it when the body ends.
func (s *Server) uploadImage(c *gin.Context) {
	name := c.Param("name")
	if !safeName(name) {
		s.fail(c, invalid("name", "small letters, digits, dots, dashes, underscores; at most 128", "%q is no name of an image", name))
		return
	}
	sum, err := declaredSum(c.Query("sha256"))
	if err != nil {
		s.fail(c, err)
		return
	}
	offset, total, err := uploadRange(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	dir, err := s.dir()
	if err != nil {
		s.fail(c, err)
		return
	}
	defer dir.Close()
	unlock, err := s.lockUpload(name)
	if err != nil {
		s.fail(c, err)
		return
	}
	defer unlock()
	have, err := received(dir, name)
	if err != nil {
		s.fail(c, err)
		return
	}
	if offset != 0 && offset != have {
		c.Header(uploadOffset, strconv.FormatInt(have, 10))
		s.fail(c, fmt.Errorf("the upload of %q goes on at %d, not at %d: %w", name, have, offset, inventory.ErrConflict))
		return
	}
	n, err := s.receive(dir, name, offset, max(c.Request.ContentLength, total-offset), c.Request.Body)
	c.Header(uploadOffset, strconv.FormatInt(offset+n, 10))
	if err != nil {
		s.fail(c, err)
		return
	}
	switch {
	case total >= 0 && offset+n < total:
		c.JSON(http.StatusAccepted, gin.H{"received": offset + n, "size": total})
		return
	case total >= 0 && offset+n > total:
		err = errors.Join(invalid("size", "", "%d bytes came and %d were announced", offset+n, total), dir.Remove(partName(name)))
		s.fail(c, err)
		return
	}
	s.keepImage(c, dir, inventory.Image{Name: name, SHA256: sum})
}

// lockUpload makes the caller the only writer of an image.
func (s *Server) lockUpload(name string) (func(), error) {
	if _, busy := s.uploads.LoadOrStore(name, struct{}{}); busy {
		return nil, fmt.Errorf("somebody else is uploading image %q: %w", name, inventory.ErrConflict)
	}
	return func() { s.uploads.Delete(name) }, nil
}

// checkEvery is how many bytes are written between two looks at free space.
const checkEvery = 64 << 20

// receive appends r to the upload at offset and returns how many bytes came.
// size is what is known of r's length, -1 for nothing.
func (s *Server) receive(dir *os.Root, name string, offset, size int64, r io.Reader) (n int64, err error) {
	spare, err := s.spare()
	if err != nil {
		return 0, err
	}
	if size > spare {
		return 0, hint{fmt.Errorf("%d MiB do not fit, %d MiB are left for images: %w", size>>20, spare>>20, errNoSpace), "ingot image prune"}
	}
	flags := os.O_WRONLY | os.O_CREATE
	if offset == 0 {
		flags |= os.O_TRUNC
	}
	f, err := dir.OpenFile(partName(name), flags, 0o644)
	if err != nil {
		return 0, fmt.Errorf("opening the upload of %q: %w", name, err)
	}
	defer func() {
		if e := f.Close(); e != nil && err == nil {
			err = fmt.Errorf("writing the upload of %q: %w", name, e)
		}
	}()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return 0, fmt.Errorf("writing the upload of %q: %w", name, err)
	}
	for {
		m, err := io.CopyN(f, r, checkEvery)
		n += m
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return n, interrupted{fmt.Errorf("receiving image %q: %w", name, err)}
		}
		if _, err := s.spare(); err != nil {
			return n, err
		}
	}
	if err := f.Sync(); err != nil {
		return n, fmt.Errorf("writing the upload of %q: %w", name, err)
	}
	return n, nil
}

// interrupted is a body that broke off: the sender's fault, not this server's.
type interrupted struct{ error }

func (i interrupted) Unwrap() error { return i.error }

// Is makes it an ErrInvalid, unless the disk is full.
func (i interrupted) Is(target error) bool {
	return target == inventory.ErrInvalid && !errors.Is(i.error, syscall.ENOSPC)
}

// keepImage makes a complete upload the image i and answers with it. i.SHA256
// is what was declared, or "".
func (s *Server) keepImage(c *gin.Context, dir *os.Root, i inventory.Image) {
	i, err := s.examine(c.Request.Context(), dir, i)
	if err != nil {
		if e := dir.Remove(partName(i.Name)); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("removing the upload of %q: %w", i.Name, e))
		}
		s.fail(c, err)
		return
	}
	// The name holds the digest: a run that reads the image of before goes on
	// reading it, and a crash between the two writes leaves no image whose
	// file is another's.
	i.File, i.Created = i.Name+"."+i.SHA256[:16], s.cfg.Now().UTC()
	old, err := s.cfg.Store.Image(c.Request.Context(), i.Name)
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		s.fail(c, err)
		return
	}
	if err := dir.Rename(partName(i.Name), i.File); err != nil {
		s.fail(c, fmt.Errorf("keeping image %q: %w", i.Name, err))
		return
	}
	if err := syncDir(dir); err != nil {
		s.fail(c, fmt.Errorf("keeping image %q: %w", i.Name, err))
		return
	}
	if err := s.cfg.Store.PutImage(c.Request.Context(), i, by(c)); err != nil {
		s.fail(c, err)
		return
	}
	if old.File != "" && old.File != i.File {
		s.removeFile(dir, old)
	}
	c.JSON(http.StatusCreated, i)
}

func syncDir(dir *os.Root) error {
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// removeFile removes the file of an image that is no more. A file that stays
// costs space and nothing else.
func (s *Server) removeFile(dir *os.Root, i inventory.Image) {
	if err := dir.Remove(i.File); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.cfg.Log.Warn("removing an image's file", "image", i.Name, "error", err)
	}
}

// examine reads a complete upload: its size, digest and format.
func (s *Server) examine(ctx context.Context, dir *os.Root, i inventory.Image) (inventory.Image, error) {
	f, err := dir.Open(partName(i.Name))
	if err != nil {
		return i, fmt.Errorf("reading the upload of %q: %w", i.Name, err)
	}
	defer f.Close()
	magic := make([]byte, 8)
	n, err := io.ReadFull(f, magic)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return i, fmt.Errorf("reading the upload of %q: %w", i.Name, err)
	}
	if n == 0 {
		return i, invalid("", "", "the image is empty")
	}
	if i.Format, err = format(magic[:n]); err != nil {
		return i, err
	}
	sum, size, err := digestOf(ctx, f)
	if err != nil {
		return i, fmt.Errorf("reading the upload of %q: %w", i.Name, err)
	}
	if i.Size = size; i.Format == "raw" {
		i.DiskSize = size
	}
	if i.SHA256 != "" && i.SHA256 != sum {
		return i, invalid("sha256", "send the file again", "the file's SHA-256 is %s and %s was declared; nothing was kept", sum, i.SHA256)
	}
	i.FirstSeen, i.SHA256 = i.SHA256 == "", sum
	return i, nil
}

// format tells what a file is by its first bytes.
func format(magic []byte) (string, error) {
	at := func(m string) bool { return strings.HasPrefix(string(magic), m) }
	switch {
	case at("\x1f\x8b"):
		return "gz", nil
	case at("\x28\xb5\x2f\xfd"):
		return "zst", nil
	case at("\xfd7zXZ\x00"):
		return "xz", nil
	case at("QFI\xfb"):
		return "", invalid("", "qemu-img convert -O raw", "this is a qcow2 image, which agents do not write")
	case at("BZh"):
		return "", invalid("", "recompress it with zstd, gzip or xz", "this is a bzip2 file, which agents do not read")
	case at("<!DOCTYP"), at("<!doctyp"), at("<html"):
		return "", invalid("", "fetch the image itself", "this is a web page")
	}
	return "raw", nil
}

// digestOf reads f from its start.
func digestOf(ctx context.Context, f *os.File) (sum string, size int64, err error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", 0, err
	}
	h := sha256.New()
	for {
		n, err := io.CopyN(h, f, checkEvery)
		size += n
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(h.Sum(nil)), size, nil
		}
		if err != nil {
			return "", 0, err
		}
		if ctx.Err() != nil {
			return "", 0, ctx.Err()
		}
	}
}

func (s *Server) deleteImage(c *gin.Context) {
	i, err := s.image(c.Request.Context(), c.Param("name"))
	if err != nil {
		s.fail(c, err)
		return
	}
	ws, err := s.cfg.Store.Workflows(c.Request.Context(), inventory.WorkflowFilter{Open: true, Limit: maxOpen})
	if err != nil {
		s.fail(c, err)
		return
	}
	for _, w := range ws {
		if w.Image == i.Name {
			s.fail(c, hint{fmt.Errorf("run %s of machine %q uses image %q: %w", w.Run, w.Machine, i.Name, inventory.ErrConflict), "ingot workflow get " + w.Run})
			return
		}
	}
	if err := s.cfg.Store.DeleteImage(c.Request.Context(), i.Name, by(c)); err != nil {
		s.fail(c, err)
		return
	}
	if i.File != "" && s.cfg.ImageDir != "" {
		dir, err := s.dir()
		if err != nil {
			s.cfg.Log.Warn("removing an image's file", "image", i.Name, "error", err)
		} else {
			defer dir.Close()
			s.removeFile(dir, i)
		}
	}
	c.Status(http.StatusNoContent)
}

// verifyImage reads the file again and compares.
func (s *Server) verifyImage(c *gin.Context) {
	i, err := s.image(c.Request.Context(), c.Param("name"))
	if err != nil {
		s.fail(c, err)
		return
	}
	if i.File == "" {
		s.fail(c, invalid("name", "", "image %q is not on this server, agents fetch it from %s", i.Name, i.URL))
		return
	}
	dir, err := s.dir()
	if err != nil {
		s.fail(c, err)
		return
	}
	defer dir.Close()
	out := struct {
		OK      bool   `json:"ok"`
		SHA256  string `json:"sha256,omitempty"`
		Size    int64  `json:"size"`
		Message string `json:"message,omitempty"`
	}{}
	f, err := dir.Open(i.File)
	if err == nil {
		defer f.Close()
		out.SHA256, out.Size, err = digestOf(c.Request.Context(), f)
	}
	switch {
	case err != nil:
		out.Message = fmt.Sprintf("reading the file of image %q: %v", i.Name, err)
	case out.SHA256 != i.SHA256:
		out.Message = fmt.Sprintf("the file's SHA-256 is %s and was %s", out.SHA256, i.SHA256)
	default:
		out.OK = true
	}
	c.JSON(http.StatusOK, out)
}

// agentImage serves an image to an agent over its pinned connection.
func (s *Server) agentImage(c *gin.Context) {
	if _, ok := s.agent(c); !ok {
		return
	}
	i, err := s.cfg.Store.Image(c.Request.Context(), c.Param("name"))
	if err != nil || i.File == "" {
		if err == nil || errors.Is(err, inventory.ErrNotFound) {
			notFound(c)
			return
		}
		s.fail(c, err)
		return
	}
	dir, err := s.dir()
	if err != nil {
		s.fail(c, err)
		return
	}
	defer dir.Close()
	f, err := dir.Open(i.File)
	if errors.Is(err, fs.ErrNotExist) {
		notFound(c)
		return
	}
	if err != nil {
		s.fail(c, fmt.Errorf("opening image %q: %w", i.Name, err))
		return
	}
	defer f.Close()
	h := c.Writer.Header()
	h.Set("ETag", `"`+i.SHA256+`"`)
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Cache-Control", "no-transform")
	// No modification time: If-Range must compare the digest.
	http.ServeContent(c.Writer, c.Request, "", time.Time{}, f)
}

// fetchImage fetches an image from a URL to this server.
func (s *Server) fetchImage(c *gin.Context) {
	var in struct {
		Name   string `json:"name"`
		URL    string `json:"url"`
		SHA256 string `json:"sha256"`
	}
	if err := body(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	var problems inventory.Problems
	if !safeName(in.Name) {
		problems.Add("name", "small letters, digits, dots, dashes, underscores; at most 128", "%q is no name of an image", in.Name)
	}
	sum, err := declaredSum(in.SHA256)
	if err != nil {
		problems.Add("sha256", "64 hex digits", "%q is no SHA-256", in.SHA256)
	}
	u, err := url.Parse(in.URL)
	if err == nil {
		err = s.mayFetch(u)
	}
	if err != nil {
		problems.Add("url", "https, or http from a host that the configuration lists", "%v", err)
	}
	if err := problems.Err(); err != nil {
		s.fail(c, err)
		return
	}
	dir, err := s.dir()
	if err != nil {
		s.fail(c, err)
		return
	}
	defer dir.Close()
	unlock, err := s.lockUpload(in.Name)
	if err != nil {
		s.fail(c, err)
		return
	}
	defer unlock()
	resp, err := s.get(c.Request.Context(), in.URL, "")
	if err != nil {
		s.fail(c, invalid("url", "", "fetching %q: %v", source(u), err))
		return
	}
	defer resp.Body.Close()
	if _, err := s.receive(dir, in.Name, 0, resp.ContentLength, resp.Body); err != nil {
		if e := dir.Remove(partName(in.Name)); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
		s.fail(c, err)
		return
	}
	s.keepImage(c, dir, inventory.Image{Name: in.Name, URL: source(u), SHA256: sum})
}

// source is a URL without what may be a credential: user and password, and the
// query, where signatures and tokens stand. That is no part of where an image
// came from.
func source(u *url.URL) string {
	shown := *u
	shown.User, shown.RawQuery, shown.ForceQuery, shown.Fragment, shown.RawFragment = nil, "", false, "", ""
	return shown.String()
}

// mayFetch tells whether a URL may be dialled because somebody wrote it
// (security S17).
func (s *Server) mayFetch(u *url.URL) error {
	switch {
	case u.Hostname() == "":
		return errors.New("the URL names no host")
	case u.Scheme == "https", u.Scheme == "http" && slices.Contains(s.cfg.FetchHosts, u.Hostname()):
		return nil
	}
	return fmt.Errorf("%s from %q is not allowed", u.Scheme, u.Hostname())
}

// probeTime bounds the question whether a file can be fetched.
const probeTime = 30 * time.Second

// ProbeImage tells whether this server may and can fetch an image from target,
// and has the room for it, if it fetches no other. It asks for the first byte: not every server answers
// HEAD, and a signed address is for GET alone.
func (s *Server) ProbeImage(ctx context.Context, target string) error {
	u, err := url.Parse(target)
	if err != nil {
		return fmt.Errorf("reading the address: %w", inventory.ErrInvalid)
	}
	if err := s.mayFetch(u); err != nil {
		return fmt.Errorf("asking for %q: %w: %w", source(u), err, inventory.ErrInvalid)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	resp, err := s.get(ctx, target, "bytes=0-0")
	if err != nil {
		return fmt.Errorf("asking for %q: %w: %w", source(u), err, inventory.ErrUnreachable)
	}
	size := resp.ContentLength
	if resp.StatusCode == http.StatusPartialContent {
		size = -1
		if m := contentRange.FindStringSubmatch(resp.Header.Get("Content-Range")); m != nil && m[3] != "*" {
			size, _ = strconv.ParseInt(m[3], 10, 64) // the form admits 18 digits
		}
	}
	_ = resp.Body.Close() // the rest is not wanted
	spare, err := s.spare()
	if err == nil && size > spare {
		err = fmt.Errorf("%d MiB of %q do not fit, %d MiB are left for images: %w", size>>20, source(u), spare>>20, errNoSpace)
	}
	return err
}

// fetchStall is how long a server may send nothing.
const fetchStall = time.Minute

// get fetches a URL, or a range of it. Addresses are judged when they are dialled, so that a
// name that resolves differently the second time gains nothing.
func (s *Server) get(ctx context.Context, target, span string) (*http.Response, error) {
	client := http.Client{
		// No proxy: it would dial for us, and judge nothing.
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				host, _, err := net.SplitHostPort(address)
				if err != nil {
					return nil, err
				}
				d := net.Dialer{Timeout: 10 * time.Second, Resolver: s.cfg.Resolver, Control: s.mayDial(host)}
				c, err := d.DialContext(ctx, network, address)
				if err != nil {
					return nil, err
				}
				return stalling{c}, nil
			},
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
			ResponseHeaderTimeout:  30 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
			DisableCompression:     true, // the digest is of the file as it is
			DisableKeepAlives:      true,
		},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) > 5 {
				return errors.New("more than five redirects")
			}
			return s.mayFetch(r.URL)
		},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, err
	}
	if span != "" {
		req.Header.Set("Range", span)
	}
	resp, err := client.Do(req)
	if err != nil {
		var dialled *url.Error // repeats the whole URL
		if errors.As(err, &dialled) {
			err = dialled.Err
		}
		return nil, err
	}
	if resp.StatusCode != http.StatusOK && (span == "" || resp.StatusCode != http.StatusPartialContent) {
		return nil, errors.Join(fmt.Errorf("the answer is %s", resp.Status), resp.Body.Close())
	}
	return resp, nil
}

// stalling is a connection whose reads end when nothing comes.
type stalling struct{ net.Conn }

func (c stalling) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(fetchStall)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// mayDial judges the address that host was resolved to, at the moment when it
// is dialled. An address that the configuration lists as such is taken; a name
// that it lists may lie in a private range, but never on this host or its
// link; any other must be public.
func (s *Server) mayDial(host string) func(network, address string, _ syscall.RawConn) error {
	listed := slices.Contains(s.cfg.FetchHosts, host)
	_, err := netip.ParseAddr(host)
	literal := err == nil
	return func(_, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		a := ap.Addr().Unmap().WithZone("")
		switch {
		case listed && literal:
			return nil
		case !a.IsGlobalUnicast() || special(a):
			return fmt.Errorf("%s is an address of this host, its link or of no host", a)
		case a.IsPrivate() && !listed:
			return fmt.Errorf("%s is a private address, and images.fetch_hosts does not list its host", a)
		}
		return nil
	}
}

// special tells whether a lies in a range that is no place of the Internet,
// although nothing of its form says so, or that embeds an address which would
// have to be judged instead (RFC 6890, RFC 6052, RFC 3056, RFC 4380).
func special(a netip.Addr) bool {
	for _, p := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
		"::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/32", "2001:db8::/32", "2002::/16", "fec0::/10",
	} {
		if netip.MustParsePrefix(p).Contains(a) {
			return true
		}
	}
	return false
}
