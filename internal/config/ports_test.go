package config

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
)

// No two listeners of this server have the same port; Temporal takes four.
func TestPortsThatMeet(t *testing.T) {
	for text, want := range map[string]string{
		"listen: 127.0.0.1:7235\n":                                         "ingot.yaml:1: listen: port 7235 is already used by temporal.port (ports 7233 to 7236)",
		"listen: 0.0.0.0:8233\n":                                           "listen: port 8233 is already used by temporal.ui_port",
		"temporal:\n  port: 65533\n":                                       "ingot.yaml:2: temporal.port: the embedded server also needs the three ports after 65533",
		"temporal:\n  port: 65536\n":                                       "ingot.yaml:2: temporal.port: invalid port 65536",
		"temporal:\n  ui_port: 0\n":                                        "ingot.yaml:2: temporal.ui_port: invalid port 0",
		"temporal:\n  retention: 23h\n":                                    "ingot.yaml:2: temporal.retention: 23h0m0s is too short",
		"temporal:\n  ui_port: 7236\n":                                     "ingot.yaml:2: temporal.ui_port: port 7236 is already used by temporal.port",
		"netboot:\n  interfaces: [eth0]\n  http: [80, 7443]\n":             "netboot.http[1]: port 7443 is already used by netboot.agent",
		"netboot:\n  interfaces: [eth0]\n  http: [80]\n  metadata: [80]\n": "netboot.metadata[0]: port 80 is already used by netboot.http[0]",
		"listen: 0.0.0.0:7080\nnetboot: {interfaces: [eth0]}\n":            "port 7080 is already used by listen",
		"netboot: {address: 127.0.0.1, interfaces: [lo], agent: 7234}\n":   "netboot.agent: port 7234 is already used by temporal.port",
	} {
		_, err := load(t, text)
		require.ErrorContains(t, err, want, text)
	}
	for _, text := range []string{
		"listen: 127.0.0.1:7232\n",
		"listen: 192.0.2.1:7233\n",
		"listen: 127.0.0.1:7234\ntemporal: {address: \"temporal.example.com:7233\"}\n",
		"netboot: {address: 192.0.2.1, interfaces: [eth0], agent: 8080}\n",
		"listen: 0.0.0.0:7080\n", // machines are not answered
	} {
		_, err := load(t, text)
		require.NoError(t, err, text)
	}
}

var commented = regexp.MustCompile(`(?m)^( *)#( *[a-z_]+:)`)

// The example has every key, and the program reads it.
func TestExampleNamesEveryKey(t *testing.T) {
	text := commented.ReplaceAllString(strings.Replace(Example, "%s", "  interfaces: [eth1]\n", 1), "$1$2")
	var c Config
	require.NoError(t, strictyaml.Decode("example", []byte(text), &c))
	var all map[string]any
	require.NoError(t, strictyaml.Decode("example", []byte(text), &all))
	missing(t, reflect.TypeFor[Config](), all, "")
}

// missing fails for the keys of a struct that have no value in an example.
func missing(t *testing.T, s reflect.Type, have map[string]any, at string) {
	t.Helper()
	for i := range s.NumField() {
		name, _, _ := strings.Cut(s.Field(i).Tag.Get("json"), ",")
		v, ok := have[name]
		if !ok {
			t.Errorf("the example has no %s%s", at, name)
		}
		if below, nested := v.(map[string]any); nested && s.Field(i).Type.Kind() == reflect.Struct {
			missing(t, s.Field(i).Type, below, at+name+".")
		}
	}
}
