package identity

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
)

// MetricsToken returns the token that opens /metrics and nothing else. It is derived from the admin token, and changes
// with it; the admin token cannot be found from it.
func MetricsToken(admin string) string { return derive(admin, "ingot: the token of /metrics") }

// CodecToken returns the token that opens /codec, where payloads are decrypted, and nothing else. It is derived like
// MetricsToken.
func CodecToken(admin string) string { return derive(admin, "ingot: the token of /codec") }

func derive(admin, use string) string {
	m := hmac.New(sha256.New, []byte(admin))
	m.Write([]byte(use))
	return hex.EncodeToString(m.Sum(nil))
}
