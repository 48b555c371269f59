package api

import (
	"context"
	"net/http"

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
