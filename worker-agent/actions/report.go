package actions

import (
	"bytes"
	"fmt"
	"log/slog"
	"sync"

	"github.com/ingotmetal/ingot/action"
)

// logTail is the maximum size of the log that is stored and reported for an attempt, in bytes.
const logTail = 16 << 10

// maxShown is how much of an attempt's log goes to the console, in bytes. A serial line needs 6 s for it, and a program that prints waits.
const maxShown = 64 << 10

// Report collects the log and the progress of an attempt at an action, for heartbeats and for the result.
type Report struct {
	key action.Key
	log *slog.Logger

	mu          sync.Mutex
	done, total int64
	message     string
	live        func() int64 // returns the current progress in bytes; set by track, nil after a call of progress
	tail        []byte       // the log's last logTail bytes
	unsent      []byte       // log that no heartbeat has delivered yet
	shown       int          // bytes of the log that were written to log
}

// NewReport returns the report of the attempt with the given key. Each line of the attempt's log also goes to log.
func NewReport(key action.Key, log *slog.Logger) *Report { return &Report{key: key, log: log} }

// logf adds a line to the attempt's log. Never log the value of an environment variable: it may be
// a secret.
func (t *Report) logf(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shown < maxShown {
		t.log.Info("action", "key", t.key.String(), "line", line)
		if t.shown += len(line); t.shown >= maxShown {
			t.log.Info("action", "key", t.key.String(), "line", "further lines go to the server only")
		}
	}
	t.tail = keepTail(append(append(t.tail, line...), '\n'))
	t.unsent = keepTail(append(append(t.unsent, line...), '\n'))
}

func keepTail(b []byte) []byte {
	if len(b) > logTail {
		b = append(b[:0], b[len(b)-logTail:]...)
	}
	return b
}

// progress sets the attempt's progress in bytes; total 0 means unknown.
func (t *Report) progress(done, total int64, message string) {
	t.mu.Lock()
	t.done, t.total, t.message, t.live = done, total, message, nil
	t.mu.Unlock()
}

// track sets a progress that changes by itself: until progress is called, each heartbeat calls done for the current number of
// bytes, from another goroutine.
func (t *Report) track(total int64, message string, done func() int64) {
	t.mu.Lock()
	t.total, t.message, t.live = total, message, done
	t.mu.Unlock()
}

// beatLog is the maximum size of the log in one heartbeat, in bytes. JSON may need six bytes to encode one, and the server accepts
// heartbeats of at most 64 KiB.
const beatLog = 8 << 10

// Now returns the progress for a heartbeat, with the next piece of the unsent log, and the length of this piece in bytes.
func (t *Report) Now() (*action.Progress, int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live != nil {
		t.done = t.live()
	}
	log := t.unsent[:min(len(t.unsent), beatLog)]
	if end := bytes.LastIndexByte(log, '\n'); end >= 0 && len(log) < len(t.unsent) {
		log = log[:end+1] // send whole lines only
	}
	return &action.Progress{Key: t.key, Done: t.done, Total: t.total, Message: t.message, Log: string(log)}, len(log)
}

// Sent removes the first n bytes of the unsent log after a heartbeat has delivered them.
func (t *Report) Sent(n int) {
	t.mu.Lock()
	t.unsent = t.unsent[min(n, len(t.unsent)):]
	t.mu.Unlock()
}
