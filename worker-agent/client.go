package agent

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/internal/httpclient"
	"github.com/ingotmetal/ingot/internal/secrets/keypin"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/worker-agent/fetch"
)

// pollWait is how long the server may delay its response to a poll, in seconds.
const pollWait = 30

// maxAnswer is the size limit for a response, in bytes; the rest is not read.
const maxAnswer = 16 << 20

// client sends the agent's requests to one server, whose key is pinned.
type client struct {
	base *url.URL
	http *http.Client

	mu    sync.Mutex
	token string
}

// newClient returns a client. It checks the form of server and pin, and does not connect.
func newClient(server, pin string) (*client, error) {
	base, err := url.Parse(strings.TrimSuffix(server, "/"))
	if err != nil {
		return nil, fmt.Errorf("reading the server's address %q: %w", server, err)
	}
	if base.Scheme != "https" || base.Host == "" {
		return nil, fmt.Errorf("invalid server address %q; must be https://HOST:PORT", server)
	}

	digest, ok := strings.CutPrefix(pin, "sha256:")
	if raw, err := hex.DecodeString(digest); !ok || err != nil || len(raw) != sha256.Size {
		return nil, fmt.Errorf("invalid pin %q; must be sha256: and 64 hex digits", pin)
	}
	// The boot script pins the server's key, so the names and dates in the certificate do not matter: this machine's clock may be
	// wrong.
	pinned := keypin.ClientTLS(pin, func(other string) error {
		return fmt.Errorf("verifying the server: the server's key is %s, which differs from the key in the boot script", other)
	})
	return &client{base: base, http: httpclient.New(fetch.NewTransport(pinned, (pollWait+15)*time.Second))}, nil
}

func (c *client) setToken(t string) {
	c.mu.Lock()
	c.token = t
	c.mu.Unlock()
}

// authorize adds the bearer token, if the agent has one.
func (c *client) authorize(r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
}

// Do sends a request with the agent's token.
func (c *client) Do(r *http.Request) (*http.Response, error) {
	c.authorize(r)
	return c.http.Do(r)
}

// Owns reports whether u is a URL of the pinned server.
func (c *client) Owns(u *url.URL) bool {
	return u.Scheme == c.base.Scheme && strings.EqualFold(u.Host, c.base.Host)
}

func (c *client) claim(ctx context.Context, h action.Hello, w *action.Welcome) error {
	err := c.do(ctx, "/agent/v1/claim", h, w, 15*time.Second)
	if status, ok := errors.AsType[*fetch.StatusError](err); ok && (status.Code == http.StatusNotFound || status.Code == http.StatusConflict) {
		return &endedError{status.Error()}
	}
	return err
}

// next returns the next assignment, or nil if there is none yet.
func (c *client) next(ctx context.Context) (*action.Assignment, error) {
	var as action.Assignment
	path := fmt.Sprintf("/agent/v1/next?wait=%d", pollWait)
	if err := c.do(ctx, path, nil, &as, (pollWait+15)*time.Second); err != nil {
		return nil, err
	}
	if as.Key == (action.Key{}) {
		return nil, nil
	}
	return &as, nil
}

func (c *client) report(ctx context.Context, r action.Result) error {
	return c.do(ctx, "/agent/v1/report", r, nil, 15*time.Second)
}

func (c *client) heartbeat(ctx context.Context, h action.Heartbeat, o *action.Orders) error {
	return c.do(ctx, "/agent/v1/heartbeat", h, o, 15*time.Second)
}

// do posts in as JSON, or gets path if in is nil. It decodes the response into out; a response with 204 does not change out. A
// response with 410 becomes an *endedError, and any other refusal becomes a *fetch.StatusError.
func (c *client) do(ctx context.Context, path string, in, out any, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	method, body := http.MethodGet, io.Reader(nil)

	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encoding a request to %q: %w", path, err)
		}
		method, body = http.MethodPost, bytes.NewReader(b)
	}

	req, err := http.NewRequestWithContext(ctx, method, c.base.String()+path, body)
	if err != nil {
		return fmt.Errorf("making a request to %q: %w", path, err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}

	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // the body was only read
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case resp.StatusCode == http.StatusGone:
		var bye action.Farewell
		if json.Unmarshal(answer, &bye) != nil || bye.Reason == "" {
			bye.Reason = "410 Gone"
		}
		return &endedError{bye.Reason}

	case resp.StatusCode == http.StatusNoContent:
		return nil
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusCreated &&
		resp.StatusCode != http.StatusAccepted:
		return &fetch.StatusError{Code: resp.StatusCode, Text: firstLine(answer)}
	case err != nil:
		return fmt.Errorf("reading the answer of %q: %w", path, err)
	case out == nil || len(bytes.TrimSpace(answer)) == 0:
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("decoding the answer of %q: %w", path, err)
	}
	return nil
}

// firstLine returns, for the log, the first line of the body of an error response, shortened and without control characters.
func firstLine(b []byte) string {
	s, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	return plaintext.Line(s, 300)
}

// newID returns a random, unique id.
func newID() string {
	var b [16]byte
	// crypto/rand.Read never fails: it crashes the program instead.
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
