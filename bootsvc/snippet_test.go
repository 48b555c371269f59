package bootsvc

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/inventory"
)

// The snippets are in a golden file. The lab's DHCP servers read them (e2e, TestSnippets).
func TestSnippet(t *testing.T) {
	var golden strings.Builder
	for _, server := range SnippetServers() {
		text, err := Snippet(server, testSelf, "http://10.10.20.2:7080", false)
		if err != nil {
			t.Fatal(err)
		}
		golden.WriteString(text + "\n")
		secure, err := Snippet(server, testSelf, "http://10.10.20.2:7080", true)
		if err != nil || strings.Count(secure, loaderShim) != 1 || strings.Contains(secure, "iPXE 2.0") {
			t.Errorf("%s with Secure Boot: %v\n%s", server, err, secure)
		}
	}
	compareGolden(t, "testdata/snippets.golden", golden.String())

	for _, base := range []string{"https://10.10.20.2", "http://10.10.20.2/x", "http://a\"b"} {
		if _, err := Snippet("isc", testSelf, base, false); !errors.Is(err, inventory.ErrInvalid) {
			t.Errorf("%s: %v", base, err)
		}
	}
	if _, err := Snippet("bind", netip.Addr{}, "", false); !errors.Is(err, inventory.ErrInvalid) || !strings.Contains(err.Error(), `"bind"`) {
		t.Errorf("an unknown server: %v", err)
	}
}
