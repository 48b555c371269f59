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

	bmclibbmc "github.com/bmc-toolbox/bmclib/v2/bmc"
	bmclibredfish "github.com/bmc-toolbox/bmclib/v2/providers/redfish"
	"github.com/go-logr/logr"
	"github.com/stmcginnis/gofish"
	fish "github.com/stmcginnis/gofish/redfish"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/inventory"
)

// logoutTime limits a request for the deletion of a session, which happens even if the operation was canceled.
const logoutTime = 15 * time.Second

// redfish is a bmclib provider for one operation on a BMC that speaks Redfish (DSP0266). bmclib's own
// provider writes; this one reads back through gofish, which shares the session. It opens one session
// at the first command, and deletes it and those that earlier operations had to leave open.
type redfish struct {
	link
	name      string // host in the inventory
	bmc       inventory.BMC
	password  inventory.Secret
	transport *redfishTransport
	basic     bool // without a session: the service has none, or it cannot be opened

	writer *bmclibredfish.Conn // nil = not logged in
	reader *gofish.APIClient
	// wanted is the boot device that was written. Some BMCs set it by a job, after their answer.
	wanted *inventory.BootDevice
	// patience is how long to wait for that job, and step the pause between two reads.
	patience, step time.Duration
	logout         time.Duration // limit for the deletion of a session
}

var (
	_ provider                     = (*redfish)(nil)
	_ bootChooser                  = (*redfish)(nil)
	_ bmclibbmc.BMCResetter        = (*redfish)(nil)
	_ bmclibbmc.VirtualMediaSetter = (*redfish)(nil)
	_ flagReader                   = (*redfish)(nil)
	_ pendingReader                = (*redfish)(nil)
	_ fencedProvider               = (*redfish)(nil)
	_ mediaDrives                  = (*redfish)(nil)
	_ inspector                    = (*redfish)(nil)
	_ passwordSetter               = (*redfish)(nil)
)

func newRedfish(d *Driver, l link, name string, b inventory.BMC, password inventory.Secret) (provider, error) {
	if password.IsZero() {
		return nil, fmt.Errorf("the BMC has no password: set one: %w", inventory.ErrRefused)
	}
	t := d.newRedfishTransport(name, b)
	t.admit = l.admit
	return &redfish{
		link: l, name: name, bmc: b, password: password, transport: t,
		patience: d.cfg.Hard, step: d.cfg.Step, logout: d.cfg.logout,
	}, nil
}

// Name returns the provider's name for bmclib's errors.
func (p *redfish) Name() string { return "ingot-redfish" }

func (p *redfish) guard(fence func(context.Context) error) { p.transport.fence = fence }

// run runs one command in the operation's session. If the BMC has forgotten the session, it logs in
// again and repeats the command once, which the BMC did not carry out. The next operation deletes the
// forgotten session, in case that only this command was refused.
func (p *redfish) run(ctx context.Context, command func() error) error {
	for again := false; ; again = true {
		if err := p.logIn(ctx); err != nil {
			return err
		}
		p.transport.begin(ctx)
		p.last = p.transport.errorOf(command())
		if p.last == nil || !p.transport.expired || ctx.Err() != nil || again {
			return p.last
		}
		p.target.left.add(p.transport.session)
		p.writer, p.reader, p.transport.session = nil, nil, bmcSession{}
	}
}

// logIn opens the operation's session unless it is open. admit limits log-ins.
func (p *redfish) logIn(ctx context.Context) error {
	if p.writer != nil {
		return nil
	}
	return p.do(ctx, func() error {
		p.deleteLeftovers(ctx)
		err := p.open(ctx)
		if err != nil && !p.basic && (p.transport.noLogin || !p.transport.login && p.transport.cause == nil && ctx.Err() == nil) {
			p.basic = true
			opened := p.transport.session // a log-in that was answered without a token
			p.transport.session = bmcSession{}
			if err = p.open(ctx); err == nil && opened.path != "" {
				_ = p.reader.Service.DeleteSession(opened.path) // it ends by its time-out
			}
		}
		if err != nil && p.transport.lost && ctx.Err() == nil {
			p.target.left.searched = false
			err = p.open(ctx)
		}
		err = p.openWithoutSession(ctx, err)
		p.transport.lost, p.transport.full = false, false
		if err != nil {
			return err
		}
		p.searchLeftovers()
		return nil
	})
}

// openWithoutSession logs in by HTTP Basic authentication after err, if no log-in is answered or the service has no
// session left: either may be because of sessions whose log-ins were not answered. A service has both ways (DSP0266,
// authentication methods), but some operators switch Basic off, and such a service is not asked again.
func (p *redfish) openWithoutSession(ctx context.Context, err error) error {
	if err == nil || p.basic || !p.transport.lost && !p.transport.full || !errors.Is(err, inventory.ErrUnreachable) ||
		p.target.left.sessionsOnly || ctx.Err() != nil {
		return err
	}
	p.basic, p.target.left.searched = true, false
	basic := p.open(ctx)
	if basic == nil {
		return nil
	}
	p.basic = false
	p.target.left.sessionsOnly = errors.Is(basic, inventory.ErrRefused)
	return err
}

