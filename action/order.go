package action

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Order is what the server signs before an agent carries an assignment out:
// the assignment itself (key, action with its image's digest, disk identity)
// and whom it is for. An agent acts on what was signed and on nothing else.
type Order struct {
	Machine string `json:"machine"`
	// Boot is the boot whose agent may carry it out; 0 = any of the run.
	Boot int `json:"boot,omitempty"`
	// Plan is the digest of the run's plan, the same for all boots and actions
	// of a run.
	Plan string `json:"plan"`
	Assignment
}

// Signed is an Order as it travels: the very bytes that were signed, so that
// neither side has to agree on how to write an Order twice, and an agent may
// ignore fields that it does not know.
type Signed struct {
	Order     []byte `json:"order"`     // JSON of an Order
	Signature []byte `json:"signature"` // Ed25519 (RFC 8032) over orderContext and Order
}

// orderContext keeps a signature from being taken for one over anything else.
const orderContext = "ingot order 1\x00"

// Sign returns o under key.
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

// Verify returns the order that was signed under key's other half.
func (s *Signed) Verify(key ed25519.PublicKey) (Order, error) {
	switch {
	case len(key) != ed25519.PublicKeySize:
		return Order{}, errors.New("there is no key to check a signature with")
	case s == nil:
		return Order{}, errors.New("it is not signed")
	case !ed25519.Verify(key, append([]byte(orderContext), s.Order...), s.Signature):
		return Order{}, errors.New("its signature is not that of this site's key")
	}

	var o Order
	if err := json.Unmarshal(s.Order, &o); err != nil {
		return Order{}, fmt.Errorf("decoding what was signed: %w", err)
	}
	o.Signed = nil
	return o, nil
}

// planKeyPrefix names the kind of key.
const planKeyPrefix = "ed25519:"

// FormatPlanKey returns the public key of orders as the boot script carries
// it: 51 characters that need no quoting on a kernel command line.
func FormatPlanKey(key ed25519.PublicKey) string {
	return planKeyPrefix + base64.RawURLEncoding.EncodeToString(key)
}

// ParsePlanKey reads what FormatPlanKey wrote.
func ParsePlanKey(s string) (ed25519.PublicKey, error) {
	text, ok := strings.CutPrefix(s, planKeyPrefix)
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if !ok || err != nil || len(b) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("reading the plan's key %q: want %s and 43 characters of base64url", s, planKeyPrefix)
	}
	return b, nil
}
