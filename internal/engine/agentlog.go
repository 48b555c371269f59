package engine

import (
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
)

const (
	// MaxLogTail limits the log text in one message of an agent, in bytes. Of a longer text, only the end is kept.
	MaxLogTail = 16 << 10
	// maxPendingLog limits, in bytes, how much log text of one attempt may wait for the next flush. Together with
	// flushEvery it limits how much an agent can make the store write.
	maxPendingLog = 64 << 10
	// maxPendingAttempts limits how many attempts of one agent may have log text that waits for the next flush.
	maxPendingAttempts = 4
)

// pendingLogs holds the log text of one agent that waits for the next flush, per attempt, oldest first.
type pendingLogs []pendingLog

type pendingLog struct {
	key  action.Key
	text string
}

// add appends text to the log of attempt k. If the log becomes too long, only its end is kept. If there are too many
// attempts, the log of the oldest attempt is dropped.
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

// prepend puts back text that could not be written to the store, before the newer text of attempt k. If the log becomes
// too long, only its end is kept. If there are too many attempts, text is dropped.
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

// take removes and returns the text of attempt k.
func (l *pendingLogs) take(k action.Key) (text string) {
	*l = slices.DeleteFunc(*l, func(p pendingLog) bool {
		if p.key == k {
			text += p.text
		}
		return p.key == k
	})
	return text
}

// JoinLog returns text followed by tail. If the end of text is also the beginning of tail, this common part appears
// once. If tail contains all of text, the result is tail.
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
