package bmc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	// redfishRequestTime limits one request: controllers of some servers take seconds for each.
	redfishRequestTime = 30 * time.Second
	systemsPath        = "/redfish/v1/Systems"
	// maxRequests and maxBytes limit one command: a service could name ever more links to follow.
	maxRequests, maxBytes = 300, 16 << 20
)

// bmcSession is a session with a Redfish service.
type bmcSession struct{ path, token string }

// leftovers are the sessions of earlier operations on a BMC that may still be open.
type leftovers struct {
	sessions []bmcSession // those that could not be deleted
	// searched: the BMC was asked for sessions that an earlier process of this server left open, or
	// whose log-in was not answered.
	searched bool
}

// maxLeft is how many sessions of a BMC are remembered, because each operation tries to delete them all.
const maxLeft = 8

// add remembers a session. Of too many, the oldest is forgotten: it is the first to end by its time-out.
func (l *leftovers) add(s bmcSession) {
	l.sessions = append(l.sessions, s)
	l.sessions = l.sessions[max(0, len(l.sessions)-maxLeft):]
}

// redfishTransport sends the requests of one operation on a Redfish service. bmclib and gofish
// neither pass a context nor return the status of an answer, so this transport adds the context of
// the present command and records why a request failed. It sends requests to this service only,
// whatever links the service returns, and calls the fence before each write.
type redfishTransport struct {
	http   *http.Transport
	host   string // host and port
	system string // the id of the system to use; "" = the only one

	request time.Duration // limit of one request
	ctx     context.Context
	fence   func(context.Context) error
	session bmcSession
	cause   error // of the last request that failed
	expired bool  // the session was not accepted any more
	login   bool  // a log-in was sent
	// requests and bytes are what the present command has sent and received.
	requests, bytes int
	lost            bool // a log-in was sent but not answered
	noLogin         bool // the service has no sessions

	inspects bool     // an answer's types are compared with the schema's
	odd      []string // what strays from the specification, at most maxOdd
}

// maxOdd is how much of what is odd about a service is reported.
const maxOdd = 40

// note records what is odd about the service.
func (t *redfishTransport) note(format string, args ...any) {
	if text := clip(fmt.Sprintf(format, args...)); len(t.odd) < maxOdd && !slices.Contains(t.odd, text) {
		t.odd = append(t.odd, text)
	}
}

// newRedfishTransport returns a transport to the BMC at the address dialed.Host. name is its host in
// the inventory.
func (d *Driver) newRedfishTransport(name string, dialed inventory.BMC) *redfishTransport {
	port := strconv.Itoa(dialed.ListenPort())
	address := net.JoinHostPort(dialed.Host, port)
	return &redfishTransport{
		host: net.JoinHostPort(name, port), system: dialed.SystemName, ctx: context.Background(), request: d.cfg.request,
		http: &http.Transport{
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, address)
			},
			TLSClientConfig: d.tlsConfig(name, dialed), TLSHandshakeTimeout: redfishRequestTime, MaxIdleConnsPerHost: 1,
			MaxResponseHeaderBytes: 16 << 10, ForceAttemptHTTP2: false,
		},
	}
}

// client returns an HTTP client that does not follow redirects.
func (t *redfishTransport) client() *http.Client {
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// begin starts a command.
func (t *redfishTransport) begin(ctx context.Context) {
	t.ctx, t.cause, t.expired, t.login = ctx, nil, false, false
	t.requests, t.bytes = 0, 0
}

// errorOf returns the error of a command: what the transport recorded if there is anything, because
// bmclib and gofish return only the text.
func (t *redfishTransport) errorOf(err error) error {
	switch {
	case err == nil:
		return nil
	case t.ctx.Err() != nil:
		return t.ctx.Err()
	case t.cause != nil:
		return t.cause
	}
	return fmt.Errorf("the BMC's answer cannot be used: %s: %w", clip(err.Error()), inventory.ErrUnsupported)
}

// RoundTrip sends a request and reads the whole answer.
func (t *redfishTransport) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.URL.Host != t.host || q.URL.User != nil {
		t.cause = fmt.Errorf("the BMC refers to another host, %s: %w", clip(q.URL.Host), inventory.ErrUnsupported)
		return nil, t.cause
	}
	login := q.Method == http.MethodPost && q.Header.Get("X-Auth-Token") == "" && q.Header.Get("Authorization") == ""
	t.login = t.login || login
	logout := q.Method == http.MethodDelete
	fence := func() error { return nil }
	if t.fence != nil && q.Method != http.MethodGet && q.Method != http.MethodHead && !login && !logout {
		fence = func() error { return t.fence(t.ctx) }
	}

	ctx, cancel := context.WithTimeout(t.ctx, t.request)
	defer cancel()
	res, body, err := t.send(q.Clone(ctx), fence)
	if err != nil {
		t.failed(err, login)
		return nil, err
	}

	switch {
	case login && res.StatusCode < 300:
		t.session = bmcSession{sessionPath(res.Header.Get("Location"), body), res.Header.Get("X-Auth-Token")}
	case login && (res.StatusCode == http.StatusNotFound || res.StatusCode == http.StatusMethodNotAllowed):
		t.noLogin = true
	}
	if res.StatusCode >= 300 && !logout {
		t.expired = res.StatusCode == http.StatusUnauthorized && q.Header.Get("X-Auth-Token") != ""
		t.cause = judgeStatus(q, res.StatusCode, body, login)
	}
	return res, nil
}

