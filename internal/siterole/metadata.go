package siterole

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// A retired server forwards metadata requests of machines to the new host: machines that were installed before the
// migration know only the old address. The retired server itself answers none of these requests.

// Headers of a forwarded request and of its response.
const (
	headerClient = "Ingot-Client"   // address of the machine
	headerPath   = "Ingot-Path"     // path and query as received
	headerServed = "Ingot-Metadata" // set on every response of the metadata server
)

// routeMetadata is registered for every method: the metadata server itself checks the method.
const routeMetadata = apiRoot + "metadata"

const (
	// maxForwarded is the limit for the body of a request, in bytes. The metadata server has the same limit for a
	// phone-home.
	maxForwarded = 64 << 10
	// connections is the limit for connections to the new host. It is needed because any machine may send requests;
	// further requests wait.
	connections = 64
	// forwardWithin is the time limit for a request and its response, so that a slow client does not block a connection.
	forwardWithin = time.Minute
)

// Forward returns the handler with which a retired server forwards metadata requests of machines to p, the new host. It
// authenticates by cert and token, and accepts only the pinned key of p. If p does not answer as a metadata server, the
// handler responds with 503, and the machine retries.
func Forward(p inventory.Peer, cert tls.Certificate, token string, log *slog.Logger) (http.Handler, error) {
	base, err := parseURL(p)
	if err != nil {
		return nil, err
	}
	if p.Fingerprint == "" {
		return nil, fmt.Errorf("the key of peer %q is unknown: %w", p.Name, inventory.ErrInvalid)
	}

	transport := pinnedTransport(p, cert)
	transport.DisableCompression, transport.ResponseHeaderTimeout = true, shortTimeout
	transport.MaxConnsPerHost, transport.MaxIdleConnsPerHost = connections, connections
	transport.IdleConnTimeout = shortTimeout // shorter than the idle time-out of the peer API

	proxy := newProxy(base, token, p.Name, log)
	proxy.Transport = transport
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The request targets "*" and "http:x" have no path to forward.
		if !strings.HasPrefix(r.URL.Path, "/") {
			http.Error(w, "the request has no path", http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), forwardWithin)
		defer cancel()
		r = r.WithContext(ctx)
		if r.ContentLength != 0 {
			r.Body = http.MaxBytesReader(w, r.Body, maxForwarded)
			// SetReadDeadline fails only for a writer without deadlines (in tests).
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(shortTimeout))
		}
		proxy.ServeHTTP(w, r)
	}), nil
}

// newProxy returns a proxy to the metadata route of the peer API at base. name is the peer's name in the log.
func newProxy(base *url.URL, token, name string, log *slog.Logger) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			client, _, err := net.SplitHostPort(r.In.RemoteAddr)
			if err != nil {
				client = ""
			}
			r.Out.URL = &url.URL{Scheme: base.Scheme, Host: base.Host, Path: routeMetadata}
			r.Out.Host = ""
			r.Out.Header.Set("Authorization", "Bearer "+token)
			r.Out.Header.Set(headerClient, client)
			r.Out.Header.Set(headerPath, r.In.URL.RequestURI())
			// The metadata server decides which X-Forwarded-For to trust.
			if x := r.In.Header.Values("X-Forwarded-For"); len(x) > 0 {
				r.Out.Header["X-Forwarded-For"] = x
			}
		},
		ModifyResponse: func(r *http.Response) error {
			if r.Header.Get(headerServed) == "" {
				return fmt.Errorf("the answer (%s) is not from a metadata server", r.Status)
			}
			r.Header.Del(headerServed)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if _, large := errors.AsType[*http.MaxBytesError](err); large {
				http.Error(w, "at most 64 KiB", http.StatusRequestEntityTooLarge)
				return
			}
			log.Warn("a machine's request cannot be forwarded", "peer", name, "remote", r.RemoteAddr, "error", err)
			w.Header().Set("Retry-After", "5")
			http.Error(w, "the server has moved, and its new host does not answer: try again", http.StatusServiceUnavailable)
		},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// metadata answers the requests that a retired server forwards, as if the machine had sent them to this server.
func (t *Target) metadata(w http.ResponseWriter, r *http.Request) {
	var serve http.Handler
	var client netip.Addr
	var at *url.URL
	_, err := t.known(func(r *http.Request) (any, error) {
		var bad error
		if client, bad = netip.ParseAddr(r.Header.Get(headerClient)); bad == nil {
			at, bad = url.ParseRequestURI(r.Header.Get(headerPath))
		}
		if bad != nil {
			return nil, fmt.Errorf("forwarding a request: %w: %w", bad, inventory.ErrInvalid)
		}
		if t.Metadata != nil {
			serve = t.Metadata()
		}
		if serve == nil {
			return nil, fmt.Errorf("this server does not serve metadata now: %w", errBusy)
		}
		return nil, nil
	})(r)
	if err != nil {
		answer(t, func(*http.Request) (any, error) { return nil, err })(w, r)
		return
	}

	in := r.Clone(r.Context())
	in.URL, in.RequestURI, in.RemoteAddr, in.TLS = at, at.RequestURI(), netip.AddrPortFrom(client, 0).String(), nil
	for _, h := range []string{"Authorization", headerClient, headerPath} {
		in.Header.Del(h)
	}
	w.Header().Set(headerServed, "yes")
	serve.ServeHTTP(w, in)
}
