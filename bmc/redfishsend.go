package bmc

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	// maxMoves limits how many redirects are followed for one request. maxWaits limits how often a request is sent
	// again because the service is busy.
	maxMoves, maxWaits = 4, 8
	// elsewhere is the beginning of a path that replaces a link to another host. The rest of the path names the host.
	elsewhere = "/elsewhere/"
)

// exchange is one request of gofish or bmclib, together with its final answer. send may send the request several times
// until it has the final answer.
type exchange struct {
	t            *redfishTransport
	q            *http.Request
	login, write bool
	fence        func(context.Context) error // called before each time the request is sent; nil = none

	moves, waits int
	matched      []string // values of If-Match that were already sent; "" = without If-Match

	changesSystem  bool   // the request changes the used system, namely its boot override
	sentToSettings bool   // the request was sent to the settings object instead of the system
	fullBody       []byte // body of a change that the system rejected, before send changed the body; nil = not rejected
}

func anotherHost(name string) error {
	return fmt.Errorf("the BMC refers to another host, %s, to which Ingot sends nothing: %w", clip(name), inventory.ErrUnsupported)
}

// own reports whether u has the scheme, host and port of this service.
func (t *redfishTransport) own(u *url.URL) bool {
	address := net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443"))
	return u.Scheme == "https" && u.User == nil && (strings.EqualFold(address, t.host) || address == t.dialed)
}

// send sends the request and returns the final answer. Each time before it sends, it calls the fence. It sends the
// request again in these cases: to another location after a redirect; with another If-Match if the service rejects
// If-Match; with another body or path if the system rejects a boot device; and after a pause if the service is busy.
func (x *exchange) send() (*http.Response, []byte, error) {
	x.q.Close = false // gofish sets Close, which would open a new connection for each request
	x.changesSystem = x.q.Method == http.MethodPatch && strings.TrimSuffix(x.q.URL.Path, "/") == x.t.systemPath
	for {
		res, body, err := x.attempt()
		if err != nil {
			return nil, nil, err
		}
		again := false
		switch res.StatusCode {
		case http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
			again, err = x.move(res.Header.Get("Location"), res.StatusCode)
		case http.StatusPreconditionFailed, http.StatusPreconditionRequired:
			again = x.rematch()
		case http.StatusBadRequest, http.StatusMethodNotAllowed:
			again, err = x.redirectBoot(res.StatusCode)
		case http.StatusTooManyRequests, http.StatusServiceUnavailable:
			again, err = x.wait(res.Header.Get("Retry-After"), body)
		}
		if err == nil && again && x.q.GetBody != nil {
			x.q.Body, err = x.q.GetBody()
		}
		if err != nil {
			return nil, nil, err
		}
		if again {
			continue
		}

		if x.changesSystem && res.StatusCode < 300 {
			x.t.bootPath = x.t.systemPath
			if x.sentToSettings {
				x.t.bootPath = x.t.settingsPath
			}
		}
		if x.q.Method == http.MethodGet && res.StatusCode == http.StatusOK {
			if body, err = x.t.used(x.q, res, body); err != nil {
				return nil, nil, err
			}
		}
		res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		return res, body, nil
	}
}

// attempt sends the request once and reads the answer. It returns an error only if there is no usable answer; an answer
// with an error status is no error.
func (x *exchange) attempt() (*http.Response, []byte, error) {
	t := x.t
	if t.requests++; t.requests > maxRequests || t.bytes > maxBytes {
		return nil, nil, errTooMuch
	}
	if x.fence != nil {
		if err := x.fence(t.ctx); err != nil {
			return nil, nil, fenceError{err}
		}
	}
	ctx, cancel := context.WithTimeout(t.ctx, t.request)
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
		t.from, _, _ = net.SplitHostPort(c.Conn.LocalAddr().String())
	}})
	res, err := t.http.RoundTrip(x.q.WithContext(ctx))
	if err != nil {
		return nil, nil, err
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return nil, nil, err
	}
	t.bytes += len(body)
	if len(body) > maxAnswer {
		return nil, nil, fmt.Errorf("the answer to %s has more than %d bytes", clip(x.q.URL.Path), maxAnswer)
	}
	if x.q.Method == http.MethodGet && bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("null")) {
		return nil, nil, errNull
	}
	return res, body, nil
}

