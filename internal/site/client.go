package site

import (
	"bytes"
	"context"
	"crypto/subtle"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/ingotmetal/ingot/internal/identity"
	"github.com/ingotmetal/ingot/inventory"
)

// Version of the peer API. Both sides must speak the same one.
const Version = 1

// State describes a server to its peer.
type State struct {
	Version int    `json:"version"`         // of the peer API
	Program string `json:"program"`         // of the program
	Name    string `json:"name,omitempty"`  // of the server
	Role    string `json:"role"`            // Active …
	Epoch   int64  `json:"epoch,omitempty"` // site epoch that it owns or owned
	// Prepared is the hand-over whose site was received, Activated the one that made
	// the server the site.
	Prepared  string `json:"prepared,omitempty"`
	Activated string `json:"activated,omitempty"`
	// Refused: the id that was asked for will never be activated.
	Refused   bool  `json:"refused,omitempty"`
	Successor *Peer `json:"successor,omitempty"`
}

// A Report is the check of a standby before anything is begun.
type Report struct {
	State
	Temporal string   `json:"temporal,omitempty"` // address of a cluster elsewhere
	Free     int64    `json:"free"`               // bytes for the databases
	Problems []string `json:"problems"`           // why it could not take over
	Notify   bool     `json:"notify,omitempty"`   // it sends notices when an operator is needed
}

// refusal is the body of every error of the peer API. Its code distinguishes the
// answer of a peer from that of a proxy or another server.
type refusal struct {
	Error string `json:"error"`
	Code  string `json:"code"`
}

const (
	codeConflict = "ingot_conflict"
	codeInvalid  = "ingot_invalid"
	codeStranger = "ingot_stranger"
	codeInternal = "ingot_internal"
)

// ErrStranger is a peer that does not know this server: its token or its key.
var ErrStranger = errors.New("the peer does not know this server")

// A Client talks to a peer. No answer, or one that is not a peer's, is
// inventory.ErrUnreachable: then nothing is known. inventory.ErrConflict and
// inventory.ErrInvalid are answers of the peer.
type Client struct {
	peer  Peer
	token string
	http  *http.Client
}

// NewClient returns a client of p. It shows cert and token, and accepts only the
// pinned key of p. Tests wrap its transport; nil: not wrapped.
func NewClient(p Peer, cert tls.Certificate, token string, wrap func(http.RoundTripper) http.RoundTripper) (*Client, error) {
	u, err := url.Parse(p.URL)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("peer %q: invalid URL %q, want https://host:port: %w", p.Name, p.URL, inventory.ErrInvalid)
	}
	var rt http.RoundTripper = &http.Transport{
		TLSClientConfig:     PinnedTLS(p.Fingerprint, cert),
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 5 * time.Second, ResponseHeaderTimeout: 10 * time.Minute, // a prepare proves databases
		// A connection that a cut link has left behind would be asked first.
		DisableKeepAlives: true,
	}
	if wrap != nil {
		rt = wrap(rt)
	}

	return &Client{peer: p, token: token, http: &http.Client{Transport: rt}}, nil
}

// PinnedTLS is the client's side of a connection to the key with that
// fingerprint.
func PinnedTLS(fingerprint string, cert tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert},
		InsecureSkipVerify: true, //nolint:gosec // names and dates do not matter; the key does, below
		VerifyConnection: func(st tls.ConnectionState) error {
			if got := identity.Fingerprint(st.PeerCertificates[0]); subtle.ConstantTimeCompare([]byte(got), []byte(fingerprint)) != 1 {
				return fmt.Errorf("the peer's key is not the one that was pinned, its fingerprint is %s", got)
			}
			return nil
		},
	}
}

// ServerTLS is the server's side: every client shows a key, and the handler
// decides whose it is.
func ServerTLS(cert tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAnyClientCert,
		NextProtos: []string{"http/1.1"},
	}
}

// shortTimeout is how long a small request may take.
const shortTimeout = 15 * time.Second

// Pair makes this server the only source that the peer accepts.
func (c *Client) Pair(ctx context.Context, name string) (Report, error) {
	return call[Report](ctx, c, shortTimeout, http.MethodPost, "/site/v1/pair", jsonBody(map[string]string{"name": name}))
}

// State asks what the peer is, and what became of the hand-over id.
func (c *Client) State(ctx context.Context, id string) (State, error) {
	return call[State](ctx, c, shortTimeout, http.MethodGet, "/site/v1/state?id="+url.QueryEscape(id), body{})
}

// Check asks whether the peer could take over.
func (c *Client) Check(ctx context.Context) (Report, error) {
	return call[Report](ctx, c, shortTimeout, http.MethodGet, "/site/v1/check", body{})
}

