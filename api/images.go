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

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/inventory"
)

type imageStore interface {
	Image(ctx context.Context, name string) (inventory.Image, error)
	Images(ctx context.Context) ([]inventory.Image, error)
	ExpectImageFile(ctx context.Context, digest string) error
	PutImage(ctx context.Context, i inventory.Image, by string) error
	DeleteImage(ctx context.Context, name, by string) error
	PlannedImages(ctx context.Context) ([]inventory.PlannedImage, error)
	UnusedImageFiles(ctx context.Context, remove func(digest string) error) error
}

var safe = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,126}[a-z0-9])?$`)

// safeName tells whether name may stand in a path and in a URL.
func safeName(name string) bool { return safe.MatchString(name) && !strings.Contains(name, "..") }

var digest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// declaredSum reads a declared SHA-256; "" means that none was.
func declaredSum(field, v string) (string, error) {
	v = strings.ToLower(strings.TrimPrefix(v, "sha256:"))
	if v != "" && !digest.MatchString(v) {
		return "", invalid(field, "64 hex digits", "invalid SHA-256 %q", v)
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
	if err == nil && c.Query("unused") == "true" {
		var users imageUsers
		users, err = s.readImageUsers(c.Request.Context(), false)
		is = slices.DeleteFunc(is, func(i inventory.Image) bool { return users.free(i) != nil })
	}
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

func (s *Server) deleteImage(c *gin.Context) {
	ctx := c.Request.Context()
	i, err := s.image(ctx, c.Param("name"))
	var users imageUsers
	if err == nil {
		users, err = s.readImageUsers(ctx, c.Query("force") == "true")
	}
	if err == nil {
		err = users.free(i)
	}
	if err == nil {
		err = s.cfg.Store.DeleteImage(ctx, i.Name, by(c))
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	s.RemoveUnusedImages(ctx)
	c.Status(http.StatusNoContent)
}

// imageUsers is all that may need an image.
type imageUsers struct {
	planned   []inventory.PlannedImage
	runs      []inventory.Workflow // open ones
	templates []inventory.Template
	machines  []inventory.Machine // with their user data
	labs      []genesis.Lab
}

// readImageUsers reads what needs images: open runs, and, unless runsOnly, what
// names images for a later installation.
func (s *Server) readImageUsers(ctx context.Context, runsOnly bool) (u imageUsers, err error) {
	if u.planned, err = s.cfg.Store.PlannedImages(ctx); err != nil {
		return u, err
	}
	if u.runs, err = s.cfg.Store.Workflows(ctx, inventory.WorkflowFilter{Open: true, Limit: maxOpen}); err != nil {
		return u, err
	}
	if runsOnly {
		return u, nil
	}
	if u.templates, err = s.cfg.Store.Templates(ctx); err != nil {
		return u, err
	}
	if u.machines, err = s.cfg.Store.Machines(ctx); err != nil {
		return u, err
	}
	for n, m := range u.machines {
		if !m.HasUserData {
			continue
		}
		if u.machines[n].UserData, _, err = s.cfg.Store.UserData(ctx, m.Name); err != nil {
			return u, err
		}
	}
	bundles, err := s.cfg.Store.GenesisList(ctx)
	if err != nil {
		return u, err
	}
	for _, b := range bundles {
		b, err := s.cfg.Store.Genesis(ctx, b.Name)
		if errors.Is(err, inventory.ErrNotFound) {
			continue // forgotten with its key, or deleted by now
		}
		if err != nil {
			return u, err
		}
		l, err := genesis.Load(b.File, b.Read)
		var wrong inventory.Problems // to this version; what could be read counts
		if err != nil && !errors.As(err, &wrong) {
			return u, err
		}
		l.Name = b.Name
		u.labs = append(u.labs, l)
	}
	return u, nil
}

// free refuses to delete an image that something needs.
func (u imageUsers) free(i inventory.Image) error {
	inRun := func(run, machine string) error {
		return hint{fmt.Errorf("run %s of machine %q uses image %q: %w", run, machine, i.Name, inventory.ErrConflict), "ingot workflow get " + run}
	}
	for _, p := range u.planned {
		if p.SHA256 == i.SHA256 {
			return inRun(p.Run, p.Machine)
		}
	}
	for _, w := range u.runs {
		if w.Image == i.Name {
			return inRun(w.Run, w.Machine)
		}
	}
	named := func(what, name string) error {
		return hint{fmt.Errorf("%s %q names image %q: %w", what, name, i.Name, inventory.ErrConflict), "change it, or: ingot image delete " + i.Name + " --force"}
	}
	for _, t := range u.templates {
		if inventory.NamesImage(t.Source, i.Name) {
			return named("template", t.Name)
		}
	}
	for _, m := range u.machines {
		// A document names what its installer fetches. Names of disk images, such as "debian", stand there for something else.
		if m.NamesImage(i.Name) || i.Use == inventory.UseInstaller && inventory.NamesImage(m.UserData.Reveal(), i.Name) {
			return named("machine", m.Name)
		}
	}
	for _, l := range u.labs {
		if _, found := l.Image(i.Name); found {
			return named("lab file", l.Name)
		}
	}
	return nil
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
		Use    string `json:"use"`
	}
	if err := body(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	problems := append(inventory.ValidateImageName(in.Name), inventory.ValidateImageUse(in.Use)...)
	sum, err := declaredSum("sha256", in.SHA256)
	if err != nil {
		problems.Add("sha256", "64 hex digits", "invalid SHA-256 %q", in.SHA256)
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
	up := upload{image: inventory.Image{Name: in.Name, URL: source(u), SHA256: sum, Use: in.Use}}
	checked, unlock, err := s.lockUpload(in.Name)
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
	err = up.discardOthers(dir)
	if err == nil {
		_, err = s.receive(dir, up, 0, resp.ContentLength, resp.Body)
	}
	if err != nil {
		s.fail(c, errors.Join(err, up.discard(dir)))
		return
	}
	s.keepImage(c, dir, up, checked)
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
