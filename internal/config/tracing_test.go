package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTracing: the endpoint is a URL without credentials, and nothing else of tracing is given without it.
func TestTracing(t *testing.T) {
	for wrong, field := range map[Tracing]string{
		{Endpoint: "collector:4318"}:               "tracing.endpoint",
		{Endpoint: "ftp://collector"}:              "tracing.endpoint",
		{Endpoint: "https://me:s3cret@collector/"}: "tracing.endpoint",
		{Endpoint: "https://collector/?k=s3cret"}:  "tracing.endpoint",
		{HeadersFile: "/etc/ingot/collector"}:      "tracing.headers_file",
		{TLSCA: "/etc/ingot/ca.pem"}:               "tracing.tls_ca",
	} {
		c := Default()
		c.Tracing = wrong
		err := c.check().Err()
		require.ErrorContains(t, err, field, wrong)
		require.NotContains(t, err.Error(), "s3cret")
	}
	for _, endpoint := range []string{"", "http://127.0.0.1:4318", "https://collector.example.com/otlp/v1/traces"} {
		c := Default()
		c.Tracing.Endpoint = endpoint
		require.NoError(t, c.check().Err(), endpoint)
	}
}
