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
	// maxRequests and maxBytes limit what one command may send and receive. Otherwise a service could return more and
	// more links to follow.
	maxRequests, maxBytes = 300, 16 << 20
)

// redfishTransport sends the requests of one operation to a Redfish service. bmclib and gofish pass no context and do
// not return the status of an answer. Therefore this transport adds the context of the current command, and records why
// a request failed. It sends requests only to this service, even if the service returns links to other hosts. It calls
// the fence before each write, except before the deletion of a session.
type redfishTransport struct {
	http   *http.Transport
	host   string // host and port, as in the inventory
	dialed string // address and port
	system string // the id of the system to use; "" = the service has only one

	request time.Duration // time limit of one request
	busy    time.Duration // how long one command may wait in total for a busy service
	sleep   func(context.Context, time.Duration) error
	now     func() time.Time
	admit   func(context.Context) error // called before a request is sent again to a busy service

	ctx     context.Context
	fence   func(context.Context) error
	session bmcSession
	cause   error // why the last request that failed has failed
	expired bool  // the service has rejected the session of the current command
	login   bool  // the current command has sent a log-in
	// requests counts the requests that the current command has sent, and bytes the bytes that it has received. waited
	// is how long it has waited for a busy service.
	requests, bytes int
	waited          time.Duration
	lost            bool   // a log-in was sent but not answered
	full            bool   // the service refused a log-in because it has no free session
	from            string // this server's address in the last connection
	noLogin         bool   // the service cannot open sessions

	// What the service has returned about itself:
	systems, managers string              // paths of the collections of systems and managers
	managedBy         []string            // paths of the managers that manage the used system
	systemPath        string              // path of the used system
	settingsPath      string              // path of the used system's settings object; "" = it has none
	pending           map[string]any      // boot override in the settings object, for a later start; see addPendingBoot
	bootPath          string              // path of the resource in which the service accepted the boot device; "" = none yet
	tags              map[string][]string // current ETags of each resource, by its path

	wantedBoot string // the boot device that the operation sets; "" = it sets none

	inspects bool            // also compare the JSON types in answers with the schema
	odd      []string        // deviations of the service from the specification, at most maxOdd
	noted    map[string]bool // kinds of deviations that are already in odd
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

// newRedfishTransport returns a transport to a BMC. dialed describes the BMC, with the address to connect to as its
// Host. name is the host that the inventory has for this BMC.
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

// errorOf returns the error to report for the current command, given the error err of bmclib or gofish. It prefers the
// cause that the transport has recorded, because these libraries return only text.
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
		if x.write && x.waits > 0 && isUnsupported(t.cause) { // the service answered that it was busy, but may have executed the write
			t.cause = fmt.Errorf("the BMC first reported that it was busy, and then: %s: %w",
				strings.TrimSuffix(t.cause.Error(), ": "+inventory.ErrUnsupported.Error()), inventory.ErrUnreachable)
		}
	}
	return res, nil
}

// askSession sends a request for the resource of the session s, with the token of s.
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

// failed records err as the reason why a request got no usable answer. login reports whether the request was a log-in.
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

// accountsPath is part of the path of every account. The service's answer to a request with such a path may contain the
// password that was sent.
const accountsPath = "/Accounts/"

// errTooMuch means that a command has exceeded maxRequests or maxBytes.
var errTooMuch = fmt.Errorf("the BMC needs more than %d requests or %d MiB for one command: update its firmware, or use another "+
	"driver: %w", maxRequests, maxBytes>>20, inventory.ErrUnsupported)

// errNull means that the service returned null where a resource is expected. gofish would panic on null in a goroutine
// of its own, and this would end the server.
var errNull = fmt.Errorf("the BMC returns null instead of a resource: update its firmware, or use another driver: %w",
	inventory.ErrUnsupported)

// judgeStatus returns the error for an answer with an error status. The error contains the service's own text, but not
// for a log-in or an account, because that text could contain a password.
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

// noSessionLeft reports whether body, the answer to a log-in, says that the service has no free session. Known messages
// are SessionLimitExceeded of the registry Base, and Dell's RAC0218 ("the maximum number of user sessions is reached").
func noSessionLeft(body []byte) bool {
	text := strings.ToLower(extendedMessage(body))
	return strings.Contains(text, "session") && (strings.Contains(text, "limit") || strings.Contains(text, "maximum"))
}

// extendedMessage returns the messages that the body of an error answer contains (DSP0266, section 8.6), or "".
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
