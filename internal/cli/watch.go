package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
)

// watch shows the list that q selects until Ctrl-C.
func (l listing[T]) watch(c *Call, q url.Values) error {
	w := listWatcher[T]{listing: l, c: c, query: q, seen: map[string]seenItem{}}
	return c.poll(c.watchEvery, w.look, func() error { return nil })
}

// listWatcher shows the changes of a list.
type listWatcher[T any] struct {
	listing[T]
	c     *Call
	query url.Values
	away  bool // the server did not answer the last request

	// Without a terminal:
	rows *Table              // nil before the first row
	seen map[string]seenItem // by object
}

// A seenItem is what was read of an object last, and the cells of the table that were printed of it.
type seenItem struct{ raw, cells string }

// look reads the list once, and shows it or its changes.
func (w *listWatcher[T]) look() (over bool, err error) {
	a, err := getWithin[client.List[T]](w.c, client.WithQuery(w.route, w.query))
	switch {
	case errors.Is(err, client.ErrUnavailable):
		if !w.away {
			w.c.Note("%v; asking the server again", err)
		}
		w.away = true
		return false, nil
	case err != nil:
		return false, err
	}
	w.away = false

	if screen, ok := terminalOf(w.c.OutOrStdout()); ok && w.c.forPeople() {
		return false, w.redraw(screen, a.Value)
	}
	return false, w.printChanged(a)
}

// redraw shows the list in place of what the terminal shows.
func (w *listWatcher[T]) redraw(screen *os.File, page client.List[T]) error {
	const home, clear = "\x1b[H", "\x1b[2J"
	if _, err := io.WriteString(screen, home+clear); err != nil {
		return err
	}
	return w.print(w.c, w.c.OutOrStdout(), w.query, page)
}

// printChanged prints the objects that are new or have changed since the last call.
func (w *listWatcher[T]) printChanged(a client.Answer[client.List[T]]) error {
	items, err := listItems(a.Raw)
	if err != nil || len(a.Value.Items) == 0 {
		return err
	}
	if len(w.seen) == 0 {
		w.c.notePage(a.Value.Next)
	}

	for i, item := range items {
		var x struct{ Machine, Name, Run string }
		if err := json.Unmarshal(item, &x); err != nil {
			return fmt.Errorf("reading the server's answer: %w", err)
		}
		key := fmt.Sprint(x)
		now, last := seenItem{raw: string(item)}, w.seen[key]
		if now.raw == last.raw {
			continue // the cells may differ: some tell how long ago something was
		}
		var cells []any
		if w.c.forPeople() {
			cells = shown(w.c, w.listing, w.row(a.Value.Items[i]))
			now.cells = fmt.Sprint(cells)
		}
		w.seen[key] = now
		if now.cells != "" && now.cells == last.cells {
			continue
		}
		if err := w.printItem(item, cells); err != nil {
			return err
		}
	}
	if w.rows == nil {
		return nil
	}
	return w.rows.Flush()
}

// printItem prints an object for a program, or adds its cells to the table.
func (w *listWatcher[T]) printItem(raw json.RawMessage, cells []any) error {
	out := w.c.OutOrStdout()
	switch {
	case w.c.forPeople():
		if w.rows == nil {
			w.rows = w.table(w.c, out)
		}
		w.rows.Row(cells...)
		return nil
	case w.c.output == outputJSON: // one object per line
		_, err := fmt.Fprintln(out, human.Escape(string(raw)))
		return err
	case w.c.output == outputYAML:
		if _, err := io.WriteString(out, "---\n"); err != nil {
			return err
		}
	}
	return w.c.print(out, raw, nil)
}
