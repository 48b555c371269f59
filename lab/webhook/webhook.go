// Package webhook checks notices as a receiver does, for tests.
package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// Verify returns an error unless the signature of a notice matches its id, time and body (Standard Webhooks 1.0), and its time differs
// from now by at most age.
func Verify(key []byte, h http.Header, body []byte, now time.Time, age time.Duration) error {
	id, at := h.Get("webhook-id"), h.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return fmt.Errorf("reading the time %q of a notice: %w", at, inventory.ErrInvalid)
	}
	if d := now.Sub(time.Unix(seconds, 0)); d > age || d < -age {
		return fmt.Errorf("the time of a notice differs from the current time by %s: %w", d.Truncate(time.Second), inventory.ErrRefused)
	}

	want := hmac.New(sha256.New, key)
	fmt.Fprintf(want, "%s.%s.%s", id, at, body)
	if h.Get("webhook-signature") != "v1,"+base64.StdEncoding.EncodeToString(want.Sum(nil)) {
		return fmt.Errorf("the signature does not match the notice: %w", inventory.ErrRefused)
	}
	return nil
}
