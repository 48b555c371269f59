package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/human"
	"github.com/ingotmetal/ingot/internal/identity"
	"github.com/ingotmetal/ingot/inventory"
)

// client talks to a server's operator API.
type client struct {
	base  *url.URL
	token string
	http  *http.Client
}

// apiError is an error that the server answered.
type apiError struct {
	Status   int                `json:"-"`
	Text     string             `json:"error"`
	Code     string             `json:"code"`
	Problems inventory.Problems `json:"problems,omitempty"`
	Next     string             `json:"next,omitempty"`
}

func (e *apiError) Error() string {
	if len(e.Problems) > 0 {
		return e.Problems.Error()
	}
	return e.Text
}

// Is maps the answer back to the vocabulary of inventory.
func (e *apiError) Is(target error) bool {
	kinds := map[string]error{
		"not_found": inventory.ErrNotFound, "conflict": inventory.ErrConflict, "fenced": inventory.ErrFenced,
		"invalid": inventory.ErrInvalid, "unavailable": errUnavailable,
	}
	kind, known := kinds[e.Code]
	return known && kind == target
}

// newClient returns a client of s. Nothing is sent yet.
func newClient(s session) (*client, error) {
	base, err := url.Parse(s.Server)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, usage("invalid server URL %q; write http://127.0.0.1:8080 or https://name:port", s.Server)
	}

	port := base.Port()
	if port == "" {
		port = base.Scheme
	}
	if base.Scheme == "http" && !config.Loopback(net.JoinHostPort(base.Hostname(), port)) {
		return nil, usage("%s is another host, and the token must not go there without TLS: use https", s.Server)
	}

	t := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 4,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if s.Fingerprint != "" {
		t.TLSClientConfig = pinnedTLS(s.Fingerprint)
	}

	return &client{base: base, token: s.Token, http: &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// request sends a request; the caller closes the body. An answer of 300 or
// more is an error.
func (c *client) request(
	ctx context.Context, method, route string, body io.Reader, length int64,
) (*http.Response, error) {
	u, err := c.base.Parse(route)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.ContentLength = length
	}
	req.Header.Set("Authorization", "Bearer "+c.token)

	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.explainNoAnswer(ctx, err)
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	return nil, errors.Join(readAPIError(resp), resp.Body.Close())
}

// explainNoAnswer says why there was no answer, and what to do.
func (c *client) explainNoAnswer(ctx context.Context, err error) error {
	var wrongKey wrongKeyError
	var verify *tls.CertificateVerificationError
	var whole *url.Error
	if errors.As(err, &whole) {
		err = whole.Err // without the URL, which is in our own text
	}

	login := "ingot login " + c.base.String() + " --fingerprint "
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &wrongKey):
		return human.Advise(
			fmt.Errorf("talking to %s: %w", c.base, wrongKey),
			"compare it with the fingerprint that ingot serve logs; if it is right: "+login+wrongKey.got)
	case errors.As(err, &verify):
		got := identity.Fingerprint(verify.UnverifiedCertificates[0])
		return human.Advise(
			fmt.Errorf("talking to %s: its certificate is not signed by a known authority: %w", c.base, verify.Err),
			"compare "+got+" with the fingerprint that ingot serve logs; if it is right: "+login+got)
	}

	return human.Advise(
		fmt.Errorf("the server at %s does not answer: %w", c.base, wrapped{err, errUnavailable}),
		"ingot serve (is it running there?), ingot doctor")
}

// maxErrorBody limits the text of an error: the problems of every machine of a
// push.
const maxErrorBody = 64 << 20

// readAPIError reads the server's error.
func readAPIError(resp *http.Response) error {
	e := &apiError{Status: resp.StatusCode}
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
		e.Text, e.Next = "the server does not know this token", "give --token-file, or log in again: ingot login URL"
	}

	return e
}

// send sends in as JSON, unless it is nil, and reads the answer.
func send[T any](ctx context.Context, c *client, method, route string, in any) (answer[T], error) {
	var body io.Reader
	var length int64
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return answer[T]{}, err
		}
		body, length = bytes.NewReader(b), int64(len(b))
	}

	resp, err := c.request(ctx, method, route, body, length)
	if err != nil {
		return answer[T]{}, err
	}

	return decode[T](resp)
}

// decode reads an answer and closes it.
func decode[T any](resp *http.Response) (a answer[T], err error) {
	what := resp.Request.Method + " " + resp.Request.URL.Path
	raw, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return a, fmt.Errorf("reading the answer of %s: %w", what, wrapped{err, errUnavailable})
	}
	if a.raw = raw; len(raw) == 0 {
		a.raw = json.RawMessage("{}")
		return a, nil
	}
	if err := json.Unmarshal(raw, &a.v); err != nil {
		return a, fmt.Errorf("reading the answer of %s: %w", what, err)
	}

	return a, nil
}

// list is the body of every list. Next is the cursor of the next page, if there
// is one.
type list[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}

// path joins escaped elements below /v1.
func path(elements ...string) string {
	var b strings.Builder
	b.WriteString("/v1")
	for _, e := range elements {
		b.WriteString("/" + url.PathEscape(e))
	}
	return b.String()
}
