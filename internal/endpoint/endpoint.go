// Package endpoint speaks to systems that were installed: a VyOS router, a
// Kubernetes API server, a Harvester cluster. Each by the part of its
// documented HTTP protocol that a bootstrap needs, and nothing else.
//
// Errors wrap inventory's vocabulary: ErrUnreachable for what may pass by
// itself, ErrRefused for credentials or a certificate that is not the expected
// one, ErrInvalid for a request that the other side understood and will never
// grant.
package endpoint

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	// timeout bounds one request: a router that commits takes seconds.
	timeout = time.Minute
	// maxAnswer is more than any answer that is read here.
	maxAnswer = 16 << 20
)

// errPin: somebody else answers at the address.
var errPin = errors.New("the certificate's key has another fingerprint than the one given")

// tlsConfig says whom the endpoint trusts.
func tlsConfig(e inventory.Endpoint) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	n := 0
	for _, given := range []bool{e.CA != "", e.Fingerprint != "", e.Insecure} {
		if given {
			n++
		}
	}
	switch {
	case n > 1:
		return nil, fmt.Errorf("endpoint %q: give one of ca, fingerprint and insecure: %w", e.URL, inventory.ErrInvalid)
	case e.CA != "":
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM([]byte(e.CA)) {
			return nil, fmt.Errorf("endpoint %q: its CA holds no certificate: %w", e.URL, inventory.ErrInvalid)
		}
	case e.Fingerprint != "":
		what := inventory.PinProblem(e.Fingerprint)
		want, err := hex.DecodeString(strings.TrimPrefix(e.Fingerprint, "sha256:"))
		if what != "" || err != nil {
			return nil, fmt.Errorf("endpoint %q: fingerprint %q %s: %w", e.URL, e.Fingerprint, what, inventory.ErrInvalid)
		}
		c.InsecureSkipVerify = true // the pin is stricter than any chain
		c.VerifyConnection = func(s tls.ConnectionState) error {
			got := sha256.Sum256(s.PeerCertificates[0].RawSubjectPublicKeyInfo)
			if subtle.ConstantTimeCompare(got[:], want) != 1 {
				return fmt.Errorf("%w: it is sha256:%x", errPin, got)
			}
			return nil
		}
	case e.Insecure:
		c.InsecureSkipVerify = true // said so, in so many words
	}
	return c, nil
}

// link is a client of one endpoint. It is made for one operation: nothing
// lingers that would notice too late that the machine behind it is another.
type link struct {
	base string
	http *http.Client
}

func dial(e inventory.Endpoint, conf *tls.Config) (*link, error) {
	if what := inventory.BaseProblem(e.URL); what != "" {
		return nil, fmt.Errorf("endpoint %q %s: %w", e.URL, what, inventory.ErrInvalid)
	}
	t := &http.Transport{
		TLSClientConfig: conf, TLSHandshakeTimeout: 15 * time.Second, Proxy: nil,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			d := net.Dialer{Timeout: 10 * time.Second, Control: func(_, at string, _ syscall.RawConn) error { return inventory.MayDial(host, at) }}
			return d.DialContext(ctx, network, address)
		},
	}
	return &link{base: strings.TrimSuffix(e.URL, "/"), http: &http.Client{
		Transport: t, Timeout: timeout,
		// A redirect would carry credentials to where nobody pinned anything.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

func (l *link) close() { l.http.CloseIdleConnections() }

// answer is what came back.
type answer struct {
	status int
	body   []byte
}

// do sends one request. The error tells only of the way there: what a status
// means, each protocol says itself, or wrong does.
func (l *link) do(ctx context.Context, method, path string, header http.Header, body []byte) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, l.base+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, fmt.Errorf("asking %s%s: %w", l.base, path, err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	res, err := l.http.Do(req)
	if err != nil {
		return answer{}, unreached(err)
	}
	defer func() { _ = res.Body.Close() }() // it was read, or its loss is an error below
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err != nil {
		return answer{}, unreached(err)
	}
	if len(b) > maxAnswer {
		return answer{}, fmt.Errorf("%s%s answers with more than %d bytes: %w", l.base, path, maxAnswer, inventory.ErrInvalid)
	}
	return answer{res.StatusCode, b}, nil
}

// unreached tells a certificate that is not to be trusted, which no waiting
// mends, from everything that may pass.
func unreached(err error) error {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var verify *tls.CertificateVerificationError
	if errors.Is(err, errPin) || errors.As(err, &unknown) || errors.As(err, &host) || errors.As(err, &verify) {
		return fmt.Errorf("%w: %w", err, inventory.ErrRefused)
	}
	return fmt.Errorf("%w: %w", err, inventory.ErrUnreachable)
}

// wrong is the error of a status that is not the one hoped for; nil below 300.
func (l *link) wrong(path string, a answer) error {
	kind := inventory.ErrInvalid
	switch {
	case a.status < 300:
		return nil
	case a.status == http.StatusUnauthorized || a.status == http.StatusForbidden:
		kind = inventory.ErrRefused
	case a.status == http.StatusNotFound:
		kind = inventory.ErrNotFound
	case a.status == http.StatusConflict:
		kind = inventory.ErrConflict
	case a.status >= 500 || a.status == http.StatusTooManyRequests || a.status == http.StatusRequestTimeout || a.status < 400:
		kind = inventory.ErrUnreachable // not itself yet: a proxy before it, or it starts
	}
	return fmt.Errorf("%s%s answers %d %s: %w", l.base, path, a.status, clip(a.body), kind)
}

// clip keeps what a foreign system says within what a person reads.
func clip(b []byte) string {
	s := strings.Join(strings.Fields(strings.ToValidUTF8(string(b), "?")), " ")
	if len(s) > 300 {
		s = strings.ToValidUTF8(s[:300], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}
