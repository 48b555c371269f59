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
