package inventory

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
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
	b := []byte(purpose + "\x00" + o.Machine + "\x00" + o.Run + "\x00")
	b = append(strconv.AppendInt(b, o.Epoch, 10), 0)
	b = strconv.AppendInt(b, int64(boot), 10)

	m := hmac.New(sha256.New, key)
	m.Write(b)
	return hex.EncodeToString(m.Sum(b[:0]))
}

// Equal compares two derived values in constant time.
func Equal(a, b string) bool { return hmac.Equal([]byte(a), []byte(b)) }
