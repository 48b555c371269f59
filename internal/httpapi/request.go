package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/inventory"
)

// A Body describes the request body of a route. The zero value means that the body is not read.
type Body struct {
	Limit    int64  // maximum size in bytes; 0 means that the body is not read
	Optional bool   // an empty body is valid and sets no field
	Lenient  bool   // unknown fields and trailing text are ignored: the client may be of a newer release
	Type     string // media type that the request must name; "" means any
	// Within is the time limit for reading the body; 0 means no limit.
	Within time.Duration
}

// The bodies of most routes: no body, a JSON object of at most 1 MiB, or such an object that may be missing.
var (
	NoBody       = Body{}
	JSON         = Body{Limit: 1 << 20}
	OptionalJSON = Body{Limit: 1 << 20, Optional: true}
	// MergePatch is a change of an object (RFC 7396).
	MergePatch = Body{Limit: 8 << 20, Type: "application/merge-patch+json"}
)

// Empty is a request or an answer without fields.
type Empty struct{}

// Text is an answer that Handle sends as plain text instead of JSON.
type Text string

// A Versioned answer names its version, which Handle sends as the header ETag.
type Versioned interface{ ETag() string }

// A Validator is a request with a Validate method, which Decode calls after it has set the fields.
type Validator interface{ Validate() error }

// Handle returns a handler that decodes the request into a Q, calls do, and sends the result with the given status.
//
// Fields of Q or of its embedded structs that have the tag path, query or header are set from that part of the request.
// They must also have the tag `json:"-"`. All other fields are set from the JSON body. With NoBody, a body other than {} is refused.
func Handle[Q, A any](status int, body Body, do func(context.Context, Q) (A, error)) gin.HandlerFunc {
	return func(c *gin.Context) {
		var q Q
		err := Decode(c, body, &q)
		if err == nil && body.Limit == 0 && decodeBody(c, OptionalJSON, &Empty{}) != nil {
			err = inventory.Invalid("", "leave the body out", "this request takes no body") // else it would ask for more than is done
		}
		var a A
		if err == nil {
			a, err = do(c.Request.Context(), q)
		}
		if err != nil {
			Fail(c, err)
			return
		}

		if v, ok := any(a).(Versioned); ok {
			c.Header("ETag", v.ETag())
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

// Decode sets the fields of the struct that q points to, from the body and the other parts of the request. An unknown query
// parameter is an error: a filter that is misspelt would select everything. If q is a Validator, Decode then validates it.
func Decode(c *gin.Context, body Body, q any) error {
	if body.Limit > 0 {
		if err := decodeBody(c, body, q); err != nil {
			return err
		}
	}
	known := map[string]bool{}
	if err := setFields(c, reflect.ValueOf(q).Elem(), known); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(c.Request.URL.Query())) {
		if !known[name] && !body.Lenient {
			return inventory.Invalid(name, "see GET /v1/openapi.yaml", "unknown query parameter")
		}
	}
	if v, ok := q.(Validator); ok {
		return v.Validate()
	}

	return nil
}

// setFields sets the fields of the struct v that have the tag path, query or header, and adds the names of queries to known.
func setFields(c *gin.Context, v reflect.Value, known map[string]bool) error {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous && f.Type.Kind() == reflect.Struct {
			if err := setFields(c, v.Field(i), known); err != nil {
				return err
			}
		}
		if name, ok := f.Tag.Lookup("path"); ok {
			v.Field(i).SetString(c.Param(name))
		}
		if name, ok := f.Tag.Lookup("header"); ok {
			v.Field(i).SetString(c.GetHeader(name))
		}
		if name, ok := f.Tag.Lookup("query"); ok {
			known[name] = true
			if err := setQuery(v.Field(i), name, c.Query(name)); err != nil {
				return err
			}
		}
	}

	return nil
}

// setQuery sets a field from a query parameter. It leaves the field unchanged if the parameter is empty. Negative
// numbers are errors.
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

// decodeBody decodes the JSON body of the request into q. The limits for its size and time, and what else is allowed, are in body.
func decodeBody(c *gin.Context, body Body, q any) error {
	if kind, _, err := mime.ParseMediaType(c.GetHeader("Content-Type")); body.Type != "" && (err != nil || kind != body.Type) {
		return Refuse(http.StatusUnsupportedMediaType, CodeInvalid, "the body must have the Content-Type "+body.Type, "")
	}
	if body.Within > 0 {
		// Without a deadline, any host on the network could block a connection with a slow body. The deadline is removed after the body,
		// because the answer of a long poll may take longer.
		rc := http.NewResponseController(c.Writer)
		if err := rc.SetReadDeadline(time.Now().Add(body.Within)); err == nil {
			defer func() { _ = rc.SetReadDeadline(time.Time{}) }() // fails only on a closed connection
		}
	}
	return ReadJSON(http.MaxBytesReader(c.Writer, c.Request.Body, body.Limit), body, q)
}

// ReadJSON decodes one JSON value from r into v. Unless body.Lenient is set, unknown fields and trailing text are
// errors. An empty body is an error unless body.Optional is set.
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
		return inventory.Invalid("", "send one JSON value", "unexpected text after the JSON value")
	}

	return nil
}

// ReadField decodes raw, the JSON of one field of a body, into v. field is its name. Unknown fields are errors.
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

// describeJSONError returns an error for the client that describes err: the texts of encoding/json contain Go types. field is the field
// of the body that was decoded; "" means the whole body.
func describeJSONError(field string, err error) error {
	const remedy = "see GET /v1/openapi.yaml"
	var wrong *json.UnmarshalTypeError
	var described inventory.Problems
	switch {
	case errors.As(err, &described): // by a type that decodes its own JSON
		for i, p := range described {
			described[i].Field = strings.Trim(field+"."+p.Field, ".")
		}
		return described
	case errors.As(err, &wrong):
		at := strings.Trim(field+"."+wrong.Field, ".")
		return inventory.Invalid(at, remedy, "unexpected value of the JSON type %s", wrong.Value)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return inventory.Invalid(field, remedy, "the JSON is incomplete")
	}
	return inventory.Invalid(field, remedy, "%s", strings.TrimPrefix(err.Error(), "json: "))
}
