package temporalserver

import "testing"

// S49: where the UI itself listens, no page can guess.
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
