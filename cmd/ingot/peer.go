package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/site"
)

func peerCmd(o *options) *cobra.Command {
	return group("peer", "Servers to which this site may move", "  ingot peer list\n  ingot peer add um760 https://10.10.20.5:7444 --fingerprint sha256:… --peer-token-file standby.token",
		peerAddCmd(o), peerListCmd(o), peerRemoveCmd(o))
}

func peerAddCmd(o *options) *cobra.Command {
	var fingerprint, file string
	c := &cobra.Command{
		Use: "add NAME URL", Short: "Pair with a standby", Args: cobra.ExactArgs(2),
		Long: `Pair with a server that "ingot standby" has made. From then on this server asks
it at each start, before its first packet, whether it has become the site; if it
does not answer, nobody is answered here until it does or a person decides
("ingot handover status"). Remove a peer that is no more.`,
		Example: "  ingot peer add um760 https://10.10.20.5:7444 --fingerprint sha256:… --peer-token-file standby.token",
		RunE: func(cmd *cobra.Command, args []string) error {
			if fingerprint == "" || file == "" {
				return usage("give --fingerprint and --peer-token-file, as ingot standby printed them")
			}
			token, err := os.ReadFile(file)
			if err != nil {
				return fmt.Errorf("reading the peer's token: %w", err)
			}
			c, err := o.client()
			if err != nil {
				return err
			}
			q := map[string]string{"name": args[0], "url": args[1], "fingerprint": fingerprint, "token": strings.TrimSpace(string(token))}
			a, err := ask[api.Peer](cmd.Context(), c, "POST", path("peers"), q)
			if err != nil {
				return err
			}
			return show(cmd, o, a, func(w io.Writer, p api.Peer) error {
				_, err := fmt.Fprintf(w, "paired with %s at %s\nnext: ingot migrate start %s\n", inert(p.Name), inert(p.URL), inert(p.Name))
				return err
			})
		},
	}
	c.Flags().StringVar(&fingerprint, "fingerprint", "", "of the peer's key: sha256:…")
	c.Flags().StringVar(&file, "peer-token-file", "", "file with the token that the peer made")
	return c
}

func peerListCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List peers", Args: cobra.NoArgs, Aliases: []string{"ls"}, Example: "  ingot peer list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return askAndShow(cmd, o, "GET", path("peers"), nil, func(w io.Writer, l list[api.Peer]) error {
				if len(l.Items) == 0 {
					say(cmd, "no peers")
					return nil
				}
				t := newTable(w, "PEER", "URL", "SINCE", "FINGERPRINT")
				for _, p := range l.Items {
					t.row(p.Name, p.URL, when(p.Since), p.Fingerprint)
				}
				return t.flush()
			})
		},
	}
}

func peerRemoveCmd(o *options) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "remove NAME", Short: "Forget a peer: it is not asked any more", Args: cobra.ExactArgs(1), Aliases: []string{"rm"}, Example: "  ingot peer remove um760",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			if err := confirm(cmd, yes, "forgets peer "+args[0]+": copies of this server that were made before still ask it, this one does not", "remove"); err != nil {
				return err
			}
			resp, err := c.request(cmd.Context(), "DELETE", path("peers", args[0]), nil, 0)
			if err != nil {
				return err
			}
			return resp.Body.Close()
		},
	}
	yesFlag(c, &yes)
	return c
}

func handoverCmd(o *options) *cobra.Command {
	return group("handover", "What this server is among its peers, and a person's word where it cannot tell",
		"  ingot handover status\n  ingot handover take-over --peer-is-off\n  ingot handover give-up --yes",
		handoverStatusCmd(o), takeOverCmd(o), giveUpCmd(o))
}

func handoverStatusCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Tell what this server is, and why it is silent", Args: cobra.NoArgs, Example: "  ingot handover status",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return askAndShow(cmd, o, "GET", path("site"), nil, printSite)
		},
	}
}

func printSite(w io.Writer, s api.SiteStatus) error {
	t := newTable(w)
	siteFields(t, s)
	return t.flush()
}

// siteFields are the lines of a server among its peers.
func siteFields(t *table, s api.SiteStatus) {
	text := s.Role
	if s.Epoch > 0 {
		text += fmt.Sprintf(", site epoch %d", s.Epoch)
	}
	t.field("role", text)
	if s.Silent != "" {
		t.field("silent", inert(s.Silent))
		next := "wait until the peer answers; or, if its host is off: ingot handover take-over --peer-is-off; or, if it is the site: ingot handover give-up [--peer NAME]"
		if s.Role == site.Active && s.Prepared != "" {
			next = "put the file back; or stop this server, move its data and its keys away, and make one of a backup: ingot restore"
		}
		t.field("next", next)
	}
	if p := s.Successor; p != nil {
		t.field("moved to", inert(p.Name+"  "+p.URL))
	}
	if s.Why != "" {
		t.field("why", inert(s.Why))
	}
	for _, p := range s.Peers {
		t.field("peer", inert(p.Name+"  "+p.URL))
	}
	if h := s.HandOver; h != nil {
		t.field("hand-over", strings.TrimSpace(fmt.Sprintf("%s to %s, %s  %s", inert(h.ID), inert(h.Peer), h.State, inert(h.Why))))
	}
	if s.Prepared != "" {
		t.field("prepared", inert(s.Prepared))
	}
	if s.Intake != "" {
		t.field("intake", "closed: "+inert(s.Intake))
	}
}

// word says a person's word, with the peer that it is about, if it names one.
func (o *options) word(cmd *cobra.Command, word, peer string) error {
	c, err := o.client()
	if err != nil {
		return err
	}
	q := map[string]string{"word": word}
	if peer != "" {
		q["peer"] = peer
	}
	a, err := ask[api.SiteStatus](cmd.Context(), c, "POST", path("site", "decide"), q)
	if err != nil {
		return err
	}
	return show(cmd, o, a, printSite)
}

func takeOverCmd(o *options) *cobra.Command {
	var off bool
	c := &cobra.Command{
		Use: "take-over", Short: "Make this server the site, because the other host is off", Args: cobra.NoArgs,
		Long: `Make this server the site, although its peer does not answer. Two servers that
answer the same machines install them over and over: say this only when the other
host is off, and stays off until its data directory is gone. At a source, its
peers are forgotten; at a standby, it takes what lies ready there.`,
		Example: "  ingot handover take-over --peer-is-off",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !off {
				return usage("say --peer-is-off, and be sure that it is: two servers would answer the same machines")
			}
			return o.word(cmd, api.WordTakeOver, "")
		},
	}
	c.Flags().BoolVar(&off, "peer-is-off", false, "the other host is off, by your word")
	return c
}

func giveUpCmd(o *options) *cobra.Command {
	var yes bool
	var peer string
	c := &cobra.Command{
		Use: "give-up", Short: "Retire this server, because the other one is the site", Args: cobra.NoArgs,
		Long: `Retire this server, because the other one is the site: its keys are destroyed, and
it never answers a machine again. --peer says which one, when several may be.`,
		Example: "  ingot handover give-up --yes\n  ingot handover give-up --peer um760 --yes",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := confirm(cmd, yes, "destroys the keys of this server: it is never the site again", "give-up"); err != nil {
				return err
			}
			return o.word(cmd, api.WordGiveUp, peer)
		},
	}
	c.Flags().StringVar(&peer, "peer", "", "the one that is the site")
	yesFlag(c, &yes)
	return c
}
