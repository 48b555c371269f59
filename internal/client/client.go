// Package client is the client of a server's operator API: it finds the server and
// the token, sends requests, and decodes answers and errors.
package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/httpclient"
	"github.com/ingotmetal/ingot/internal/secrets/keypin"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// ErrUnavailable means that the server, or a service that it needs, does not answer now.
var ErrUnavailable = errors.New("not available now")

// invalid returns an inventory.ErrInvalid with this text.
func invalid(format string, args ...any) error {
	return human.WithKind(fmt.Errorf(format, args...), inventory.ErrInvalid)
}

// An Answer is the server's answer: Value is decoded; Raw is the JSON as received, which may have fields that
// this version does not decode.
type Answer[T any] struct {
	Value T
	Raw   json.RawMessage
}

// Session is the log-in that "ingot login URL" stores.
type Session struct {
	Server string `json:"server"`
	// Fingerprint identifies the only key that the server's certificate may have. If it is "", the certificate is verified
	// against the system's authorities.
	Fingerprint string `json:"fingerprint,omitempty"`
	Token       string `json:"token"`
}

// Client sends requests to one server's operator API.
type Client struct {
	base  *url.URL
	token string
	http  *http.Client
	pause time.Duration // how long Start waits before it sends a request again
}

// Error is an error that the server returned.
type Error struct {
	Status   int                `json:"-"`
	Text     string             `json:"error"`
	Code     string             `json:"code"`
	Problems inventory.Problems `json:"problems,omitempty"`
	Next     string             `json:"next,omitempty"`
}

func (e *Error) Error() string {
	if len(e.Problems) > 0 {
		return e.Problems.Error()
	}
	return e.Text
}

// Is reports whether the code of the error corresponds to target, one of inventory.Err… or ErrUnavailable.
func (e *Error) Is(target error) bool {
	kinds := map[string]error{
		"not_found": inventory.ErrNotFound, "conflict": inventory.ErrConflict, "fenced": inventory.ErrFenced,
		"invalid": inventory.ErrInvalid, "unavailable": ErrUnavailable,
	}
	kind, known := kinds[e.Code]
	return known && kind == target
}

// New returns a client for the server of s. It sends nothing.
func New(s Session) (*Client, error) {
	base, err := url.Parse(s.Server)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, invalid("invalid server URL %q; write http://127.0.0.1:8080 or https://name:port", s.Server)
	}

	if base.Scheme == "http" && !config.Loopback(net.JoinHostPort(base.Hostname(), cmp.Or(base.Port(), base.Scheme))) {
		return nil, invalid("%s is not this host, and the token must not be sent there without TLS: use https", s.Server)
	}

	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.Fingerprint != "" {
		conf = keypin.ClientTLS(s.Fingerprint, func(other string) error { return wrongKeyError{other} })
	}
	t := httpclient.NewTransport(conf, 10*time.Second)
	t.MaxIdleConnsPerHost = 4

	return &Client{base: base, token: s.Token, pause: time.Second, http: httpclient.New(t)}, nil
}

// URL returns the server's URL.
func (c *Client) URL() *url.URL { return c.base }

// Request sends a request with a body of length bytes. The caller closes the body of the response. If the status is 300
// or more, the error is an *Error.
func (c *Client) Request(
	ctx context.Context, method, route string, body io.Reader, length int64,
) (*http.Response, error) {
	return c.send(ctx, message{method: method, route: route, body: body, length: length})
}

// A message is a request to send.
type message struct {
	method, route string
	body          io.Reader
	length        int64
	key           string // Idempotency-Key; "": none
	contentType   string // "": none
	version       string // If-Match; "": none
}

func (c *Client) send(ctx context.Context, m message) (*http.Response, error) {
	u, err := c.base.Parse(m.route)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, m.method, u.String(), m.body)
	if err != nil {
		return nil, err
	}
	if m.body != nil {
		req.ContentLength = m.length
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	if m.key != "" {
		req.Header.Set("Idempotency-Key", strconv.Quote(m.key))
	}
	if m.contentType != "" {
		req.Header.Set("Content-Type", m.contentType)
	}
	if m.version != "" {
		req.Header.Set("If-Match", m.version)
	}
	// TRACEPARENT holds the trace context (W3C) of the program that started this one.
	if parent := os.Getenv("TRACEPARENT"); parent != "" {
		req.Header.Set("Traceparent", parent)
	}

	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.explainNoAnswer(ctx, err)
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	return nil, errors.Join(readAPIError(resp), resp.Body.Close())
}

