package inventory

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Events that are sent as notices.
const (
	NoticeWaiting        = "waiting-for-operator" // a run or an operation waits until an operator decides or presses a power button
	NoticeFailed         = "failed"               // a run or an operation has failed or has run out of time
	NoticeBMC            = "bmc-given-up"         // the BMC of a machine could not switch it; an operator is asked
	NoticeWeak           = "weak-evidence"        // a run has installed a system, but nothing shows that the system has started
	NoticeInstalled      = "installed"            // a run has installed a system
	NoticeDecommissioned = "decommissioned"       // a run has wiped a machine and taken it out of service
	NoticeSucceeded      = "succeeded"            // a run or an operation has succeeded, whatever it does
	NoticeCancelled      = "cancelled"            // a run or an operation was cancelled
	NoticeTest           = "test"                 // an operator tests whether notices arrive
)

// Formats in which notices are sent.
const (
	NoticeStandard = "standard" // Standard Webhooks: JSON, signed
	NoticeSlack    = "slack"    // a message for an incoming webhook of Slack
	NoticeNtfy     = "ntfy"     // a message for a topic of ntfy
)

// NoticeFormats lists the formats that a configuration may choose from. The first one is the default.
func NoticeFormats() []string { return []string{NoticeStandard, NoticeSlack, NoticeNtfy} }

// NoticeEvents lists the events that a configuration may choose from.
func NoticeEvents() []string {
	return append(UrgentNoticeEvents(), NoticeInstalled, NoticeDecommissioned, NoticeSucceeded, NoticeCancelled)
}

// UrgentNoticeEvents lists the events that need an operator. They are the default.
func UrgentNoticeEvents() []string {
	return []string{NoticeWaiting, NoticeFailed, NoticeBMC, NoticeWeak}
}

// A Notice is sent to a webhook. It leaves the site, so it contains only a part of its run's record. It contains no secret, because the
// record contains none.
type Notice struct {
	// ID is the same each time the notice is sent, so that a receiver recognises a repetition.
	ID           string    `json:"id"`
	Event        string    `json:"type"`      // the name that Standard Webhooks gives it
	Time         time.Time `json:"timestamp"` // of the event, not of the delivery
	Machine      string    `json:"machine,omitempty"`
	WorkflowType string    `json:"workflowType,omitempty"` // Provision, Recover …
	Workflow     string    `json:"workflow,omitempty"`     // id of the workflow
	Run          string    `json:"run,omitempty"`
	By           string    `json:"by,omitempty"` // who started the run or asked for the test; "" = it was started at Temporal
	// Question is the id of the open question; "" if there is none. Choices are its possible answers.
	Question string   `json:"question,omitempty"`
	Choices  []string `json:"choices,omitempty"`
	Text     string   `json:"text,omitempty"` // what the run or operation waits for, or what went wrong
	Next     string   `json:"next,omitempty"` // the command with which an operator can continue
}

// An OpenNotice is a notice that was not delivered yet.
type OpenNotice struct {
	Notice
	Attempts int // how often its delivery was attempted
}

// NoticeCounts counts the notices by their delivery state.
type NoticeCounts struct {
	Waiting int       // notices that wait for delivery
	Oldest  time.Time // when the oldest waiting notice was written
	Sent    time.Time // when a notice was last delivered
	Error   string    // error of the latest failed attempt to deliver a waiting notice
	Dropped int       // notices that were given up without delivery and are still stored
}

// maxNoticeText is the maximum length of a text in a notice, in bytes.
const maxNoticeText = 500

// NoticesOf returns the notices for the change from the record before to w; before is zero if w is the first record. The notices
// are alternatives with different events, the most specific first: only the first one whose event is configured is sent.
func (w Workflow) NoticesOf(before Workflow) []Notice {
	n := Notice{
		Time: w.Updated, Machine: w.Machine, WorkflowType: w.Type, Workflow: w.ID, Run: w.Run, By: w.By, Text: w.Message,
		Next: w.Next,
	}
	switch {
	case Final(w.State) && !Final(before.State):
		return notices(n, "", w.endings()...)
	case Final(w.State) || !w.AwaitsOperator():
		return nil
	case w.Question != nil:
		if before.AwaitsOperator() && before.Question != nil && before.Question.ID == w.Question.ID {
			return nil
		}
		n = n.withQuestion(*w.Question)
		if parts := strings.Split(w.Question.ID, "."); len(parts) > 1 && parts[1] == PhasePower {
			return notices(n, w.Question.ID, NoticeBMC, NoticeWaiting)
		}
		return notices(n, w.Question.ID, NoticeWaiting)

	case before.AwaitsOperator() && before.Phase == w.Phase:
		return nil
	}
	return notices(n, fmt.Sprintf("%s.%d", w.Phase, w.Seq), NoticeWaiting)
}

// NoticesOf returns the notices for the change from the record before to o. There are notices only if the operation has failed or asks a
// new question. See Workflow.NoticesOf.
func (o Operation) NoticesOf(before Operation) []Notice {
	n := Notice{Time: o.Updated, WorkflowType: o.Type, Workflow: o.ID, Run: o.Run, By: o.By, Text: o.Message, Next: o.Next}
	switch {
	case Final(o.State) && !Final(before.State):
		return notices(n, "", endingOf(o.State))
	case Final(o.State) || o.Question == nil || before.Question != nil && before.Question.ID == o.Question.ID:
		return nil
	}
	return notices(n.withQuestion(*o.Question), o.Question.ID, NoticeWaiting)
}

// endings returns the events of a run that has ended, the most specific first.
func (w Workflow) endings() []string {
	general := endingOf(w.State)
	switch {
	case w.State != StateSuccess:
		return []string{general}
	case w.Type == TypeDecommission:
		return []string{NoticeDecommissioned, general}
	case w.Evidence == EvidenceWeak:
		return []string{NoticeWeak, NoticeInstalled, general}
	case w.Evidence != "" && !w.NoSystem:
		return []string{NoticeInstalled, general}
	}
	return []string{general}
}

// endingOf returns the event of a run or an operation that has ended in the given state.
func endingOf(state string) string {
	switch state {
	case StateSuccess:
		return NoticeSucceeded
	case StateCancelled:
		return NoticeCancelled
	}
	return NoticeFailed
}

func (n Notice) withQuestion(q Question) Notice {
	n.Question, n.Choices = q.ID, q.Choices
	if q.Text != "" {
		n.Text = q.Text
	}
	return n
}

// notices returns a copy of n for each event. key distinguishes n from other notices of the run.
func notices(n Notice, key string, events ...string) []Notice {
	for _, text := range []*string{&n.Machine, &n.Workflow, &n.By, &n.Text, &n.Next} {
		*text = oneLine(*text)
	}
	var out []Notice
	for _, e := range events {
		n.Event = e
		sum := sha256.Sum256([]byte(n.Run + "\x00" + e + "\x00" + key))
		n.ID = hex.EncodeToString(sum[:16])
		out = append(out, n)
	}
	return out
}

// oneLine returns the printable characters of s on one line, cut after maxNoticeText bytes, because s may come from a machine or from
// a client of Temporal.
func oneLine(s string) string {
	var b strings.Builder
	n := 0
	for _, r := range strings.Join(strings.Fields(s), " ") {
		if !unicode.IsPrint(r) {
			continue
		}

		if n += utf8.RuneLen(r); n > maxNoticeText {
			b.WriteString("…")
			break
		}
		b.WriteRune(r)
	}

	return b.String()
}
