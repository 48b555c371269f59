package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

func genesisCommand(o *Options) *cobra.Command {
	return Group("genesis", "Genesis: build a whole lab from one file, up to the running cluster",
		"  ingot genesis plan lab.yaml\n  ingot genesis start lab.yaml --wait\n  ingot genesis status home",
		genesisPlanCommand(o), genesisStartCommand(o), genesisStatusCommand(o), genesisResumeCommand(o),
		genesisCancelCommand(o), genesisListCommand(o), genesisDeleteCommand(o))
}

// isFile reports whether arg is the path of a lab file, and not the name of a stored lab: arg contains a slash, a
// backslash or a dot, or a file of that name exists.
func isFile(arg string) bool {
	if strings.ContainsAny(arg, `/\.`) {
		return true
	}
	st, err := os.Stat(arg)
	return err == nil && st.Mode().IsRegular()
}

// labsAndFiles completes the names of stored labs and of files.
func (o *Options) labsAndFiles() cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, to string) ([]string, cobra.ShellCompDirective) {
		names, _ := firstArg(o.labs())(cmd, args, to)
		return names, cobra.ShellCompDirectiveDefault
	}
}

func genesisPlanCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "plan {FILE | NAME}", Args: cobra.ExactArgs(1), ValidArgsFunction: o.labsAndFiles(),
		Short: "Show the steps of Genesis, and what each step writes to disks",
		Long: `Show the plan of Genesis for the lab in FILE or for the stored lab NAME. Nothing is
changed. For each step, the plan shows what is written to which disk, from which images,
what the step waits for, when it is done, its time limit, and how it is undone.

All problems in the file, in the files that it names and in the images are reported at
once. The command reads the server's inventory, and the server checks whether it can
fetch the images that have a URL. With --offline, no server is used.`,
		Example: "  ingot genesis plan lab.yaml\n  ingot genesis plan deploy/genesis/lab.yaml --offline\n" +
			"  ingot genesis plan home --output json",
	}

	offline := cmd.Flags().Bool("offline", false, "use no server, and read no images")
	replace := cmd.Flags().
		Bool("replace", false, "plan for genesis start --replace: fields that the file leaves out are removed from existing machines")

	return o.NewCommand(cmd, func(c *Call) error {
		if !isFile(c.Args[0]) {
			return postAndShow(c, client.Path("genesis", c.Args[0], "plan"), nil, printPlan)
		}

		f, err := readLab(c, c.Args[0])
		if err != nil {
			return err
		}
		switch {
		case *offline && c.Systems == nil:
			return UsageError("--offline: this program cannot check a lab without a server: %s", hostProgram)
		case *offline:
			return showOfflinePlan(c, f)
		}
		if _, err := c.Server(); err != nil {
			if len(f.problems) > 0 {
				return f.withPaths(f.problems)
			}
			return human.Advise(err, "ingot genesis plan "+c.Args[0]+" --offline")
		}

		a, _, err := f.checkLab(c, *replace)
		if err != nil {
			return err
		}

		return ShowValue(c, a.Value, func(w io.Writer) error { return printPlan(w, a.Value) })
	})
}

// showOfflinePlan shows the plan of a lab without contacting the server.
func showOfflinePlan(c *Call, f labFile) error {
	if err := f.withPaths(f.problems).Err(); err != nil {
		return err
	}

	p := genesis.Plan{
		Name: f.lab.Name, SHA256: f.bundle.Digest(), Steps: f.lab.Steps(), Destroys: f.lab.Destroys(),
		Problems: inventory.Problems{}, Warnings: f.withPaths(f.lab.Warnings()),
	}

	for name := range f.bundle.Files {
		p.Files = append(p.Files, name)
	}

	return ShowValue(c, p, func(w io.Writer) error { return printPlan(w, p) })
}

