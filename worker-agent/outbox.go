package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/worker-agent/fetch"
)

// post adds res to the outbox, and stores it as the result of its attempt.
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

// awaitDelivery waits until the outbox is empty.
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

// deliver sends each result until the server acknowledges it, no matter how long the server cannot be reached or cannot store the
// result. If the server refuses a result permanently, deliver sends a shorter form, at most twice, and then drops the result.
func (a *Agent) deliver(ctx context.Context) error {
	try, cuts := clock.Backoff{Max: a.cfg.Backoff}, 0
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
		var ended *endedError
		switch {
		case errors.As(err, &ended):
			return err
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case final(err):
			a.log.Error("the server refuses a report of an action", "key", res.Key.String(), "state", res.State, "error", err)
			if cuts++; cuts <= 2 {
				a.replaceResult(shortened(res, cuts, err))
				break
			}

			// If the server still needs this result, it offers the assignment again, and accept then posts the complete result.
			a.log.Error("the server also refuses the shortened report; dropping the report", "key", res.Key.String())
			err = nil

		case err != nil:
			a.refused(err)
			a.log.Warn("reporting", "key", res.Key.String(), "error", err)
		}

		if err != nil {
			if err := try.Pause(ctx); err != nil {
				return err
			}
			continue
		}

		try, cuts = clock.Backoff{Max: a.cfg.Backoff}, 0
		a.dropResult()
	}
}

// oldestResult returns the first result in the outbox.
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

// final reports whether err means that the server will never accept the request. An error is not final if it may pass, or if an
// operator or a newer server may correct it (an unknown token, a full disk).
func final(err error) bool {
	var status *fetch.StatusError
	if !errors.As(err, &status) || status.Code < 400 || status.Code > 499 {
		return false
	}

	switch status.Code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooEarly,
		http.StatusTooManyRequests:
		return false
	}
	return true
}

// shortened returns the form of res that is sent after n refusals: first without its log, then with the necessary fields only. In
// this last form, a success becomes a failure, because the output is lost.
func shortened(res action.Result, n int, refusal error) action.Result {
	if n == 1 && res.Log != "" {
		res.Log = ""
		return res
	}
	short := action.Result{
		Key: res.Key, ID: res.ID, State: res.State, ExitCode: res.ExitCode, Started: res.Started,
		Ended: res.Ended,
	}
	short.Message = strings.TrimSpace(
		fmt.Sprintf("the server refused the complete report (%s): %v %s", res.State, refusal, plaintext.Clip(res.Message, 500)),
	)
	if res.State == action.Success {
		short.State, short.ExitCode = action.Failed, 1
	}
	return short
}

// replaceResult replaces the first result in the outbox by its shorter form res. a.finished keeps the complete result.
func (a *Agent) replaceResult(res action.Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.outbox[0] = res
}
