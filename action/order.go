package action

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Order is what the server signs: an assignment (with the key, the action, the digest of its image and the identity of the disk),
// and for which machine and boot it is meant.
type Order struct {
	Machine string `json:"machine"`
	// Boot is the number of the boot whose agent may carry out the order; 0 means any boot of the run.
	Boot int `json:"boot,omitempty"`
	// Plan is the digest of the run's plan, which is the same in all orders of a run.
	Plan string `json:"plan"`
	Assignment
}

// Signed is an Order in the form in which it is sent: the exact bytes that were signed. Therefore server and agent may encode an
// Order in different ways, and an agent may ignore unknown fields.
type Signed struct {
	Order     []byte `json:"order"`     // JSON of an Order
	Signature []byte `json:"signature"` // Ed25519 signature (RFC 8032) of orderContext followed by Order
}

// orderContext precedes each order in the signed bytes, so that a signature made for another purpose is never valid for an order.
const orderContext = "ingot order 1\x00"

// Sign signs o with key.
func Sign(key ed25519.PrivateKey, o Order) (*Signed, error) {
	if len(key) != ed25519.PrivateKeySize {
		return nil, errors.New("signing an order: there is no key")
	}
	o.Signed = nil
	b, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("signing an order: %w", err)
	}
	return &Signed{Order: b, Signature: ed25519.Sign(key, append([]byte(orderContext), b...))}, nil
}

// Verify returns the order, or an error if its signature is not valid for the public key. If s is nil, Verify returns an error,
// too.
func (s *Signed) Verify(key ed25519.PublicKey) (Order, error) {
	switch {
	case len(key) != ed25519.PublicKeySize:
		return Order{}, errors.New("there is no key for checking a signature")
	case s == nil:
		return Order{}, errors.New("the order is not signed")
	case !ed25519.Verify(key, append([]byte(orderContext), s.Order...), s.Signature):
		return Order{}, errors.New("the order is not signed with this site's key")
	}

	var o Order
	if err := json.Unmarshal(s.Order, &o); err != nil {
		return Order{}, fmt.Errorf("decoding the signed order: %w", err)
	}
	o.Signed = nil
	return o, nil
}

// planKeyPrefix precedes the key in its text form and names the type of the key.
const planKeyPrefix = "ed25519:"

// FormatPlanKey returns the public key, with which agents check orders, as text for the boot script: 51 characters that need no
// quoting on a kernel command line.
func FormatPlanKey(key ed25519.PublicKey) string {
	return planKeyPrefix + base64.RawURLEncoding.EncodeToString(key)
}

// ParsePlanKey parses the result of FormatPlanKey.
func ParsePlanKey(s string) (ed25519.PublicKey, error) {
	text, ok := strings.CutPrefix(s, planKeyPrefix)
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if !ok || err != nil || len(b) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("invalid plan key %q; must be %s and 43 characters of base64url", s, planKeyPrefix)
	}
	return b, nil
}
