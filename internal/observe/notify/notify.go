// Package notify informs operators of what happens to their machines: it sends the notices in the inventory's outbox to
// a webhook, and repeats each notice until the receiver accepts it.
//
// A notice is a POST in one of inventory.NoticeFormats. In the format "standard" it follows Standard Webhooks 1.0
// (https://www.standardwebhooks.com): a JSON body (inventory.Notice and the server's name) and these headers:
//
//	webhook-id:        the id of the notice, the same at every attempt
//	webhook-timestamp: the time of this attempt in seconds since 1970
//	webhook-signature: "v1," and the base64 HMAC-SHA256, by the shared secret, of
//	                   this text: the id, a full stop, the timestamp, a full stop and the body
//
// Any 2xx status accepts the notice. Delivery is at least once: a receiver that wants each notice only once must
// store their ids.
package notify

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/httpclient"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/inventory"
)

// Names of the headers.
const (
	HeaderID        = "webhook-id"
	HeaderTimestamp = "webhook-timestamp"
	HeaderSignature = "webhook-signature"
)

// SecretRemedy is the command that makes a secret.
const SecretRemedy = "echo whsec_$(openssl rand -base64 32) > FILE"

const (
	// secretPrefix begins every secret; base64 of shortestSecret to longestSecret bytes follows.
	secretPrefix                  = "whsec_"
	shortestSecret, longestSecret = 24, 64
	// attemptTime is how long one attempt may take.
	attemptTime = 15 * time.Second
	// firstPause and longestPause limit the pause between attempts, which doubles each time.
	firstPause   = 5 * time.Second
	longestPause = 15 * time.Minute
	// keepTrying limits the number of attempts for a notice. So many attempts take about a week.
	keepTrying = 700
)

// Outbox stores notices until they are delivered.
type Outbox interface {
	// NextNotice returns a notice that is due, or inventory.ErrNotFound.
	NextNotice(ctx context.Context) (inventory.OpenNotice, error)
	NoticeSent(ctx context.Context, id string) error
	// NoticeFailed stores a failed attempt and when the next one is due; the zero time means that none follows.
	NoticeFailed(ctx context.Context, id, why string, due time.Time) error
}

// Config configures a Sender.
type Config struct {
	URL    string // http or https; never shown, because it may hold a token
	Format string // one of inventory.NoticeFormats; "" means the first
	// SecretFile holds the shared secret of the format "standard". It is read for each attempt, so that it can be
	// replaced.
	SecretFile string
	// CAFile holds the PEM certificates of the authorities for the receiver's certificate. If it is "", the system's
	// authorities apply.
	CAFile  string
	Server  string // name of this server, for the receiver
	Version string
	Outbox  Outbox
	Log     *slog.Logger
	Now     func() time.Time
	// Look is the pause after which the outbox is read again; 0 means 1 s.
	Look time.Duration
}

// A Sender delivers notices.
type Sender struct {
	cfg    Config
	client *http.Client
}

// New returns a sender. It returns an error if CAFile holds no certificate. If the secret cannot be read, New succeeds
// and each attempt fails.
func New(cfg Config) (*Sender, error) {
	t := httpclient.NewTransport(&tls.Config{MinVersion: tls.VersionTLS12}, attemptTime)
	t.Proxy, t.IdleConnTimeout = http.ProxyFromEnvironment, time.Minute
	if cfg.CAFile != "" {
		var err error
		if t.TLSClientConfig.RootCAs, err = identity.Authorities(cfg.CAFile); err != nil {
			return nil, fmt.Errorf("notify.tls_ca: %w", err)
		}
	}
	cfg.Format = cmp.Or(cfg.Format, inventory.NoticeStandard)
	cfg.Look = cmp.Or(cfg.Look, time.Second)
	return &Sender{cfg: cfg, client: httpclient.New(t)}, nil
}

