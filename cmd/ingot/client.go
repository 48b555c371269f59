package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/hostnet"
	"github.com/ingotmetal/ingot/internal/identity"
	"github.com/ingotmetal/ingot/internal/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// options are the flags that every command has.
type options struct {
	server, tokenFile, config, output string
	poll                              time.Duration // how often what goes on is asked for
}

// remote talks to a server's operator API.
type remote struct {
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
	switch e.Code {
	case "not_found":
		return target == inventory.ErrNotFound
	case "conflict":
		return target == inventory.ErrConflict
	case "fenced":
		return target == inventory.ErrFenced
	case "invalid":
		return target == inventory.ErrInvalid
	case "unavailable":
		return target == errUnavailable
	}
	return false
}

// session is what "ingot login URL" stores.
type session struct {
	Server string `json:"server"`
	// Fingerprint pins the key of the server's certificate; "" = the
	// certificate is verified as usual.
	Fingerprint string `json:"fingerprint,omitempty"`
	Token       string `json:"token"`
}

// sessionFile is where the session of this host's user is kept.
func (o *options) sessionFile() string { return filepath.Join(filepath.Dir(o.config), "login.json") }

// session reads it; none is a zero session.
func (o *options) session() (session, error) {
	var s session
	b, err := os.ReadFile(o.sessionFile())
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = strictyaml.Decode(o.sessionFile(), b, &s)
	}
	if err != nil {
		return s, fmt.Errorf("reading the log-in: %w", err)
	}
	return s, nil
}

// client finds out which server is meant and how to prove who asks. A token
// goes to no other server than the one that it belongs to, unless it was named
// for this call.
func (o *options) client() (*remote, error) {
	login, err := o.session()
	if err != nil {
		return nil, err
	}
	given := o.server
	if given == "" {
		given = os.Getenv("INGOT_SERVER")
	}
	var local config.Config
	var isLocal bool
	s := session{Server: given}
	switch {
	case given == "" && login.Server == "":
		if local, err = config.Load(o.config, false); err != nil {
			return nil, err
		}
		isLocal, s = true, session{Server: hostnet.LocalURL(local)}
	case given == "" || given == login.Server:
		s = login
	default:
		// The server of this host, named by its address, is still itself.
		if local, err = config.Load(o.config, false); err == nil && strings.TrimSuffix(given, "/") == hostnet.LocalURL(local) {
			isLocal = true
		}
	}
	if s.Token, err = o.findToken(s.Token, isLocal, local.TokenFile); err != nil {
		return nil, err
	}
	if isLocal && !config.Loopback(local.Listen) && local.TLSCert == "" {
		if s.Fingerprint, err = localPin(local); err != nil {
			return nil, err
		}
	}
	return dial(s)
}

func (o *options) findToken(stored string, isLocal bool, localFile string) (string, error) {
	file := o.tokenFile
	switch {
	case file != "":
	case os.Getenv("INGOT_TOKEN") != "":
		return os.Getenv("INGOT_TOKEN"), nil
	case stored != "":
		return stored, nil
	case isLocal:
		file = localFile
	default:
		return "", usage("there is no token for that server: give --token-file or INGOT_TOKEN, or run ingot login URL once")
	}
	b, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist) && o.tokenFile == "":
		return "", advice{fmt.Errorf("there is no admin token in %s and no log-in: %w", file, errUnavailable), "ingot init (on the server), or: ingot login URL"}
	case errors.Is(err, fs.ErrPermission):
		return "", advice{fmt.Errorf("reading the admin token: %w", err), "run as the user of ingot serve, or give --token-file"}
	case err != nil:
		return "", fmt.Errorf("reading the admin token: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// localPin reads the pin of the certificate that this host's server made.
func localPin(c config.Config) (string, error) {
	file := filepath.Join(filepath.Dir(c.KeyFile), "operator.pem")
	b, err := os.ReadFile(file)
	if err != nil {
		return "", advice{fmt.Errorf("reading this server's certificate: %w", err), "ingot login " + hostnet.LocalURL(c) + " --fingerprint sha256:…"}
	}
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			return identity.Pin(tls.Certificate{Certificate: [][]byte{block.Bytes}})
		}
	}
	return "", fmt.Errorf("certificate %q holds none", file)
}

