package engine

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ingotmetal/ingot/action"
)

const (
	// MaxLogTail is how much log one message of an agent may carry, in bytes.
	MaxLogTail = 16 << 10
	// maxPendingLog is how much log of an attempt waits for a flush, in bytes: with
	// flushEvery it bounds what an agent can make the store write.
	maxPendingLog = 64 << 10
	// maxPendingAttempts is for how many attempts of one agent log waits.
	maxPendingAttempts = 4
)

// pendingLogs are the lines that wait for the next flush, by attempt.
type pendingLogs []pendingLog

type pendingLog struct {
	key  action.Key
	text string
}

// add appends text. If it is too much, the end stays.
func (l *pendingLogs) add(k action.Key, text string) {
	if n := len(*l); n > 0 && (*l)[n-1].key == k {
		(*l)[n-1].text = Tail((*l)[n-1].text+text, maxPendingLog)
		return
	}
	if len(*l) == maxPendingAttempts {
		*l = slices.Delete(*l, 0, 1)
	}
	*l = append(*l, pendingLog{k, text})
}

// prepend puts back text that could not be written, before what came since. If
// it is too much, the end stays.
func (l *pendingLogs) prepend(k action.Key, text string) {
	for i := range *l {
		if p := &(*l)[i]; p.key == k {
			p.text = Tail(text+p.text, maxPendingLog)
			return
		}
	}
	if len(*l) < maxPendingAttempts {
		*l = slices.Insert(*l, 0, pendingLog{k, Tail(text, maxPendingLog)})
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

// JoinLog returns text followed by tail, whose beginning text may already hold.
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

// Head returns the first n bytes of text, cut at the boundary of a rune.
func Head(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// Tail returns the last n bytes of text, cut at the boundary of a rune.
func Tail(text string, n int) string {
	if len(text) <= n {
		return text
	}
	i := len(text) - n
	for i < len(text) && !utf8.RuneStart(text[i]) {
		i++
	}
	return text[i:]
}
