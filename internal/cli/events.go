package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

func workflowEventsCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "events {MACHINE | RUN}", Short: "List the events of a run, in order",
		Example: `  ingot workflow events node-1
  ingot workflow events node-1 --limit 20 --sort -seq   # the newest 20
  ingot workflow events node-1 -f          # as it happens, until the run ends
  ingot workflow events node-1 -f -o json  # one event per line, as JSON`,
	}

	follow, page := followFlags(cmd, "the run ends")

	return runCommand(o, cmd, func(c *Call, a client.Answer[inventory.Workflow]) error {
		if *follow {
			return followEvents(c, a.Value.Run)
		}

		q, err := page()
		if err != nil {
			return err
		}
		events, err := getEvents(c, a.Value.Run, q)
		if err != nil {
			return err
		}

		return show(c, events, func(w io.Writer, l client.List[inventory.Event]) error {
			if len(l.Items) == 0 {
				c.Note("nothing was recorded")
				return nil
			}
			c.notePage(l.Next)
			head := []string{"SEQ", "AT", "BOOT", "KIND", "COUNT", "BY", "MESSAGE"}
			return PrintTable(w, head, l.Items, func(e inventory.Event) []any {
				return []any{e.Seq, human.Time(e.At), e.Boot, e.Kind, e.Count, e.By, eventText(e)}
			})
		})
	})
}

// getEvents returns one page of a run's events if the query page has a limit, otherwise all events that the query
// selects.
func getEvents(c *Call, run string, page url.Values) (client.Answer[client.List[inventory.Event]], error) {
	route := client.WithQuery(client.Path("workflows", run, "events"), page)
	if page.Has("limit") {
		return get[client.List[inventory.Event]](c, route)
	}
	return getAll[inventory.Event](c, route)
}

// eventText returns the message of an event. If the end of an action has no message, it returns the result of the action.
func eventText(e inventory.Event) string {
	if e.Message != "" || e.Kind != inventory.EventActionDone {
		return e.Message
	}

	var r action.Result
	if err := json.Unmarshal(e.Detail, &r); err != nil {
		return ""
	}

	return strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Key, r.State, r.Message))
}

// followEvents prints events as they arrive, until the run has ended.
func followEvents(c *Call, run string) error {
	last := inventory.Workflow{Run: run}
	news := follower[inventory.Event]{
		c: c, route: client.Path("workflows", run, "events"), seq: func(e inventory.Event) int64 { return e.Seq },
		line: func(e inventory.Event) string {
			return strings.TrimRight(fmt.Sprintf("%s  %-18s %s", human.Time(e.At), e.Kind, Inert(eventText(e))), " ")
		},
	}

	return c.poll(c.pollEvery, func() (over bool, err error) {
		// Read the state before the events, so that no event before the final state is missed.
		x, err := get[inventory.Workflow](c, client.Path("workflows", run))
		if err != nil {
			return false, err
		}
		last = x.Value
		n, err := news.print()
		return inventory.Final(last.State) && n == 0, err
	}, func() error { return runGoesOn(c, last) })
}

// A follower prints the items of a growing list as they are added.
type follower[T any] struct {
	c     *Call
	route string
	seq   func(T) int64
	line  func(T) string
	after int64 // seq of the last item that was printed
}

// print prints the items that were added since its last call, one per line, and returns their number.
func (f *follower[T]) print() (n int, err error) {
	l, err := get[client.List[T]](f.c, fmt.Sprintf("%s?after=%d", f.route, f.after))
	if err != nil {
		return 0, err
	}
	for _, x := range l.Value.Items {
		f.after = max(f.after, f.seq(x))
		if f.c.output != "json" {
			f.c.Println(f.line(x))
			continue
		}
		b, err := json.Marshal(x)
		if err != nil {
			return 0, err
		}
		f.c.Println(human.Escape(string(b)))
	}
	return len(l.Value.Items), nil
}

// followFlags adds --follow, which prints a list as it grows, and the flags that select one page of the list. The argument
// until is the end of the help of --follow: it says when the command ends.
func followFlags(cmd *cobra.Command, until string) (follow *bool, page func() (url.Values, error)) {
	follow = cmd.Flags().BoolP("follow", "f", false, "print new entries as they arrive, until "+until)
	page = addFilters(cmd, pageFilters("seq"))
	for _, f := range pageFilters("seq") {
		cmd.MarkFlagsMutuallyExclusive("follow", f.name)
	}
	return follow, page
}
