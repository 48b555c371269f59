package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

func peerCommand(o *Options) *cobra.Command {
	return Group("peer", "Servers to which this site may move",
		"  ingot peer list\n"+
			"  ingot peer add um760 https://10.10.20.5:7444 --fingerprint sha256:… --peer-token-file standby.token",
		peerAddCommand(o), peerListCommand(o), peerRemoveCommand(o))
}

func peerAddCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "add NAME URL", Short: "Pair this server with a standby", Args: cobra.ExactArgs(2),
		Long: `Pair this server with a standby, which "ingot standby" has set up. From then on, each
time this server starts, it asks the standby whether the standby has taken over the
site. Until the standby answers or the operator decides ("ingot handover status"), this
server answers no machine. If the standby no longer exists, remove it: "ingot peer
remove".`,
		Example: "  ingot peer add um760 https://10.10.20.5:7444 --fingerprint sha256:… --peer-token-file standby.token",
	}

	fingerprint := cmd.Flags().String("fingerprint", "", "fingerprint of the peer's key, sha256:…")
	file := cmd.Flags().String("peer-token-file", "", "file with a copy of the token that ingot standby created on the peer")

	return o.NewCommand(cmd, func(c *Call) error {
		if *fingerprint == "" || *file == "" {
			return UsageError("give --fingerprint and --peer-token-file: ingot standby prints both at the peer")
		}

		token, err := durablefile.ReadPrivate(*file)
		if err != nil {
			return fmt.Errorf("reading the peer's token: %w", err)
		}

		in := map[string]string{
			"name": c.Args[0], "url": c.Args[1], "fingerprint": *fingerprint, "token": strings.TrimSpace(string(token)),
		}

		return postAndShow(c, client.Path("peers"), in, text(func(p inventory.Peer) string {
			name := Inert(p.Name)
			return fmt.Sprintf("paired with %s at %s\nnext: ingot migrate start %s", name, Inert(p.URL), name)
		}))
	})
}

func peerListCommand(o *Options) *cobra.Command {
	return listCommand(o, listing[inventory.Peer]{
		cmd:   &cobra.Command{Short: "List peers", Example: "  ingot peer list"},
		route: client.Path("peers"), empty: "no peers",
		head: []string{"PEER", "URL", "SINCE", "FINGERPRINT"},
		row:  func(p inventory.Peer) []any { return []any{p.Name, p.URL, human.Time(p.Since), p.Fingerprint} },
	})
}

func peerRemoveCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "remove NAME", Short: "Remove a peer; this server then starts without asking that peer", Args: cobra.ExactArgs(1),
		Aliases: []string{"rm"}, Example: "  ingot peer remove um760",
		ValidArgsFunction: firstArg(o.names(client.Path("peers"), "name")),
	}

	yes := YesFlag(cmd)

	return o.NewCommand(cmd, func(c *Call) error {
		what := "removes peer " + c.Args[0] + ": this server no longer asks it at its start, but earlier copies of this server do"
		if err := c.Confirm(*yes, what, "remove"); err != nil {
			return err
		}

		return remove(c, client.Path("peers", c.Args[0]))
	})
}

func handoverCommand(o *Options) *cobra.Command {
	return Group("handover", "Show this server's role among its peers, and decide an unclear role",
		"  ingot handover status\n  ingot handover take-over --peer-is-off\n  ingot handover give-up --yes",
		handoverStatusCommand(o), takeOverCommand(o), giveUpCommand(o))
}

func handoverStatusCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "status", Short: "Show this server's role and, if it answers no machines, why", Args: cobra.NoArgs,
		Example: "  ingot handover status",
	}, func(c *Call) error { return getAndShow(c, client.Path("site"), printSite) })
}

func printSite(w io.Writer, s inventory.SiteStatus) error {
	t := NewTable(w)
	siteFields(t, s)
	return t.Flush()
}

// siteFields adds lines to t that describe a server's role among its peers.
func siteFields(t *Table, s inventory.SiteStatus) {
	role := s.Role
	if s.Epoch > 0 {
		role += fmt.Sprintf(", site epoch %d", s.Epoch)
	}

	t.Field("role", role)
	if s.Silent != "" {
		t.Field("silent", s.Silent)
		next := "wait until the peer answers; or, if the peer's host is off: ingot handover take-over --peer-is-off; " +
			"or, if the peer has taken over the site: ingot handover give-up [--peer NAME]"
		if s.Role == inventory.RoleActive && s.Prepared != "" {
			next = "put the missing file back; or stop this server, move its data and its keys away, " +
				"and restore it from a backup: ingot restore"
		}
		t.Field("next", next)
	}
	if p := s.Successor; p != nil {
		t.Field("moved to", p.Name+"  "+p.URL)
	}

	t.Field("why", s.Why)
	for _, p := range s.Peers {
		t.Field("peer", p.Name+"  "+p.URL)
	}
	if h := s.HandOver; h != nil {
		t.Field("hand-over", strings.TrimSpace(fmt.Sprintf("%s to %s, %s  %s", h.ID, h.Peer, h.State, h.Why)))
	}

	t.Field("prepared", s.Prepared)
	if s.Intake != "" {
		t.Field("intake", "closed: "+s.Intake)
	}
}

