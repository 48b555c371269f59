// Package fetch downloads files from web servers. After a broken connection, it continues where the download has stopped.
package fetch

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// NewTransport returns an HTTP/1.1 transport without proxies, with time limits for servers that do not respond. answer is the time limit
// for the response header.
func NewTransport(t *tls.Config, answer time.Duration) *http.Transport {
	return &http.Transport{
		Proxy:                 nil,
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:       t,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: answer,
		IdleConnTimeout:       60 * time.Second,
		DisableCompression:    true,
	}
}

// StatusError is the error of a response whose status means failure.
type StatusError struct {
	Code int
	Text string
}

func (e *StatusError) Error() string {
	s := fmt.Sprintf("the server answers %d %s", e.Code, http.StatusText(e.Code))
	if e.Text != "" {
		s += ": " + e.Text
	}
	return s
}

// NewClient returns the client for image servers other than the Ingot server.
func NewClient() *http.Client {
	return &http.Client{Transport: NewTransport(&tls.Config{MinVersion: tls.VersionTLS12}, Stall), CheckRedirect: checkRedirect}
}

// checkRedirect removes the Referer header from a redirected request, because the query of the first address may contain a credential
// (security S22). net/http itself removes user and password.
func checkRedirect(r *http.Request, via []*http.Request) error {
	if len(via) > 5 {
		return errors.New("the server redirected more than five times")
	}
	r.Header.Del("Referer")
	return nil
}

// Stall is how long a download may receive no data before it is requested again.
const Stall = 60 * time.Second
