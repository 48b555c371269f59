package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/ingotmetal/ingot/action"
)

// post puts res into the outbox and remembers it as its key's answer.
func (a *Agent) post(res action.Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.finished[res.Key] = res
	a.postLocked(res)
}

func (a *Agent) postLocked(res action.Result) {
	for _, r := range a.outbox {
		if r.Key == res.Key {
			return
		}
	}

	a.outbox = append(a.outbox, res)
	select {
	case a.posted <- struct{}{}:
	default:
	}
}

// awaitDelivery returns when the outbox is empty.
func (a *Agent) awaitDelivery(ctx context.Context) error {
	for {
		a.mu.Lock()
		empty, delivered := len(a.outbox) == 0, a.delivered
		a.mu.Unlock()
		if empty {
			return nil
		}

		select {
		case <-delivered:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// deliver sends results until each is acknowledged, however long the server is away
// or unable to store them. A result that the server understands and refuses is sent
// again in a shorter form, twice.
func (a *Agent) deliver(ctx context.Context) error {
	try, cuts := backoff{max: a.cfg.Backoff}, 0
	for {
		res, ok := a.oldestResult()
		if !ok {
			select {
			case <-a.posted:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			continue
		}

		err := a.api.report(ctx, res)
		var over *overError
		switch {
		case errors.As(err, &over):
			return err
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case final(err):
			a.log.Error("the server refuses a report", "key", res.Key.String(), "state", res.State, "error", err)
			if cuts++; cuts <= 2 {
				a.replaceResult(shortened(res, cuts, err))
				break
			}

			// Should the server miss it after all, it offers the attempt again,
			// and gets the result as it was.
			a.log.Error("no form of the report is taken: giving it up", "key", res.Key.String())
			err = nil

		case err != nil:
			a.refused(err)
			a.log.Warn("reporting", "key", res.Key.String(), "error", err)
		}

		if err != nil {
			if err := try.pause(ctx); err != nil {
				return err
			}
			continue
		}

		try, cuts = backoff{max: a.cfg.Backoff}, 0
		a.dropResult()
	}
}

// oldestResult returns the first result of the outbox.
func (a *Agent) oldestResult() (res action.Result, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.outbox) == 0 {
		return res, false
	}
	return a.outbox[0], true
}

// dropResult removes the first result of the outbox.
func (a *Agent) dropResult() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.outbox = a.outbox[1:]
	if len(a.outbox) == 0 {
		close(a.delivered)
		a.delivered = make(chan struct{})
	}
}

// final reports whether the server has understood a request and will never grant it.
// An error that passes with time, or that an operator or a later server may correct
// (an unknown token, a full disk), is not final.
func final(err error) bool {
	var status *statusError
	if !errors.As(err, &status) || status.code < 400 || status.code > 499 {
		return false
	}

	switch status.code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooEarly,
		http.StatusTooManyRequests:
		return false
	}
	return true
}

// shortened returns res in the form in which it is sent after the server has
// refused it n times: first without its log, then without all that is not
// needed, and no longer as a success, because what it measured is lost.
func shortened(res action.Result, n int, refusal error) action.Result {
	if n == 1 && res.Log != "" {
		res.Log = ""
		return res
	}
	said := res.Message
	if len(said) > 500 {
		said = strings.ToValidUTF8(said[:500], "") + "…"
	}
	short := action.Result{
		Key: res.Key, ID: res.ID, State: res.State, ExitCode: res.ExitCode, Started: res.Started,
		Ended: res.Ended,
	}
	short.Message = strings.TrimSpace(fmt.Sprintf("the whole report (%s) was refused: %v %s", res.State, refusal, said))
	if res.State == action.Success {
		short.State, short.ExitCode = action.Failed, 1
	}
	return short
}

// replaceResult puts res in the place of the outbox's first result, which is of the
// same attempt. The map finished keeps the whole one.
func (a *Agent) replaceResult(res action.Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.outbox[0] = res
}
