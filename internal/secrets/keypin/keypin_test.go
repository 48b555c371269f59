package keypin_test

import (
	"crypto/x509"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/internal/secrets/keypin"
)

func TestMatches(t *testing.T) {
	c := &x509.Certificate{RawSubjectPublicKeyInfo: []byte("abc")}
	const pin = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" // FIPS 180-2, B.1
	if got := keypin.Of(c); got != pin {
		t.Errorf("the pin is %s", got)
	}
	for given, want := range map[string]bool{
		pin: true, strings.Replace(strings.ToUpper(pin), "SHA", "sha", 1): true, "": false, "sha256:": false, pin[:70]: false,
		strings.TrimPrefix(pin, "sha256:"): false, strings.Replace(pin, "ad", "ae", 1): false, pin + "00": false,
	} {
		if keypin.Matches(c, given) != want {
			t.Errorf("%q matches: %v", given, !want)
		}
	}
}
