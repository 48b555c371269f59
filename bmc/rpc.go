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
	"net/url"
	"time"

	bmclibrpc "github.com/bmc-toolbox/bmclib/v2/providers/rpc"

	"github.com/ingotmetal/ingot/internal/httpclient"
	"github.com/ingotmetal/ingot/inventory"
)

// Headers of a request, named as in Tinkerbell. The signature is computed over the body followed by the timestamp.
const (
	rpcTimestamp = "X-Rufio-Timestamp"
	rpcSignature = "X-Rufio-Signature" // sent with the suffix -256 or -512
)

// rpcTime limits one request. It is long, because the service may control slow hardware.
const rpcTime = 30 * time.Second

// rpc is a provider that sends each command as JSON to a service of the operator (bmclib's provider rpc). Each request
// is signed by HMAC with the machine's password; the password itself is never sent. The boot device cannot be read
// back, because the protocol has no request for this.
type rpc struct {
	link
	client    *bmclibrpc.Provider
	transport *rpcTransport
}

var (
	_ provider    = (*rpc)(nil)
	_ bootChooser = (*rpc)(nil)
)

func newRPC(d *Driver, l link, _ string, b inventory.BMC, password inventory.Secret) (provider, error) {
	if password.IsZero() {
		return nil, fmt.Errorf("requests to the power service must be signed; set the signing key as bmc.password: %w", inventory.ErrRefused)
	}
	u, err := url.Parse(b.ConsumerURL)
	if err != nil || u.Hostname() == "" {
		return nil, fmt.Errorf("invalid consumerURL: must be http://host/path or https://host/path: %w", inventory.ErrInvalid)
	}

	t := &rpcTransport{http: httpclient.NewTransport(d.tlsConfig(u.Hostname(), b), rpcTime)}
	t.http.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		if host, err = d.resolve(ctx, host); err != nil {
			return nil, err
		}
		return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(host, port))
	}
	key := []string{password.Reveal()}
	c := bmclibrpc.New(b.ConsumerURL, b.Host, bmclibrpc.Secrets{bmclibrpc.SHA256: key, bmclibrpc.SHA512: key})
	c.LogNotificationsDisabled = true
	c.Opts.Request.TimestampHeader, c.Opts.Signature.HeaderName = rpcTimestamp, rpcSignature
	c.Opts.Signature.IncludedPayloadHeaders = []string{rpcTimestamp}
	c.HTTPClient = httpclient.New(t)
	return &rpc{link: l, client: c, transport: t}, nil
}

func (p *rpc) close(context.Context) error {
	p.transport.http.CloseIdleConnections()
	return nil
}

// run checks that the service answers, and then sends one command.
func (p *rpc) run(ctx context.Context, command func(context.Context) error) error {
	return p.do(ctx, func() error {
		limited, cancel := context.WithTimeout(ctx, rpcTime)
		defer cancel()
		p.transport.cause = nil
		err := p.client.Open(limited)
		if err == nil {
			err = command(limited)
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case p.transport.cause != nil:
			return p.transport.cause
		}
		return fmt.Errorf("the power service sent an invalid answer (check bmc.consumerURL): %s: %w", clip(err.Error()),
			inventory.ErrUnsupported)
	})
}

func (p *rpc) readPower(ctx context.Context) (state string, err error) {
	err = p.run(ctx, func(ctx context.Context) (err error) {
		state, err = p.client.PowerStateGet(ctx)
		return err
	})
	return state, err
}

func (p *rpc) setPower(ctx context.Context, power string) error {
	return p.run(ctx, func(ctx context.Context) error {
		_, err := p.client.PowerSet(ctx, power)
		return err
	})
}

// setBootDevice requests a boot device. To remove the boot device, it sends the device "none", because the protocol has
// no other request that removes it.
func (p *rpc) setBootDevice(ctx context.Context, want inventory.BootDevice) error {
	return p.run(ctx, func(ctx context.Context) error {
		_, err := p.client.BootDeviceSet(ctx, want.Device, want.Persistent, want.EFI)
		return err
	})
}

// readBootDevice always returns a blindError, because the protocol cannot read the boot device.
func (p *rpc) readBootDevice(context.Context) (inventory.BootDevice, error) {
	return inventory.BootDevice{}, blindError{"the RPC protocol has no request that reads the boot device"}
}

// rpcTransport sends the requests of one operation. It records why a request failed, because bmclib returns neither the
// status of an answer nor the error code in the answer. It also sets the length of each answer, which bmclib requires.
type rpcTransport struct {
	http  *http.Transport
	cause error
}

// RoundTrip sends a request and reads the complete answer. It implements http.RoundTripper.
func (t *rpcTransport) RoundTrip(q *http.Request) (*http.Response, error) {
	res, err := t.http.RoundTrip(q)
	var body []byte
	if err == nil {
		body, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
		err = errors.Join(err, res.Body.Close())
	}
	if err != nil {
		if t.cause = judgeTLS(err); t.cause == nil && errors.Is(err, inventory.ErrInvalid) {
			t.cause = bare(err) // the address is outside the networks of BMCs
		} else if t.cause == nil {
			t.cause = fmt.Errorf("the machine's power service: %w", requestLost("HTTP", err))
		}
		return nil, err
	}
	if len(body) > maxAnswer {
		t.cause = fmt.Errorf("the answer of the power service has more than %d bytes: %w", maxAnswer, inventory.ErrUnsupported)
		return nil, t.cause
	}

	t.cause = judgeRPC(res.StatusCode, body)
	res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return res, nil
}

// judgeRPC returns the error that an answer means, or nil if the answer means success. An error code in the answer is
// treated like an HTTP status.
func judgeRPC(status int, body []byte) error {
	said := fmt.Sprintf("HTTP %d", status)
	var answer bmclibrpc.ResponsePayload
	if err := json.Unmarshal(body, &answer); err == nil && answer.Error != nil && answer.Error.Code != 0 {
		said = fmt.Sprintf("code %d (%s)", answer.Error.Code, clip(answer.Error.Message))
		status = answer.Error.Code
	}
	switch status {
	case http.StatusOK:
		return nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("the power service answered %s: check the signing key (bmc.password): %w", said, inventory.ErrRefused)
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return fmt.Errorf("the power service answered %s: %w", said, inventory.ErrUnsupported)
	}
	return fmt.Errorf("the power service answered %s: %w", said, inventory.ErrUnreachable)
}
