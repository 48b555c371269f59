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
		Use: "events {MACHINE | RUN}", Short: "Show what happened in a run, in order",
		Example: `  ingot workflow events node-1
  ingot workflow events node-1 --limit 20 --sort -seq   # the newest 20
  ingot workflow events node-1 -f          # as it happens, until the run ends
  ingot workflow events node-1 -o json     # with follow: one event per line`,
	}

	follow := cmd.Flags().BoolP("follow", "f", false, "go on until the run ends")
	page := addFilters(cmd, pageFilters("seq"))
	for _, f := range pageFilters("seq") {
		cmd.MarkFlagsMutuallyExclusive("follow", f.name)
	}

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
			t := NewTable(w, "SEQ", "AT", "BOOT", "KIND", "COUNT", "BY", "MESSAGE")
			for _, e := range l.Items {
				t.Row(e.Seq, human.Time(e.At), e.Boot, e.Kind, e.Count, e.By, eventText(e))
			}
			c.notePage(l.Next)
			return t.Flush()
		})
	})
}

// getEvents returns the page of a run's events that the flags select, or all events if no
// limit is set.
func getEvents(c *Call, run string, page url.Values) (client.Answer[client.List[inventory.Event]], error) {
	route := client.WithQuery(client.Path("workflows", run, "events"), page)
	if page.Has("limit") {
		return get[client.List[inventory.Event]](c, route)
	}
	return getAll[inventory.Event](c, route)
}

// eventText returns the message of an event, or its result.
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

// followEvents prints events as they arrive, until the run is over.
func followEvents(c *Call, run string) error {
	last := inventory.Workflow{Run: run}
	var after int64

	return c.poll(c.pollEvery, func() (over bool, err error) {
		// Read the state first, so that no event before the final state is missed.
		x, err := get[inventory.Workflow](c, client.Path("workflows", run))
		if err != nil {
			return false, err
		}
		last = x.Value
		es, err := get[client.List[inventory.Event]](c, client.Path("workflows", run, "events")+fmt.Sprintf("?after=%d", after))
		if err != nil {
			return false, err
		}
		for _, e := range es.Value.Items {
			after = max(after, e.Seq)
			if err := printEvent(c, e); err != nil {
				return false, err
			}
		}
		return inventory.Final(last.State) && len(es.Value.Items) == 0, nil
	}, func() error { return runGoesOn(c, last) })
}

func printEvent(c *Call, e inventory.Event) error {
	if c.output == "json" {
		b, err := json.Marshal(e)
		if err != nil {
			return err
		}
		c.Println(human.Escape(string(b)))
		return nil
	}

	line := fmt.Sprintf("%s  %-18s %s", human.Time(e.At), e.Kind, Inert(eventText(e)))
	c.Println(strings.TrimRight(line, " "))
	return nil
}
