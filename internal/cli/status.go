package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

func statusCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "status", Short: "Show the server's status", Args: cobra.NoArgs,
		Example: "  ingot status\n  ingot status --output json",
	}, func(c *Call) error {
		return getAndShow(c, client.Path("status"), func(w io.Writer, s apitypes.Status) error {
			t := NewTable(w)
			// A server that is not the active one among its peers reports only its role.
			if s.Site != nil && s.Temporal == (apitypes.TemporalStatus{}) {
				t.Field("server", fmt.Sprintf("%s, version %s", c.remote.URL(), s.Version))
				siteFields(t, *s.Site)
				return t.Flush()
			}
			up := human.Span(time.Duration(s.UptimeSeconds) * time.Second)
			t.Field("server", fmt.Sprintf("%s, version %s, up %s", c.remote.URL(), s.Version, up))
			statusFields(t, s)
			return t.Flush()
		})
	})
}

// statusFields adds lines to t that describe an active server.
func statusFields(t *Table, s apitypes.Status) {
	t.Field("netboot", netbootStatus(s.Netboot))
	for _, r := range s.Netboot.Rivals {
		t.Field("second DHCP", Inert(r.String())+", "+human.Ago(r.Last)+": stop that server, exclude Ingot's machines, or set netboot.dhcp")
	}
	t.Field("Temporal", temporalStatus(s.Temporal))
	t.Field("secrets", map[string]string{
		"ok": "ok", "missing": "the key file is missing; see: ingot secret status",
		"wrong": "the key file belongs to another server; see: ingot secret status",
	}[s.Secrets])
	t.Field("inventory", s.Inventory.Error)
	if s.Notify != nil {
		t.Field("notices", noticeStatus(*s.Notify))
	}

	if s.Backup != nil {
		t.Field("backup", backupStatus(*s.Backup))
	}

	for _, d := range s.Space {
		t.Field("space", spaceStatus(d))
	}

	t.Field("machines", s.Machines)
	t.Field("open runs", s.OpenWorkflows)
	for _, w := range s.Waiting {
		t.Field("waits", fmt.Sprintf("%s, %s: %s", w.Name, human.Ago(w.Since), shorten(Inert(firstLine(w.Text)), 200)))
		t.Field("answer", w.Next)
	}
	if s.MoreWaiting {
		t.Field("waits", "more: ingot workflow list --state waiting")
	}

	if r := s.Restored; r != nil {
		t.Field("restored", fmt.Sprintf("from the backup of %s, %s", human.Time(r.Taken), human.Ago(r.At)))
		for _, h := range r.Held {
			if h.Later {
				t.Field("held", h.Machine+": its run began after the backup, and is being cancelled")
				continue
			}
			t.Field("held", fmt.Sprintf("%s: its run began before the restore; look at the machine, "+
				"then: ingot workflow decide %s --choice abort", h.Machine, h.Machine))
		}
	}
	if s.Site != nil {
		siteFields(t, *s.Site)
	}

	for _, r := range s.Retrying {
		t.Field("retrying", r)
	}
	if s.Panics > 0 {
		t.Field("panics", fmt.Sprintf("%d; the log names the packet or request of each: report this defect", s.Panics))
	}
}

func netbootStatus(n apitypes.NetbootStatus) string {
	switch {
	case n.Off:
		return cmp.Or(n.Message, "off")
	case len(n.Relays) > 0:
		relays := strings.Join(n.Relays, ", ")
		return strings.TrimSpace("only through the relays " + relays + ", as " + n.Address + "  " + n.Message)
	}

	return strings.TrimSpace("on " + strings.Join(n.Interfaces, ", ") + "  " + n.Message)
}

func temporalStatus(s apitypes.TemporalStatus) string {
	switch {
	case s.Ready:
		ui := s.UI
		if ui == "" && s.UILinks {
			ui = "(open its UI with: ingot temporal ui)"
		}
		return strings.TrimSpace("ready at " + s.Address + "  " + ui)
	case s.Error != "":
		since := ""
		if !s.Since.IsZero() {
			since = fmt.Sprintf(" since %s (%s)", human.Time(s.Since), human.Ago(s.Since))
		}
		return "not ready" + since + ": " + Inert(s.Error)
	}
	return "starting"
}

