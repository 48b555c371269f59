package bmc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/httpclient"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	// maxRequests and maxBytes limit one command, because a service could return more and more links to follow.
	maxRequests, maxBytes = 300, 16 << 20
)

// redfishTransport sends the requests of one operation to a Redfish service. bmclib and gofish pass no context and do
// not return the status of an answer. Therefore this transport adds the context of the current command, and records
// why a request failed. Whatever links the service returns, it sends requests only to this service. It calls the fence
// before each write.
type redfishTransport struct {
	http   *http.Transport
	host   string // host and port, as in the inventory
	dialed string // address and port
	system string // the id of the system to use; "" = the only one

	request time.Duration // time limit of one request
	busy    time.Duration // total time for which a command waits for a busy service
	sleep   func(context.Context, time.Duration) error
	now     func() time.Time
	admit   func(context.Context) error // called before a request is repeated for a busy service

	ctx     context.Context
	fence   func(context.Context) error
	session bmcSession
	cause   error // why the last failed request failed
	expired bool  // the service no longer accepted the session
	login   bool  // the current command has sent a log-in
	// requests and bytes count what the current command has sent and received. waited is how long it has waited for a
	// busy service.
	requests, bytes int
	waited          time.Duration
	lost            bool   // a log-in was sent but not answered
	full            bool   // the service answered a log-in that it has no session left
	from            string // local address of the last connection
	noLogin         bool   // the service supports no sessions

	// What the service has returned about itself:
	systems, managers string              // paths of these two collections
	managedBy         []string            // paths of the managers of the used system
	systemPath        string              // path of the used system
	settingsPath      string              // path of the system's settings object; "" = it has none
	pending           map[string]any      // boot override that only the settings object holds
	bootPath          string              // path of the resource that accepted the boot device; "" = none yet
	tags              map[string][]string // current ETags of each resource, by its path

	wantedBoot string // the boot device that the operation sets; "" = it sets none

	inspects bool            // compare the types in answers with the schema
	odd      []string        // deviations from the specification, at most maxOdd
	noted    map[string]bool // kinds of deviation that odd already contains
}

// maxOdd limits how many deviations of a service are reported.
const maxOdd = 40

// note records a deviation of the service from the specification, once per kind.
func (t *redfishTransport) note(kind, format string, args ...any) {
	if len(t.odd) < maxOdd && !t.noted[kind] {
		t.noted[kind] = true
		t.odd = append(t.odd, clip(fmt.Sprintf(format, args...)))
	}
}

// newRedfishTransport returns a transport to the BMC dialed, whose Host is the address to dial. name is its host in
// the inventory.
func (d *Driver) newRedfishTransport(name string, dialed inventory.BMC) *redfishTransport {
	port := strconv.Itoa(dialed.ListenPort())
	address := net.JoinHostPort(dialed.Host, port)
	connection := httpclient.NewTransport(d.tlsConfig(name, dialed), redfishRequestTime)
	connection.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	connection.MaxIdleConnsPerHost = 1

	return &redfishTransport{
		host: net.JoinHostPort(name, port), dialed: address, system: dialed.SystemName, ctx: context.Background(),
		request: d.cfg.request, busy: d.cfg.busy, sleep: d.cfg.sleep, now: d.cfg.now,
		tags: map[string][]string{}, noted: map[string]bool{},
		http: connection,
	}
}

// begin resets the state of the transport for a new command.
func (t *redfishTransport) begin(ctx context.Context) {
	t.ctx, t.cause, t.expired, t.login = ctx, nil, false, false
	t.requests, t.bytes, t.waited = 0, 0, 0
}

// errorOf returns the error of the current command, which ended with err. It prefers the cause that the transport
// recorded, because bmclib and gofish return only text.
func (t *redfishTransport) errorOf(err error) error {
	switch {
	case err == nil:
		return nil
	case t.ctx.Err() != nil:
		return t.ctx.Err()
	case t.cause != nil:
		return t.cause
	}
	return fmt.Errorf("the BMC sent an invalid answer: %s: %w", clip(err.Error()), inventory.ErrUnsupported)
}

