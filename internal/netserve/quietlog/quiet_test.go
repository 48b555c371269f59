package quietlog

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// S30, S48: log lines of forged packets.
func TestLinesAreBounded(t *testing.T) {
	var out bytes.Buffer
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	log := slog.New(Handler(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}), func() time.Time { return now }))
	for i := range 10_000 {
		log.With("mac", i).Warn("a forged packet")
		log.WithGroup("g").Error("another")
	}
	require.Equal(t, 2*lines, strings.Count(out.String(), "\n"))
	out.Reset()
	for range lines * 2 {
		log.Debug("asked for")
	}
	require.Equal(t, 2*lines, strings.Count(out.String(), "\n"), "debug records are not limited")
	out.Reset()
	now = now.Add(every)
	log.Warn("a forged packet")
	log.Warn("a forged packet")
	require.Equal(t, 1, strings.Count(out.String(), fmt.Sprintf("left_out=%d", 10_000-lines)), out.String())
	require.Equal(t, 2, strings.Count(out.String(), "\n"))
	out.Reset()
	now = now.Add(-time.Hour)
	log.Warn("a forged packet")
	require.NotEmpty(t, out.String(), "a clock that was set back silences nothing")
}

// S30, S48: messages that hold text of a packet.
func TestMessagesAreBounded(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(Handler(slog.NewTextHandler(&out, nil), nil))
	for i := range 100_000 {
		log.Warn(fmt.Sprint("message ", i)) //nolint:sloglint // as a library's
	}
	require.LessOrEqual(t, strings.Count(out.String(), "\n"), maxMessages+lines)
	require.LessOrEqual(t, len(log.Handler().(handler).counts.of), maxMessages+1)
}
