package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMetricsCA: client certificates need TLS.
func TestMetricsCA(t *testing.T) {
	c := Default()
	c.MetricsCA = "/etc/ingot/prometheus-ca.pem"
	require.ErrorContains(t, c.check().Err(), "metrics_ca")
	c.TLSCert, c.TLSKey = "/etc/ingot/tls.pem", "/etc/ingot/tls.key"
	require.NoError(t, c.check().Err())
	c.TLSCert, c.TLSKey, c.Listen = "", "", "192.0.2.1:8080" // beyond loopback a certificate is made
	require.NoError(t, c.check().Err())
}
