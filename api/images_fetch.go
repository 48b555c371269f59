package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

type fetchImage struct {
	Name   string `json:"name"`
	URL    string `json:"url"`
	SHA256 string `json:"sha256"`
	Use    string `json:"use"`
	AsIs   bool   `json:"asIs"`
	// Replace allows another file to take the place of an image that machines, templates or lab files name.
	Replace bool `json:"replace"`
	// Path is a file of a share, to be served where it lies, in place of URL.
	Path string `json:"path"`
	proof
}

// checkFetch returns the upload that the request starts.
func (s *images) checkFetch(q fetchImage) (upload, error) {
	problems := append(inventory.ValidateImageName(q.Name), inventory.ValidateImageUse(q.Use)...)
	sum, err := parseSum("sha256", q.SHA256)
	if err != nil {
		problems.Add("sha256", "64 hex digits", "invalid SHA-256 %q", q.SHA256)
	}
	problems = append(problems, q.check()...)
	u, err := url.Parse(q.URL)
	if err != nil {
		err = errors.New("it is not a URL") // the error repeats it, and it may hold a credential
	} else {
		err = s.checkURL(u)
	}
	if err != nil {
		problems.Add("url", "https, or http from a host that the configuration lists", "%v", err)
		return upload{}, problems
	}

	image := inventory.Image{Name: q.Name, URL: action.PublicURL(u.String()), SHA256: sum, Use: q.Use}
	return upload{image: image, asIs: q.AsIs, proof: q.proof}, problems.Err()
}

// fetch fetches an image from a URL to this server, or registers a file of a share.
func (s *images) fetch(ctx context.Context, q fetchImage) (inventory.Image, error) {
	if q.Path != "" {
		return s.register(ctx, q)
	}
	up, err := s.checkFetch(q)
	if err == nil {
		err = s.refuseReplacing(ctx, q.Name, up.image.SHA256, q.Replace)
	}
	if err != nil {
		return inventory.Image{}, err
	}
	dir, err := s.openDir()
	if err != nil {
		return inventory.Image{}, err
	}
	defer dir.Close()
	checked, unlock, err := s.lockUpload(q.Name)
	if err != nil {
		return inventory.Image{}, err
	}
	defer unlock()

	resp, err := s.request(ctx, q.URL, "")
	if err != nil {
		return inventory.Image{}, inventory.Invalid("url", "", "fetching %q: %v", up.image.URL, err)
	}
	defer resp.Body.Close()
	err = up.discardOthers(dir)
	if err == nil {
		_, err = s.receive(dir, up, 0, resp.ContentLength, resp.Body)
	}
	if err != nil {
		return inventory.Image{}, errors.Join(err, up.discard(dir))
	}

	return s.keep(ctx, dir, up, checked)
}

// checkURL refuses URLs that a request may not make this server connect to (security S17).
func (s *images) checkURL(u *url.URL) error {
	switch {
	case u.Hostname() == "":
		return errors.New("the URL names no host")
	case u.Scheme == "https", u.Scheme == "http" && slices.Contains(s.FetchHosts, u.Hostname()):
		return nil
	}
	return fmt.Errorf("%s from %q is not allowed", u.Scheme, u.Hostname())
}

// probeTime limits the check whether a file can be fetched.
const probeTime = 30 * time.Second

// probe reports whether this server may and can fetch an image from target and has the space
// for it, if it fetches no other. It requests the first byte, because not every server
// answers HEAD, and a signed URL is valid for GET only.
func (s *images) probe(ctx context.Context, target string) error {
	u, err := url.Parse(target)
	if err != nil {
		return fmt.Errorf("reading the address: %w", inventory.ErrInvalid)
	}
	if err := s.checkURL(u); err != nil {
		return fmt.Errorf("asking for %q: %w: %w", action.PublicURL(u.String()), err, inventory.ErrInvalid)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	resp, err := s.request(ctx, target, "bytes=0-0")
	if err != nil {
		return fmt.Errorf("asking for %q: %w: %w", action.PublicURL(u.String()), err, inventory.ErrUnreachable)
	}
	size := resp.ContentLength
	if resp.StatusCode == http.StatusPartialContent {
		size = -1
		if m := contentRange.FindStringSubmatch(resp.Header.Get("Content-Range")); m != nil && m[3] != "*" {
			size, _ = strconv.ParseInt(m[3], 10, 64) // the pattern admits 18 digits
		}
	}
	_ = resp.Body.Close() // the rest is not needed
	spare, err := s.space.spare()
	if err == nil && size > spare {
		err = fmt.Errorf("%d MiB of %q do not fit, %d MiB are left for images: %w", size>>20, action.PublicURL(u.String()),
			spare>>20, httpapi.ErrNoSpace)
	}
	return err
}

// fetchStall is how long a server may send no data.
const fetchStall = time.Minute

// request fetches a URL, or a range of it. Addresses are checked when they are dialed, so a
// name that resolves differently the second time gains nothing.
func (s *images) request(ctx context.Context, target, span string) (*http.Response, error) {
	client := http.Client{
		// No proxy: it would connect for us and skip the check.
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				host, _, err := net.SplitHostPort(address)
				if err != nil {
					return nil, err
				}
				d := net.Dialer{Timeout: 10 * time.Second, Resolver: s.Resolver, Control: s.checkAddress(host)}
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
			r.Header.Del("Referer") // its query may be a credential of the server before (security S22)
			return s.checkURL(r.URL)
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
		var dialled *url.Error // its text repeats the whole URL
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

// stalling is a connection whose reads fail if no data arrives in time.
type stalling struct{ net.Conn }

func (c stalling) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(fetchStall)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// checkAddress checks the address to which host resolved, when it is dialed. An address in
// the configuration is accepted. A name in the configuration may resolve to a private range,
// but never to this host or its link. Any other address must be public.
func (s *images) checkAddress(host string) func(network, address string, _ syscall.RawConn) error {
	listed := slices.Contains(s.FetchHosts, host)
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
		case !a.IsGlobalUnicast() || isReserved(a):
			return fmt.Errorf("%s is an address of this host, its link or of no host", a)
		case a.IsPrivate() && !listed:
			return fmt.Errorf("%s is a private address, and images.fetch_hosts does not list its host", a)
		}
		return nil
	}
}

// isReserved reports whether a is in a range that is not on the Internet, or embeds another
// address (RFC 6890, RFC 6052, RFC 3056, RFC 4380).
func isReserved(a netip.Addr) bool {
	for _, p := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24",
		"198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
		"::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64",
		"2001::/32", "2001:db8::/32", "2002::/16", "fec0::/10",
	} {
		if netip.MustParsePrefix(p).Contains(a) {
			return true
		}
	}
	return false
}
