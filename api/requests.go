package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// byName is a request for the object named in the path.
type byName struct {
	Name string `path:"name" json:"-"`
}

// byRun is a request for the run or operation named in the path.
type byRun struct {
	Run string `path:"run" json:"-"`
}

// accept returns a handler of a JSON body that starts something.
func accept[Q, A any](do func(context.Context, Q) (A, error)) gin.HandlerFunc {
	return httpapi.Handle(http.StatusAccepted, httpapi.JSON, do)
}

// acceptOptional is accept with an optional body.
func acceptOptional[Q, A any](do func(context.Context, Q) (A, error)) gin.HandlerFunc {
	return httpapi.Handle(http.StatusAccepted, httpapi.OptionalJSON, do)
}

// hint returns err with a command that helps.
func hint(err error, next string) error { return inventory.Hint{Err: err, Next: next} }

// parseFor reads the field "for" of a request: usual if it is empty, at most longest.
func parseFor(text string, usual, longest time.Duration) (time.Duration, error) {
	if text == "" {
		return usual, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > longest {
		return 0, inventory.Invalid("for", fmt.Sprintf("for example %.0fm; at most %.0fh", usual.Minutes(), longest.Hours()),
			"invalid duration %q", text)
	}
	return d, nil
}

// maxNumbered limits the events, or the lines of syslog, in one answer.
const maxNumbered = 1000

// pageByNumber returns a page of numbered rows. The cursor is the number of the last one.
func pageByNumber[T any](
	p httpapi.Page, read func(after int64, descending bool, limit int) ([]T, error), number func(T) int64,
) (out httpapi.List[T], err error) {
	var after int64
	if p.After != "" {
		if after, err = strconv.ParseInt(p.After, 10, 64); err != nil || after < 0 {
			return out, inventory.Invalid("after", "the next of the last page", "invalid whole number %q", p.After)
		}
	}
	descending, err := p.Descending("seq", "seq")
	if err != nil {
		return out, err
	}
	limit := maxNumbered
	if p.Limit > 0 {
		limit = min(p.Limit, maxNumbered)
	}
	found, err := read(after, descending, limit+1) // one more shows whether the list continues
	if err != nil {
		return out, err
	}
	return httpapi.Cut(found, limit, func(x T) string { return strconv.FormatInt(number(x), 10) }), nil
}