// explainNoAnswer returns an error that says why a request got no answer, with a remedy. err is the error of the HTTP client.
func (c *Client) explainNoAnswer(ctx context.Context, err error) error {
	var wrongKey wrongKeyError
	var verify *tls.CertificateVerificationError
	var whole *url.Error
	if errors.As(err, &whole) {
		err = whole.Err // leave out the URL, because the new text names the server
	}

	login := "ingot login " + c.base.String() + " --fingerprint "
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &wrongKey):
		return human.Advise(
			fmt.Errorf("talking to %s: %w", c.base, wrongKey),
			"compare this fingerprint with the one that ingot serve logs; if they are equal: "+login+wrongKey.got)
	case errors.As(err, &verify):
		got := keypin.Of(verify.UnverifiedCertificates[0])
		return human.Advise(
			fmt.Errorf("talking to %s: its certificate is not signed by a known authority: %w", c.base, verify.Err),
			"compare "+got+" with the fingerprint that ingot serve logs; if they are equal: "+login+got)
	}

	return human.Advise(
		fmt.Errorf("the server at %s does not answer: %w", c.base, human.WithKind(err, ErrUnavailable)),
		"check that ingot serve runs there, then: ingot doctor")
}

// maxErrorBody limits the body of an error, in bytes. It is large because the answer to a push may hold problems of every
// machine.
const maxErrorBody = 64 << 20

// readAPIError decodes the body of resp as an *Error. If that fails, it makes an *Error from the status.
func readAPIError(resp *http.Response) error {
	e := &Error{Status: resp.StatusCode}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err == nil {
		err = json.Unmarshal(b, e)
	}
	if err != nil || e.Text == "" {
		e.Text = "the server answered " + resp.Status
		switch resp.StatusCode {
		case http.StatusNotFound:
			e.Code = "not_found"
		case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			e.Code = "unavailable"
		}
	}
	if resp.StatusCode == http.StatusUnauthorized {
		e.Text, e.Next = "the server does not accept this token", "give --token-file, or log in again: ingot login URL"
	}

	return e
}

// Send sends a request and decodes the answer. If in is not nil, it is encoded as JSON and sent as the body.
func Send[T any](ctx context.Context, c *Client, method, route string, in any) (Answer[T], error) {
	return sendJSON[T](ctx, c, message{method: method, route: route}, in)
}

func sendJSON[T any](ctx context.Context, c *Client, m message, in any) (Answer[T], error) {
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return Answer[T]{}, err
		}
		m.body, m.length = bytes.NewReader(b), int64(len(b))
	}

	resp, err := c.send(ctx, m)
	if err != nil {
		return Answer[T]{}, err
	}

	return Decode[T](resp)
}

// Patch sends a JSON merge patch for the object that has the given ETag.
func Patch[T any](ctx context.Context, c *Client, route, etag string, patch any) (Answer[T], error) {
	return sendJSON[T](ctx, c, message{
		method: http.MethodPatch, route: route, contentType: "application/merge-patch+json", version: etag,
	}, patch)
}

// Get sends a GET request for a route.
func Get[T any](ctx context.Context, c *Client, route string) (Answer[T], error) {
	return Send[T](ctx, c, http.MethodGet, route, nil)
}

// GetAll reads all pages of a list. The route may contain a query.
func GetAll[T any](ctx context.Context, c *Client, route string) (all Answer[List[T]], err error) {
	all.Value.Items = []T{} // not nil, which would be null in JSON

	route, query, _ := strings.Cut(route, "?")
	q, err := url.ParseQuery(query)
	if err != nil {
		return all, err
	}

	for {
		page, err := Get[List[T]](ctx, c, WithQuery(route, q))
		if err != nil {
			return all, err
		}
		all.Value.Items = append(all.Value.Items, page.Value.Items...)
		if page.Value.Next == "" {
			all.Raw, err = json.Marshal(all.Value)
			return all, err
		}
		q.Set("after", page.Value.Next)
	}
}

// Decode decodes the body of resp and closes it. An empty body gives the zero Value.
func Decode[T any](resp *http.Response) (a Answer[T], err error) {
	what := resp.Request.Method + " " + resp.Request.URL.Path
	raw, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return a, fmt.Errorf("reading the answer of %s: %w", what, human.WithKind(err, ErrUnavailable))
	}
	if a.Raw = raw; len(raw) == 0 {
		a.Raw = json.RawMessage("{}")
		return a, nil
	}
	if err := json.Unmarshal(raw, &a.Value); err != nil {
		return a, fmt.Errorf("reading the answer of %s: %w", what, err)
	}

	return a, nil
}

// List is the body of every list. Next is the cursor of the next page, if any.
type List[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}

// Path returns /v1 followed by these elements as segments of the path, each escaped.
func Path(elements ...string) string {
	var b strings.Builder
	b.WriteString("/v1")
	for _, e := range elements {
		b.WriteString("/" + url.PathEscape(e))
	}
	return b.String()
}

// WithQuery returns the route with the query q, if q is not empty.
func WithQuery(route string, q url.Values) string {
	if len(q) == 0 {
		return route
	}
	return route + "?" + q.Encode()
}

// wrongKeyError means that the server does not have the key that is pinned.
type wrongKeyError struct{ got string }

func (e wrongKeyError) Error() string {
	return "the server's key is not the pinned one; the server's key has the fingerprint " + e.got
}
