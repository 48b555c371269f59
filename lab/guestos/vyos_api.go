package main

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// certificate returns the API's certificate. The first call makes and stores it.
func (r *router) certificate() (tls.Certificate, error) {
	path := r.h.at("/etc/ssl/vyos.pem")
	kept, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return tls.Certificate{}, err
	}
	cert, keep, err := selfSigned("vyos", kept)
	if err != nil {
		return cert, err
	}
	return cert, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, keep, 0o600))
}

// banner is an SSH server that sends its version and accepts no login.
func banner(ctx context.Context, addr string) (func(), error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp4", addr)
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			_, _ = c.Write([]byte("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n")) // an error means that the client has gone
			_ = c.Close()
		}
	}()
	return func() { _ = l.Close() }, nil
}

// operation is an operation of the API.
type operation struct {
	Op    string   `json:"op"`
	Path  []string `json:"path"`
	Value string   `json:"value"`
	File  string   `json:"file"`
}

// api serves the HTTP API: POST with the form fields data and key; see docs.vyos.io, VyOS API.
func (r *router) api(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	handle := func(path string, f func(ops []operation) (any, int, error)) {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, q *http.Request) {
			give := func(code int, data any, err error) {
				o := object{"success": err == nil, "data": data, "error": nil}
				if err != nil {
					o["error"] = err.Error()
				}
				reply(w, code, o)
			}
			if err := q.ParseMultipartForm(mib); err != nil && !errors.Is(err, http.ErrNotMultipart) {
				give(http.StatusBadRequest, nil, err)
				return
			}
			allowed := false
			r.mu.Lock()
			for _, k := range r.keys {
				allowed = allowed || subtle.ConstantTimeCompare([]byte(k), []byte(q.FormValue("key"))) == 1
			}
			r.mu.Unlock()
			if !allowed {
				give(http.StatusUnauthorized, nil, refusal("Valid API key is required"))
				return
			}
			if r.h.fails("api") {
				give(http.StatusInternalServerError, nil, errors.New("told to fail"))
				return
			}
			data := []byte(q.FormValue("data"))
			var ops []operation
			if err := json.Unmarshal(data, &ops); err != nil {
				ops = make([]operation, 1)
				if err := json.Unmarshal(data, &ops[0]); err != nil {
					give(http.StatusBadRequest, nil, refusal("Failed to parse JSON: "+err.Error()))
					return
				}
			}
			answer, code, err := f(ops)
			give(code, answer, err)
		})
	}
	handle("/retrieve", func(ops []operation) (any, int, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		n := r.config.at(ops[0].Path...)
		switch ops[0].Op {
		case "exists":
			return n != nil, http.StatusOK, nil
		case "showConfig":
			if n == nil {
				return nil, http.StatusBadRequest, refusal("Configuration under specified path is empty\n")
			}
			if n.leaf { // shown below its own name
				return object{n.name: n.json()}, http.StatusOK, nil
			}
			return n.json(), http.StatusOK, nil
		case "returnValue", "returnValues":
			if n == nil || !n.leaf {
				return nil, http.StatusBadRequest, refusal("Path is not set or is not a leaf\n")
			}
			if ops[0].Op == "returnValue" {
				return n.value(""), http.StatusOK, nil
			}
			return n.values, http.StatusOK, nil
		}
		return nil, http.StatusBadRequest, fmt.Errorf("%q is not a valid operation", ops[0].Op)
	})
	handle("/configure", func(ops []operation) (any, int, error) {
		r.mu.Lock()
		config := r.config.clone()
		r.mu.Unlock()
		for _, op := range ops {
			path := op.Path
			if op.Value != "" {
				path = append(slices.Clone(path), op.Value)
			}
			if len(path) == 0 {
				return nil, http.StatusBadRequest, refusal("Malformed command: empty path")
			}
			switch op.Op {
			case "set":
				if err := config.set(path); err != nil {
					return nil, http.StatusBadRequest, err
				}
			case "delete":
				config.remove(path)
			case "comment":
			default:
				return nil, http.StatusBadRequest, fmt.Errorf("%q is not a valid operation", op.Op)
			}
		}
		if r.h.fails("commit") {
			return nil, http.StatusBadRequest, refusal("Commit failed: told to fail")
		}
		if err := r.commit(ctx, config); err != nil {
			return nil, http.StatusBadRequest, err
		}
		if r.h.fails("commit-answer") { // the effect without the answer
			return nil, http.StatusInternalServerError, errors.New("told to lose the answer")
		}
		return nil, http.StatusOK, nil
	})
	handle("/config-file", func(ops []operation) (any, int, error) {
		if ops[0].Op != "save" || ops[0].File != "" {
			return nil, http.StatusBadRequest, fmt.Errorf("%q is not a valid operation here", ops[0].Op)
		}
		if err := r.save(); err != nil {
			return nil, http.StatusInternalServerError, err
		}
		return "", http.StatusOK, nil
	})
	handle("/reboot", func([]operation) (any, int, error) {
		go func() { pause(context.Background(), 500*time.Millisecond); r.h.reboot() }() // after the answer
		return "", http.StatusOK, nil
	})
	return mux
}

// save writes the running configuration to the file that the next boot reads.
func (r *router) save() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	r.config.write(&b, "")
	b.WriteString("\n\n" + r.footer)
	config := r.h.at(vyosConfig)
	if err := os.MkdirAll(filepath.Dir(config), 0o2775); err != nil {
		return err
	}
	if err := os.WriteFile(config+".new", []byte(b.String()), 0o660); err != nil {
		return err
	}
	if err := os.Rename(config+".new", config); err != nil {
		return err
	}
	unix.Sync()
	r.h.say("configuration saved")
	return nil
}

// serveHealth adds to the health port:
//
//	GET /config      the running configuration as config.boot
//	POST /relay      kills the relay (what=kill), or starts it with the configured servers
func (r *router) serveHealth() {
	r.h.mux.HandleFunc("GET /config", func(w http.ResponseWriter, _ *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		var b strings.Builder
		r.config.write(&b, "")
		_, _ = w.Write([]byte(b.String())) // an error means that the client has gone
	})
	r.h.mux.HandleFunc("POST /relay", func(w http.ResponseWriter, q *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.stopRelay()
		var err error
		if q.FormValue("what") != "kill" {
			err = r.relaying()
		}
		answer(w, []byte("{}"), err)
	})
}
