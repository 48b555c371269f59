package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

const (
	pollTimeout = 10 * time.Second // time-out of one request
	printEvery  = 10 * time.Second // longest time between two printed lines
)

// endedError means that a run or an operation ended without success.
type endedError struct{ run, state string }

func (e endedError) Error() string { return fmt.Sprintf("run %s ended as %s", e.run, e.state) }

// checkOutcome returns nil if state means success, otherwise an endedError.
func checkOutcome(run, state string) error {
	if state == inventory.StateSuccess {
		return nil
	}
	return endedError{run, state}
}

// weakError means that runs succeeded without evidence that their installed systems are up.
type weakError struct{ runs []string }

func (e weakError) Error() string {
	return fmt.Sprintf("%s succeeded, but it is not proven that an installed system is up (the evidence is weak, or nothing was installed): "+
		"see docs/templates.md for a template that phones home", strings.Join(e.runs, ", "))
}

// checkRun returns nil if the run x succeeded. With --require-evidence, it returns a weakError if x succeeded without
// evidence that the installed system is up.
func (c *Call) checkRun(x inventory.Workflow) error {
	err := checkOutcome(x.Run, x.State)
	if err == nil && c.requiresEvidence() && !x.Proven() {
		err = weakError{[]string{fmt.Sprintf("run %s of %s", x.Run, x.Machine)}}
	}
	return err
}

// poll calls look at intervals until look returns true or an error. After Ctrl-C, poll calls interrupted and returns its error.
func (c *Call) poll(every time.Duration, look func() (over bool, err error), interrupted func() error) error {
	for {
		over, err := look()
		switch {
		case c.Context().Err() != nil:
			return interrupted()
		case err != nil || over:
			return err
		}

		select {
		case <-time.After(every):
		case <-c.Context().Done():
			return interrupted()
		}
	}
}

// getWithin sends a GET request as get does, but waits no longer than pollTimeout. After that time it returns a client.ErrUnavailable.
func getWithin[T any](c *Call, route string) (client.Answer[T], error) {
	s, err := c.Server()
	if err != nil {
		return client.Answer[T]{}, err
	}

	ctx, cancel := context.WithTimeout(c.Context(), pollTimeout)
	defer cancel()

	a, err := client.Send[T](ctx, s, http.MethodGet, route, nil)
	if err != nil && ctx.Err() != nil && c.Context().Err() == nil {
		err = fmt.Errorf("the server at %s did not answer within %s: %w", s.URL(), pollTimeout, client.ErrUnavailable)
	}

	return a, err
}

// waitForRun prints the progress of a run until the run ends: a line at each change and at least every 10 s. With --output json or yaml it
// prints only the final record. While the server does not answer, waitForRun keeps asking, because the run does not depend on this command.
func waitForRun(c *Call, run string) error {
	w := runWatcher{c: c, last: client.Answer[inventory.Workflow]{Value: inventory.Workflow{Run: run}}}
	look := w.look
	if c.forPeople() {
		c.Printf("run %s\n", run)
	} else {
		look = w.lookQuietly
	}

	return c.poll(c.pollEvery, look, func() error { return runGoesOn(c, w.last.Value) })
}

// runGoesOn prints, after Ctrl-C, that the run goes on, and the commands that show and end the run. The error is not printed again.
func runGoesOn(c *Call, last inventory.Workflow) error {
	name := cmp.Or(last.Machine, last.Run)
	end := "ingot workflow cancel " + name
	if q := last.Question; q != nil && slices.Contains(q.Choices, contract.Abort) {
		end = fmt.Sprintf("ingot workflow decide %s --choice %s", name, contract.Abort)
	}
	c.Note("\nThe run goes on. Look at it with:  ingot workflow get %s\nEnd it with:                       %s", name, end)
	return reported{context.Canceled}
}

// runWatcher prints the changes of a run.
type runWatcher struct {
	c    *Call
	last client.Answer[inventory.Workflow]

	line     string    // fixed part of the last line printed, as returned by describe
	printed  time.Time // time of the last line
	question string    // id of the last question printed
	away     bool      // the server did not answer the last request
	speed    speedometer
}

// lookQuietly reads the run once. If the run has ended, it prints the record, otherwise nothing.
func (w *runWatcher) lookQuietly() (over bool, err error) {
	a, err := getWithin[inventory.Workflow](w.c, client.Path("workflows", w.last.Value.Run))
	switch {
	case errors.Is(err, client.ErrUnavailable):
		return false, nil
	case err != nil:
		return false, err
	}

	w.last = a
	if !inventory.Final(a.Value.State) {
		return false, nil
	}
	if err := w.c.print(w.c.OutOrStdout(), a.Raw, nil); err != nil {
		return true, err
	}

	return true, w.c.checkRun(a.Value)
}

