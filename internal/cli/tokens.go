package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// createToken creates a token and prints it. Nothing prints it a second time.
func (c *Call) createToken(q apitypes.TokenRequest) error {
	a, err := post[apitypes.NewToken](c, client.Path("tokens"), q)
	if err != nil {
		return err
	}
	return show(c, a, text(func(t apitypes.NewToken) string { return t.Secret }))
}

func tokenCommand(o *Options) *cobra.Command {
	return Group("token", "Named tokens of operators and programs, each with a role",
		"  ingot token create alice --role operate --expires 90d\n  ingot token list\n  ingot token revoke alice",
		tokenCreateCommand(o), tokenListCommand(o), tokenRevokeCommand(o), tokenEnableCommand(o))
}

func tokenCreateCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a token and print it, once", Args: cobra.ExactArgs(1),
		Long: `Create a token and print it on standard output. The server stores only a digest, so the
token cannot be printed again.

Roles:
  read     see machines, runs and their logs
  operate  also install, change and delete machines, templates and images
  admin    also manage tokens, backups, keys, peers, migrations and Genesis
  metrics  only read /metrics
  codec    only decrypt and encrypt payloads of Temporal, at /codec
  backup   only store backups on the server (ingot backup run), and make backups
           without the keys (ingot backup --without-key)

NAME is recorded as the author of everything that is done with the token. The roles do
not restrict clients that connect to Temporal's own port.`,
		Example: `  (umask 077 && ingot token create alice --role operate --expires 90d > alice.token)
  ingot token create dashboard --role read --output json`,
	}
	role := cmd.Flags().String("role", "", "what the token may do: read, operate, admin, metrics, codec or backup")
	expires := cmd.Flags().String("expires", "", "how long the token is valid, for example 12h or 90d (default: until it is revoked)")
	replace := cmd.Flags().Bool("replace", false, "if a token with the same name exists, revoke it first")
	completeWords(cmd, "role", inventory.Roles()...)
	requireFlags(cmd, "role")

	return o.NewCommand(cmd, func(c *Call) error {
		q := apitypes.TokenRequest{Name: c.Args[0], Role: inventory.Role(*role), Replace: *replace}
		if *expires != "" {
			d, err := parseLife(*expires)
			if err != nil || d <= 0 {
				return UsageError("invalid --expires %q; write for example 12h or 90d", *expires)
			}
			q.For = d.String()
		}
		return c.createToken(q)
	})
}

// parseLife parses a duration. Other than human.ParseDuration, it also accepts days, such as 90d.
func parseLife(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	return human.ParseDuration(text)
}

func tokenListCommand(o *Options) *cobra.Command {
	return listCommand(o, listing[inventory.Token]{
		cmd:   &cobra.Command{Short: "List the named tokens", Example: "  ingot token list\n  ingot token list --output json"},
		route: client.Path("tokens"), empty: "no named tokens; create one: ingot token create --help",
		head: []string{"NAME", "ROLE", "CREATED", "BY", "EXPIRES"},
		row: func(t inventory.Token) []any {
			return []any{t.Name, t.Role, human.Ago(t.Created), t.By, expiryText(t)}
		},
	})
}

func expiryText(t inventory.Token) string {
	switch {
	case t.Off:
		return "off since a restore; see: ingot token enable --help"
	case t.Expires.IsZero():
		return ""
	case time.Now().After(t.Expires):
		return "expired " + human.Ago(t.Expires)
	}
	return t.Expires.Local().Format(time.DateTime)
}

func tokenRevokeCommand(o *Options) *cobra.Command {
	return deleteCommand(o, &cobra.Command{
		Use: "revoke NAME", Aliases: []string{"delete", "rm"}, Short: "Revoke a token, its sessions and login links",
		Long: `Revoke a token. The token's sessions, login links, event streams and current requests
end within a second. Workflows that were started with the token continue.`,
		Example: "  ingot token revoke alice --yes",
	}, func(c *Call) (deletion, error) {
		return deletion{
			what: fmt.Sprintf("token %s", c.Args[0]), lost: " and ends its sessions", route: client.Path("tokens", c.Args[0]),
		}, nil
	})
}

func tokenEnableCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "enable NAME", Short: "Enable a token that a restore has disabled", Args: cobra.ExactArgs(1),
		Long: `Enable a token again. A restore from a backup disables all named tokens, because they
may have been revoked after the backup was made.`,
		Example: "  ingot token enable alice",
	}, func(c *Call) error {
		if _, err := post[struct{}](c, client.Path("tokens", c.Args[0], "enable"), nil); err != nil {
			return err
		}
		c.Note("token %s can be used again", c.Args[0])
		return nil
	})
}

func whoamiCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "whoami", Short: "Print the name and role of the token in use", Args: cobra.NoArgs,
		Example: "  ingot whoami",
	}, func(c *Call) error {
		return getAndShow(c, client.Path("whoami"), func(w io.Writer, t inventory.Token) error {
			_, err := fmt.Fprintf(w, "%s (role %s)\n", t.Name, t.Role)
			return err
		})
	})
}
