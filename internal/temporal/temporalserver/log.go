package temporalserver

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"time"

	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/log/tag"
)

// noHTTPWarning is how a warning of the server begins that is of no use here: the setting is intended.
const noHTTPWarning = "HTTP API port has not been set"

// serverLog implements the server's logger with slog.
type serverLog struct {
	logger *slog.Logger
	// stopping ends when the server is stopped. Messages after that are logged at debug level: while the parts of the server stop, they lose
	// contact with each other and log dozens of errors, among which a real error would be overlooked.
	stopping context.Context
}

var (
	_ log.Logger     = (*serverLog)(nil)
	_ log.WithLogger = (*serverLog)(nil)
)

func (l *serverLog) write(level slog.Level, msg string, tags []tag.Tag) {
	if l.stopping.Err() != nil || strings.HasPrefix(msg, noHTTPWarning) {
		level = slog.LevelDebug
	}

	l.handle(level, msg, tags)
}

// handle calls the handler directly, so that the record has no source position: every message would have the position of this file.
func (l *serverLog) handle(level slog.Level, msg string, tags []tag.Tag) {
	ctx := context.Background()
	if !l.logger.Enabled(ctx, level) {
		return
	}

	r := slog.NewRecord(time.Now(), level, msg, 0)
	r.AddAttrs(attrsOf(tags)...)
	_ = l.logger.Handler().Handle(ctx, r) // there is no other place to report it
}

func attrsOf(tags []tag.Tag) []slog.Attr {
	attrs := make([]slog.Attr, 0, len(tags))
	for _, t := range tags {
		attrs = append(attrs, slog.Any(t.Key(), t.Value()))
	}

	return attrs
}

func (l *serverLog) Debug(msg string, tags ...tag.Tag) { l.write(slog.LevelDebug, msg, tags) }
func (l *serverLog) Info(msg string, tags ...tag.Tag)  { l.write(slog.LevelInfo, msg, tags) }
func (l *serverLog) Warn(msg string, tags ...tag.Tag)  { l.write(slog.LevelWarn, msg, tags) }
func (l *serverLog) Error(msg string, tags ...tag.Tag) { l.write(slog.LevelError, msg, tags) }

func (l *serverLog) DPanic(msg string, tags ...tag.Tag) { l.write(slog.LevelError, msg, tags) }

// Panic panics, because the callers in the server rely on that.
func (l *serverLog) Panic(msg string, tags ...tag.Tag) {
	l.write(slog.LevelError, msg, tags)
	panic(msg)
}

// Fatal ends the process, because the server's code assumes that Fatal never returns.
func (l *serverLog) Fatal(msg string, tags ...tag.Tag) {
	l.handle(slog.LevelError, msg, tags)
	os.Exit(1)
}

func (l *serverLog) With(tags ...tag.Tag) log.Logger {
	return &serverLog{logger: slog.New(l.logger.Handler().WithAttrs(attrsOf(tags))), stopping: l.stopping}
}