// printPlan prints the steps of a lab.
func printPlan(w io.Writer, p genesis.Plan) error {
	fmt.Fprintf(w, "lab %s, %d steps\n", p.Name, len(p.Steps))
	for n, s := range p.Steps {
		fmt.Fprintf(w, "\n%d. %s", n+1, s.Name)
		if s.Machine != "" && !strings.HasSuffix(s.Name, s.Machine) {
			fmt.Fprintf(w, " (%s)", s.Machine)
		}
		fmt.Fprintf(w, "\n   %s\n", s.Does)

		t := NewTable(w)
		field := func(name, value string) {
			if value != "" {
				t.Field("   "+name, value)
			}
		}
		field("overwrites", s.Disk)
		for _, i := range s.Images {
			field("image", i.Name+"  sha256 "+i.SHA256)
		}
		field("template", s.Template)
		field("waits for", s.Waits)
		field("done when", s.Ready)
		field("may take", human.Span(s.Budget))
		field("undo", s.Undo)
		if err := t.Flush(); err != nil {
			return err
		}
	}

	fmt.Fprintf(w, "\nDisks of %s are overwritten:\n", human.Count(len(p.Destroys), "machine"))
	for _, d := range p.Destroys {
		fmt.Fprintf(w, "  %s\n", d)
	}

	printProblems(w, "Warnings", p.Warnings)
	printProblems(w, "Problems that prevent a start now", p.Problems)
	return nil
}

func printProblems(w io.Writer, title string, ps inventory.Problems) {
	if len(ps) > 0 {
		fmt.Fprintf(w, "\n%s:\n", title)
	}
	for _, p := range ps {
		fmt.Fprintf(w, "  %s\n", Inert(p.String()))
	}
}

func genesisStartCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "start {FILE | NAME}", Args: cobra.ExactArgs(1), ValidArgsFunction: o.labsAndFiles(),
		Short: "Build a lab from a file; OVERWRITES the disks of the lab's machines",
		Long: `Build the lab in FILE, or the stored lab NAME; "ingot genesis plan" shows the steps. The
disks of the lab's machines are overwritten: the command first lists these disks and
asks you to type the name of the lab.

If the inventory already has a machine of the lab, the machine keeps the fields that
FILE leaves out; if a field has another value in FILE, Genesis does not start. With
--replace, FILE overwrites the machine, and fields that FILE leaves out or has empty are
removed.

The command checks the file and the files that it names, uploads the images that the
server does not have, stores the lab on the server, encrypted, and starts the workflow
genesis/NAME. Only one Genesis runs at a time. Genesis continues without this command,
and after a restart of the server. When Genesis needs an operator, its question is shown
with --wait, on the web page and by "ingot genesis status".`,
		Example: `  ingot genesis start lab.yaml --wait
  ingot genesis start lab.yaml --yes --replace   # machines become what the file says
  ingot genesis start home --again               # install again what is installed`,
	}

	yes := YesFlag(cmd)
	replace := cmd.Flags().Bool("replace", false,
		"overwrite machines that are in the inventory; fields that the file leaves out are removed")
	again := cmd.Flags().Bool("again", false, "repeat all steps, and install machines again that an earlier Genesis of this lab has installed")
	wait := waitFlags(cmd)

	return o.NewCommand(cmd, func(c *Call) error {
		prepare := confirmStoredLab
		if isFile(c.Args[0]) {
			prepare = func(c *Call, yes bool) (string, error) { return prepareLab(c, yes, *replace) }
		}

		name, err := prepare(c, *yes)
		if err != nil {
			return err
		}

		return startGenesis(c, name, "start", map[string]bool{"again": *again}, *wait)
	})
}

// confirmStoredLab asks for confirmation before the stored lab that the argument names is started, and returns the name.
func confirmStoredLab(c *Call, yes bool) (name string, err error) {
	name = c.Args[0]
	a, err := post[genesis.Plan](c, client.Path("genesis", name, "plan"), nil)
	if err != nil {
		return "", err
	}
	return name, confirmOverwrite(c, yes, name, a.Value.Destroys)
}

