package temporalchild

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	tailLines   = 12   // lines that are kept for the error when a child ends
	maxLineSize = 4096 // maximum length of a line in bytes; the rest is dropped
)

// output passes the child's lines to a logger, at most perSecond of them per second, and keeps the
// last ones. It is the io.Writer for the child's stdout and stderr.
type output struct {
	logger    *slog.Logger
	perSecond int
	now       func() time.Time

	mu      sync.Mutex
	partial []byte
	cutting bool // the current line already has maxLineSize bytes
	tail    []string
	second  time.Time
	passed  int
	dropped int
}

// Write never returns an error: a problem with the parent's log must not end the child.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for rest := p; len(rest) > 0; {
		line, after, complete := bytes.Cut(rest, []byte{'\n'})
		rest = after
		if room := maxLineSize - len(o.partial); len(line) > room {
			line, o.cutting = line[:room], true
		}
		o.partial = append(o.partial, line...)
		if complete {
			o.line(o.partial, o.cutting)
			o.partial, o.cutting = o.partial[:0], false
		}
	}

	return len(p), nil
}

// flush passes on the last line if it has no line end, and logs the number of dropped lines.
func (o *output) flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.partial) > 0 {
		o.line(o.partial, o.cutting)
		o.partial, o.cutting = o.partial[:0], false
	}

	o.reportDropped()
}

// last returns the last lines in order.
func (o *output) last() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.tail)
}

func (o *output) line(raw []byte, cut bool) {
	text := strings.TrimRight(string(raw), "\r")
	if strings.TrimSpace(text) == "" {
		return
	}

	level, attrs := parseLine(text, cut)
	o.tail = append(o.tail, plainLine(level, attrs))
	if len(o.tail) > tailLines {
		o.tail = slices.Delete(o.tail, 0, len(o.tail)-tailLines)
	}

	if now := o.now(); now.Sub(o.second) >= time.Second {
		o.reportDropped()
		o.second, o.passed = now, 0
	}

	if o.passed >= o.perSecond {
		o.dropped++
		return
	}

	o.passed++
	o.logger.LogAttrs(context.Background(), level, "temporal server", attrs...)
}

func (o *output) reportDropped() {
	if o.dropped > 0 {
		o.logger.Warn("temporal server wrote too many lines; some are not logged", "left_out", o.dropped)
		o.dropped = 0
	}
}

// plainLine returns the text of a line for an error, without stack traces and file names.
func plainLine(level slog.Level, attrs []slog.Attr) string {
	var b strings.Builder
	b.WriteString(level.String())
	for _, a := range attrs {
		switch a.Key {
		case "message":
			b.WriteString(" " + a.Value.String())
		case "err", "error", "address", "service":
			b.WriteString(" " + a.Key + "=" + a.Value.String())
		}
	}

	return b.String()
}

// parseLine parses a line of slog's JSON into its level and attributes. Any other line, such as the
// text of a panic, becomes a warning with the unchanged text.
func parseLine(text string, cut bool) (slog.Level, []slog.Attr) {
	var fields map[string]any
	if !strings.HasPrefix(text, "{") || json.Unmarshal([]byte(text), &fields) != nil {
		attrs := []slog.Attr{slog.String("message", text)}
		if cut {
			attrs = append(attrs, slog.Bool("cut", true))
		}
		return slog.LevelWarn, attrs
	}

	level := slog.LevelWarn
	if name, ok := fields[slog.LevelKey].(string); ok {
		var l slog.Level
		if l.UnmarshalText([]byte(name)) == nil {
			level = l
		}
	}

	attrs := []slog.Attr{slog.Any("message", fields[slog.MessageKey])}
	delete(fields, slog.LevelKey)
	delete(fields, slog.MessageKey)
	delete(fields, slog.TimeKey)
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		attrs = append(attrs, slog.Any(k, fields[k]))
	}

	return level, attrs
}
