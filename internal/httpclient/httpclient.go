// Package httpclient makes the clients of all HTTP services to which credentials are sent: controllers, installed systems, peers,
// the API, receivers of notices and traces.
package httpclient

import (
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// maxHeader limits the headers of an answer, in bytes.
const maxHeader = 64 << 10

// NewTransport returns a transport without a proxy, for HTTP/1.1. Connecting may take limit, and so may the TLS handshake.
func NewTransport(conf *tls.Config, limit time.Duration) *http.Transport {
	return &http.Transport{
		DialContext: (&net.Dialer{Timeout: limit}).DialContext, TLSClientConfig: conf, TLSHandshakeTimeout: limit,
		MaxResponseHeaderBytes: maxHeader,
	}
}

// New returns a client that does not follow redirects, and returns them as answers: a redirect would carry credentials to a
// host whose certificate was not checked.
func New(t http.RoundTripper) *http.Client {
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
