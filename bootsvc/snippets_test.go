package bootsvc

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/inventory"
)

// The snippets are in a golden file. The lab's DHCP servers read them (e2e, TestSnippets).
func TestSnippet(t *testing.T) {
	var golden strings.Builder
	for _, server := range neighbours.SnippetServers() {
		text, err := snippet(t, server, testSelf, "http://10.10.20.2:7080", "")
		if err != nil {
			t.Fatal(err)
		}
		golden.WriteString(text + "\n")
		secure, err := snippet(t, server, testSelf, "http://10.10.20.2:7080", inventory.LoaderShim)
		if err != nil || strings.Count(secure, loaderShim) != 1 || strings.Contains(secure, "iPXE 2.0") {
			t.Errorf("%s with Secure Boot: %v\n%s", server, err, secure)
		}
		// The signed iPXE of the iPXE project also boots by HTTP, where the server tells those clients apart.
		signed, err := snippet(t, server, testSelf, "http://10.10.20.2:7080", inventory.LoaderIPXEShim)
		byHTTP := strings.Count(signed, "http://10.10.20.2:7080/ipxe/binary/snponly-shim.efi")
		if err != nil || strings.Contains(signed, loaderUEFI) || strings.Count(signed, loaderIPXEShim) != 1+byHTTP ||
			byHTTP != strings.Count(text, "/ipxe/binary/") {
			t.Errorf("%s with the signed iPXE: %v\n%s", server, err, signed)
		}
	}
	compareGolden(t, "testdata/snippets.golden", golden.String())

	for _, base := range []string{"https://10.10.20.2", "http://10.10.20.2/x", "http://a\"b"} {
		if _, err := snippet(t, "isc", testSelf, base, ""); !errors.Is(err, inventory.ErrInvalid) {
			t.Errorf("%s: %v", base, err)
		}
	}
	if _, err := snippet(t, "bind", netip.Addr{}, "", ""); !errors.Is(err, inventory.ErrInvalid) || !strings.Contains(err.Error(), `"bind"`) {
		t.Errorf("an unknown server: %v", err)
	}
	if _, err := SnippetFiles("ipxe.efi"); !errors.Is(err, inventory.ErrInvalid) {
		t.Errorf("an unknown loader: %v", err)
	}
}

func snippet(t *testing.T, server string, address netip.Addr, base, loader string) (string, error) {
	t.Helper()
	files, err := SnippetFiles(loader)
	if err != nil {
		t.Fatal(err)
	}
	return neighbours.Snippet(server, address, base, files[0])
}
