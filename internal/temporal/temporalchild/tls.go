package temporalchild

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ingotmetal/ingot/internal/host/durablefile"
)

// ServerName is the DNS name that clients require in the certificate of an embedded server.
const ServerName = "localhost"

// ClientTLS returns the TLS configuration for clients of a server with the certificate in the file identity. If identity is "", it
// returns nil: no TLS.
//
// Client and server present the same self-signed certificate and trust only this one. It is not a certificate
// authority, so no other certificate can be issued from it. On every port, the server therefore refuses a process that cannot
// read the file.
func ClientTLS(identity string) (*tls.Config, error) {
	if identity == "" {
		return nil, nil
	}

	text, err := durablefile.ReadPrivate(identity)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate of the Temporal server: %w", err)
	}

	pair, err := tls.X509KeyPair(text, text)
	roots := x509.NewCertPool()
	if err == nil && !roots.AppendCertsFromPEM(text) {
		err = errors.New("the file contains no certificate")
	}
	if err != nil {
		return nil, fmt.Errorf("reading the certificate of the Temporal server from %q: %w", identity, err)
	}

	return &tls.Config{MinVersion: tls.VersionTLS13, ServerName: ServerName, RootCAs: roots, Certificates: []tls.Certificate{pair}}, nil
}

// Credentials returns [ClientTLS] as credentials for gRPC.
func Credentials(identity string) (credentials.TransportCredentials, error) {
	c, err := ClientTLS(identity)
	if err != nil {
		return nil, err
	}

	if c == nil {
		return insecure.NewCredentials(), nil
	}
	return credentials.NewTLS(c), nil
}
