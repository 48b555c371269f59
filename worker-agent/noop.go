package agent

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// noop changes nothing. It is there to try templates, time-outs and failures
// on a real machine:
//
//	LOG      lines to log
//	SLEEP    seconds to take, with progress
//	EXIT     exit code; other than 0 fails
//	MESSAGE  the text of that failure
func (t *attempt) noop(ctx context.Context) error {
	for _, line := range strings.Split(strings.TrimRight(t.env["LOG"], "\n"), "\n") {
		if line != "" {
			t.logf("%s", line)
		}
	}

	if s := t.env["SLEEP"]; s != "" {
		seconds, err := strconv.ParseFloat(s, 64)
		if err != nil || seconds < 0 {
			return fmt.Errorf("reading SLEEP=%q: want seconds", s)
		}
		total := time.Duration(seconds * float64(time.Second))
		for done := time.Duration(0); done < total; done += time.Second {
			t.progress(int64(done/time.Millisecond), int64(total/time.Millisecond), "sleeping")
			if err := sleep(ctx, min(time.Second, total-done)); err != nil {
				return err
			}
		}
	}

	code := 0
	if s := t.env["EXIT"]; s != "" {
		var err error
		if code, err = strconv.Atoi(s); err != nil {
			return fmt.Errorf("reading EXIT=%q: want a number", s)
		}
	}

	if code != 0 {
		message := t.env["MESSAGE"]
		if message == "" {
			message = fmt.Sprintf("exit code %d was asked for", code)
		}
		return &exitError{code, message}
	}
	return nil
}
