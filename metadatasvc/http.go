package metadatasvc

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

const (
	maxPath     = 1024
	tokenHeader = "X-Aws-Ec2-Metadata-Token"
	ttlHeader   = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds"
	maxTokenTTL = 21600
)

// Handler returns the handler for these routes:
//
//	/                                         versions
//	/{latest,1.0,YYYY-MM-DD}/…                EC2-style tree, by source address
//	/metadata                                 rootio's document, by source address
//	/c/<machine>/<capability>/…               the same with the secrets of the run
//	/c/<machine>/<capability>/nocloud/…       NoCloud seed
//	/c/<machine>/<capability>/documents/<name>  document for the run's installer or system
//	POST /c/<machine>/<capability>/webhook/<event>  report of an installer
//	PUT /latest/api/token                     IMDSv2, supported and not required
//	POST /phone-home/<machine>/<nonce>        report of a system that a run has installed
//
// A slash at the end of a path makes no difference. A client that is not authorized gets the same 404 as for an unknown
// path.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		if len(r.URL.Path) > maxPath {
			notFound(w)
			return
		}
		seg := strings.FieldsFunc(r.URL.Path, func(c rune) bool { return c == '/' })
		switch r.Method {
		case http.MethodPost:
			switch {
			case len(seg) == 3 && seg[0] == "phone-home":
				s.servePhoneHome(w, r, seg[1], seg[2])
				return
			case len(seg) == 5 && seg[0] == "c" && seg[3] == "webhook":
				s.serveWebhook(w, r, seg[1], seg[2], seg[4])
				return
			}
		case http.MethodPut:
			if len(seg) == 3 && seg[1] == "api" && seg[2] == "token" && isVersion(seg[0]) {
				s.serveToken(w, r)
				return
			}
		case http.MethodGet, http.MethodHead:
			s.serveGet(w, r, seg)
			return
		}
		notFound(w)
	})
}

func (s *Server) serveGet(w http.ResponseWriter, r *http.Request, seg []string) {
	var p profile
	var ok bool
	if len(seg) >= 3 && seg[0] == "c" {
		p, ok = s.byCapability(r.Context(), seg[1], seg[2])
		seg = seg[3:]
	} else {
		p, ok = s.bySource(r)
		if ok && !s.tokenOK(r) {
			http.Error(w, "the token is invalid or has expired", http.StatusUnauthorized)
			return
		}
	}
	if !ok {
		notFound(w)
		return
	}
	var body []byte
	if p.secret && len(seg) == 2 && seg[0] == "documents" {
		var err error
		if body, ok, err = s.runDocument(r.Context(), p, seg[1]); err != nil {
			s.log.Error("reading a document", "machine", p.machine.Name, "document", seg[1], "error", err)
			http.Error(w, "try again", http.StatusServiceUnavailable) // installers retry
			return
		}
		p.document = seg[1]
	} else {
		body, ok = s.document(p, seg)
	}
	if !ok {
		notFound(w)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method == http.MethodHead {
		return
	}
	if !s.fetches.record(r.Context(), p) {
		w.Header().Del("Content-Length")
		http.Error(w, "try again", http.StatusServiceUnavailable) // installers retry
		return
	}
	_, _ = w.Write(body) // ignore errors: a client that was disconnected asks again
}

// tokenOK reports whether the request has no IMDSv2 token, or a valid one. A request without a token is allowed because cloud-init on bare
// metal sends none.
func (s *Server) tokenOK(r *http.Request) bool {
	t := r.Header.Get(tokenHeader)
	if t == "" {
		return true
	}
	a, ok := s.caller(r)
	b, err := hex.DecodeString(t)
	if !ok || err != nil || len(b) != 8+sha256.Size || len(s.cfg.Key) == 0 {
		return false
	}
	expiry := int64(binary.BigEndian.Uint64(b))
	return hmac.Equal(b, s.token(a, expiry)) && s.now().Unix() < expiry
}

// token returns the IMDSv2 token for the client address a that expires at the given Unix time. The token consists of the expiry and of a
// message authentication code (HMAC) over the address and the expiry. It is not stored: each server with the same key accepts it.
func (s *Server) token(a netip.Addr, expiry int64) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(expiry))
	m := hmac.New(sha256.New, s.cfg.Key)
	m.Write([]byte("imds-token\x00" + a.String() + "\x00"))
	m.Write(b)
	return m.Sum(b)
}

func (s *Server) serveToken(w http.ResponseWriter, r *http.Request) {
	if _, ok := s.bySource(r); !ok || len(s.cfg.Key) == 0 {
		notFound(w)
		return
	}
	if r.Header.Get("X-Forwarded-For") != "" {
		http.Error(w, "requests through a proxy are not allowed", http.StatusForbidden)
		return
	}
	ttl, err := strconv.Atoi(r.Header.Get(ttlHeader))
	if err != nil || ttl < 1 || ttl > maxTokenTTL {
		http.Error(w, ttlHeader+" must be 1 to 21600", http.StatusBadRequest)
		return
	}
	a, _ := s.caller(r) // ok is true, because bySource has succeeded
	body := hex.EncodeToString(s.token(a, s.now().Add(time.Duration(ttl)*time.Second).Unix()))
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set(ttlHeader, strconv.Itoa(ttl))
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write([]byte(body)) // ignore errors: a client that was disconnected asks again
}