// RoundTrip sends a request and reads the complete answer. It implements http.RoundTripper.
func (t *redfishTransport) RoundTrip(q *http.Request) (*http.Response, error) {
	if name, ok := strings.CutPrefix(q.URL.Path, elsewhere); ok {
		t.cause = anotherHost(name)
		return nil, t.cause
	}
	if q.URL.Host != t.host || q.URL.User != nil {
		t.cause = anotherHost(q.URL.Host)
		return nil, t.cause
	}
	x := &exchange{t: t, q: q.Clone(t.ctx)}
	x.login = q.Method == http.MethodPost && q.Header.Get("X-Auth-Token") == "" && q.Header.Get("Authorization") == ""
	x.write = !x.login && q.Method != http.MethodGet && q.Method != http.MethodHead
	t.login = t.login || x.login
	logout := q.Method == http.MethodDelete
	if t.fence != nil && x.write && !logout {
		x.fence = t.fence
	}

	res, body, err := x.send()
	if err == nil && x.login && res.StatusCode < 300 {
		err = x.openSession(res, body)
	}
	if err != nil {
		t.failed(err, x.login)
		return nil, err
	}

	if x.login && (res.StatusCode == http.StatusNotFound || res.StatusCode == http.StatusMethodNotAllowed) {
		t.noLogin = true
	}
	t.full = t.full || x.login && res.StatusCode >= 300 && noSessionLeft(body)
	if res.StatusCode >= 300 && !logout {
		t.expired = res.StatusCode == http.StatusUnauthorized && q.Header.Get("X-Auth-Token") != ""
		t.cause = judgeStatus(q, res.StatusCode, body, x.login)
		if x.write && x.waits > 0 && isUnsupported(t.cause) { // the service may have executed a write that it answered as busy
			t.cause = fmt.Errorf("after the BMC had reported that it is busy: %s: %w",
				strings.TrimSuffix(t.cause.Error(), ": "+inventory.ErrUnsupported.Error()), inventory.ErrUnreachable)
		}
	}
	return res, nil
}

// askSession sends a request for a session's own resource, with the token of that session.
func (t *redfishTransport) askSession(method string, s bmcSession) (status int, err error) {
	u := url.URL{Scheme: "https", Host: t.host, Path: s.path}
	q, err := http.NewRequestWithContext(t.ctx, method, u.String(), http.NoBody)
	if err != nil {
		return 0, err
	}
	q.Header.Set("X-Auth-Token", s.token)
	res, err := t.RoundTrip(q)
	if err != nil {
		return 0, bare(err)
	}
	return res.StatusCode, res.Body.Close()
}

// failed records why a request got no usable answer. login reports whether it was a log-in.
func (t *redfishTransport) failed(err error, login bool) {
	var fenced fenceError
	untrusted := judgeTLS(err)
	switch {
	case errors.As(err, &fenced), isUnsupported(err), errors.Is(err, inventory.ErrRefused):
		t.cause = err
	case untrusted != nil:
		t.cause, t.lost = untrusted, false // no log-in was sent
	default:
		t.cause, t.lost = requestLost("Redfish", err), t.lost || login
	}
}

// accountsPath is part of the path of an account. The answer to a request with this path may repeat a password.
const accountsPath = "/Accounts/"

// errTooMuch means that a command exceeded maxRequests or maxBytes.
var errTooMuch = fmt.Errorf("the BMC needs more than %d requests or %d MiB for one command: update its firmware, or use another "+
	"driver: %w", maxRequests, maxBytes>>20, inventory.ErrUnsupported)

// errNull means that a resource is null instead of an object. gofish panics on null in a goroutine of its own, which
// would end the server.
var errNull = fmt.Errorf("the BMC returns null instead of a resource: update its firmware, or use another driver: %w",
	inventory.ErrUnsupported)

// judgeStatus returns the error for an answer with an error status. It contains the service's own text, except where
// the text could repeat a password: for a log-in or an account.
func judgeStatus(q *http.Request, status int, body []byte, login bool) error {
	said := fmt.Sprintf("%s %s: HTTP %d", q.Method, clip(q.URL.Path), status)
	text := extendedMessage(body)
	switch {
	case login && noSessionLeft(body):
		return fmt.Errorf("%s: the BMC has no free session: end sessions at the BMC, or wait until they expire (SessionTimeout of its "+
			"SessionService, often 30 min): %w", said, inventory.ErrUnreachable)
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

// noSessionLeft reports whether the answer to a log-in means that the service has no session left:
// SessionLimitExceeded of the message registry Base, or Dell's RAC0218 ("the maximum number of user sessions is
// reached").
func noSessionLeft(body []byte) bool {
	text := strings.ToLower(extendedMessage(body))
	return strings.Contains(text, "session") && (strings.Contains(text, "limit") || strings.Contains(text, "maximum"))
}

// extendedMessage returns the messages in the body of an error (DSP0266, section 8.6), or "".
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
