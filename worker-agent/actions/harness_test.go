package actions

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk"
)

// deadline ends a test that hangs.
const testDeadline = 60 * time.Second

var errOrdered = errors.New("stopped by an order of the server")

// try carries out one action. It returns the action's output and log.
func try(t *testing.T, m Machine, native string, disk *action.Disk, env map[string]string) (map[string]string, string, error) {
	t.Helper()
	return do(t, m, action.Assignment{
		Run: "run", Disk: disk, DiskAlias: "/dev/alias", Action: action.Action{Name: native, Image: native, Environment: env},
	})
}

// do carries out the action of as.
func do(t *testing.T, m Machine, as action.Assignment) (map[string]string, string, error) {
	t.Helper()
	x := newTask(m, as)
	err := x.perform(t.Context(), as)
	return x.output, string(x.tail), err
}

// newTask is NewTask for a machine without a server.
func newTask(m Machine, as action.Assignment) *Task {
	if m.Disks == nil {
		m.Disks = disk.FileDisks{}
	}
	m.Name, m.Server = "m1", noServer{}
	m.Wrote, m.Loaded = func() {}, func(bool) {}
	return NewTask(m, NewReport(as.Key, slog.New(slog.DiscardHandler)), as)
}

// noServer owns no address.
type noServer struct{}

func (noServer) Owns(*url.URL) bool                       { return false }
func (noServer) Do(*http.Request) (*http.Response, error) { return nil, errors.ErrUnsupported }

// worker carries out actions as an agent does. It is also the Ingot server.
type worker struct {
	t       *testing.T
	http    *httptest.Server
	files   http.HandlerFunc // what the Ingot server answers
	machine Machine
	done    func() // called with each result

	mu      sync.Mutex
	results map[action.Key]chan action.Result
	stops   map[action.Key]context.CancelCauseFunc
}

func newWorker(t *testing.T) *worker {
	t.Helper()
	w := &worker{t: t, results: map[action.Key]chan action.Result{}, stops: map[action.Key]context.CancelCauseFunc{}}
	w.http = httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer token" {
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.files(rw, r)
	}))
	t.Cleanup(w.http.Close)
	return w
}

// Owns implements Server.
func (w *worker) Owns(u *url.URL) bool { return "https://"+u.Host == w.http.URL }

// Do implements Server.
func (w *worker) Do(r *http.Request) (*http.Response, error) {
	r.Header.Set("Authorization", "Bearer token")
	return w.http.Client().Do(r)
}

func (w *worker) config() Machine { return Machine{Backoff: 20 * time.Millisecond} }

func (w *worker) start(m Machine) {
	m.Name, m.Server, m.Wrote, m.Loaded = "m1", w, func() {}, func(bool) {}
	if m.Disks == nil {
		m.Disks = disk.FileDisks{}
	}
	w.machine = m
}

// give begins a native action with env, as action n.
func (w *worker) give(n int, native string, bound *action.Disk, env map[string]string) action.Key {
	as := action.Assignment{
		Key: action.Key{Epoch: 7, Action: n, Attempt: 1}, Run: "run", Disk: bound, DiskAlias: "/dev/alias",
		Action: action.Action{Name: native, Image: native, Environment: env, Timeout: 600},
	}
	result := make(chan action.Result, 1)
	ctx, stop := context.WithCancelCause(context.Background())
	w.mu.Lock()
	w.results[as.Key], w.stops[as.Key] = result, stop
	w.mu.Unlock()
	w.t.Cleanup(func() { stop(nil) })
	go func() {
		res := NewTask(w.machine, NewReport(as.Key, slog.New(slog.DiscardHandler)), as).Run(ctx, nil)
		if w.done != nil {
			w.done()
		}
		result <- res
	}()
	return as.Key
}

// stop orders the end of an action.
func (w *worker) stop(key action.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stops[key](errOrdered)
}

// result waits for the end of an action.
func (w *worker) result(key action.Key) action.Result {
	w.t.Helper()
	w.mu.Lock()
	result := w.results[key]
	w.mu.Unlock()
	select {
	case res := <-result:
		return res
	case <-time.After(testDeadline):
		w.t.Fatalf("timed out waiting for %s", key)
		return action.Result{}
	}
}
