package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/api"
)

func notifyCmd(o *options) *cobra.Command {
	return group("notify", "Who is told when a person is needed", "  ingot notify test", &cobra.Command{
		Use: "test", Short: "Send a notice now, to try out whether notices arrive", Args: cobra.NoArgs, Example: "  ingot notify test",
		Long: `Send a notice now, past those that wait, and tell what the receiver says. The
receiver and the secret stand under notify: in the server's configuration.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			type answer struct {
				ID string `json:"id"`
			}
			a, err := ask[answer](cmd.Context(), c, "POST", path("notices", "test"), nil)
			if err != nil {
				return err
			}
			return show(cmd, o, a, func(w io.Writer, x answer) error {
				_, err := fmt.Fprintf(w, "The receiver took notice %s.\n", x.ID)
				return err
			})
		},
	})
}

// noticeText is how it stands with notices in one line.
func noticeText(n api.NotifyStatus) string {
	parts := []string{n.Receiver}
	if n.Waiting > 0 {
		parts = append(parts, fmt.Sprintf("%d wait, the oldest since %s", n.Waiting, when(n.Oldest)))
	}
	if n.Error != "" {
		parts = append(parts, "last attempt: "+inert(n.Error))
	}
	if n.Dropped > 0 {
		parts = append(parts, fmt.Sprintf("%d were given up", n.Dropped))
	}
	if !n.Sent.IsZero() {
		parts = append(parts, "last taken "+ago(n.Sent))
	}
	return strings.Join(parts, "; ")
}
