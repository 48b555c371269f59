package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	maxTableWidth = 120 // columns of a terminal
	minFitted     = 20  // of them, at least, for a last column that is cut to fit
)

// A Table aligns text in columns. It makes each cell safe for a terminal, with Inert. On a terminal, cells of the type State have a colour.
type Table struct {
	w      io.Writer
	colour bool
	fit    bool // the last column is cut so that a row is no wider than maxTableWidth
	rows   [][]cell
	widths []int // of the columns so far; Flush keeps them
}

type cell struct{ text, colour string }

// State is the state of a run, a machine or a check, as the cell of a Table.
type State string

// PrintTable prints a table with a row for each item.
func PrintTable[T any](w io.Writer, head []string, items []T, row func(item T) []any) error {
	t := NewTable(w, head...)
	for _, item := range items {
		t.Row(row(item)...)
	}
	return t.Flush()
}

// NewTable returns a table that Flush writes to w.
func NewTable(w io.Writer, head ...string) *Table {
	t := &Table{w: w}
	// The table writes colours around cells that are safe. The terminal itself would replace them.
	if file, ok := terminalOf(w); ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" {
		t.w, t.colour = file, true
	}
	if len(head) > 0 {
		cells := make([]any, len(head))
		for i, h := range head {
			cells[i] = h
		}
		t.Row(cells...)
	}

	return t
}

// Row adds a row; an empty cell is printed as –.
func (t *Table) Row(cells ...any) {
	row := make([]cell, len(cells))
	for i, c := range cells {
		row[i].text = Inert(fmt.Sprint(c))
		if s, ok := c.(State); ok && t.colour {
			row[i].colour = s.colour()
		}
		if row[i].text == "" {
			row[i].text = "–"
		}

		if i == len(t.widths) {
			t.widths = append(t.widths, 0)
		}
		if i < len(cells)-1 { // nothing is aligned with the end of the last cell
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(row[i].text))
		}
	}
	t.rows = append(t.rows, row)
}

// Field adds a line "name: value"; an empty value is left out.
func (t *Table) Field(name string, value any) {
	if v := fmt.Sprint(value); v != "" {
		t.Row(name+":", value)
	}
}

// Flush writes the rows that were added since the last Flush.
func (t *Table) Flush() error {
	var b strings.Builder
	for _, row := range t.rows {
		begin := 0
		for i, c := range row {
			text, padding := c.text, ""
			if i < len(row)-1 {
				padding = strings.Repeat(" ", t.widths[i]-utf8.RuneCountInString(text)+2)
				begin += t.widths[i] + 2
			} else if t.fit {
				text = shorten(text, max(minFitted, maxTableWidth-begin))
			}
			if c.colour != "" {
				text = c.colour + text + "\x1b[0m"
			}
			b.WriteString(text + padding)
		}
		b.WriteString("\n")
	}

	t.rows = nil
	_, err := io.WriteString(t.w, b.String())
	return err
}

// colour returns the escape sequence that begins the colour of s, or "" for a state that is neither good nor bad.
func (s State) colour() string {
	const green, yellow, red = "\x1b[32m", "\x1b[33m", "\x1b[31m"
	if strings.HasSuffix(string(s), inventory.PhaseWaiting) {
		return yellow
	}

	word, _, _ := strings.Cut(string(s), " ")
	switch word {
	case inventory.StateSuccess, inventory.StepDone, "ok":
		return green
	case inventory.StateFailed, inventory.StateTimeout, inventory.StepFailed, inventory.StandingQuarantined, "fail":
		return red
	case inventory.StateCancelled, "warn":
		return yellow
	}
	return ""
}