// open logs in with both clients.
func (p *redfish) open(ctx context.Context) error {
	p.transport.begin(ctx)
	host, port := p.name, strconv.Itoa(p.bmc.ListenPort())
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	writer := bmclibredfish.New(host, p.bmc.User, p.password.Reveal(), logr.Discard(), bmclibredfish.WithPort(port),
		bmclibredfish.WithHttpClient(p.transport.client()), bmclibredfish.WithUseBasicAuth(p.basic))
	if err := writer.Open(ctx); err != nil {
		return p.transport.errorOf(err)
	}

	endpoint := url.URL{Scheme: "https", Host: p.transport.host}
	config := gofish.ClientConfig{Endpoint: endpoint.String(), HTTPClient: p.transport.client()}
	if p.basic {
		config.Username, config.Password, config.BasicAuth = p.bmc.User, p.password.Reveal(), true
	} else {
		config.Session = &gofish.Session{ID: p.transport.session.path, Token: p.transport.session.token}
	}
	reader, err := gofish.Connect(config)
	if err != nil {
		err = p.transport.errorOf(err)
		return errors.Join(err, p.logOut(ctx))
	}
	if p.basic {
		if err := p.proveBasic(reader); err != nil {
			return err
		}
	}
	p.writer, p.reader = writer, reader
	return nil
}

// proveBasic sends a request that the service answers only to the right user and password.
func (p *redfish) proveBasic(reader *gofish.APIClient) error {
	res, err := reader.Get(p.transport.systems)
	if err != nil {
		return p.transport.errorOf(err)
	}
	return res.Body.Close()
}

// Close deletes the session. If that fails, the next operation tries again.
func (p *redfish) Close(ctx context.Context) error {
	defer p.transport.http.CloseIdleConnections()
	return p.logOut(ctx)
}

func (p *redfish) logOut(ctx context.Context) error {
	s := p.transport.session
	p.writer, p.reader, p.transport.session = nil, nil, bmcSession{}
	if s.token == "" {
		return nil
	}
	err := p.deleteSession(ctx, s)
	if err != nil {
		p.target.left.add(s)
	}
	return err
}

// deleteLeftovers deletes the sessions that earlier operations could not delete. Each proves itself
// by its own token, so this works even if the BMC has no session left.
func (p *redfish) deleteLeftovers(ctx context.Context) {
	p.target.left.sessions = slices.DeleteFunc(p.target.left.sessions, func(s bmcSession) bool {
		return p.deleteSession(ctx, s) == nil
	})
}

// deleteSession deletes a session, and reads whether it is gone.
func (p *redfish) deleteSession(ctx context.Context, s bmcSession) error {
	if s.path == "" {
		return nil // it ends by its time-out
	}
	ctx, cancel := context.WithTimeout(ctx, p.logout)
	defer cancel()
	var err error
	for range 3 {
		p.transport.begin(ctx)
		var status int
		if _, err = p.askSession(ctx, http.MethodDelete, s); err == nil {
			status, err = p.askSession(ctx, http.MethodGet, s)
		}
		switch {
		case err != nil:
		case status == http.StatusUnauthorized || status == http.StatusNotFound:
			return nil
		default:
			err = fmt.Errorf("reading it still answers HTTP %d", status)
		}
	}
	return fmt.Errorf("deleting the session: %w", err)
}

// askSession sends a request about a session with the session's own token.
func (p *redfish) askSession(ctx context.Context, method string, s bmcSession) (status int, err error) {
	u := url.URL{Scheme: "https", Host: p.transport.host, Path: s.path}
	q, err := http.NewRequestWithContext(ctx, method, u.String(), http.NoBody)
	if err != nil {
		return 0, err
	}
	q.Header.Set("X-Auth-Token", s.token)
	res, err := p.transport.RoundTrip(q)
	if err != nil {
		return 0, bare(err)
	}
	return res.StatusCode, res.Body.Close()
}

