package inventory

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Claim returns the value in the boot script of o's boot: 256 bits in hex. It is
// derived, the same on every call, so rendering a script needs no write.
func Claim(key []byte, o Owner, boot int) string { return derive(key, "claim", o, boot) }

// Capability returns the secret path element under which o's metadata is
// served: /c/<machine>/<capability>/… Valid while the secrets window is open.
func Capability(key []byte, o Owner) string { return derive(key, "capability", o, 0) }

// Nonce returns what the installed system sends when it phones home. It is the
// evidence that o's run wrote that system.
func Nonce(key []byte, o Owner) string { return derive(key, "nonce", o, 0) }

// BootToken returns the token of o's boot in the URLs of its kernel and initramfs: 160 bits in hex. It works only for these
// URLs, and expires with the boot. It differs from the claim because URLs end up in logs.
func BootToken(key []byte, o Owner, boot int) string { return derive(key, "boot-url", o, boot)[:40] }

func derive(key []byte, purpose string, o Owner, boot int) string {
	m := hmac.New(sha256.New, key)
	fmt.Fprintf(m, "%s\x00%s\x00%s\x00%d\x00%d", purpose, o.Machine, o.Run, o.Epoch, boot)
	return hex.EncodeToString(m.Sum(nil))
}

// Equal compares two derived values in constant time.
func Equal(a, b string) bool { return hmac.Equal([]byte(a), []byte(b)) }
