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

// redfishLogin runs all commands of one operation in one session. It opens the session at the first command, and close
// deletes the session. The first log-in also deletes sessions that earlier operations could not delete.
type redfishLogin struct {
	link
	name      string // host in the inventory
	bmc       inventory.BMC
	password  inventory.Secret
	transport *redfishTransport
	basic     bool           // use HTTP Basic authentication, because the service has no sessions or cannot open one
	service   redfishService // zero = no log-in yet
	logout    time.Duration  // limits how long the deletion of a session may take
}

// run runs one command in the operation's session. If the BMC no longer accepts the session, the command was not
// executed, so run logs in again and repeats the command once. The old session may still be open at the BMC, so the
// next operation deletes it.
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

// logIn opens the operation's session unless the session is already open. It calls link.do, which limits the rate of
// log-ins.
func (l *redfishLogin) logIn(ctx context.Context) error {
	if l.service.writer != nil {
		return nil
	}
	return l.do(ctx, func() error {
		l.deleteLeftovers(ctx)
		err := l.open(ctx)
		if err != nil && !l.basic && (l.transport.noLogin || !l.transport.login && l.transport.cause == nil && ctx.Err() == nil) {
			l.basic = true
			opened := l.transport.session // the service may have opened a session although it returned no token
			l.transport.session = bmcSession{}
			if err = l.open(ctx); err == nil && opened.path != "" {
				_ = l.service.root.DeleteSession(opened.path) // if the deletion fails, the service ends the session after its time-out
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

// openWithoutSession tries HTTP Basic authentication after a log-in failed with err, in two cases: the log-in was not
// answered, or the service has no free session. In both cases, sessions may be open whose log-ins were not answered.
// Services must support Basic and sessions (DSP0266, authentication methods), but some operators switch Basic off. If
// the service refuses Basic, it is not tried again with these credentials. If Basic fails, openWithoutSession returns
// err.
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

// open logs in with bmclib, and then lets gofish use the same session.
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

// proveBasic proves that HTTP Basic authentication works: it sends a request that needs a valid user and password.
func (l *redfishLogin) proveBasic(reader *gofish.APIClient) error {
	res, err := reader.Get(l.transport.systems)
	if err != nil {
		return l.transport.errorOf(err)
	}
	return res.Body.Close()
}

// close deletes the session. If the deletion fails, close stores the session in the target, and the next operation
// tries to delete it.
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

// deleteLeftovers deletes the sessions that earlier operations could not delete. It deletes each session with the token
// of that session, so it works even if the BMC has no free session.
func (l *redfishLogin) deleteLeftovers(ctx context.Context) {
	l.target.left.sessions = slices.DeleteFunc(l.target.left.sessions, func(s bmcSession) bool {
		return l.deleteSession(ctx, s) == nil
	})
}

// deleteSession deletes a session. It returns nil once a read shows that the session no longer exists.
func (l *redfishLogin) deleteSession(ctx context.Context, s bmcSession) error {
	if s.path == "" {
		return nil // without its path, it cannot be deleted; the service ends it after its time-out
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

// searchLeftovers deletes sessions of this user that come from the same client address as this operation, because a
// server that was killed could not delete its sessions. It searches only once per BMC, but once more after a log-in was
// not answered. If the BMC is unreachable, the next log-in searches again.
//
// The client address is the address that the service shows for the session of this operation. If the operation has no
// session, it is the local address of the connection. Behind address translation, the service shows other addresses
// than the local one, so without a session nothing is deleted.
func (l *redfishLogin) searchLeftovers() {
	if l.target.left.searched {
		return
	}
	l.target.left.searched = true
	again := func(err error) { // any other error is permanent: some services show sessions only to administrators
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
			again(l.service.root.DeleteSession(s.ODataID)) // if the deletion fails, the service ends the session after its time-out
		}
	}
}