// move follows a redirect to the same scheme, host and port. For a write or log-in with status 301 or 302, it follows
// only a redirect that adds or removes a trailing slash, because these statuses may change the method (RFC 9110, 15.4).
// again is false if the redirect is not followed.
func (x *exchange) move(location string, status int) (again bool, err error) {
	to, err := x.q.URL.Parse(location)
	if err != nil || location == "" || x.moves == maxMoves {
		return false, nil // do not follow the redirect: its status becomes the error
	}
	if !x.t.own(to) {
		return false, anotherHost(to.Scheme + "://" + to.Host)
	}
	stays := status == http.StatusTemporaryRedirect || status == http.StatusPermanentRedirect ||
		strings.TrimSuffix(to.Path, "/") == strings.TrimSuffix(x.q.URL.Path, "/")
	if (x.write || x.login) && !stays {
		return false, nil
	}
	x.moves++
	x.t.note("redirect", "the BMC redirects %s %s to %s", x.q.Method, x.q.URL.Path, to.Path)
	x.q.URL = &url.URL{Scheme: "https", Host: x.t.host, Path: to.Path, RawPath: to.RawPath, RawQuery: to.RawQuery}
	return true, nil
}

// rematch prepares another attempt for a write whose If-Match the service rejected. It tries each ETag of the resource
// in all its forms, then no If-Match, and then * (RFC 9110, 13.1.1). It returns false if nothing is left to try. To
// write without a matching ETag is safe here, because each change is read back.
func (x *exchange) rematch() bool {
	if !x.write {
		return false
	}
	if len(x.matched) == 0 {
		x.matched = []string{x.q.Header.Get("If-Match")}
	}
	resource, _, _ := strings.Cut(x.q.URL.Path, "/Actions/")
	for _, tag := range append(slices.Clone(x.t.tags[strings.TrimSuffix(resource, "/")]), "", "*") {
		if slices.Contains(x.matched, tag) {
			continue
		}
		x.t.note("match", "the BMC rejects %s %s with If-Match %q", x.q.Method, x.q.URL.Path, x.q.Header.Get("If-Match"))
		x.matched = append(x.matched, tag)
		if x.q.Header.Del("If-Match"); tag != "" {
			x.q.Header.Set("If-Match", tag)
		}
		return true
	}
	return false
}

// wait waits before the request is sent again to a busy service. It waits as long as Retry-After requires (RFC 9110,
// 10.2.3); without Retry-After, twice as long each time. It returns false if the request must not be sent again. Each
// repetition counts as a session for the BMC's rate limit (security S29).
func (x *exchange) wait(after string, body []byte) (again bool, err error) {
	t := x.t
	pause := time.Second << x.waits
	if seconds, err := strconv.Atoi(after); err == nil && seconds >= 0 {
		pause = time.Duration(min(seconds, 1<<20)) * time.Second
	} else if at, err := http.ParseTime(after); err == nil {
		pause = max(0, at.Sub(t.now()))
	}
	if x.login && noSessionLeft(body) || x.waits == maxWaits || t.waited+pause > t.busy {
		return false, nil
	}
	x.waits++
	t.waited += pause
	t.note("busy", "the BMC answers that it is busy, so Ingot repeats the request")
	if err := t.sleep(t.ctx, pause); err != nil {
		return false, err
	}
	return true, t.admit(t.ctx)
}

// openSession stores the session that a log-in has opened. It also sets the header Location to the session's path,
// because gofish reads the path from this header.
func (x *exchange) openSession(res *http.Response, body []byte) error {
	t := x.t
	t.session = bmcSession{x.sessionPath(res.Header.Get("Location"), body), res.Header.Get("X-Auth-Token")}
	if t.session.token == "" {
		t.noLogin = true
		t.note("token", "the BMC answers a log-in without X-Auth-Token")
		return fmt.Errorf("the BMC answered the log-in without X-Auth-Token: %w", inventory.ErrUnsupported)
	}
	if res.Header.Get("Location") == "" {
		t.note("location", "the BMC answers a log-in without the session's Location")
	}
	if t.session.path == "" {
		t.note("unnamed", "the BMC reports no path of the new session, so the session stays open until its time-out")
		res.Header.Set("Location", x.q.URL.Path)
		return nil
	}
	res.Header.Set("Location", t.session.path)
	return nil
}

// sessionPath returns the path of a new session, from the Location header or the body of the answer; "" = not known.
func (x *exchange) sessionPath(location string, body []byte) string {
	if i := strings.Index(location, "/redfish/"); i >= 0 {
		return location[i:]
	}
	var s map[string]any
	_ = json.Unmarshal(body, &s) // the error can be ignored: if the body is invalid, the path is not known
	if id, _ := s["@odata.id"].(string); id != "" {
		if path := x.t.local(x.q.URL, id); !strings.HasPrefix(path, elsewhere) {
			return path
		}
	}
	if id, _ := text(s["Id"]).(string); id != "" {
		return strings.TrimSuffix(x.q.URL.Path, "/") + "/" + id
	}
	return ""
}
