package action

import (
	"crypto/ed25519"
	"strings"
	"testing"
)

func TestPlanKey(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	text := FormatPlanKey(public)
	if len(text) != 51 || strings.ContainsAny(text, " \t\"'$&|;=") {
		t.Fatalf("%q does not fit a kernel command line", text)
	}
	back, err := ParsePlanKey(text)
	if err != nil || !back.Equal(public) {
		t.Fatalf("%v, %v", back, err)
	}
	for _, bad := range []string{
		"", "ed25519:", text[8:], text + "A", text[:50], "rsa" + text[7:], FormatPlanKey(public[:31]),
		FormatPlanKey(ed25519.PublicKey(private)),
	} {
		if _, err := ParsePlanKey(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestSignAndVerify(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	o := Order{
		Machine: "m1", Boot: 2, Plan: "p",
		Assignment: Assignment{Key: Key{1, 2, 3}, Run: "r", Action: Action{Name: "a", Environment: map[string]string{"A": "<&>"}}},
	}
	s, err := Sign(private, o)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Verify(public)
	if err != nil || got.Machine != "m1" || got.Boot != 2 || got.Key != o.Key || got.Action.Environment["A"] != "<&>" {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := Sign(nil, o); err == nil {
		t.Error("signed without a key")
	}
	var none *Signed
	for name, verify := range map[string]func() (Order, error){
		"no key":       func() (Order, error) { return s.Verify(nil) },
		"no signature": func() (Order, error) { return none.Verify(public) },
		"another key":  func() (Order, error) { return s.Verify(make([]byte, 32)) },
		"cut":          func() (Order, error) { return (&Signed{Order: s.Order, Signature: s.Signature[:63]}).Verify(public) },
		"no order": func() (Order, error) {
			return (&Signed{Order: nil, Signature: ed25519.Sign(private, []byte(orderContext))}).Verify(public)
		},
	} {
		if _, err := verify(); err == nil {
			t.Errorf("%s: it was accepted", name)
		}
	}
}
