package inventory

import "testing"

func TestRebase(t *testing.T) {
	const then, now = "http://192.0.2.1/images", "http://198.51.100.1:7080/images"
	for text, want := range map[string]string{
		then + "/a and " + then + "/b": now + "/a and " + now + "/b",
		then:                           now,
		"base: " + then + "\n":         "base: " + now + "\n",
		`"` + then + `"`:               `"` + now + `"`,
		then + "-of-others/a":          then + "-of-others/a",
		then + ".example.org":          then + ".example.org",
		"http://192.0.2.9/images/a":    "http://192.0.2.9/images/a",
		"":                             "",
	} {
		if got := Rebase(text, then, now); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
	for _, x := range [][2]string{{"", now}, {then, ""}, {then, then}} {
		if got := Rebase(then+"/a", x[0], x[1]); got != then+"/a" {
			t.Errorf("from %q to %q: %q", x[0], x[1], got)
		}
	}
}
