// Package httpclient makes the clients of all HTTP services to which credentials are sent: controllers, installed systems, peers,
// the API, receivers of notices and traces.
package httpclient

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// maxHeader limits the size of an answer's headers, in bytes.
const maxHeader = 64 << 10

// NewTransport returns a transport for HTTP/1.1 that uses no proxy. Connecting may take as long as limit, and then the TLS handshake may
// take as long again.
func NewTransport(conf *tls.Config, limit time.Duration) *http.Transport {
	return &http.Transport{
		DialContext: (&net.Dialer{Timeout: limit}).DialContext, TLSClientConfig: conf, TLSHandshakeTimeout: limit,
		MaxResponseHeaderBytes: maxHeader,
	}
}

// New returns a client that returns a redirect as the answer instead of following it: following it would send
// credentials to a host whose certificate was not checked.
func New(t http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Head sends a HEAD request over a connection of its own and returns the status of the answer. If insecure is true, it accepts any
// certificate: the request holds no secret.
func Head(ctx context.Context, url string, insecure bool) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, url, nil)
	if err != nil {
		return 0, err
	}
	t := NewTransport(&tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: insecure}, 15*time.Second)
	t.DisableKeepAlives = true
	res, err := t.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}
