package engine

import (
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
)

const (
	// MaxLogTail limits the log in one message of an agent, in bytes.
	MaxLogTail = 16 << 10
	// maxPendingLog limits the log of an attempt that waits for a flush, in bytes. With
	// flushEvery it limits what an agent can make the store write.
	maxPendingLog = 64 << 10
	// maxPendingAttempts limits the attempts of one agent whose log waits for a flush.
	maxPendingAttempts = 4
)

// pendingLogs are the log lines that wait for the next flush, by attempt.
type pendingLogs []pendingLog

type pendingLog struct {
	key  action.Key
	text string
}

// add appends text. If the result is too long, its end is kept.
func (l *pendingLogs) add(k action.Key, text string) {
	if n := len(*l); n > 0 && (*l)[n-1].key == k {
		(*l)[n-1].text = plaintext.Tail((*l)[n-1].text+text, maxPendingLog)
		return
	}
	if len(*l) == maxPendingAttempts {
		*l = slices.Delete(*l, 0, 1)
	}
	*l = append(*l, pendingLog{k, text})
}

// prepend puts back text that could not be written, before newer text. If the result is too
// long, its end is kept.
func (l *pendingLogs) prepend(k action.Key, text string) {
	for i := range *l {
		if p := &(*l)[i]; p.key == k {
			p.text = plaintext.Tail(text+p.text, maxPendingLog)
			return
		}
	}
	if len(*l) < maxPendingAttempts {
		*l = slices.Insert(*l, 0, pendingLog{k, plaintext.Tail(text, maxPendingLog)})
	}
}

// take removes and returns the text of an attempt.
func (l *pendingLogs) take(k action.Key) (text string) {
	*l = slices.DeleteFunc(*l, func(p pendingLog) bool {
		if p.key == k {
			text += p.text
		}
		return p.key == k
	})
	return text
}

// JoinLog returns text followed by tail without the beginning of tail that text already has.
func JoinLog(text, tail string) string {
	if strings.Contains(tail, text) {
		return tail
	}
	for i := max(0, len(text)-len(tail)); i < len(text); i++ {
		if strings.HasPrefix(tail, text[i:]) {
			return text[:i] + tail
		}
	}
	return text + tail
}
