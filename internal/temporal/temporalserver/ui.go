package temporalserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	uiserver "github.com/temporalio/ui-server/v2/server"
	uiconfig "github.com/temporalio/ui-server/v2/server/config"
	uioptions "github.com/temporalio/ui-server/v2/server/server_options"
)

// serveUI serves the web UI, read-only, until ctx ends. If its port is occupied, serveUI logs an error and retries until the port
// is free; Temporal works without the UI.
//
// The UI itself answers requests for every host name. A foreign web page could therefore rebind its name to 127.0.0.1 (DNS
// rebinding) and read every history through a browser on this host. To prevent that, the UI listens on an address that no page can
// guess, and a proxy on the configured port accepts only requests for names of this host.
func (e *embedded) serveUI(ctx context.Context) error {
	cfg := e.cfg
	listener := e.awaitUIPort(ctx)
	if listener == nil {
		return nil
	}
	defer listener.Close() // already closed by the server below
	hidden, err := hiddenAddress()
	if err != nil {
		return err
	}

	ui := uiserver.NewServer(uioptions.WithConfigProvider(&uiconfig.Config{
		Host: hidden.Addr().String(), Port: int(hidden.Port()), TemporalGRPCAddress: hostPort(cfg.Host, cfg.Ports.Frontend),
		EnableUI: true, DefaultNamespace: cfg.Namespace, DisableWriteActions: true,
		DisableNewsFetch: true, HideLogs: true,
		// The UI uses plain HTTP on loopback, and a browser does not send a secure cookie over plain HTTP.
		CORS: uiconfig.CORS{CookieInsecure: true},
	}))
	inner := make(chan error, 1)
	go func() { inner <- ui.Start() }()
	front := &http.Server{
		Handler: localNames(cfg.Host, readsOnly(proxyTo(hidden, e.logger))), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10,
		ErrorLog:       slog.NewLogLogger(e.logger.Handler(), slog.LevelDebug),
	}

	outer := make(chan error, 1)
	go func() { outer <- front.Serve(listener) }()
	select {
	case <-ctx.Done():
	case err = <-outer:
		outer <- http.ErrServerClosed
	case err = <-inner:
		inner <- nil
	}

	ui.Stop()
	err = errors.Join(err, front.Close(), <-inner)
	if served := <-outer; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// awaitUIPort waits until the UI's port is free, and returns a listener on it. It returns nil if ctx ends first.
func (e *embedded) awaitUIPort(ctx context.Context) net.Listener {
	host, port := e.cfg.Host, e.cfg.Ports.UI
	logged := false
	for {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", hostPort(host, port))
		if err == nil {
			return l
		}
		if failure := portOccupied(host, port, "temporal.ui_port"); failure != nil && !logged && ctx.Err() == nil {
			e.logger.Error("temporal web UI is unavailable", "err", failure.Message, "remedy", failure.Remedy, "holder", failure.Holder)
			logged = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(5 * time.Second):
		}
	}
}

// hiddenAddress returns a free port on a random loopback address, one of 2^24 addresses and about 28,000 ports. Other hosts cannot reach
// this address. Programs on this host could find it, but gain nothing: they can reach the frontend anyway.
func hiddenAddress() (netip.AddrPort, error) {
	var b [3]byte
	_, _ = rand.Read(b[:]) // never returns an error: it crashes the program instead
	b[2] = b[2]%253 + 2    // neither 127.0.0.0 nor 127.0.0.1 nor a broadcast address
	l, err := net.Listen("tcp", net.JoinHostPort(netip.AddrFrom4([4]byte{127, b[0], b[1], b[2]}).String(), "0"))
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("finding an address for the UI: %w", err)
	}

	return netip.MustParseAddrPort(l.Addr().String()), l.Close()
}

// localNames refuses requests under the names of other hosts. It also refuses requests that write, if a page of another origin has caused
// them.
func localNames(host string, next http.Handler) http.Handler {
	names := map[string]bool{"localhost": true, "127.0.0.1": true, "::1": true, host: true}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u := url.URL{Host: r.Host}
		if !names[strings.ToLower(u.Hostname())] {
			http.Error(w, "this server does not answer under that host name", http.StatusForbidden)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			if o := r.Header.Get("Origin"); o != "" {
				if from, err := url.Parse(o); err != nil || !strings.EqualFold(from.Host, r.Host) {
					http.Error(w, "requests from another origin must not write", http.StatusForbidden)
					return
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// queryTypes are the types of the workflow queries that readsOnly allows: the ones that the UI sends, and Ingot's own.
var queryTypes = []string{"__stack_trace", "__enhanced_stack_trace", "__temporal_workflow_metadata", "status"}

// readsOnly allows GET, HEAD, and a POST that is a workflow query. The UI's own filter (DisableWriteActions) does not suffice: it checks
// the decoded path, and an encoded slash in a workflow id can make a write look like a query there.
func readsOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		read := r.Method == http.MethodGet || r.Method == http.MethodHead
		if !read && (r.Method != http.MethodPost || !isQuery(r.URL.EscapedPath())) {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "this UI only shows workflows; to change them, use ingot, its web page, or the temporal command line",
				http.StatusMethodNotAllowed)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isQuery reports whether an escaped path is exactly /api/v1/namespaces/{namespace}/workflows/{id}/query/{type}, with a type in queryTypes.
// Only the id may be escaped, and the decoded id must not contain a percent sign, so that the path has the same segments whether it is
// decoded once or twice.
func isQuery(escaped string) bool {
	parts := strings.Split(escaped, "/")
	if len(parts) != 9 || strings.Join(parts[:4], "/") != "/api/v1/namespaces" || parts[5] != "workflows" || parts[7] != "query" {
		return false
	}
	namespace, id := parts[4], parts[6]
	return namespace != "" && !strings.ContainsAny(namespace, "%;") && namespace != "." && namespace != ".." &&
		validID(id) && slices.Contains(queryTypes, parts[8])
}

// validID reports whether an escaped workflow id consists of names that are separated by single slashes, as Ingot's ids do.
func validID(escaped string) bool {
	id, err := url.PathUnescape(escaped)
	return err == nil && !strings.ContainsAny(id, "%?#;") && fs.ValidPath(id) && id != "."
}

func proxyTo(to netip.AddrPort, logger *slog.Logger) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: to.String()})
			r.Out.Host = r.In.Host // the UI writes this host name into its pages
		},
		Transport:     &http.Transport{MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute},
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			http.Error(w, "the UI is starting", http.StatusServiceUnavailable)
		},
	}
}