// decideSite sends the operator's decision about the role of this server among its peers. peer is the server that the
// decision names; "" if it names none.
func decideSite(c *Call, word, peer string) error {
	in := map[string]string{"word": word}
	if peer != "" {
		in["peer"] = peer
	}
	return postAndShow(c, client.Path("site", "decide"), in, printSite)
}

func takeOverCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "take-over", Short: "Make this server active, because the peer's host is off", Args: cobra.NoArgs,
		Long: `Make this server the active server of the site, although the peer does not answer. Use
this command only if the peer's host is off, and stays off until the peer's data
directory is deleted: two active servers would install the same machines again and
again. If this server is the source of a move, its peers are removed; if it is a
standby, it takes over the site that the source has prepared on it.`,
		Example: "  ingot handover take-over --peer-is-off",
	}

	off := cmd.Flags().Bool("peer-is-off", false, "confirm that the peer's host is off")

	return o.NewCommand(cmd, func(c *Call) error {
		if !*off {
			return UsageError("switch the peer's host off, then give --peer-is-off: otherwise two servers would answer the same machines")
		}

		return decideSite(c, inventory.TakeOver, "")
	})
}

func giveUpCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "give-up", Short: "Retire this server, because a peer has taken over the site", Args: cobra.NoArgs,
		Long: `Retire this server, because a peer has taken over the site: the keys of this server are
destroyed, and the server never answers a machine again. If several peers may have taken
over the site, name the peer that has done so with --peer.`,
		Example: "  ingot handover give-up --yes\n  ingot handover give-up --peer um760 --yes",
	}

	peer := cmd.Flags().String("peer", "", "name of the peer that has taken over the site")
	yes := YesFlag(cmd)

	return o.NewCommand(cmd, func(c *Call) error {
		if err := c.Confirm(*yes, "destroys the keys of this server, which can never be active again", "give-up"); err != nil {
			return err
		}

		return decideSite(c, inventory.GiveUp, *peer)
	})
}

func migrateCommand(o *Options) *cobra.Command {
	return Group("migrate", "Move this site to another host", "  ingot migrate start um760\n  ingot migrate status um760",
		migrateStartCommand(o), migrateStatusCommand(o), migrateCancelCommand(o))
}

func migrateStartCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "start PEER", Short: "Start moving this site to a peer", Args: cobra.ExactArgs(1),
		Long: `Start moving this site to a peer that "ingot peer add" has paired with this server.
First, images are copied while the server works as usual. Then new runs are refused. As
soon as no machine has an open run, the site moves in one step; its open workflows,
including this migration, continue on the peer. Until that step, the migration can be
undone ("ingot migrate cancel").`,
		Example: "  ingot migrate start um760\n  ingot migrate status um760",
	}

	name := cmd.Flags().String("name", "", "name of the migration (default: the peer's name)")

	return o.NewCommand(cmd, func(c *Call) error {
		in := contract.MigrateInput{Name: cmp.Or(*name, c.Args[0]), Target: c.Args[0]}
		return startOperation(c, client.Path("migrate"), in, false, "\nnext: ingot migrate status "+in.Name)
	})
}

func migrateStatusCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "status NAME", Short: "Show a migration: its steps and what it waits for", Args: cobra.ExactArgs(1),
		Example: "  ingot migrate status um760", ValidArgsFunction: firstArg(o.operationsOf(inventory.TypeMigrate)),
	}, func(c *Call) error {
		return getAndShow(c, operationPath(contract.MigrateID(c.Args[0])), printOperation)
	})
}

func migrateCancelCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "cancel NAME", Short: "Cancel a migration and undo its steps", Args: cobra.ExactArgs(1),
		Example: "  ingot migrate cancel um760", ValidArgsFunction: firstArg(o.operationsOf(inventory.TypeMigrate)),
	}, func(c *Call) error {
		return cancelOperation(c, contract.MigrateID(c.Args[0]), "ingot migrate status "+c.Args[0])
	})
}
