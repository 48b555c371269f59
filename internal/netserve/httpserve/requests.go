package httpserve

import (
	"io"
	"net/http"
	"sync/atomic"
)

// Requests counts the requests of one or more listeners. The zero value is ready to use.
type Requests struct {
	classes [5]atomic.Int64
	bytes   atomic.Int64
}

// RequestCounts are the counts of Requests.
type RequestCounts struct {
	// Classes counts the answered requests by status class: index 0 is 1xx, and index 4 is 5xx.
	Classes [5]int64
	// Bytes is the total size of all answers, without headers.
	Bytes int64
}

// Counts returns the counters.
func (r *Requests) Counts() (c RequestCounts) {
	for i := range r.classes {
		c.Classes[i] = r.classes[i].Load()
	}
	c.Bytes = r.bytes.Load()
	return c
}

// Handler returns a handler that serves with h and counts requests. It counts a request once its answer is complete.
func (r *Requests) Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		c := &countedAnswer{ResponseWriter: w, bytes: &r.bytes, status: http.StatusOK}
		defer func() {
			if class := c.status/100 - 1; class >= 0 && class < len(r.classes) {
				r.classes[class].Add(1)
			}
		}()
		h.ServeHTTP(c, req)
	})
}

// countedAnswer counts what is written to an answer. It supports sendfile, flushing and deadlines like the writer
// below it.
type countedAnswer struct {
	http.ResponseWriter
	bytes  *atomic.Int64
	status int
}

// WriteHeader implements http.ResponseWriter.
func (c *countedAnswer) WriteHeader(status int) {
	c.status = status
	c.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (c *countedAnswer) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.bytes.Add(int64(n))
	return n, err
}

// ReadFrom implements io.ReaderFrom, which net/http uses to send files.
func (c *countedAnswer) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(c.ResponseWriter, r)
	c.bytes.Add(n)
	return n, err
}

// Flush implements http.Flusher.
func (c *countedAnswer) Flush() {
	// Flush fails only if the writer cannot flush, as in tests.
	_ = http.NewResponseController(c.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (c *countedAnswer) Unwrap() http.ResponseWriter { return c.ResponseWriter }
