package cli

import (
	"io"
	"net/url"
	"slices"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/client"
)

// A listing describes the command "list" of one kind of object, or only its table.
type listing[T any] struct {
	cmd     *cobra.Command
	route   string
	filters []filter
	sort    string // key by which the server sorts the pages of the list; "": the list has no pages
	empty   string // printed if the list is empty
	head    []string
	wide    []string // those of head that only --output wide shows
	fit     bool     // the last column is a text that is cut to fit, except with --output wide
	row     func(v T) []any
}

// listCommand returns the command "list" that l describes.
func listCommand[T any](o *Options, l listing[T]) *cobra.Command {
	l.cmd.Use, l.cmd.Args, l.cmd.Aliases = "list", cobra.NoArgs, []string{"ls"}
	filters := l.filters
	if l.sort != "" {
		filters = append(slices.Clone(filters), pageFilters(l.sort)...)
	}
	query := addFilters(l.cmd, filters)
	watch := l.cmd.Flags().
		BoolP("watch", "w", false, "watch until Ctrl-C: on a terminal, show the list again when it changes; else print the changed rows")

	return o.NewCommand(l.cmd, func(c *Call) error {
		q, err := query()
		if err != nil {
			return err
		}
		if *watch {
			return l.watch(c, q)
		}
		return getAndShow(c, client.WithQuery(l.route, q), func(w io.Writer, v client.List[T]) error { return l.print(c, w, q, v) })
	})
}

// print prints a page of a list as a table. q is the query that selected it.
func (l listing[T]) print(c *Call, w io.Writer, q url.Values, page client.List[T]) error {
	if len(page.Items) == 0 {
		switch {
		case q.Has("after") || slices.ContainsFunc(l.filters, func(f filter) bool { return q.Has(f.name) }):
			c.Note("nothing matches these flags")
		case l.empty != "":
			c.Note("%s", l.empty)
		}
		return nil
	}

	c.notePage(page.Next)
	return l.printRows(c, w, page.Items)
}

// printRows prints a table of items.
func (l listing[T]) printRows(c *Call, w io.Writer, items []T) error {
	t := l.table(c, w)
	for _, item := range items {
		t.Row(shown(c, l, l.row(item))...)
	}
	return t.Flush()
}

// table returns a table with the head of the list.
func (l listing[T]) table(c *Call, w io.Writer) *Table {
	t := NewTable(w, shown(c, l, l.head)...)
	t.fit = l.fit && c.output != outputWide
	return t
}

// shown returns the cells of a row that the format of output includes.
func shown[T, E any](c *Call, l listing[T], row []E) (out []E) {
	for i, cell := range row {
		if c.output == outputWide || !slices.Contains(l.wide, l.head[i]) {
			out = append(out, cell)
		}
	}
	return out
}

// notePage prints the flag that gets the next page. next is the cursor of that page; "": there is none.
func (c *Call) notePage(next string) {
	if next != "" {
		c.Note("there are more; show the next page with: --after %s", next)
	}
}
