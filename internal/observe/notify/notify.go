// Package notify informs operators when they are needed: it sends the notices in the inventory's outbox to a
// webhook, signed, and repeats each notice until the receiver accepts it.
//
// A notice is a POST with a JSON body (inventory.Notice and the server's name) and these headers:
//
//	Ingot-Notice:    the id of the notice, the same at every attempt
//	Ingot-Timestamp: the time of this attempt in seconds since 1970
//	Ingot-Signature: v1= and the hexadecimal HMAC-SHA256, by the shared secret, of
//	                 this text: the timestamp, a full stop and the body
//
// Any 2xx status accepts the notice. Delivery is at least once: a receiver that wants each notice only once must
// store their ids.
package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/httpclient"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/inventory"
)

// Names of the headers.
const (
	HeaderNotice    = "Ingot-Notice"
	HeaderTimestamp = "Ingot-Timestamp"
	HeaderSignature = "Ingot-Signature"
)

const (
	// shortestSecret is the minimum length of the shared secret in characters, for HMAC-SHA256.
	shortestSecret = 32
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
	URL string // http or https; never shown, because it may hold a token
	// SecretFile holds the shared secret of at least 32 characters. It is read for each attempt, so that it can be
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
	if cfg.Look == 0 {
		cfg.Look = time.Second
	}

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
	_, err := s.secret()
	return err
}

// Run sends notices that are due until ctx ends.
func (s *Sender) Run(ctx context.Context) error {
	timer := time.NewTicker(s.cfg.Look)
	defer timer.Stop()
	for {
		for s.next(ctx) {
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
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

// Test sends a test notice at once, without the outbox.
func (s *Sender) Test(ctx context.Context) (id string, err error) {
	var raw [16]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return "", err
	}
	n := inventory.Notice{
		ID: hex.EncodeToString(raw[:]), Event: inventory.NoticeTest, Time: s.cfg.Now().UTC(),
		Text: "This is a test notice (ingot notify test).",
	}
	if err := s.send(ctx, n); err != nil {
		return n.ID, fmt.Errorf("sending a notice to %s: %w", s.Receiver(), err)
	}
	return n.ID, nil
}

// send makes one attempt. Its errors contain neither the URL nor the secret.
func (s *Sender) send(ctx context.Context, n inventory.Notice) error {
	secret, err := s.secret()
	if err != nil {
		return err
	}

	body, err := json.Marshal(struct {
		Server string `json:"server"`
		inventory.Notice
	}{s.cfg.Server, n})
	if err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.cfg.URL, bytes.NewReader(body))
	if err != nil {
		return errors.New("invalid notify.url; must be a URL")
	}

	at := strconv.FormatInt(s.cfg.Now().Unix(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "ingot/"+s.cfg.Version)
	req.Header.Set(HeaderNotice, n.ID)
	req.Header.Set(HeaderTimestamp, at)
	req.Header.Set(HeaderSignature, Sign(secret, at, body))
	resp, err := s.client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) { // the text of u contains the whole URL
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

func (s *Sender) secret() ([]byte, error) {
	b, err := durablefile.ReadPrivate(s.cfg.SecretFile)
	if err != nil {
		return nil, fmt.Errorf("reading notify.secret_file: %w", err)
	}
	b = bytes.TrimSpace(b)
	if len(b) < shortestSecret {
		return nil, fmt.Errorf("notify.secret_file holds fewer than %d characters (make one: openssl rand -hex 32): %w",
			shortestSecret, inventory.ErrInvalid)
	}
	return b, nil
}

// Sign returns the value of HeaderSignature for a body that is sent with this value of HeaderTimestamp.
func Sign(secret []byte, timestamp string, body []byte) string {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(timestamp + "."))
	h.Write(body)
	return "v1=" + hex.EncodeToString(h.Sum(nil))
}

// Verify is for receivers. It returns an error unless the signature matches the body and HeaderTimestamp differs
// from now by at most age.
func Verify(secret []byte, h http.Header, body []byte, now time.Time, age time.Duration) error {
	at := h.Get(HeaderTimestamp)
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return fmt.Errorf("reading %s: %w", HeaderTimestamp, inventory.ErrInvalid)
	}
	if d := now.Sub(time.Unix(seconds, 0)); d > age || d < -age {
		return fmt.Errorf("%s differs from the current time by %s: %w", HeaderTimestamp, d.Truncate(time.Second), inventory.ErrRefused)
	}
	if !hmac.Equal([]byte(strings.TrimSpace(h.Get(HeaderSignature))), []byte(Sign(secret, at, body))) {
		return fmt.Errorf("%s does not match the body: %w", HeaderSignature, inventory.ErrRefused)
	}

	return nil
}
