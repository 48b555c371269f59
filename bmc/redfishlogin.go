package bmc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	bmclibredfish "github.com/bmc-toolbox/bmclib/v2/providers/redfish"
	"github.com/go-logr/logr"
	"github.com/stmcginnis/gofish"
	fish "github.com/stmcginnis/gofish/redfish"

	"github.com/ingotmetal/ingot/internal/httpclient"
	"github.com/ingotmetal/ingot/inventory"
)

// redfishLogin runs the commands of one operation in one session. It opens the session at the first command. close
// deletes it, and the first log-in also deletes sessions that earlier operations had to leave open.
type redfishLogin struct {
	link
	name      string // host in the inventory
	bmc       inventory.BMC
	password  inventory.Secret
	transport *redfishTransport
	basic     bool           // use HTTP Basic authentication instead of a session, because the service has none or opens none
	service   redfishService // zero = no log-in yet
	logout    time.Duration  // time limit for the deletion of a session
}

// run runs one command in the operation's session. If the BMC no longer accepts the session, it did not execute the
// command: run logs in again and repeats the command once. The old session may still be open for other requests, so
// the next operation deletes it.
func (l *redfishLogin) run(ctx context.Context, command func(redfishService) error) error {
	for again := false; ; again = true {
		if err := l.logIn(ctx); err != nil {
			return err
		}
		l.transport.begin(ctx)
		err := l.transport.errorOf(command(l.service))
		if err == nil || !l.transport.expired || ctx.Err() != nil || again {
			return err
		}
		l.target.left.add(l.transport.session)
		l.forget()
	}
}

// forget makes the next command log in again.
func (l *redfishLogin) forget() { l.service, l.transport.session = redfishService{}, bmcSession{} }

// logIn opens the operation's session unless it is already open. link.do limits the rate of log-ins.
func (l *redfishLogin) logIn(ctx context.Context) error {
	if l.service.writer != nil {
		return nil
	}
	return l.do(ctx, func() error {
		l.deleteLeftovers(ctx)
		err := l.open(ctx)
		if err != nil && !l.basic && (l.transport.noLogin || !l.transport.login && l.transport.cause == nil && ctx.Err() == nil) {
			l.basic = true
			opened := l.transport.session // a log-in that was answered without a token may have opened a session
			l.transport.session = bmcSession{}
			if err = l.open(ctx); err == nil && opened.path != "" {
				_ = l.service.root.DeleteSession(opened.path) // if this fails, the session ends by its time-out
			}
		}
		if err != nil && l.transport.lost && ctx.Err() == nil {
			l.target.left.searched = false
			err = l.open(ctx)
		}
		err = l.openWithoutSession(ctx, err)
		l.transport.lost, l.transport.full = false, false
		if err != nil {
			return err
		}
		l.searchLeftovers()
		return nil
	})
}

// openWithoutSession tries HTTP Basic authentication after a log-in has failed with err because it was not answered,
// or the service has no session left. In both cases the reason may be open sessions whose log-ins were not answered.
// Services must support both methods (DSP0266, authentication methods), but some operators switch Basic off: after
// such a refusal, it is not tried again with these credentials. If Basic fails too, openWithoutSession returns err.
func (l *redfishLogin) openWithoutSession(ctx context.Context, err error) error {
	if err == nil || l.basic || !l.transport.lost && !l.transport.full || !errors.Is(err, inventory.ErrUnreachable) ||
		l.target.left.sessionsOnly || ctx.Err() != nil {
		return err
	}
	l.basic, l.target.left.searched = true, false
	basic := l.open(ctx)
	if basic == nil {
		return nil
	}
	l.basic = false
	l.target.left.sessionsOnly = errors.Is(basic, inventory.ErrRefused)
	return err
}

