package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// Quiet is the interface for operators of a server that is not the site: its state, and the
// decisions that only the operator can take. Other routes answer 410 with the new address if
// the site has moved, and 503 otherwise.
type Quiet struct {
	Site        Site
	TokenSHA256 [sha256.Size]byte
	// AllowedHosts as in Access.
	AllowedHosts []string
	Version      string
}

// QuietStatus is the answer to GET /v1/status of such a server.
type QuietStatus struct {
	Version string               `json:"version"`
	Site    inventory.SiteStatus `json:"site"`
	Time    time.Time            `json:"time"`
}

// Handler returns the routes.
func (q Quiet) Handler() http.Handler {
	hosts := hostSet(q.AllowedHosts)
	m := http.NewServeMux()
	m.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]bool{"ok": true})
	})
	m.HandleFunc("GET /v1/status", q.forAdmin(func(_ http.ResponseWriter, r *http.Request) (any, error) {
		st, err := q.Site.SiteStatus(r.Context())
		return QuietStatus{Version: q.Version, Site: st, Time: time.Now().UTC()}, err
	}))
	m.HandleFunc("GET /v1/site", q.forAdmin(func(_ http.ResponseWriter, r *http.Request) (any, error) {
		return q.Site.SiteStatus(r.Context())
	}))
	m.HandleFunc("POST /v1/site/decide", q.forAdmin(q.decide))
	m.HandleFunc("/", q.refuse)

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		host := hostname(r.Host)
		isScrape := r.URL.Path == metricsPath && isAddress(host) // it is told why there is nothing to read
		if !hosts[host] && !isScrape {
			reply(w, http.StatusForbidden, httpapi.ErrorBody{Error: otherHost, Code: httpapi.CodeForbidden})
			return
		}
		m.ServeHTTP(w, r)
	})
}

func reply(w http.ResponseWriter, status int, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // our own types
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(text) // an error means that the client has disconnected
}

func replyError(w http.ResponseWriter, err error) {
	status, body := httpapi.BodyOf(err)
	reply(w, status, body)
}

// forAdmin requires the admin token. There are no sessions here: a write from a browser has
// no token.
func (q Quiet) forAdmin(do func(http.ResponseWriter, *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !q.isAdmin(r) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			reply(w, http.StatusUnauthorized, httpapi.ErrorBody{Error: "the admin token is needed", Code: httpapi.CodeUnauthorized})
			return
		}
		answer, err := do(w, r)
		if err != nil {
			replyError(w, err)
			return
		}
		reply(w, http.StatusOK, answer)
	}
}

func (q Quiet) isAdmin(r *http.Request) bool {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], q.TokenSHA256[:]) == 1
}

func (q Quiet) decide(w http.ResponseWriter, r *http.Request) (any, error) {
	var in decideSite
	err := httpapi.ReadJSON(http.MaxBytesReader(w, r.Body, httpapi.JSON.Limit), httpapi.JSON, &in)
	if err == nil {
		err = in.Validate()
	}
	if err == nil {
		err = q.Site.Decide(r.Context(), in.Word, in.Peer)
	}
	if err != nil {
		return nil, err
	}
	return q.Site.SiteStatus(r.Context())
}

// refuse answers the routes that only the site serves.
func (q Quiet) refuse(w http.ResponseWriter, r *http.Request) {
	st, err := q.Site.SiteStatus(r.Context())
	if err != nil {
		replyError(w, err)
		return
	}
	if p := st.Successor; st.Role == "retired" && p != nil {
		reply(w, http.StatusGone, httpapi.ErrorBody{
			Error: fmt.Sprintf("this server is retired: its site has moved to %s (%s)", p.Name, p.URL),
			Code:  httpapi.CodeGone, Next: "ask the server " + p.Name,
		})
		return
	}

	text := "this server is " + st.Role + " and answers no requests"
	if st.Silent != "" && q.isAdmin(r) { // it names peers and their addresses
		text += ": " + st.Silent
	}
	w.Header().Set("Retry-After", httpapi.RetryAfter)
	reply(w, http.StatusServiceUnavailable, httpapi.ErrorBody{
		Error: text, Code: httpapi.CodeUnavailable, Next: "ingot handover status",
	})
}
