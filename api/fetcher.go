package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"syscall"
	"time"
)

// A fetcher requests files from other servers for operators. It connects only to public addresses, and to the hosts
// that the configuration lists.
type fetcher struct {
	hosts    []string // hosts that may use plain http and private addresses
	private  []string // further hosts that may use private addresses
	resolver *net.Resolver
}

// checkURL returns an error if a request must not make this server connect to u (security S17).
func (f fetcher) checkURL(u *url.URL) error {
	switch {
	case u.Hostname() == "":
		return errors.New("the URL has no host")
	case u.Scheme == "https", u.Scheme == "http" && slices.Contains(f.hosts, u.Hostname()):
		return nil
	}
	return fmt.Errorf("downloads by %s from %q are not allowed", u.Scheme, u.Hostname())
}

// fetchStall is the longest time for which the other server may send no data.
const fetchStall = time.Minute

// client returns a client that trusts the authorities in roots, or those of the operating system if roots is nil. An
// address is checked at the moment when the connection is made, so a name cannot resolve to one address for the check
// and to another for the connection. The caller checks the URL of the first request.
func (f fetcher) client(roots *x509.CertPool) *http.Client {
	return &http.Client{
		// No proxy is used, because a proxy would connect to addresses that checkAddress refuses.
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				host, _, err := net.SplitHostPort(address)
				if err != nil {
					return nil, err
				}
				d := net.Dialer{Timeout: 10 * time.Second, Resolver: f.resolver, Control: f.checkAddress(host)}
				c, err := d.DialContext(ctx, network, address)
				if err != nil {
					return nil, err
				}
				return stalling{c}, nil
			},
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
			ResponseHeaderTimeout:  30 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
			DisableCompression:     true, // the digest covers the file exactly as the other server stores it
			DisableKeepAlives:      true,
		},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) > 5 {
				return errors.New("more than five redirects")
			}
			r.Header.Del("Referer") // the query of the referring URL may contain a credential (security S22)
			if err := f.checkURL(r.URL); err != nil {
				return refusal{err}
			}
			return nil
		},
	}
}

// request sends a GET for target. If span is not "", span is the value of the Range header. Any status other than 200
// (or 206 for a range) is an error.
func (f fetcher) request(ctx context.Context, target, span string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, err
	}
	if span != "" {
		req.Header.Set("Range", span)
	}
	resp, err := f.client(nil).Do(req)
	if err != nil {
		var dialled *url.Error // the text of a url.Error repeats the URL, which may hold a credential
		if errors.As(err, &dialled) {
			err = dialled.Err
		}
		return nil, err
	}
	if resp.StatusCode != http.StatusOK && (span == "" || resp.StatusCode != http.StatusPartialContent) {
		err := fmt.Errorf("the answer is %s", resp.Status)
		if code := resp.StatusCode; code/100 == 4 && code != http.StatusRequestTimeout && code != http.StatusTooManyRequests {
			err = refusal{err}
		}
		return nil, errors.Join(err, resp.Body.Close())
	}
	return resp, nil
}

// refusal is an error that a later request would get, too.
type refusal struct{ error }

// Unwrap implements the interface of errors.Is.
func (r refusal) Unwrap() error { return r.error }

// stalling is a connection whose reads fail if no data arrives within fetchStall.
type stalling struct{ net.Conn }

func (c stalling) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(fetchStall)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// checkAddress returns the net.Dialer.Control function that checks an address of host before the connection is made. If
// host itself is an IP address and the configuration lists it, the function accepts it. If host is a listed name, it
// may resolve to a private address, but not to a loopback or link-local address. Every other address must be public.
func (f fetcher) checkAddress(host string) func(network, address string, _ syscall.RawConn) error {
	listed := slices.Contains(f.hosts, host) || slices.Contains(f.private, host)
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
			return refusal{fmt.Errorf("%s is a loopback, link-local, multicast or reserved address", a)}
		case a.IsPrivate() && !listed:
			return refusal{fmt.Errorf("%s is a private address, but neither images.fetch_hosts nor images.registries lists its host", a)}
		}
		return nil
	}
}

// isReserved reports whether a is in a range that is not routed on the Internet, or that embeds an IPv4 address (RFC
// 6890, RFC 6052, RFC 3056, RFC 4380).
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
