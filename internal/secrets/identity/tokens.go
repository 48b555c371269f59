package identity

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
)

// MetricsToken returns the token that is valid only for /metrics. It is derived from the admin token and changes with the admin token,
// which cannot be computed from it.
func MetricsToken(admin string) string { return derive(admin, "ingot: the token of /metrics") }

// CodecToken returns the token that is valid only for /codec, which decrypts payloads. It is derived from the admin token, too.
func CodecToken(admin string) string { return derive(admin, "ingot: the token of /codec") }

func derive(admin, use string) string {
	m := hmac.New(sha256.New, []byte(admin))
	m.Write([]byte(use))
	return hex.EncodeToString(m.Sum(nil))
}