// failed records why a request was not answered. login: it was a log-in.
func (t *redfishTransport) failed(err error, login bool) {
	var fenced fenceError
	untrusted := judgeTLS(err)
	switch {
	case errors.As(err, &fenced), errors.Is(err, errTooMuch), errors.Is(err, errNull):
		t.cause = err
	case untrusted != nil:
		t.cause, t.lost = untrusted, false // nothing was sent
	default:
		t.cause, t.lost = fmt.Errorf("%w: %w", inventory.ErrUnreachable, bare(err)), t.lost || login
	}
}

// errTooMuch means that a command took more than maxRequests or maxBytes.
var errTooMuch = fmt.Errorf("the BMC needs more than %d requests or %d MiB for one command: update its firmware, or use another "+
	"driver: %w", maxRequests, maxBytes>>20, inventory.ErrUnsupported)

// errNull means that an answer is null instead of an object. gofish panics on it, in a goroutine, which would
// end the server.
var errNull = fmt.Errorf("the BMC answers null: update its firmware, or use another driver: %w", inventory.ErrUnsupported)

// send sends a request, once more without If-Match if the service rejects the ETag that it returned
// itself, and reads the answer. It calls the fence before each.
func (t *redfishTransport) send(q *http.Request, fence func() error) (*http.Response, []byte, error) {
	q.Close = false // gofish asks for a new connection for each request
	for {
		if t.requests++; t.requests > maxRequests || t.bytes > maxBytes {
			return nil, nil, errTooMuch
		}
		if err := fence(); err != nil {
			return nil, nil, fenceError{err}
		}
		res, err := t.http.RoundTrip(q)
		if err != nil {
			return nil, nil, err
		}
		body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
		if err = errors.Join(err, res.Body.Close()); err != nil {
			return nil, nil, err
		}
		t.bytes += len(body)
		if len(body) > maxAnswer {
			return nil, nil, fmt.Errorf("the answer to %s has more than %d bytes", clip(q.URL.Path), maxAnswer)
		}
		if q.Method == http.MethodGet && bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("null")) {
			return nil, nil, errNull
		}
		if res.StatusCode == http.StatusPreconditionFailed && q.Header.Get("If-Match") != "" && q.GetBody != nil {
			if q.Body, err = q.GetBody(); err != nil {
				return nil, nil, err
			}
			q.Header.Del("If-Match")
			continue
		}
		if q.Method == http.MethodGet && res.StatusCode == http.StatusOK {
			body = t.used(q, body)
		}
		if t.system != "" && q.Method == http.MethodGet && strings.TrimSuffix(q.URL.Path, "/") == systemsPath {
			body = onlySystem(body, t.system)
		}
		res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		return res, body, nil
	}
}

// used returns the part of a resource that Ingot uses.
func (t *redfishTransport) used(q *http.Request, body []byte) []byte {
	if t.inspects {
		for _, text := range oddProperties(body, q.URL.Path) {
			t.note("%s", text)
		}
	}
	return usedPart(body, q.URL.Path)
}

// onlySystem removes all members but the one with the id from a collection of systems. bmclib would
// look for a system by its name, which several may share.
func onlySystem(body []byte, id string) []byte {
	var c struct {
		Members []struct {
			ID string `json:"@odata.id"`
		}
	}
	if json.Unmarshal(body, &c) != nil {
		return body
	}
	members := []map[string]string{}
	for _, m := range c.Members {
		if path.Base(m.ID) == id {
			members = append(members, map[string]string{"@odata.id": m.ID})
		}
	}
	out, err := json.Marshal(map[string]any{
		"@odata.id": systemsPath, "@odata.type": "#ComputerSystemCollection.ComputerSystemCollection", "Name": "Systems",
		"Members": members, "Members@odata.count": len(members),
	})
	if err != nil {
		return body
	}
	return out
}

// sessionPath returns the path of a new session, from the Location header or the body of the answer.
func sessionPath(location string, body []byte) string {
	if i := strings.Index(location, "/redfish/"); i >= 0 {
		return location[i:]
	}
	var s struct {
		ID string `json:"@odata.id"`
	}
	_ = json.Unmarshal(body, &s) // no session is deleted then, and the operation says so
	return s.ID
}

// judgeStatus returns the error for an answer that is not a success. The service's own text is
// included, except where it could repeat a password: at a log-in, and about an account.
func judgeStatus(q *http.Request, status int, body []byte, login bool) error {
	said := fmt.Sprintf("%s %s: HTTP %d", q.Method, clip(q.URL.Path), status)
	text := extendedMessage(body)
	full := strings.Contains(strings.ToLower(text), "session") && strings.Contains(strings.ToLower(text), "limit")
	switch {
	case login && full:
		return fmt.Errorf("%s: the BMC has no session left: %w", said, inventory.ErrUnreachable)
	case text != "" && !login && !strings.Contains(q.URL.Path, accountsPath):
		said += " (" + clip(text) + ")"
	}

	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%s: check user and password of the BMC: %w", said, inventory.ErrRefused)
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return fmt.Errorf("%s: %w", said, inventory.ErrUnreachable)
	}
	return fmt.Errorf("%s: %w", said, inventory.ErrUnsupported)
}

// extendedMessage returns the messages of an error (DSP0266, section 8.6).
func extendedMessage(body []byte) string {
	var e struct {
		Error struct {
			Message  string
			Extended []struct{ Message string } `json:"@Message.ExtendedInfo"`
		}
	}
	if json.Unmarshal(body, &e) != nil {
		return ""
	}
	if len(e.Error.Extended) == 0 {
		return e.Error.Message
	}
	var texts []string
	for _, m := range e.Error.Extended {
		texts = append(texts, m.Message)
	}
	return strings.Join(texts, " ")
}