// Prepare sends the archive of the site, with its SHA-256. It may be repeated.
func (c *Client) Prepare(ctx context.Context, id string, epoch int64, digest string, size int64, r io.Reader) (State, error) {
	q := url.Values{"epoch": {strconv.FormatInt(epoch, 10)}, "digest": {digest}}
	path := "/site/v1/handovers/" + url.PathEscape(id) + "?" + q.Encode()
	return call[State](ctx, c, 0, http.MethodPut, path, body{r, size, "application/x-tar"})
}

// Activate makes the peer the site. It may be repeated.
func (c *Client) Activate(ctx context.Context, id string) (State, error) {
	return call[State](ctx, c, shortTimeout, http.MethodPost, "/site/v1/handovers/"+url.PathEscape(id)+"/activate", body{})
}

// Refuse makes sure that the peer never activates the id; inventory.ErrConflict when
// it has.
func (c *Client) Refuse(ctx context.Context, id string) (State, error) {
	return call[State](ctx, c, shortTimeout, http.MethodPost, "/site/v1/handovers/"+url.PathEscape(id)+"/refuse", body{})
}

// An ImageState is how much of an image's file the peer has.
type ImageState struct {
	Size int64 `json:"size"`
	Done bool  `json:"done"` // all of it, and its digest is right
}

// Image asks how much of the file with that digest the peer has.
func (c *Client) Image(ctx context.Context, file, digest string) (ImageState, error) {
	q := url.Values{"digest": {digest}}
	path := "/site/v1/images/" + url.PathEscape(file) + "?" + q.Encode()
	return call[ImageState](ctx, c, 10*time.Minute, http.MethodGet, path, body{})
}

// SendImage sends the rest of a file, from offset to its end.
func (c *Client) SendImage(ctx context.Context, f ImageFile, offset int64, r io.Reader) (ImageState, error) {
	q := url.Values{
		"digest": {f.Digest}, "offset": {strconv.FormatInt(offset, 10)}, "size": {strconv.FormatInt(f.Size, 10)},
	}
	path := "/site/v1/images/" + url.PathEscape(f.Name) + "?" + q.Encode()
	return call[ImageState](ctx, c, 0, http.MethodPut, path, body{r, f.Size - offset, "application/octet-stream"})
}

type body struct {
	r    io.Reader
	size int64
	kind string
}

func jsonBody(v any) body {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // a map of strings always has a JSON form
	}
	return body{bytes.NewReader(b), int64(len(b)), "application/json"}
}

// maxAnswer limits the size of an answer, bytes.
const maxAnswer = 1 << 20

func call[T any](ctx context.Context, c *Client, limit time.Duration, method, path string, in body) (out T, err error) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}

	text, err := c.do(ctx, method, path, in)
	if err == nil {
		if bad := json.Unmarshal(text, &out); bad != nil {
			err = unreachable{fmt.Errorf("unexpected answer: %w", bad)}
		}
	}
	if err != nil {
		err = fmt.Errorf("asking peer %q at %s: %w", c.peer.Name, c.peer.URL, err)
	}

	return out, err
}

// do sends a request and returns the body of a good answer.
func (c *Client) do(ctx context.Context, method, path string, in body) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.peer.URL+path, in.r)
	if err != nil {
		return nil, err
	}
	if in.r != nil {
		req.ContentLength = in.size
		req.Header.Set("Content-Type", in.kind)
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	resp, err := c.http.Do(req)
	if err != nil {
		var whole *url.Error
		if errors.As(err, &whole) {
			err = whole.Err
		}
		return nil, unreachable{err}
	}

	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return nil, unreachable{err}
	}
	if resp.StatusCode == http.StatusOK {
		return text, nil
	}

	return nil, refusalOf(text, resp.Status)
}

// refusalOf is the error of an answer that is not OK.
func refusalOf(text []byte, status string) error {
	var no refusal
	if json.Unmarshal(text, &no) != nil {
		return unreachable{errors.New("it answered " + status)}
	}

	switch no.Code {
	case codeConflict:
		return said{no.Error, inventory.ErrConflict}
	case codeInvalid:
		return said{no.Error, inventory.ErrInvalid}
	case codeStranger:
		return said{no.Error, ErrStranger}
	}

	return unreachable{errors.New(no.Error + " (" + status + ")")}
}

// unreachable is err, and is inventory.ErrUnreachable.
type unreachable struct{ error }

func (u unreachable) Unwrap() []error { return []error{u.error, inventory.ErrUnreachable} }

// said is an error that the peer has answered.
type said struct {
	text string
	kind error
}

func (s said) Error() string { return s.text }
func (s said) Unwrap() error { return s.kind }
