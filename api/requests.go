package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// byName holds the name in the path of a request.
type byName struct {
	Name string `path:"name" json:"-"`
}

// byRun holds the run in the path of a request. In paths of operations it may also be a workflow id; see
// operations.find.
type byRun struct {
	Run string `path:"run" json:"-"`
}

// accept returns a handler that decodes a JSON body, calls do and returns 202.
func accept[Q, A any](do func(context.Context, Q) (A, error)) gin.HandlerFunc {
	return httpapi.Handle(http.StatusAccepted, httpapi.JSON, do)
}

// acceptOptional does the same as accept, but the request need not have a body.
func acceptOptional[Q, A any](do func(context.Context, Q) (A, error)) gin.HandlerFunc {
	return httpapi.Handle(http.StatusAccepted, httpapi.OptionalJSON, do)
}

// hint adds to err a command that helps the operator.
func hint(err error, next string) error { return inventory.Hint{Err: err, Next: next} }

// parseFor parses the duration in the field "for" of a request. If the field is empty, it returns usual. If the
// duration is longer than longest, it returns an error.
func parseFor(text string, usual, longest time.Duration) (time.Duration, error) {
	if text == "" {
		return usual, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > longest {
		return 0, inventory.Invalid("for", fmt.Sprintf("for example %s; at most %.0fh", cmp.Or(usual, longest), longest.Hours()),
			"invalid duration %q", text)
	}
	return d, nil
}

// maxNumbered is the maximum number of events or syslog lines in one answer.
const maxNumbered = 1000

// pageByNumber returns a page of items that are ordered by number, such as events. The cursor for the next page is the
// number of the last item on this page.
func pageByNumber[T any](
	p httpapi.Page, read func(after int64, descending bool, limit int) ([]T, error), number func(T) int64,
) (out httpapi.List[T], err error) {
	var after int64
	if p.After != "" {
		if after, err = strconv.ParseInt(p.After, 10, 64); err != nil || after < 0 {
			return out, inventory.Invalid("after", "use the value of next from the previous page", "invalid cursor %q", p.After)
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
	found, err := read(after, descending, limit+1) // reading one item more shows whether there is a next page
	if err != nil {
		return out, err
	}
	return httpapi.Cut(found, limit, func(x T) string { return strconv.FormatInt(number(x), 10) }), nil
}
