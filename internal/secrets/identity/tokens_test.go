package identity

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestS60S61DerivedTokens: the tokens of /metrics and of /codec are neither each other nor the admin token, change with it, and
// hold no part of it.
func TestS60S61DerivedTokens(t *testing.T) {
	seen := map[string]bool{}
	for _, admin := range []string{"admin-token-1", "admin-token-2"} {
		for _, token := range []string{admin, MetricsToken(admin), CodecToken(admin)} {
			require.False(t, seen[token], token)
			require.Equal(t, token == admin, strings.Contains(token, admin))
			seen[token] = true
		}
	}
}
