// Package endpoint connects to installed systems over the network: to their APIs over HTTPS, and by ARP and TCP to find out whether an
// address is in use.
//
// Errors wrap those of package inventory: ErrUnreachable if a retry may help, ErrRefused for refused credentials or an unexpected
// certificate, and ErrInvalid if the other side understood the request but will never carry it out.
package endpoint

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/ingotmetal/ingot/internal/httpclient"
	"github.com/ingotmetal/ingot/internal/secrets/keypin"

	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 15 * time.Second
	requestTimeout   = time.Minute // long, because a router takes seconds to commit
	maxAnswer        = 16 << 20    // maximum size of an answer in bytes; no expected answer is larger
	maxClip          = 300         // how many bytes of an answer an error quotes
)

var errFingerprint = errors.New("the certificate's key does not have the given fingerprint")

// A Dialer connects like net.Dialer.DialContext.
type Dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// A Client sends requests to one endpoint. Open a new one for each operation, so that no connection to a machine outlives that machine.
type Client struct {
	base string
	http *http.Client
}

// Open returns a client for the endpoint. The client connects when it sends its first request. Each of options may change the TLS
// configuration that was made for the endpoint.
func Open(e inventory.Endpoint, options ...func(*tls.Config)) (*Client, error) {
	if problem := inventory.BaseProblem(e.URL); problem != "" {
		return nil, fmt.Errorf("endpoint %q %s: %w", e.URL, problem, inventory.ErrInvalid)
	}
	conf, err := tlsConfig(e)
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: %w: %w", e.URL, err, inventory.ErrInvalid)
	}
	for _, option := range options {
		option(conf)
	}

	t := httpclient.NewTransport(conf, handshakeTimeout)
	t.DialContext = dial
	client := httpclient.New(t)
	client.Timeout = requestTimeout
	return &Client{base: strings.TrimSuffix(e.URL, "/"), http: client}, nil
}

// Close closes the client's connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// dial connects to an address that inventory.MayDial allows.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: dialTimeout, Control: func(_, resolved string, _ syscall.RawConn) error {
		return inventory.MayDial(host, resolved)
	}}
	return d.DialContext(ctx, network, address)
}

// tlsConfig returns the TLS configuration that trusts what the endpoint names: a CA, the key with a fingerprint, or any certificate.
func tlsConfig(e inventory.Endpoint) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	given := 0
	for _, is := range []bool{e.CA != "", e.Fingerprint != "", e.Insecure} {
		if is {
			given++
		}
	}

	switch {
	case given > 1:
		return nil, errors.New("give only one of ca, fingerprint and insecure")
	case e.CA != "":
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM([]byte(e.CA)) {
			return nil, errors.New("ca contains no PEM certificate")
		}
	case e.Fingerprint != "":
		if problem := inventory.PinProblem(e.Fingerprint); problem != "" {
			return nil, fmt.Errorf("fingerprint %q %s", e.Fingerprint, problem)
		}
		return keypin.ClientTLS(e.Fingerprint, func(other string) error {
			return fmt.Errorf("%w: it is %s", errFingerprint, other)
		}), nil
	case e.Insecure:
		c.InsecureSkipVerify = true // the operator chose this
	}
	return c, nil
}

// A Request is one HTTP request below the endpoint's base URL.
type Request struct {
	Method, Path string
	Header       http.Header
	Body         []byte
}

// An Answer is the response to a Request.
type Answer struct {
	Status int
	Body   []byte
	URL    string // the URL without its query
}

// Ask opens a connection to the endpoint, sends one request and closes the connection.
func Ask(ctx context.Context, e inventory.Endpoint, r Request) (Answer, error) {
	c, err := Open(e)
	if err != nil {
		return Answer{}, err
	}
	defer c.Close()
	return c.Do(ctx, r)
}

// Do sends a request. An error means that no complete answer came. No HTTP status is an error here: use Answer.Err, or check Answer.Status.
func (c *Client) Do(ctx context.Context, r Request) (Answer, error) {
	a := Answer{}
	a.URL, _, _ = strings.Cut(c.base+r.Path, "?")
	req, err := http.NewRequestWithContext(ctx, r.Method, c.base+r.Path, bytes.NewReader(r.Body))
	if err != nil {
		return a, fmt.Errorf("asking %s: %w", a.URL, err)
	}
	for k, v := range r.Header {
		req.Header[k] = v
	}

	res, err := c.http.Do(req)
	if err != nil {
		return a, noAnswer(err)
	}
	defer func() { _ = res.Body.Close() }() // a body that could not be read is an error below
	a.Status = res.StatusCode
	if a.Body, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer+1)); err != nil {
		return a, noAnswer(err)
	}
	if len(a.Body) > maxAnswer {
		return a, fmt.Errorf("%s answers with more than %d bytes: %w", a.URL, maxAnswer, inventory.ErrInvalid)
	}
	return a, nil
}

// noAnswer wraps err. If the certificate is not trusted, it adds ErrRefused, because a retry does not help; otherwise it adds
// ErrUnreachable.
func noAnswer(err error) error {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var verify *tls.CertificateVerificationError
	if errors.Is(err, errFingerprint) || errors.As(err, &unknown) || errors.As(err, &host) || errors.As(err, &verify) {
		return fmt.Errorf("%w: %w", err, inventory.ErrRefused)
	}
	return fmt.Errorf("%w: %w", err, inventory.ErrUnreachable)
}

// Err returns nil for a status below 300, otherwise an error of package inventory that matches the status.
func (a Answer) Err() error {
	kind := inventory.ErrInvalid
	switch s := a.Status; {
	case s < 300:
		return nil
	case s == http.StatusUnauthorized || s == http.StatusForbidden:
		kind = inventory.ErrRefused
	case s == http.StatusNotFound:
		kind = inventory.ErrNotFound
	case s == http.StatusConflict:
		kind = inventory.ErrConflict
	case s >= 500 || s == http.StatusTooManyRequests || s == http.StatusRequestTimeout || s < 400:
		kind = inventory.ErrUnreachable // a proxy answers instead of the system, or the system is starting
	}
	return fmt.Errorf("%s answers %d %s: %w", a.URL, a.Status, Clip(a.Body), kind)
}

// Clip returns an answer in quotation marks, cut to 300 bytes.
func Clip(b []byte) string {
	return fmt.Sprintf("%q", plaintext.Clip(plaintext.Words(string(b)), maxClip))
}