// noticeStatus describes the delivery of notices in one line.
func noticeStatus(n apitypes.NotifyStatus) string {
	parts := []string{n.Receiver}
	if n.Waiting > 0 {
		parts = append(parts, fmt.Sprintf("%d waiting, the oldest since %s", n.Waiting, human.Time(n.Oldest)))
	}
	if n.Error != "" {
		parts = append(parts, "last attempt: "+Inert(n.Error))
	}
	if n.Dropped > 0 {
		parts = append(parts, fmt.Sprintf("%d given up", n.Dropped))
	}
	if !n.Sent.IsZero() {
		parts = append(parts, "last accepted "+human.Ago(n.Sent))
	}

	return strings.Join(parts, "; ")
}

// backupStatus describes the stored backups in one line.
func backupStatus(b apitypes.BackupStatus) string {
	text := "the newest verified one is of " + human.Ago(b.Verified) + ", in " + b.Dir
	if b.Verified.IsZero() {
		text = "none in " + b.Dir + " yet; see: ingot backup run --help"
	}
	if b.Error != "" {
		text += "; " + Inert(b.Error)
	}
	return text
}

// spaceStatus describes a disk in one line.
func spaceStatus(d apitypes.SpaceStatus) string {
	text := fmt.Sprintf("%s free in %s", human.Size(d.FreeBytes), d.Directory)
	if r := d.Reserve; r != nil && r.Held {
		text += fmt.Sprintf(", and %s in reserve", human.Size(r.SizeBytes))
	}
	if d.Message != "" {
		text += "  " + d.Message
	}

	return text
}

// tokenExample sets the mode of the file before it writes the token. Otherwise every local user could read the token.
const tokenExample = "  install -m 600 -o prometheus -g prometheus /dev/null /etc/prometheus/ingot.token\n" +
	"  ingot metrics token > /etc/prometheus/ingot.token"

func metricsCommand(o *Options) *cobra.Command {
	return Group("metrics", "Metrics for Prometheus",
		"  ingot metrics show\n"+tokenExample,
		metricsShowCommand(o), metricsTokenCommand(o))
}

func metricsShowCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "show", Short: "Print the server's metrics in Prometheus format", Args: cobra.NoArgs,
		Example: "  ingot metrics show | promtool check metrics",
	}, func(c *Call) error {
		resp, err := c.Request(http.MethodGet, "/metrics", nil, 0)
		if err != nil {
			return err
		}
		_, err = io.Copy(c.OutOrStdout(), resp.Body)
		return errors.Join(err, resp.Body.Close())
	})
}

func metricsTokenCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "token [NAME]", Short: "Create and print a token that can only read /metrics", Args: cobra.MaximumNArgs(1),
		Long: `Create a token with which Prometheus can read /metrics, and nothing else, and print it.
The token cannot be printed again. Without NAME, the token is called prometheus.`,
		Example: tokenExample,
	}
	replace := cmd.Flags().Bool("replace", false, "if a token with the same name exists, revoke it first")

	return o.NewCommand(cmd, func(c *Call) error {
		q := apitypes.TokenRequest{Name: "prometheus", Role: inventory.RoleMetrics, Replace: *replace}
		if len(c.Args) > 0 {
			q.Name = c.Args[0]
		}
		return c.createToken(q)
	})
}

func notifyCommand(o *Options) *cobra.Command {
	type notice struct {
		ID string `json:"id"`
	}

	test := o.NewCommand(&cobra.Command{
		Use: "test", Short: "Send a test notice to check that notices arrive", Args: cobra.NoArgs,
		Long: `Send a test notice immediately, before notices that are queued, and show whether the
receiver accepts the notice. The receiver and the secret are set in the section notify
of the server's configuration.`,
		Example: "  ingot notify test",
	}, func(c *Call) error {
		return postAndShow(c, client.Path("notices", "test"), nil, text(func(n notice) string {
			return "The receiver accepted notice " + n.ID + "."
		}))
	})

	return Group("notify", "Notices to a webhook, for example when an operator is needed", "  ingot notify test", test)
}
