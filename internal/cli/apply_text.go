package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/documents/importfile"
	"github.com/ingotmetal/ingot/inventory"
)

// An applied is the result of applying documents, in the form of the JSON output.
type applied struct {
	Stored   bool                 `json:"stored"` // false after a dry run
	Objects  []appliedObject      `json:"objects"`
	Ignored  []importfile.Ignored `json:"ignored"`
	Starts   []importfile.Start   `json:"starts"`
	Started  []json.RawMessage    `json:"started,omitempty"` // results of the commands of Starts
	Warnings []string             `json:"warnings"`
}

type appliedObject struct {
	importfile.Place
	inventory.Applied
}

// isRead is the result for an object that was not compared with the server (--offline).
const isRead = "read"

func newApplied(read importfile.Import) applied {
	return applied{
		Objects: []appliedObject{}, Warnings: append([]string{}, read.Warnings...),
		Ignored: append([]importfile.Ignored{}, read.Ignored...), Starts: append([]importfile.Start{}, read.Starts...),
	}
}

// show prints what was applied, the ignored keys, and the commands that start runs and BMC jobs, unless they are started now.
func (x applied) show(c *Call, starting bool) error {
	printWarnings(c, x.Warnings)
	return ShowValue(c, x, func(w io.Writer) error {
		for _, o := range x.Objects {
			fmt.Fprintf(w, "%s %s %s%s\n", o.Kind, Inert(o.Name), o.Result, Inert(prefixed(": ", o.Why)))
			if o.Foreign != nil {
				fmt.Fprintf(w, "  conflict: belongs to the set %q\n", *o.Foreign)
			}
			for _, change := range o.Changes {
				mark := ""
				if change.Conflict {
					mark = "conflict: "
				}
				fmt.Fprintf(w, "  %s%s\n", mark, Inert(importfile.Change(change).String()))
			}
		}
		for n, i := range x.Ignored {
			if n == 0 {
				fmt.Fprintln(w, "\nnot stored:")
			}
			fmt.Fprintf(w, "  %s: %s: %s: %s\n", i.Place, Inert(i.Object), Inert(i.Key), Inert(i.Why))
		}
		if !starting {
			for n, s := range x.Starts {
				if n == 0 {
					fmt.Fprintln(w, "\nnot started; start with:")
				}
				fmt.Fprintf(w, "  %s   # %s\n", Inert(s.Command), Inert(s.Object))
			}
		}
		if !x.Stored {
			fmt.Fprintln(w, "\nnothing was stored")
		}
		return nil
	})
}

// prefixed returns prefix and s, or "" if s is empty.
func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// locateApplied adds file and line to the problems in err that the server found in the documents.
func locateApplied(err error, read importfile.Import) error {
	var e *client.Error
	if errors.As(err, &e) {
		if len(e.Problems) == 0 && len(read.Machines)+len(read.Templates) > 1 {
			return err
		}
		e.Problems = read.Locate(e.Problems)
	}
	return err
}
