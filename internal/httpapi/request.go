package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/inventory"
)

// A Body describes the body that a route takes. The zero value takes none.
type Body struct {
	Limit    int64 // in bytes; 0: the body is not read
	Optional bool  // an empty body leaves the request as it is
	Lenient  bool  // unknown fields are ignored: the sender may run the next release
	// Within limits the time to read the body; 0 means no limit.
	Within time.Duration
}

// The body of most routes: an optional JSON object of at most 1 MiB.
var (
	NoBody       = Body{}
	JSON         = Body{Limit: 1 << 20}
	OptionalJSON = Body{Limit: 1 << 20, Optional: true}
)

// Empty is a request or an answer without fields.
type Empty struct{}

// Text is an answer in plain text.
type Text string

// A Validator is a request that checks its decoded values.
type Validator interface{ Validate() error }

// Handle returns a handler that decodes a Q, calls do and answers with its result and the
// given status.
//
// Fields of Q (also of embedded structs) with the tag path or query are set from the
// request's path and query and have the tag `json:"-"`. All other fields are fields of the
// JSON body.
func Handle[Q, A any](status int, body Body, do func(context.Context, Q) (A, error)) gin.HandlerFunc {
	return func(c *gin.Context) {
		var q Q
		err := Decode(c, body, &q)
		var a A
		if err == nil {
			a, err = do(c.Request.Context(), q)
		}
		if err != nil {
			Fail(c, err)
			return
		}

		switch v := any(a).(type) {
		case Empty:
			c.Status(status)
		case Text:
			c.Data(status, "text/plain; charset=utf-8", []byte(v))
		default:
			c.JSON(status, a)
		}
	}
}

// Get is Handle for a route that takes no body and answers with status 200.
func Get[Q, A any](do func(context.Context, Q) (A, error)) gin.HandlerFunc {
	return Handle(http.StatusOK, NoBody, do)
}

// Delete is Handle for a route that takes no body and answers with status 204.
func Delete[Q any](do func(context.Context, Q) error) gin.HandlerFunc {
	return Handle(http.StatusNoContent, NoBody, func(ctx context.Context, q Q) (Empty, error) {
		return Empty{}, do(ctx, q)
	})
}

// Decode reads path, query and body into q, a pointer to a struct, and validates it.
func Decode(c *gin.Context, body Body, q any) error {
	if body.Limit > 0 {
		if err := decodeBody(c, body, q); err != nil {
			return err
		}
	}
	if err := setFields(c, reflect.ValueOf(q).Elem()); err != nil {
		return err
	}
	if v, ok := q.(Validator); ok {
		return v.Validate()
	}

	return nil
}

// setFields sets the fields with the tag path or query.
func setFields(c *gin.Context, v reflect.Value) error {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous && f.Type.Kind() == reflect.Struct {
			if err := setFields(c, v.Field(i)); err != nil {
				return err
			}
		}
		if name, ok := f.Tag.Lookup("path"); ok {
			v.Field(i).SetString(c.Param(name))
		}
		if name, ok := f.Tag.Lookup("query"); ok {
			if err := setQuery(v.Field(i), name, c.Query(name)); err != nil {
				return err
			}
		}
	}

	return nil
}

// setQuery sets a field from a query parameter; numbers must not be negative.
func setQuery(field reflect.Value, name, text string) error {
	if text == "" {
		return nil
	}
	switch field.Kind() {
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return inventory.Invalid(name, "true or false", "invalid value %q", text)
		}
		field.SetBool(b)
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return inventory.Invalid(name, "", "invalid whole number %q", text)
		}
		field.SetInt(n)
	default:
		field.SetString(text)
	}

	return nil
}

// decodeBody decodes the request's JSON into q. It refuses unknown fields and trailing text.
func decodeBody(c *gin.Context, body Body, q any) error {
	if body.Within > 0 {
		// A slow body holds a connection that anyone on the network can open. The deadline
		// ends with the body, because long polls need none.
		rc := http.NewResponseController(c.Writer)
		if err := rc.SetReadDeadline(time.Now().Add(body.Within)); err == nil {
			defer func() { _ = rc.SetReadDeadline(time.Time{}) }() // fails only on a closed connection
		}
	}
	return ReadJSON(http.MaxBytesReader(c.Writer, c.Request.Body, body.Limit), body, q)
}

// ReadJSON decodes one JSON value into v according to body.
func ReadJSON(r io.Reader, body Body, v any) error {
	dec := json.NewDecoder(r)
	if !body.Lenient {
		dec.DisallowUnknownFields()
	}
	err := dec.Decode(v)
	var tooLarge *http.MaxBytesError
	switch {
	case body.Optional && errors.Is(err, io.EOF):
		return nil
	case errors.As(err, &tooLarge):
		return err
	case errors.Is(err, io.EOF):
		return inventory.Invalid("", "send JSON", "the body is empty")
	case err != nil:
		return describeJSONError("", err)
	case body.Lenient:
		return nil
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return inventory.Invalid("", "send one JSON value", "text follows the body's JSON")
	}

	return nil
}

// ReadField reads a field of a body, raw JSON, as strictly as a body.
func ReadField(field string, raw json.RawMessage, v any) error {
	if len(raw) == 0 {
		return inventory.Invalid(field, "", "is missing")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return describeJSONError(field, err)
	}

	return nil
}

// describeJSONError describes an error in a JSON body, or in its field, in JSON terms,
// because encoding/json names Go types.
func describeJSONError(field string, err error) error {
	const remedy = "see GET /v1/openapi.yaml"
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		at := strings.Trim(field+"."+wrong.Field, ".")
		return inventory.Invalid(at, remedy, "a JSON %s is invalid here", wrong.Value)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return inventory.Invalid(field, remedy, "the JSON ends too early")
	}
	return inventory.Invalid(field, remedy, "%s", strings.TrimPrefix(err.Error(), "json: "))
}
