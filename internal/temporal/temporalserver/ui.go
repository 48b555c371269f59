package temporalserver

import (
	"context"
	"encoding/base64"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	uiapi "github.com/temporalio/ui-server/v2/server/api"
	uiconfig "github.com/temporalio/ui-server/v2/server/config"
	"github.com/temporalio/ui-server/v2/server/csrf"
	"github.com/temporalio/ui-server/v2/server/headers"
	"github.com/temporalio/ui-server/v2/server/route"
	uiassets "github.com/temporalio/ui-server/v2/ui"
	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
)

// serveUI serves the web UI, read-only, until ctx ends: on the Unix socket, for the server that starts this process, and, if the
// configuration has a port for the UI, on loopback without a login. If that port is occupied, serveUI logs an error and retries until
// the port is free; Temporal works without the UI.
func (e *embedded) serveUI(ctx context.Context) error {
	ui, err := e.newUI()
	if err != nil {
		return err
	}
	var parts errgroup.Group
	parts.Go(func() error {
		socket, err := temporalchild.ListenUI(ctx, e.cfg.UISocket())
		if err != nil {
			e.logger.Error("temporal web UI is unavailable on its socket", "err", err)
			return nil
		}
		return e.serveHTTP(ctx, socket, ui)
	})
	if e.cfg.Ports.UI != 0 {
		parts.Go(func() error {
			listener := e.awaitUIPort(ctx)
			if listener == nil {
				return nil
			}
			return e.serveHTTP(ctx, listener, localNames(e.cfg.Host, ui))
		})
	}
	return parts.Wait()
}

// serveHTTP serves h until ctx ends, and closes the listener.
func (e *embedded) serveHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(e.logger.Handler(), slog.LevelDebug),
	}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })() // an error means that connections are closed already
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// newUI returns the handler of the UI, which only reads. It has the routes and the assets of ui-server, whose own server can listen
// on a TCP port only, and answers every host name there.
func (e *embedded) newUI() (http.Handler, error) {
	tls, err := e.uiTLS()
	if err != nil {
		return nil, err
	}
	provider, err := uiconfig.NewConfigProviderWithRefresh(&uiconfig.Config{
		TemporalGRPCAddress: hostPort(e.cfg.Host, e.cfg.Ports.Frontend), TLS: tls, EnableUI: true, DefaultNamespace: e.cfg.Namespace,
		DisableWriteActions: true, DisableNewsFetch: true, HideLogs: true,
		// The UI is also served over plain HTTP on loopback, where a browser sends no secure cookie.
		CORS: uiconfig.CORS{CookieInsecure: true},
	})
	if err != nil {
		return nil, err
	}
	assets, err := uiassets.Assets()
	if err == nil {
		assets, err = fs.Sub(assets, "local")
	}
	if err != nil {
		return nil, err
	}

	r := echo.New()
	r.Use(middleware.Recover(), middleware.Gzip(), middleware.Secure(), csrf.EnsureTokenCookie(false),
		middleware.CSRFWithConfig(csrf.MiddlewareConfig(provider, false)))
	err = errors.Join(
		route.SetAPIRoutes(r, provider, []uiapi.Middleware{headers.WithForwardHeaders([]string{"Caller-Type"})}),
		route.SetUIRoutes(r, "", assets, provider),
	)
	route.SetRenderRoute(r, "/")

	return readsOnly(r), err
}

// uiTLS returns how the UI reaches the frontend: with the site's certificate if the frontend requires it.
func (e *embedded) uiTLS() (uiconfig.TLS, error) {
	if e.cfg.Identity == "" {
		return uiconfig.TLS{}, nil
	}
	text, err := durablefile.ReadPrivate(e.cfg.Identity)
	if err != nil {
		return uiconfig.TLS{}, err
	}
	encoded := base64.StdEncoding.EncodeToString(text)
	return uiconfig.TLS{
		CaData: encoded, CertData: encoded, KeyData: encoded, EnableHostVerification: true, ServerName: temporalchild.ServerName,
	}, nil
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
		if clock.Sleep(ctx, 5*time.Second) != nil {
			return nil
		}
	}
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
