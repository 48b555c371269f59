package temporalserver

import "testing"

// S49: no web page can guess the address on which the UI listens.
func TestHiddenAddress(t *testing.T) {
	seen := map[string]bool{}
	for range 8 {
		a, err := hiddenAddress()
		if err != nil {
			t.Fatal(err)
		}
		if !a.Addr().IsLoopback() || a.Addr().String() == "127.0.0.1" || seen[a.Addr().String()] {
			t.Errorf("the hidden address is %s", a)
		}
		seen[a.Addr().String()] = true
	}
}
