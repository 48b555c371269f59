package cli

import (
	"cmp"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

func whyCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "why {MAC | NAME}", Short: "Show what Ingot would answer if a machine booted now, and why",
		Long: `Show what Ingot would answer if a machine booted now, and why. The same code decides
about real boots.`,
		Example: "  ingot why 02:00:00:00:00:01\n  ingot why node-1",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.machines()),
	}, func(c *Call) error {
		route := client.Path("machines", c.Args[0], "why")
		if mac, err := inventory.ParseMAC(c.Args[0]); err == nil {
			route = client.Path("why", mac)
		}

		return getAndShow(c, route, printExplanation)
	})
}

func printExplanation(w io.Writer, e inventory.Explanation) error {
	subject := e.MAC
	if e.Machine != "" {
		subject += ", machine " + e.Machine
	}

	verdicts := map[string]string{
		"unknown":   "not answered: no machine has this MAC",
		"agent":     "boots the agent's OS for its run",
		"installer": "boots the installer of its run",
		"rescue":    "boots the agent's OS for an operator",
		"disk":      "boots from its disk",
		"hold":      "waits at its loader until its run goes on",
		"never":     "never boots from the network",
	}

	fmt.Fprintf(w, "%s: %s\n", Inert(subject), cmp.Or(verdicts[e.Verdict], e.Verdict))
	for _, r := range e.Reasons {
		fmt.Fprintf(w, "  – %s\n", Inert(r))
	}
	if x := e.Lease; x != nil {
		fmt.Fprintf(w, "  – lease of %s: %s %s\n", x.Address, leaseState(*x), human.Ago(x.At))
	}
	if len(e.Answers) > 0 {
		fmt.Fprintln(w)
		err := PrintTable(w, []string{"CLIENT", "GETS", "BECAUSE"}, e.Answers, func(a inventory.ClientAnswer) []any {
			return []any{a.Client, a.BootFile, a.Reason}
		})
		if err != nil {
			return err
		}
	}
	return printExchanges(w, e.Exchanges)
}

// printExchanges prints the last requests of a client, each with the server's answer.
func printExchanges(w io.Writer, all []inventory.Exchange) error {
	if len(all) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return PrintTable(w, []string{"RECEIVED", "BY", "REQUEST", "ANSWER"}, all, func(h inventory.Exchange) []any {
		return []any{h.At.UTC().Format("15:04:05.000"), h.Where, h.Request, h.Answer}
	})
}
