package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	pollWithin = 10 * time.Second // an answer of one poll
	tellEvery  = 10 * time.Second // a line, whether or not anything has changed
)

// endedError: the run that was waited for did not succeed.
type endedError struct{ run, state string }

func (e endedError) Error() string { return fmt.Sprintf("run %s ended as %s", e.run, e.state) }

// wait shows a run until it ends: a line at each change and at least every
// 10 s. A server that goes away meanwhile is waited for: the run goes on
// without.
func (o *options) wait(cmd *cobra.Command, c *remote, run string) error {
	if o.output != "" && o.output != "table" {
		return o.waitQuietly(cmd, c, run)
	}
	w := watcher{cmd: cmd, o: o, c: c}
	cmd.Printf("run %s\n", run)
	for {
		over, err := w.look(run)
		if err != nil || over {
			return err
		}
		select {
		case <-time.After(o.poll):
		case <-cmd.Context().Done():
			return goesOn(cmd, w.last, run)
		}
	}
}

// goesOn says that a run does not end because nobody looks at it any more.
func goesOn(cmd *cobra.Command, last inventory.Workflow, run string) error {
	name := last.Machine
	if name == "" {
		name = run
	}
	say(cmd, "\nThe run goes on. Look at it with:  ingot workflow get %s\nEnd it with:                       ingot workflow cancel %s", name, name)
	return said{context.Canceled}
}

// leave is err, unless it is only the person's Ctrl-C.
func leave(cmd *cobra.Command, last inventory.Workflow, run string, err error) error {
	if cmd.Context().Err() != nil {
		return goesOn(cmd, last, run)
	}
	return err
}

// waitQuietly waits and prints the record alone, for programs.
func (o *options) waitQuietly(cmd *cobra.Command, c *remote, run string) error {
	var last inventory.Workflow
	for {
		a, err := poll(cmd.Context(), c, run)
		switch {
		case cmd.Context().Err() != nil:
			return goesOn(cmd, last, run)
		case err != nil && !errors.Is(err, errUnavailable):
			return err
		case err == nil && inventory.Final(a.v.State):
			if err := o.print(cmd.OutOrStdout(), a.raw, nil); err != nil {
				return err
			}
			return outcome(a.v)
		case err == nil:
			last = a.v
		}
		select {
		case <-time.After(o.poll):
		case <-cmd.Context().Done():
			return goesOn(cmd, last, run)
		}
	}
}

func outcome(x inventory.Workflow) error {
	if x.State == inventory.StateSuccess {
		return nil
	}
	return endedError{x.Run, x.State}
}

func poll(ctx context.Context, c *remote, run string) (answer[inventory.Workflow], error) {
	within, cancel := context.WithTimeout(ctx, pollWithin)
	defer cancel()
	a, err := ask[inventory.Workflow](within, c, "GET", path("workflows", run), nil)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("the server at %s did not answer within %s: %w", c.base, pollWithin, errUnavailable)
	}
	return a, err
}

// watcher prints what changes of a run.
type watcher struct {
	cmd *cobra.Command
	o   *options
	c   *remote

	last    inventory.Workflow
	line    string    // without what moves all the time
	told    time.Time // when a line was printed last
	asked   string    // id of the question that was printed
	away    bool
	done    int64 // bytes when the rate was measured last
	doneAt  time.Time
	doneKey string
}

// look prints what is new. It returns true when the run is over.
func (w *watcher) look(run string) (bool, error) {
	ctx := w.cmd.Context()
	a, err := poll(ctx, w.c, run)
	switch {
	case ctx.Err() != nil:
		return false, goesOn(w.cmd, w.last, run)
	case errors.Is(err, errUnavailable):
		if !w.away || time.Since(w.told) >= tellEvery {
			w.tell("%v; the run goes on, asking again", err)
		}
		w.away = true
		return false, nil
	case err != nil:
		return false, err
	}
	x := a.v
	if w.away {
		w.away = false
		w.tell("the server is back")
	}
	w.last = x
	if inventory.Final(x.State) {
		return true, w.end(x)
	}
	still, moving := w.describe(x)
	if still != w.line || time.Since(w.told) >= tellEvery {
		w.tell("%s", still+moving)
	}
	w.line = still
	if x.Question != nil && x.Question.ID != w.asked {
		w.asked = x.Question.ID
		out := w.cmd.OutOrStdout()
		if text := w.o.seenAndMissing(w.cmd, w.c, x); text != "" {
			w.cmd.Println(text)
		}
		if err := printQuestion(out, x); err != nil {
			return false, err
		}
		w.cmd.Println()
	}
	return false, nil
}

func (w *watcher) tell(format string, args ...any) {
	w.told = time.Now()
	w.cmd.Printf("%s  %s\n", w.told.Format("15:04:05"), inert(fmt.Sprintf(format, args...)))
}

// describe returns a line in two parts: one that changes when something has
// happened, and one that changes all the time.
func (w *watcher) describe(x inventory.Workflow) (still, moving string) {
	still = fmt.Sprintf("%-18s ", x.Phase)
	for i, a := range x.Actions {
		if a.State != action.Running {
			continue
		}
		still += fmt.Sprintf("%s (%d of %d)", a.Name, i+1, len(x.Actions))
		if a.Attempt > 1 {
			still += fmt.Sprintf(", attempt %d", a.Attempt)
		}
		key := fmt.Sprintf("%d.%d", i, a.Attempt)
		if p := progressOf(a); p != "" {
			moving = ": " + p + w.rate(key, a)
		}
		return still, moving
	}
	message, _, _ := strings.Cut(x.Message, "\n")
	return strings.TrimRight(still+message, " "), ""
}

// rate returns how fast bytes come since the last line, and for how long still.
func (w *watcher) rate(key string, a inventory.ActionRecord) string {
	now := time.Now()
	defer func() {
		// Measured from line to line: a poll alone would jump.
		if w.doneKey != key || now.Sub(w.told) >= tellEvery {
			w.doneKey, w.done, w.doneAt = key, a.Done, now
		}
	}()
	if w.doneKey != key || a.Done <= w.done || now.Sub(w.doneAt) < time.Second {
		return ""
	}
	return speed(a.Done-w.done, now.Sub(w.doneAt), a.Total-a.Done)
}

// speed writes how fast bytes came within d, and how long those that are left
// take at that.
func speed(done int64, d time.Duration, left int64) string {
	if done <= 0 || d <= 0 {
		return ""
	}
	perSecond := float64(done) / d.Seconds()
	out := ", " + size(int64(perSecond)) + "/s"
	if left > 0 {
		out += ", " + span(time.Duration(float64(left)/perSecond*float64(time.Second))) + " left"
	}
	return out
}

// end prints the last word on a run.
func (w *watcher) end(x inventory.Workflow) error {
	if x.State == inventory.StateSuccess {
		message, _, _ := strings.Cut(x.Message, "\n")
		w.tell("%s", strings.TrimRight(fmt.Sprintf("%-18s %s after %s  %s", x.Phase, x.Machine, took(x), message), " "))
		return nil
	}
	w.tell("%-18s %s after %s", x.Phase, x.State, took(x))
	if err := w.o.printTrouble(w.cmd, w.c, w.cmd.OutOrStdout(), x); err != nil {
		return err
	}
	return outcome(x)
}