// dial returns a client of s. Nothing is sent yet.
func dial(s session) (*remote, error) {
	base, err := url.Parse(s.Server)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, usage("%q is no URL of a server, write http://127.0.0.1:8080 or https://name:port", s.Server)
	}
	port := base.Port()
	if port == "" {
		port = base.Scheme
	}
	if base.Scheme == "http" && !config.Loopback(net.JoinHostPort(base.Hostname(), port)) {
		return nil, usage("%s is beyond this host, where the token must not go without TLS: use https", s.Server)
	}
	t := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 4,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if s.Fingerprint != "" {
		t.TLSClientConfig = pinned(s.Fingerprint)
	}
	return &remote{base: base, token: s.Token, http: &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// pinned trusts the key with that fingerprint and nothing else.
func pinned(fingerprint string) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // names and dates do not matter; the key below does
		VerifyConnection: func(st tls.ConnectionState) error {
			if got := fingerprintOf(st.PeerCertificates[0]); subtle.ConstantTimeCompare([]byte(got), []byte(fingerprint)) != 1 {
				return strangerError{got}
			}
			return nil
		},
	}
}

func fingerprintOf(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// strangerError: the server's key is not the pinned one.
type strangerError struct{ got string }

func (e strangerError) Error() string {
	return "the server's key is not the one that was pinned, its fingerprint is " + e.got
}

// request sends a request; the caller closes the body. An answer of 400 or
// more is an error.
func (c *remote) request(ctx context.Context, method, path string, body io.Reader, length int64) (*http.Response, error) {
	u, err := c.base.Parse(path)
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
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	return resp, errors.Join(c.refused(resp), resp.Body.Close())
}

// unreachable explains why there was no answer.
func (c *remote) unreachable(ctx context.Context, err error) error {
	var stranger strangerError
	var verify *tls.CertificateVerificationError
	var whole *url.Error
	if errors.As(err, &whole) {
		err = whole.Err // without the URL, which is in our own text
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &stranger):
		return advice{
			fmt.Errorf("talking to %s: %w", c.base, stranger),
			"compare it with the fingerprint that ingot serve logs; if it is right: ingot login " + c.base.String() + " --fingerprint " + stranger.got,
		}
	case errors.As(err, &verify):
		got := fingerprintOf(verify.UnverifiedCertificates[0])
		return advice{
			fmt.Errorf("talking to %s: nobody vouches for its certificate: %w", c.base, verify.Err),
			"compare " + got + " with the fingerprint that ingot serve logs; if it is right: ingot login " + c.base.String() + " --fingerprint " + got,
		}
	}
	return advice{fmt.Errorf("the server at %s does not answer: %w", c.base, both{err, errUnavailable}), "ingot serve (is it running there?), ingot doctor"}
}

// both is err, and is also the kind.
type both struct{ err, kind error }

func (b both) Error() string   { return b.err.Error() }
func (b both) Unwrap() []error { return []error{b.err, b.kind} }

// refused reads the server's error.
func (c *remote) refused(resp *http.Response) error {
	e := &apiError{Status: resp.StatusCode}
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20)) // problems of every machine of a push
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

// ask sends in as JSON, unless it is nil, and reads the answer.
func ask[T any](ctx context.Context, c *remote, method, path string, in any) (answer[T], error) {
	var a answer[T]
	var body io.Reader
	var length int64
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return a, err
		}
		body, length = bytes.NewReader(b), int64(len(b))
	}
	resp, err := c.request(ctx, method, path, body, length)
	if err != nil {
		return a, err
	}
	return decode[T](resp)
}

// decode reads an answer and closes it.
func decode[T any](resp *http.Response) (a answer[T], err error) {
	raw, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return a, fmt.Errorf("reading the answer of %s %s: %w", resp.Request.Method, resp.Request.URL.Path, both{err, errUnavailable})
	}
	if a.raw = raw; len(raw) == 0 {
		a.raw = json.RawMessage("{}")
		return a, nil
	}
	if err := json.Unmarshal(raw, &a.v); err != nil {
		return a, fmt.Errorf("reading the answer of %s %s: %w", resp.Request.Method, resp.Request.URL.Path, err)
	}
	return a, nil
}

// list is the body of every list.
type list[T any] struct {
	Items []T `json:"items"`
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