// prepareLab prepares the start of the lab file that the argument names: it checks the lab, asks for
// confirmation, sends missing images and stores the lab. It returns the name of the lab.
func prepareLab(c *Call, yes, replace bool) (name string, err error) {
	f, err := readLab(c, c.Args[0])
	if err != nil {
		return "", err
	}

	plan, lacking, err := f.checkLab(c, replace)
	if err == nil {
		err = plan.Value.Problems.Err()
	}
	if err != nil {
		return "", err
	}
	if err := confirmOverwrite(c, yes, f.lab.Name, plan.Value.Destroys); err != nil {
		return "", err
	}

	for _, i := range lacking {
		if err := f.sendImage(c, i); err != nil {
			return "", err
		}
	}

	_, err = f.send(c, replace, false)
	var refused *client.Error
	if errors.As(err, &refused) {
		refused.Problems = f.withPaths(refused.Problems)
	}

	return f.lab.Name, err
}

func confirmOverwrite(c *Call, yes bool, name string, disks []string) error {
	what := fmt.Sprintf("overwrites disks of %s:\n  %s\nAll data on these disks is lost",
		human.Count(len(disks), "machine"), strings.Join(disks, "\n  "))
	return c.Confirm(yes, what, name)
}

// startGenesis starts or resumes the Genesis of a lab; verb is the last element of the route. If wait is true, it shows
// the progress until the end.
func startGenesis(c *Call, name, verb string, in any, wait bool) error {
	text := fmt.Sprintf("\nnext: ingot genesis status %s --wait", name)
	return startOperation(c, client.Path("genesis", name, verb), in, wait, text)
}

func genesisStatusCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "status NAME", Short: "Show the steps of a Genesis, and what it waits for",
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.labs()),
		Example: "  ingot genesis status home\n  ingot genesis status home --wait\n" +
			"  ingot genesis status home --output json",
	}

	wait := waitFlags(cmd)

	return o.NewCommand(cmd, func(c *Call) error {
		if *wait {
			return waitForOperation(c, "genesis/"+c.Args[0])
		}

		return getAndShow(c, client.Path("genesis", c.Args[0], "status"), printOperation)
	})
}

func genesisResumeCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "resume NAME", Short: "Continue a Genesis that has stopped",
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.labs()),
		Long: `Continue a Genesis that has stopped. If a step waits for the operator's answer, that
step is tried again; for another answer, use "ingot operation decide". If the Genesis
has failed or was cancelled, it starts again, and skips the completed steps whose result
is still valid.`,
		Example: "  ingot genesis resume home\n  ingot genesis resume home --wait",
	}

	wait := waitFlags(cmd)

	return o.NewCommand(cmd, func(c *Call) error { return startGenesis(c, c.Args[0], "resume", nil, *wait) })
}

func genesisCancelCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "cancel NAME", Short: "Cancel a Genesis; its finished steps are not undone",
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.labs()), Example: "  ingot genesis cancel home",
	}, func(c *Call) error {
		return cancelOperation(c, "genesis/"+c.Args[0], "ingot genesis status "+c.Args[0])
	})
}

func genesisListCommand(o *Options) *cobra.Command {
	return listCommand(o, listing[inventory.GenesisBundle]{
		cmd:   &cobra.Command{Short: "List stored labs", Example: "  ingot genesis list"},
		route: client.Path("genesis"), empty: "no labs; start with: ingot genesis plan FILE",
		head: []string{"NAME", "FILE", "STORED", "SHA256"},
		row: func(b inventory.GenesisBundle) []any {
			return []any{b.Name, b.File, human.Time(b.Updated), b.SHA256}
		},
	})
}

func genesisDeleteCommand(o *Options) *cobra.Command {
	return deleteCommand(o, &cobra.Command{
		Use: "delete NAME", Short: "Delete a stored lab and the stored files that it names", ValidArgsFunction: firstArg(o.labs()),
		Example: "  ingot genesis delete home\n  ingot genesis delete home --yes",
	}, func(c *Call) (deletion, error) {
		lost := " and the stored copies of the files that it names; machines are not changed"
		return deletion{what: "lab " + c.Args[0], lost: lost, route: client.Path("genesis", c.Args[0])}, nil
	})
}