// look reads the run once, and prints what has changed since the previous call of look.
func (w *runWatcher) look() (over bool, err error) {
	a, err := getWithin[inventory.Workflow](w.c, client.Path("workflows", w.last.Value.Run))
	switch {
	case errors.Is(err, client.ErrUnavailable):
		if !w.away || time.Since(w.printed) >= printEvery {
			w.print("%v; the run goes on; asking the server again", err)
		}
		w.away = true
		return false, nil
	case err != nil:
		return false, err
	}

	if w.away {
		w.away = false
		w.print("the server is back")
	}

	w.last = a
	if inventory.Final(a.Value.State) {
		return true, w.printEnd(a.Value)
	}

	fixed, moving := w.describe(a.Value)
	// Do not repeat the line while the run waits for the operator, because nothing changes then.
	if fixed != w.line || !a.Value.AwaitsOperator() && time.Since(w.printed) >= printEvery {
		w.print("%s", fixed+moving)
	}

	w.line = fixed
	return false, w.printNewQuestion(a.Value)
}

// printNewQuestion prints the open question of a run, unless it has printed that question already.
func (w *runWatcher) printNewQuestion(x inventory.Workflow) error {
	if x.Question == nil || x.Question.ID == w.question {
		return nil
	}

	w.question = x.Question.ID
	if text := bootProgress(w.c, x); text != "" {
		w.c.Println(text)
	}
	if err := printQuestion(w.c.OutOrStdout(), x); err != nil {
		return err
	}

	w.c.Println()
	return nil
}

func (w *runWatcher) print(format string, args ...any) {
	w.printed = time.Now()
	w.c.Printf("%s  %s\n", w.printed.Format(time.TimeOnly), Inert(fmt.Sprintf(format, args...)))
}

// describe returns the line about a run in two parts. The part moving holds the progress of the action, which changes
// all the time. The part fixed holds the rest.
func (w *runWatcher) describe(x inventory.Workflow) (fixed, moving string) {
	fixed = fmt.Sprintf("%-18s ", x.Phase)
	for i, a := range x.Actions {
		if a.State != action.Running {
			continue
		}
		fixed += fmt.Sprintf("%s (%d of %d)", a.Name, i+1, len(x.Actions))
		if a.Attempt > 1 {
			fixed += fmt.Sprintf(", attempt %d", a.Attempt)
		}
		if p := progressText(a); p != "" {
			moving = ": " + p + w.speed.measure(fmt.Sprintf("%d.%d", i, a.Attempt), a, w.printed)
		}
		return fixed, moving
	}

	if fixed += firstLine(x.Message); x.AwaitsOperator() && x.Question == nil {
		fixed += "; then: " + x.Next
	}
	return strings.TrimRight(fixed, " "), ""
}

// printEnd prints how a run ended.
func (w *runWatcher) printEnd(x inventory.Workflow) error {
	if x.State == inventory.StateSuccess {
		text := fmt.Sprintf("%-18s %s after %s  %s", x.Phase, x.Machine, duration(x.Started, x.Ended), firstLine(x.Message))
		if x.Evidence == inventory.EvidenceWeak && !strings.Contains(x.Message, "evidence") {
			text += " (evidence: weak)"
		}
		w.print("%s", strings.TrimRight(text, " "))
		return w.c.checkRun(x)
	}

	w.print("%-18s %s after %s", x.Phase, x.State, duration(x.Started, x.Ended))
	if err := printTrouble(w.c, w.c.OutOrStdout(), x); err != nil {
		return err
	}

	return checkOutcome(x.Run, x.State)
}

// speedometer measures the speed of an action from one printed line to the next. From one poll to the next, the speed would fluctuate.
type speedometer struct {
	key   string // action and attempt
	bytes int64
	at    time.Time
}

// measure returns a text with the speed of an action since the last printed line, and with the remaining time. It
// returns "" if the speed cannot be measured yet.
func (s *speedometer) measure(key string, a inventory.ActionRecord, printed time.Time) string {
	now := time.Now()
	defer func() {
		if s.key != key || now.Sub(printed) >= printEvery {
			*s = speedometer{key, a.Done, now}
		}
	}()
	if s.key != key || a.Done <= s.bytes || now.Sub(s.at) < time.Second {
		return ""
	}

	return speedText(a.Done-s.bytes, now.Sub(s.at), a.Total-a.Done)
}

// speedText formats the speed at which n bytes were done in the time d. It adds the time that the other left bytes will take at that speed.
func speedText(n int64, d time.Duration, left int64) string {
	if n <= 0 || d <= 0 {
		return ""
	}

	perSecond := float64(n) / d.Seconds()
	out := ", " + human.Size(int64(perSecond)) + "/s"
	if left > 0 {
		out += ", " + human.Span(time.Duration(float64(left)/perSecond*float64(time.Second))) + " left"
	}

	return out
}

// duration formats the time from began to ended, or to now if ended is zero.
func duration(began, ended time.Time) string {
	switch {
	case began.IsZero():
		return ""
	case ended.IsZero():
		return human.Span(time.Since(began))
	}
	return human.Span(ended.Sub(began))
}
