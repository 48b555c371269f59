package actions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/host/clock"
)

// noop changes nothing. It tests templates, time-outs and failures on a real machine:
//
//	LOG      lines to log
//	SLEEP    how many seconds to sleep; the action reports progress
//	EXIT     exit code; the action fails unless it is 0
//	MESSAGE  the text of the failure
func noop(ctx context.Context, t *Task) error {
	for _, line := range strings.Split(strings.TrimRight(t.env["LOG"], "\n"), "\n") {
		if line != "" {
			t.logf("%s", line)
		}
	}

	// action.Check has already checked SLEEP and EXIT.
	seconds, err := strconv.ParseFloat(cmp.Or(t.env["SLEEP"], "0"), 64)
	code, e := action.Number(t.env, "EXIT")
	if err := errors.Join(err, e); err != nil {
		return err
	}

	total := time.Duration(seconds * float64(time.Second))
	for done := time.Duration(0); done < total; done += time.Second {
		t.progress(done.Milliseconds(), total.Milliseconds(), "sleeping")
		if err := clock.Sleep(ctx, min(time.Second, total-done)); err != nil {
			return err
		}
	}
	if code == 0 {
		return nil
	}
	return &exitError{code, cmp.Or(t.env["MESSAGE"], fmt.Sprintf("exit code %d, as EXIT says", code))}
}
