package action

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// every holds each byte once, which is not valid UTF-8.
var every = func() string {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return string(b)
}()

// TestEnvironmentKeepsBytes: binary data goes through JSON unchanged, and text stays as it was.
func TestEnvironmentKeepsBytes(t *testing.T) {
	a := Action{Name: "a", Environment: Environment{"TEXT": "<grüße>\n\x00", "BYTES": every, "EMPTY": ""}}
	b, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	var back Action
	if err := json.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(a, back) {
		t.Errorf("%v, %v", err, back)
	}

	delete(a.Environment, "BYTES")
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	if want := `"environment":{"EMPTY":"","TEXT":"\u003cgrüße\u003e\n\u0000"}`; !strings.Contains(string(text), want) {
		t.Errorf("%s", text)
	}
	for _, e := range []Environment{nil, {}} {
		b, err := json.Marshal(e)
		var back Environment
		if err == nil {
			err = json.Unmarshal(b, &back)
		}
		if err != nil || !reflect.DeepEqual(e, back) {
			t.Errorf("%#v became %#v, %v", e, back, err)
		}
	}
}

func TestDecodeBytesRefuses(t *testing.T) {
	for _, wrong := range []string{
		`{}`, `{"base64":null}`, `{"base64":"?"}`, `{"base64":"AA==","more":1}`, `{"base64":"AA"}`, `[]`, `1`, `true`, ``, "\"secret\xff\"",
	} {
		got, err := DecodeBytes([]byte(wrong))
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %q, %v", wrong, got, err)
		}
	}
	for given, want := range map[string]string{`"x"`: "x", ` {"base64":"/wA="} `: "\xff\x00", `{"base64":""}`: "", `null`: ""} {
		if got, err := DecodeBytes([]byte(given)); err != nil || got != want {
			t.Errorf("%q: %q, %v", given, got, err)
		}
	}
}