// searchLeftovers deletes the other sessions of this user and this client's address, once for each
// BMC and whenever a log-in was not answered, until the BMC answers: a killed server cannot delete its session. The address is the one that
// the service shows for the session of this operation, or without a session the connection's own, which the service
// does not show behind address translation: then nothing is deleted.
func (p *redfish) searchLeftovers() {
	if p.target.left.searched {
		return
	}
	p.target.left.searched = true
	again := func(err error) { // a refusal is permanent: some services show sessions only to administrators
		if errors.Is(p.transport.errorOf(err), inventory.ErrUnreachable) {
			p.target.left.searched = false
		}
	}
	all, err := p.reader.Service.Sessions()
	if err != nil {
		again(err)
		return
	}
	origin, own := p.transport.from, -1
	if !p.basic {
		own = slices.IndexFunc(all, func(s *fish.Session) bool {
			return strings.TrimSuffix(s.ODataID, "/") == strings.TrimSuffix(p.transport.session.path, "/")
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
		if i != own && s.UserName == p.bmc.User && s.ClientOriginIPAddress == origin {
			again(p.reader.Service.DeleteSession(s.ODataID)) // it ends by its time-out at the latest
		}
	}
}

// PowerStateGet returns the power state as Redfish writes it, for normalize.
func (p *redfish) PowerStateGet(ctx context.Context) (state string, err error) {
	err = p.run(ctx, func() (err error) {
		state, err = p.writer.PowerStateGet(ctx)
		return err
	})
	return state, err
}

// PowerSet requests one change of the power state: on, off or soft.
func (p *redfish) PowerSet(ctx context.Context, word string) (bool, error) {
	err := p.run(ctx, func() error {
		ok, err := p.writer.PowerSet(ctx, word)
		if err == nil && !ok && word != "soft" { // bmclib never confirms soft
			return errors.New("bmclib did not confirm the command")
		}
		return err
	})
	return err == nil, err
}

// bootWords are bmclib's words for boot devices, where they differ.
var bootWords = map[string]string{"http": string(bmclibbmc.BootDeviceUefiHTTP)}

// BootDeviceSet sets the boot override. It writes nothing for none if there is no override.
func (p *redfish) BootDeviceSet(ctx context.Context, device string, persistent, efi bool) (bool, error) {
	p.wanted = &inventory.BootDevice{Device: device, Persistent: persistent, EFI: efi}
	p.transport.wantedBoot = device
	err := p.run(ctx, func() error {
		if device == "none" {
			s, err := p.system()
			if err != nil {
				return err
			}
			if overrides(s.Boot) == "none" {
				return nil
			}
			// Only the target changes: some services refuse Once, and a mode might stay in force.
			persistent = s.Boot.BootSourceOverrideEnabled == fish.ContinuousBootSourceOverrideEnabled
			efi = s.Boot.BootSourceOverrideMode == fish.UEFIBootSourceOverrideMode
		}
		word := device
		if w, ok := bootWords[device]; ok {
			word = w
		}
		_, err := p.writer.BootDeviceSet(ctx, word, persistent, efi)
		return err
	})
	return err == nil, err
}

// system returns the machine.
func (p *redfish) system() (*fish.ComputerSystem, error) {
	all, err := p.reader.Service.Systems()
	if err != nil {
		return nil, err
	}
	if len(all) == 1 {
		return all[0], nil
	}
	if len(all) == 0 && p.bmc.SystemName != "" {
		return nil, fmt.Errorf("the BMC has no system %q: correct bmc.systemName", p.bmc.SystemName)
	}
	var ids []string
	for _, s := range all {
		ids = append(ids, s.ID)
	}
	return nil, fmt.Errorf("the BMC has %d systems (%s): give one as bmc.systemName", len(all), clip(strings.Join(ids, ", ")))
}

// overrides returns the boot device of an override that is in force, or none.
func overrides(b fish.Boot) string {
	if b.BootSourceOverrideEnabled == fish.DisabledBootSourceOverrideEnabled {
		return "none"
	}
	switch b.BootSourceOverrideTarget {
	case fish.NoneBootSourceOverrideTarget, "":
		return "none"
	case fish.PxeBootSourceOverrideTarget:
		return "pxe"
	case fish.HddBootSourceOverrideTarget:
		return "disk"
	case fish.CdBootSourceOverrideTarget:
		return "cdrom"
	case fish.BiosSetupBootSourceOverrideTarget:
		return "bios"
	case fish.UefiHTTPBootSourceOverrideTarget:
		return "http"
	}
	return "unknown"
}

// BootDeviceOverrideGet reads the boot override. After BootDeviceSet it reads until the override is
// the one that was set, for as long as a change of power may take. Two reads in a row must show that there is none: so
// does an answer that lacks the override, which a BMC may give while a job changes it.
func (p *redfish) BootDeviceOverrideGet(ctx context.Context) (o bmclibbmc.BootDeviceOverride, err error) {
	for began, before := time.Now(), ""; ; before = string(o.Device) {
		err = p.run(ctx, func() error {
			s, err := p.system()
			if err != nil {
				return err
			}
			o = bmclibbmc.BootDeviceOverride{
				Device:       bmclibbmc.BootDeviceType(overrides(s.Boot)),
				IsPersistent: s.Boot.BootSourceOverrideEnabled == fish.ContinuousBootSourceOverrideEnabled,
				IsEFIBoot:    s.Boot.BootSourceOverrideMode == fish.UEFIBootSourceOverrideMode,
			}
			return nil
		})
		w := p.wanted
		if err != nil || w == nil {
			return o, err
		}
		none := w.Device == "none" && o.Device == bmclibbmc.BootDeviceTypeNone
		if none && before != "none" {
			continue
		}
		if none || string(o.Device) == w.Device && o.IsPersistent == w.Persistent || time.Since(began) >= p.patience {
			return o, nil
		}
		if err := clock.Sleep(ctx, p.step); err != nil {
			return o, err
		}
	}
}

// dropped returns the names of the flags that were read back differently from want.
func (p *redfish) dropped(want inventory.BootDevice, got bmclibbmc.BootDeviceOverride) (flags []string) {
	if want.Persistent && !got.IsPersistent {
		flags = append(flags, "persistent")
	}
	if want.EFI != got.IsEFIBoot {
		flags = append(flags, "EFI")
	}
	return flags
}
