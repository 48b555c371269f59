package action

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPublicURL(t *testing.T) {
	for text, want := range map[string]string{
		"https://user:pass@h.example:8443/a%20b/x.img?token=t#f": "https://h.example:8443/a%20b/x.img",
		"http://h.example/x":     "http://h.example/x",
		"http://h.example/x?":    "http://h.example/x",
		"http://user:p ss@h/%zz": "an invalid URL",
	} {
		require.Equal(t, want, PublicURL(text))
	}
}
