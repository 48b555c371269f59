package lab

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

// tailWriter passes everything on to w and keeps the last 2,000 bytes for an error message.
type tailWriter struct {
	w    io.Writer
	mu   sync.Mutex
	last []byte
}

func (t *tailWriter) Write(p []byte) (int, error) {
	t.mu.Lock()
	t.last = append(t.last, p...)
	t.last = t.last[max(0, len(t.last)-2000):]
	t.mu.Unlock()
	return t.w.Write(p)
}

func (t *tailWriter) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.last))
}

// notifyWriter closes seen after want was written.
type notifyWriter struct {
	want string
	seen chan struct{}
	mu   sync.Mutex
	buf  bytes.Buffer
	done bool
}

func (n *notifyWriter) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.buf.Len() < 1<<16 {
		n.buf.Write(p)
	}
	if !n.done && bytes.Contains(n.buf.Bytes(), []byte(n.want)) {
		n.done = true
		close(n.seen)
	}
	return len(p), nil
}

func (n *notifyWriter) text() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.TrimSpace(n.buf.String())
}