// Receiver returns the scheme and host of the webhook's URL; the rest may be secret.
func (s *Sender) Receiver() string {
	u, err := url.Parse(s.cfg.URL)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

// Check returns an error if the URL or the secret is invalid, so that no notice can be sent. It sends nothing.
func (s *Sender) Check() error {
	if u, err := url.Parse(s.cfg.URL); err != nil || u.Host == "" {
		return fmt.Errorf("invalid notify.url; must be a URL: %w", inventory.ErrInvalid)
	}
	if s.cfg.Format != inventory.NoticeStandard {
		return nil
	}
	_, err := s.secret()
	return err
}

// Run sends notices that are due until ctx ends.
func (s *Sender) Run(ctx context.Context) error {
	for {
		for s.next(ctx) {
		}
		if clock.Sleep(ctx, s.cfg.Look) != nil {
			return ctx.Err()
		}
	}
}

// next sends one notice and reports whether another one may be due.
func (s *Sender) next(ctx context.Context) bool {
	n, err := s.cfg.Outbox.NextNotice(ctx)
	if ctx.Err() != nil || errors.Is(err, inventory.ErrNotFound) {
		return false
	}
	if err != nil {
		s.cfg.Log.Warn("looking for notices", "error", err)
		return false
	}
	if err = s.send(ctx, n.Notice); err == nil {
		// If this write fails, the notice is sent again. To avoid this, the write is not aborted when ctx ends because
		// the server stops.
		if err := s.cfg.Outbox.NoticeSent(context.WithoutCancel(ctx), n.ID); err != nil {
			s.cfg.Log.Warn("cannot record that a notice was sent, so it will be sent again", "notice", n.ID, "error", err)
			return false
		}
		s.cfg.Log.Info("notice sent", "notice", n.ID, "event", n.Event, "machine", n.Machine, "attempts", n.Attempts+1)
		return true
	}
	if ctx.Err() != nil {
		return false // the server is stopping: this attempt does not count as failed
	}
	var due time.Time
	if n.Attempts+1 < keepTrying {
		due = s.cfg.Now().Add(pause(n.Attempts))
	}
	s.cfg.Log.Warn("notice not sent", "notice", n.ID, "event", n.Event, "machine", n.Machine, "attempts", n.Attempts+1,
		"error", err, "again", due)
	if err := s.cfg.Outbox.NoticeFailed(ctx, n.ID, err.Error(), due); err != nil {
		s.cfg.Log.Warn("cannot record that a notice was not sent", "notice", n.ID, "error", err)
		return false
	}

	return true
}

// pause returns the time to wait before the next attempt, after the given number of earlier failures.
func pause(before int) time.Duration {
	d := firstPause
	for ; before > 0 && d < longestPause; before-- {
		d *= 2
	}
	return min(d, longestPause)
}

// Test sends a test notice at once, without the outbox. by is who asked for it.
func (s *Sender) Test(ctx context.Context, by string) (id string, err error) {
	var raw [16]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return "", err
	}
	n := inventory.Notice{
		ID: hex.EncodeToString(raw[:]), Event: inventory.NoticeTest, Time: s.cfg.Now().UTC(), By: by,
		Text: "This is a test notice (ingot notify test).",
	}
	if err := s.send(ctx, n); err != nil {
		return n.ID, fmt.Errorf("sending a notice to %s: %w", s.Receiver(), err)
	}
	return n.ID, nil
}

// send makes one attempt. Its errors contain neither the URL nor the secret.
func (s *Sender) send(ctx context.Context, n inventory.Notice) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	e, err := s.write(n)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.cfg.URL, bytes.NewReader(e.body))
	if err != nil {
		return errors.New("invalid notify.url; must be a URL")
	}
	req.Header = e.header
	req.Header.Set("User-Agent", "ingot/"+s.cfg.Version)
	resp, err := s.client.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok { // the text of u contains the whole URL
			err = u.Err
		}
		return err
	}
	defer resp.Body.Close()
	// Read the beginning of the body, although it is not used, so that the connection can be used again.
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fmt.Errorf("the receiver answers %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}

	return nil
}

// write returns n in the configured format, signed if the format is "standard".
func (s *Sender) write(n inventory.Notice) (envelope, error) {
	switch s.cfg.Format {
	case inventory.NoticeSlack:
		return writeSlack(s.cfg.Server, n)
	case inventory.NoticeNtfy:
		return writeNtfy(s.cfg.Server, n), nil
	}

	key, err := s.secret()
	if err != nil {
		return envelope{}, err
	}
	e, err := writeStandard(s.cfg.Server, n)
	if err != nil {
		return envelope{}, err
	}
	at := strconv.FormatInt(s.cfg.Now().Unix(), 10)
	e.header.Set(HeaderID, n.ID)
	e.header.Set(HeaderTimestamp, at)
	e.header.Set(HeaderSignature, Sign(key, n.ID, at, e.body))
	return e, nil
}

// secret returns the key that signs.
func (s *Sender) secret() ([]byte, error) {
	b, err := durablefile.ReadPrivate(s.cfg.SecretFile)
	if err != nil {
		return nil, fmt.Errorf("reading notify.secret_file: %w", err)
	}
	return ParseSecret(string(b))
}

// ParseSecret returns the key that signs with a secret: whsec_ and base64 of 24 to 64 bytes.
func ParseSecret(text string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(strings.TrimSpace(text), secretPrefix)
	key, err := base64.StdEncoding.DecodeString(encoded)
	if !ok || err != nil || len(key) < shortestSecret || len(key) > longestSecret {
		return nil, fmt.Errorf("invalid secret in notify.secret_file; must be %s and base64 of %d to %d bytes (make one: %s): %w",
			secretPrefix, shortestSecret, longestSecret, SecretRemedy, inventory.ErrInvalid)
	}
	return key, nil
}

// Sign returns the value of HeaderSignature for a body that is sent with this id and this value of HeaderTimestamp.
func Sign(key []byte, id, timestamp string, body []byte) string {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(id + "." + timestamp + "."))
	h.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(h.Sum(nil))
}
