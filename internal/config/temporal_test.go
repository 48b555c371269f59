package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEncryptionOfAnotherCluster: the keys belong to temporal.address, and the UI's origin to the keys.
func TestEncryptionOfAnotherCluster(t *testing.T) {
	const address, keys, origin = "temporal.example.com:7233", "/etc/ingot/temporal-keys", "https://temporal-ui.example.com"
	for _, c := range []struct {
		temporal Temporal
		field    string // that is wrong; "" = none
	}{
		{Temporal{Address: address, EncryptionKeyFile: keys, UIOrigin: origin}, ""},
		{Temporal{Address: address, EncryptionKeyFile: keys, UIOrigin: "http://127.0.0.1:8233"}, ""},
		{Temporal{Address: address, EncryptionKeyFile: keys}, ""},
		{Temporal{EncryptionKeyFile: keys}, "temporal.encryption_key_file"},
		{Temporal{Address: address, UIOrigin: origin}, "temporal.ui_origin"},
		{Temporal{Address: address, EncryptionKeyFile: keys, UIOrigin: origin + "/"}, "temporal.ui_origin"},
		{Temporal{Address: address, EncryptionKeyFile: keys, UIOrigin: "temporal-ui.example.com"}, "temporal.ui_origin"},
		{Temporal{Address: address, EncryptionKeyFile: keys, UIOrigin: "*"}, "temporal.ui_origin"},
	} {
		with := Default()
		with.Temporal.Address, with.Temporal.EncryptionKeyFile, with.Temporal.UIOrigin = c.temporal.Address, c.temporal.EncryptionKeyFile, c.temporal.UIOrigin
		if c.field == "" {
			require.NoError(t, with.check().Err(), c.temporal)
			continue
		}
		require.ErrorContains(t, with.check().Err(), c.field, c.temporal)
	}
}

// TestTemporalUI: the embedded server's UI is served next to listen unless it is off; a cluster has a link.
func TestTemporalUI(t *testing.T) {
	const address = "temporal.example.com:7233"
	for _, c := range []struct {
		listen   string
		temporal Temporal
		want     string // address of the UI; "" = none
		field    string // that is wrong; "" = none
	}{
		{"127.0.0.1:8080", Temporal{}, "127.0.0.1:8234", ""},
		{":8080", Temporal{}, ":8234", ""},
		{"[::1]:8080", Temporal{}, "[::1]:8234", ""},
		{"127.0.0.1:8080", Temporal{MutualTLS: true}, "127.0.0.1:8234", ""},
		{"0.0.0.0:8080", Temporal{UIListen: "127.0.0.1:9000"}, "127.0.0.1:9000", ""},
		{"127.0.0.1:8080", Temporal{UIListen: "off"}, "", ""},
		{"127.0.0.1:8080", Temporal{Address: address}, "", ""},
		{"127.0.0.1:8080", Temporal{Address: address, UIURL: "https://ui.example.com/temporal"}, "", ""},
		{"127.0.0.1:8080", Temporal{UIListen: "8234"}, "8234", "temporal.ui_listen"},
		{"127.0.0.1:8080", Temporal{UIListen: ":8234"}, ":8234", "temporal.ui_listen"},
		{"127.0.0.1:8080", Temporal{UIURL: "https://ui.example.com"}, "127.0.0.1:8234", ""},
		{"127.0.0.1:8080", Temporal{UIURL: "https://ui.example.com/temporal"}, "127.0.0.1:8234", "temporal.ui_url"},
		{"127.0.0.1:8080", Temporal{UIURL: "https://x@ui.example.com"}, "127.0.0.1:8234", "temporal.ui_url"},
		{"127.0.0.1:8080", Temporal{Address: address, UIURL: "ui.example.com"}, "", "temporal.ui_url"},
		{"127.0.0.1:8080", Temporal{Address: address, UIListen: ":8234"}, "", "temporal.ui_listen"},
	} {
		with := Default()
		with.Listen = c.listen
		with.Temporal.Address, with.Temporal.MutualTLS = c.temporal.Address, c.temporal.MutualTLS
		with.Temporal.UIListen, with.Temporal.UIURL = c.temporal.UIListen, c.temporal.UIURL
		require.Equal(t, c.want, with.TemporalUIListen(), c)
		if err := with.check().Err(); c.field == "" {
			require.NoError(t, err, c)
		} else {
			require.ErrorContains(t, err, c.field, c)
		}
	}
}
