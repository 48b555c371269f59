package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/api"
)

func statusCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Tell how the server is", Args: cobra.NoArgs, Example: "  ingot status\n  ingot status --output json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			a, err := ask[api.Status](cmd.Context(), c, "GET", path("status"), nil)
			if err != nil {
				return err
			}
			if x := a.v.Site; x != nil && a.v.Temporal == (api.TemporalStatus{}) {
				// A server that is not the site knows of nothing else.
				return show(cmd, o, a, func(w io.Writer, s api.Status) error {
					t := newTable(w)
					t.field("server", fmt.Sprintf("%s, version %s", c.base, s.Version))
					siteFields(t, *s.Site)
					return t.flush()
				})
			}
			return show(cmd, o, a, func(w io.Writer, s api.Status) error { return printStatus(w, c, s) })
		},
	}
}

func printStatus(w io.Writer, c *remote, s api.Status) error {
	t := newTable(w)
	t.field("server", fmt.Sprintf("%s, version %s, up %s", c.base, s.Version, span(time.Duration(s.UptimeSeconds)*time.Second)))
	switch {
	case s.Netboot.Off:
		t.field("netboot", orText(s.Netboot.Message, "off"))
	case len(s.Netboot.Relays) > 0:
		t.field("netboot", strings.TrimSpace("through the relays "+strings.Join(s.Netboot.Relays, ", ")+" alone, as "+s.Netboot.Address+"  "+s.Netboot.Message))
	default:
		t.field("netboot", strings.TrimSpace("on "+strings.Join(s.Netboot.Interfaces, ", ")+"  "+s.Netboot.Message))
	}
	switch {
	case s.Temporal.Ready:
		t.field("Temporal", strings.TrimSpace("ready at "+s.Temporal.Address+"  "+s.Temporal.UI))
	case s.Temporal.Error != "":
		t.field("Temporal", "not ready: "+s.Temporal.Error)
	default:
		t.field("Temporal", "starting")
	}
	t.field("secrets", map[string]string{
		"ok": "ok", "missing": "the key file is missing: ingot secret status", "wrong": "the key file is another's: ingot secret status",
	}[s.Secrets])
	if s.Inventory.Error != "" {
		t.field("inventory", inert(s.Inventory.Error))
	}
	if s.Notify != nil {
		t.field("notices", noticeText(*s.Notify))
	}
	for _, d := range s.Space {
		t.field("space", spaceText(d))
	}
	t.field("machines", s.Machines)
	t.field("open runs", s.OpenWorkflows)
	if r := s.Restored; r != nil {
		t.field("restored", fmt.Sprintf("from the backup of %s, %s", when(r.Taken), ago(r.At)))
		for _, h := range r.Held {
			t.field("held", fmt.Sprintf("%s: its run was under way in the backup; look at the machine, then: ingot workflow decide %s --choice abort", inert(h.Machine), inert(h.Machine)))
		}
	}
	if s.Site != nil {
		siteFields(t, *s.Site)
	}
	for _, r := range s.Retrying {
		t.field("retrying", r)
	}
	if s.Panics > 0 {
		t.field("panics", fmt.Sprintf("%d, each at a packet or request that the log names: report this defect", s.Panics))
	}
	return t.flush()
}

// spaceText is a disk in one line.
func spaceText(d api.SpaceStatus) string {
	text := fmt.Sprintf("%s free in %s", size(d.FreeBytes), d.Directory)
	if r := d.Reserve; r != nil && r.Held {
		text += fmt.Sprintf(", and %s in reserve", size(r.SizeBytes))
	}
	if d.Message != "" {
		text += "  " + d.Message
	}
	return text
}
