// Package listener binds the HTTP sockets of the server, with their TLS configuration and limits.
package listener

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"syscall"
	"time"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
	"github.com/ingotmetal/ingot/internal/netserve/keptsocket"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
)

// maxConns limits the connections of one listener. At the limit, connections of authenticated operators and agents
// have precedence.
const maxConns = 4096

// A Socket describes a listener to bind.
type Socket struct {
	Name    string // for errors and logs
	Addr    string
	Key     string // configuration field in which Addr is set
	Handler http.Handler
	TLS     *tls.Config // nil: plain HTTP
}

// A Listener is an HTTP server with its bound socket.
type Listener struct {
	Name string
	net.Listener
	http *http.Server
}

// Bind binds a socket without serving it, so that a port in use is reported before anything starts.
func Bind(ctx context.Context, s Socket, g *guard.Guard, log *slog.Logger) (Listener, error) {
	l, err := keptsocket.Listen(ctx, "tcp", s.Addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return Listener{}, fmt.Errorf("%s: %s is in use by another program "+
			"(ss -ltnp shows the program; to change the address, set %s in the configuration)", s.Name, s.Addr, s.Key)
	}
	if err != nil {
		return Listener{}, fmt.Errorf("%s: %w", s.Name, err)
	}

	if l = httpserve.Track(l); s.TLS != nil {
		l = tls.NewListener(l, s.TLS)
	}

	return Listener{s.Name, l, &http.Server{
		Handler:           g.Handler(s.Handler),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}, nil
}

// Run serves until ctx ends, and then gives running requests 5 s to finish.
func (l Listener) Run(ctx context.Context) error {
	httpserve.Limit(l.http, maxConns, nil)
	return httpserve.Run(ctx, l.Name, l.http, l.Listener, 5*time.Second)
}

// ServerTLS returns a TLS configuration with the server certificate cert. It does not request client certificates.
func ServerTLS(cert tls.Certificate) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
}

// OperatorTLS returns the TLS configuration of the listener for operators. It is nil on a loopback address if no
// certificate is configured. If metrics_ca is set, a client may present a certificate.
func OperatorTLS(cfg config.Config, log *slog.Logger) (*tls.Config, error) {
	t, err := operatorTLS(cfg, log)
	if err != nil || t == nil || cfg.MetricsCA == "" {
		return t, err
	}

	t.ClientAuth = tls.VerifyClientCertIfGiven
	if t.ClientCAs, err = identity.Authorities(cfg.MetricsCA); err != nil {
		return nil, fmt.Errorf("metrics_ca: %w", err)
	}
	return t, nil
}

func operatorTLS(cfg config.Config, log *slog.Logger) (*tls.Config, error) {
	if cfg.TLSCert != "" {
		cert, err := identity.LoadKeyPair(cfg.TLSCert, cfg.TLSKey)
		if err != nil {
			return nil, fmt.Errorf("tls_cert: %w", err)
		}
		return ServerTLS(cert), nil
	}
	if config.Loopback(cfg.Listen) {
		return nil, nil
	}

	cert, err := identity.LoadCertificate(filepath.Join(filepath.Dir(cfg.KeyFile), identity.OperatorFile))
	if err != nil {
		return nil, err
	}

	fingerprint, err := identity.Pin(cert)
	if err != nil {
		return nil, err
	}
	log.Info("operators are served with a self-signed certificate", "fingerprint", fingerprint)
	return ServerTLS(cert), nil
}

// OperatorHosts returns the host names and addresses by which operators reach this server.
func OperatorHosts(cfg config.Config) []string {
	hosts := append([]string{"localhost", "127.0.0.1", "::1"}, cfg.Hosts...)
	if host, _, err := net.SplitHostPort(cfg.TemporalUIListen()); err == nil {
		hosts = append(hosts, host)
		if u, err := url.Parse(cfg.Temporal.UIURL); err == nil && u.Host != "" {
			hosts = append(hosts, u.Hostname())
		}
	}
	if host, _, err := net.SplitHostPort(cfg.Listen); err == nil {
		hosts = append(hosts, host)
	}
	return hosts
}
