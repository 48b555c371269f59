package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

type thing struct {
	Name  string `path:"name" json:"-"`
	Count int    `query:"count" json:"-"`
	Open  bool   `query:"open" json:"-"`
	Text  string `json:"text"`
}

// Validate refuses one word.
func (q *thing) Validate() error {
	if q.Text == "refused" {
		return inventory.Invalid("text", "", "is refused")
	}
	return nil
}

func serve(t *testing.T, body Body, do func(context.Context, thing) (thing, error), path, text string) *httptest.ResponseRecorder {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	r := NewRouter(log, guard.New(log))
	AddRoutes(r, []Route{{Method: "POST", Path: "/things/:name", Handler: Handle(http.StatusCreated, body, do)}})
	rec := httptest.NewRecorder()
	r.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(text)))
	return rec
}

func TestRequestsAreDecodedStrictly(t *testing.T) {
	var got thing
	keep := func(_ context.Context, q thing) (thing, error) { got = q; return q, nil }
	rec := serve(t, JSON, keep, "/things/a?count=3&open=true", `{"text":"x"}`)
	require.Equal(t, http.StatusCreated, rec.Code)
	require.JSONEq(t, `{"text":"x"}`, rec.Body.String())
	require.Equal(t, thing{Name: "a", Count: 3, Open: true, Text: "x"}, got)
	require.Equal(t, http.StatusCreated, serve(t, OptionalJSON, keep, "/things/a", "").Code)
	require.Equal(t, http.StatusCreated, serve(t, Body{Limit: 100, Lenient: true}, keep, "/things/a?other=1", `{"other":1}`).Code)

	for path, text := range map[string]string{
		"/things/a":         `{"other":"x"}`,
		"/things/b":         `{"text":"x"} more`,
		"/things/c":         "",
		"/things/d":         `{"text":1}`,
		"/things/e":         `{"text":"refused"}`,
		"/things/f?count=x": `{}`, "/things/g?count=-1": `{}`, "/things/h?open=perhaps": `{}`,
		"/things/i":         `{"Name":"z"}`, // the path's alone
		"/things/j?cuont=3": `{}`,           // a filter that is misspelt
	} {
		require.Equal(t, http.StatusBadRequest, serve(t, JSON, keep, path, text).Code, path)
	}
	require.Equal(t, http.StatusBadRequest, serve(t, NoBody, keep, "/things/a", `{"text":"x"}`).Code)
	for _, text := range []string{"", "{}"} {
		require.Equal(t, http.StatusCreated, serve(t, NoBody, keep, "/things/a", text).Code, text)
	}
	require.Equal(t, http.StatusRequestEntityTooLarge, serve(t, Body{Limit: 5}, keep, "/things/a", `{"text":"x"}`).Code)
}

func TestErrorsAreMappedOnce(t *testing.T) {
	for want, err := range map[int]error{
		http.StatusNotFound:            inventory.ErrNotFound,
		http.StatusConflict:            inventory.Hint{Err: inventory.ErrConflict, Next: "ingot x"},
		http.StatusServiceUnavailable:  inventory.ErrMoving,
		http.StatusInsufficientStorage: ErrNoSpace,
		http.StatusGone:                Refuse(http.StatusGone, CodeGone, "gone", ""),
	} {
		rec := serve(t, NoBody, func(context.Context, thing) (thing, error) { return thing{}, err }, "/things/a", "")
		require.Equal(t, want, rec.Code)
		require.Equal(t, want == http.StatusConflict, strings.Contains(rec.Body.String(), "ingot x"))
		require.Equal(t, want == http.StatusServiceUnavailable, rec.Header().Get("Retry-After") != "")
	}
	rec := serve(t, NoBody, func(context.Context, thing) (thing, error) { panic("a test's") }, "/things/a", "")
	require.Equal(t, http.StatusInternalServerError, rec.Code)
}

func TestPagesOfNames(t *testing.T) {
	same := func(s string) string { return s }
	page := func(all string, p Page) string {
		t.Helper()
		l, err := PageByName(strings.Fields(all), p, same)
		require.NoError(t, err)
		return strings.Join(l.Items, " ") + "|" + l.Next
	}
	require.Equal(t, "b a c|", page("b a c", Page{}), "as the store has them")
	require.Equal(t, "a b|b", page("b a c", Page{Limit: 2}))
	require.Equal(t, "c|", page("b a c", Page{Limit: 2, After: "b"}))
	require.Equal(t, "bb c|", page("a bb c", Page{Limit: 2, After: "b"}), "b was removed and bb added")
	require.Equal(t, "c b|b", page("b a c", Page{Limit: 2, Sort: "-name"}))
	require.Equal(t, "a|", page("b a c", Page{Limit: 2, Sort: "-name", After: "b"}))
	_, err := PageByName(nil, Page{Sort: "size"}, same)
	require.ErrorIs(t, err, inventory.ErrInvalid)
}
