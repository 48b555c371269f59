package config

import (
	"net/url"
)

// Tracing says where the traces of runs go.
type Tracing struct {
	// Endpoint is the collector, OTLP over HTTP: http or https; "": no traces.
	Endpoint string `json:"endpoint,omitempty"`
	// HeadersFile holds a line "Name: value" for each header that requests to the collector carry, for example a token.
	HeadersFile string `json:"headers_file,omitempty"`
	// TLSCA holds the certificates of the authorities of the collector, in PEM; default: the system's.
	TLSCA string `json:"tls_ca,omitempty"`
}

func (t Tracing) check(p *checker) {
	if t.Endpoint == "" {
		for field, value := range map[string]string{"headers_file": t.HeadersFile, "tls_ca": t.TLSCA} {
			if value != "" {
				p.Add("tracing."+field, "give tracing.endpoint, too", "traces have no collector")
			}
		}
		return
	}

	switch u, err := url.Parse(t.Endpoint); { // it may hold a token: it is not repeated
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		p.Add("tracing.endpoint", "write https://host:4318", "invalid URL of a collector")
	case u.User != nil || u.RawQuery != "":
		p.Add("tracing.endpoint", "write a header to tracing.headers_file", "a URL must not hold credentials")
	}
}