// open logs in with bmclib and gofish, which then share the session.
func (l *redfishLogin) open(ctx context.Context) error {
	l.transport.begin(ctx)
	host, port := l.name, strconv.Itoa(l.bmc.ListenPort())
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	writer := bmclibredfish.New(host, l.bmc.User, l.password.Reveal(), logr.Discard(), bmclibredfish.WithPort(port),
		bmclibredfish.WithHttpClient(httpclient.New(l.transport)), bmclibredfish.WithUseBasicAuth(l.basic))
	if err := writer.Open(ctx); err != nil {
		return l.transport.errorOf(err)
	}

	endpoint := url.URL{Scheme: "https", Host: l.transport.host}
	config := gofish.ClientConfig{Endpoint: endpoint.String(), HTTPClient: httpclient.New(l.transport)}
	if l.basic {
		config.Username, config.Password, config.BasicAuth = l.bmc.User, l.password.Reveal(), true
	} else {
		config.Session = &gofish.Session{ID: l.transport.session.path, Token: l.transport.session.token}
	}
	reader, err := gofish.Connect(config)
	if err != nil {
		err = l.transport.errorOf(err)
		return errors.Join(err, l.close(ctx))
	}
	if l.basic {
		if err := l.proveBasic(reader); err != nil {
			return err
		}
	}
	l.service = redfishService{bmc: l.bmc, transport: l.transport, writer: writer, reader: reader, root: reader.Service}
	return nil
}

// proveBasic sends a request that the service accepts only with a valid user and password.
func (l *redfishLogin) proveBasic(reader *gofish.APIClient) error {
	res, err := reader.Get(l.transport.systems)
	if err != nil {
		return l.transport.errorOf(err)
	}
	return res.Body.Close()
}

// close deletes the session. If that fails, it stores the session in the target, and the next operation tries again.
func (l *redfishLogin) close(ctx context.Context) error {
	session := l.transport.session
	l.forget()
	if session.token == "" {
		return nil
	}
	err := l.deleteSession(ctx, session)
	if err != nil {
		l.target.left.add(session)
	}
	return err
}

// deleteLeftovers deletes the sessions that earlier operations could not delete. Each deletion is authenticated by the
// session's own token, so it works even if the BMC has no session left.
func (l *redfishLogin) deleteLeftovers(ctx context.Context) {
	l.target.left.sessions = slices.DeleteFunc(l.target.left.sessions, func(s bmcSession) bool {
		return l.deleteSession(ctx, s) == nil
	})
}

// deleteSession deletes a session, and returns nil once a read shows that it is gone.
func (l *redfishLogin) deleteSession(ctx context.Context, s bmcSession) error {
	if s.path == "" {
		return nil // its path is unknown; it ends by its time-out
	}
	ctx, cancel := context.WithTimeout(ctx, l.logout)
	defer cancel()
	var err error
	for range 3 {
		l.transport.begin(ctx)
		var status int
		if _, err = l.transport.askSession(http.MethodDelete, s); err == nil {
			status, err = l.transport.askSession(http.MethodGet, s)
		}
		switch {
		case err != nil:
		case status == http.StatusUnauthorized || status == http.StatusNotFound:
			return nil
		default:
			err = fmt.Errorf("the session still exists: reading it returns HTTP %d", status)
		}
	}
	return fmt.Errorf("deleting the session: %w", err)
}

// searchLeftovers deletes other sessions of this user that come from this client's address, because a killed server
// cannot delete its session. It does so once per BMC, again after a log-in was not answered, and retries with the next
// log-in if the BMC is unreachable.
//
// The client's address is the one that the service shows for the session of this operation. Without a session, it is
// the local address of the connection. Behind address translation the service shows another address, and then nothing
// is deleted.
func (l *redfishLogin) searchLeftovers() {
	if l.target.left.searched {
		return
	}
	l.target.left.searched = true
	again := func(err error) { // other refusals are permanent: some services show sessions only to administrators
		if errors.Is(l.transport.errorOf(err), inventory.ErrUnreachable) {
			l.target.left.searched = false
		}
	}
	all, err := l.service.root.Sessions()
	if err != nil {
		again(err)
		return
	}
	origin, own := l.transport.from, -1
	if !l.basic {
		own = slices.IndexFunc(all, func(s *fish.Session) bool {
			return strings.TrimSuffix(s.ODataID, "/") == strings.TrimSuffix(l.transport.session.path, "/")
		})
		if own < 0 {
			return
		}
		origin = all[own].ClientOriginIPAddress
	}
	if origin == "" {
		return
	}
	for i, s := range all {
		if i != own && s.UserName == l.bmc.User && s.ClientOriginIPAddress == origin {
			again(l.service.root.DeleteSession(s.ODataID)) // if this fails, the session ends by its time-out
		}
	}
}
