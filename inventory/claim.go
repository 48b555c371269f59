package inventory

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Claim returns the secret in the boot script of o's boot, by which the agent proves that it was started by this boot: 256 bits in hex. It
// is derived from key, so the same call always returns the same claim, and rendering a script writes nothing to the database.
func Claim(key []byte, o Owner, boot int) string { return derive(key, "claim", o, boot) }

// Capability returns the secret path element under which o's metadata is served: /c/<machine>/<capability>/… It is valid until the secrets
// window of o's grant closes.
func Capability(key []byte, o Owner) string { return derive(key, "capability", o, 0) }

// Nonce returns the value that the installed system sends when it phones home. The value proves that o's run wrote this system.
func Nonce(key []byte, o Owner) string { return derive(key, "nonce", o, 0) }

// BootToken returns the token of o's boot that the URLs of its kernel and initramfs contain: 160 bits in hex. It is valid only in these
// URLs, and only until the boot ends. URLs are written to logs, so they must not contain the claim.
func BootToken(key []byte, o Owner, boot int) string { return derive(key, "boot-url", o, boot)[:40] }

func derive(key []byte, purpose string, o Owner, boot int) string {
	m := hmac.New(sha256.New, key)
	fmt.Fprintf(m, "%s\x00%s\x00%s\x00%d\x00%d", purpose, o.Machine, o.Run, o.Epoch, boot)
	return hex.EncodeToString(m.Sum(nil))
}

// Equal compares two derived values in constant time.
func Equal(a, b string) bool { return hmac.Equal([]byte(a), []byte(b)) }
