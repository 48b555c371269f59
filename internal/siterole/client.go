package siterole

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/ingotmetal/ingot/internal/httpclient"
	"github.com/ingotmetal/ingot/internal/secrets/keypin"
	"github.com/ingotmetal/ingot/internal/text/human"

	"github.com/ingotmetal/ingot/inventory"
)

// apiRoot is the base path of the peer API.
const apiRoot = "/site/v1/"

// State describes a server to its peer.
type State struct {
	Program string `json:"program"`         // version; source and target must have the same version
	Name    string `json:"name,omitempty"`  // name of the server
	Role    string `json:"role"`            // Active, Standby, HandingOver or Retired
	Epoch   int64  `json:"epoch,omitempty"` // site epoch that the server owns or owned
	// Prepared is the id of the hand-over whose archive this server has received. Activated is the id of the hand-over that made this
	// server the active one.
	Prepared  string `json:"prepared,omitempty"`
	Activated string `json:"activated,omitempty"`
	// Refused reports that the server will never activate the hand-over whose id is in the request.
	Refused   bool            `json:"refused,omitempty"`
	Successor *inventory.Peer `json:"successor,omitempty"`
}

// Report is a State with the result of a standby's check before a migration.
type Report struct {
	State
	Temporal string   `json:"temporal,omitempty"` // address of an external Temporal cluster; "" = embedded
	Free     int64    `json:"free"`               // bytes free for the databases
	Problems []string `json:"problems"`           // why the standby cannot take over; empty = it can
	Notify   bool     `json:"notify,omitempty"`   // the standby sends a notice when it needs an operator
}

// refusal is the body of every error response of the peer API. A response without a code of the peer API does not come from a peer, but
// from a proxy or another server.
type refusal struct {
	Error string `json:"error"`
	Code  string `json:"code"`
}

// codeInternal is the code of every error that refusals does not list.
const codeInternal = "ingot_internal"

// ErrStranger means that the peer does not accept this server's token or key.
var ErrStranger = errors.New("the peer does not accept this server's token or key")

// refusals are the errors that have a code of their own, and their HTTP statuses.
var refusals = []struct {
	err    error
	code   string
	status int
}{
	{ErrStranger, "ingot_stranger", http.StatusUnauthorized},
	{inventory.ErrConflict, "ingot_conflict", http.StatusConflict},
	{inventory.ErrInvalid, "ingot_invalid", http.StatusBadRequest},
}

// refuse returns the body and the HTTP status of the response to a request that failed with err.
func refuse(err error) (refusal, int) {
	for _, k := range refusals {
		if errors.Is(err, k.err) {
			return refusal{err.Error(), k.code}, k.status
		}
	}
	return refusal{err.Error(), codeInternal}, http.StatusInternalServerError
}

// Client sends requests to a peer. inventory.ErrUnreachable means that there was no response, or none from a peer: the effect of the
// request is then unknown. inventory.ErrConflict or inventory.ErrInvalid means that the peer has refused the request.
type Client struct {
	peer  inventory.Peer
	token string
	http  *http.Client
}

// NewClient returns a client of p that authenticates by cert and token and accepts only the pinned key of p.
func NewClient(p inventory.Peer, cert tls.Certificate, token string) (*Client, error) {
	if _, err := parseURL(p); err != nil {
		return nil, err
	}

	t := pinnedTransport(p, cert)
	t.ResponseHeaderTimeout = 10 * time.Minute // the target verifies the databases before it responds to Prepare
	t.DisableKeepAlives = true                 // after the link was broken, the first request on a kept connection would fail
	return &Client{peer: p, token: token, http: httpclient.New(t)}, nil
}

// parseURL returns p.URL as a URL, or inventory.ErrInvalid if it is not https://host[:port].
func parseURL(p inventory.Peer) (*url.URL, error) {
	u, err := url.Parse(p.URL)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("peer %q: invalid URL %q; must be https://host:port: %w", p.Name, p.URL, inventory.ErrInvalid)
	}
	return u, nil
}

// pinnedTransport returns a transport that authenticates by cert and accepts only the key of p.
func pinnedTransport(p inventory.Peer, cert tls.Certificate) *http.Transport {
	conf := keypin.ClientTLS(p.Fingerprint, func(other string) error {
		return fmt.Errorf("the peer's key is not the pinned key; its fingerprint is %s", other)
	})
	conf.MinVersion, conf.Certificates = tls.VersionTLS13, []tls.Certificate{cert}
	return httpclient.NewTransport(conf, 5*time.Second)
}

// ServerTLS returns the TLS configuration of the peer API. Every client must present a certificate; the handler checks its key.
func ServerTLS(cert tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAnyClientCert,
		NextProtos: []string{"http/1.1"},
	}
}

// shortTimeout is the default time limit of a request without a body.
const shortTimeout = 15 * time.Second

// Pair makes this server, under the given name, the only source that the peer accepts.
func (c *Client) Pair(ctx context.Context, name string) (Report, error) {
	return call[Report](ctx, c, request{method: http.MethodPost, path: "pair", query: url.Values{"name": {name}}})
}

// State returns the state of the peer. Its field Refused reports whether the peer has refused the hand-over id.
func (c *Client) State(ctx context.Context, id string) (State, error) {
	return call[State](ctx, c, request{path: "state", query: url.Values{"id": {id}}})
}

// Check returns the peer's report on whether the peer can take over.
func (c *Client) Check(ctx context.Context) (Report, error) {
	return call[Report](ctx, c, request{path: "check"})
}

// Prepare sends the copy of the site to the peer, which verifies and stores it. It is idempotent.
func (c *Client) Prepare(ctx context.Context, id string, epoch int64, site Copy) (State, error) {
	r, err := site.Open()
	if err != nil {
		return State{}, err
	}
	defer func() { _ = r.Close() }() // only read

	return call[State](ctx, c, request{
		method: http.MethodPut, path: "handovers/" + url.PathEscape(id), body: r, size: site.Size,
		query: url.Values{"epoch": {strconv.FormatInt(epoch, 10)}, "digest": {site.Digest}},
	})
}

// Activate makes the peer the active server. It is idempotent.
func (c *Client) Activate(ctx context.Context, id string) (State, error) {
	return call[State](ctx, c, request{method: http.MethodPost, path: "handovers/" + url.PathEscape(id) + "/activate"})
}

// Refuse makes the peer refuse the hand-over id permanently. If the peer has already activated that hand-over, the error is
// inventory.ErrConflict.
func (c *Client) Refuse(ctx context.Context, id string) (State, error) {
	return call[State](ctx, c, request{method: http.MethodPost, path: "handovers/" + url.PathEscape(id) + "/refuse"})
}

// ImageState reports how much of an image's file the peer has.
type ImageState struct {
	Size int64 `json:"size"` // bytes that the peer has
	Done bool  `json:"done"` // the file is complete, and its digest matches
}

// Image returns how much of an image's file the peer has. If the image is served in place, the peer checks its own file at the
// same path.
func (c *Client) Image(ctx context.Context, img inventory.Image) (ImageState, error) {
	q := url.Values{"digest": {img.SHA256}}
	if img.InPlace != nil {
		q.Set("inPlace", img.InPlace.Path)
	}
	return call[ImageState](ctx, c, request{path: "images/" + url.PathEscape(img.File), query: q, within: 10 * time.Minute})
}

// SendImage sends the bytes of an image file from offset to the end; the first byte of r is the one at offset.
func (c *Client) SendImage(ctx context.Context, img inventory.Image, offset int64, r io.Reader) (ImageState, error) {
	return call[ImageState](ctx, c, request{
		method: http.MethodPut, path: "images/" + url.PathEscape(img.File), body: r, size: img.Size - offset,
		query: url.Values{
			"digest": {img.SHA256}, "offset": {strconv.FormatInt(offset, 10)}, "size": {strconv.FormatInt(img.Size, 10)},
		},
	})
}

// request is a request of the peer API.
type request struct {
	method string // "" = GET
	path   string // relative to apiRoot
	query  url.Values
	body   io.Reader     // nil = none; a request with a body has no time limit
	size   int64         // length of body in bytes
	within time.Duration // time limit of a request without a body; 0 = shortTimeout
}

// maxAnswer is the limit for the body of a response, in bytes.
const maxAnswer = 1 << 20

func call[T any](ctx context.Context, c *Client, q request) (out T, err error) {
	if q.body == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cmp.Or(q.within, shortTimeout))
		defer cancel()
	}

	text, err := c.do(ctx, q)
	if err == nil {
		if bad := json.Unmarshal(text, &out); bad != nil {
			err = unreachable(fmt.Errorf("unexpected answer: %w", bad))
		}
	}
	if err != nil {
		err = fmt.Errorf("asking peer %q at %s: %w", c.peer.Name, c.peer.URL, err)
	}

	return out, err
}

// do sends a request and returns the body of its response. A status other than 200 is an error, see refusalOf.
func (c *Client) do(ctx context.Context, q request) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, q.method, c.peer.URL+apiRoot+q.path+"?"+q.query.Encode(), q.body)
	if err != nil {
		return nil, err
	}
	if q.body != nil {
		req.ContentLength = q.size
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	resp, err := c.http.Do(req)
	if err != nil {
		if whole, ok := errors.AsType[*url.Error](err); ok {
			err = whole.Err
		}
		return nil, unreachable(err)
	}

	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return nil, unreachable(err)
	}
	if resp.StatusCode == http.StatusOK {
		return text, nil
	}

	return nil, refusalOf(text, resp.Status)
}

// refusalOf returns the error of a response whose status is not 200.
func refusalOf(text []byte, status string) error {
	var no refusal
	if json.Unmarshal(text, &no) != nil {
		return unreachable(errors.New("unexpected answer: " + status))
	}

	for _, k := range refusals {
		if no.Code == k.code {
			return human.WithKind(errors.New(no.Error), k.err)
		}
	}

	return unreachable(errors.New(no.Error + " (" + status + ")"))
}

// unreachable returns err as an inventory.ErrUnreachable.
func unreachable(err error) error { return human.WithKind(err, inventory.ErrUnreachable) }
