package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/documents/importfile"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// documentsHelp lists the documents that apply, diff and import read.
const documentsHelp = `Supported documents:

  Ingot                  machines, templates, workflows, Genesis labs; the output of
                         "ingot export" and "ingot machine get --output yaml"
  Tinkerbell, v1alpha1   Hardware, Template, Workflow; Machine and Job of BMCs; Secrets
  Tinkerbell, v1alpha2   Hardware, Task, Workflow; Job of BMCs
  EKS Anywhere           hardware CSV, TinkerbellTemplateConfig, TinkerbellMachineConfig

If any document has a problem, nothing is stored, and the problems of all documents are
reported, with file and line. Only the first 100 problems are printed, with the number
of the others. For a CSV with passwords, the problems do not show values: if columns are
shifted, any value may be a password. Fields that Ingot does not store are listed, each
with the reason.`

// conflictHelp says how apply and import treat values that others have changed.
const conflictHelp = `The server remembers which fields a document set when it was last applied. A field that
is no longer in the document is removed; a field that no document has set is kept. If a
field of the document was changed by other means since then, this is a conflict: nothing
is stored, and the error names the field. --force-conflicts overwrites the change.`

// An application holds the flags of a command that applies documents.
type application struct {
	files             []string
	templates         bool     // a file in no other format is a template
	templateName      string   // of the only template; "": the one in the file
	replace           []string // see inventory.Application
	set               string
	dryRun            bool
	offline           bool // needs no server
	create            bool // refuse to change what exists
	force             bool // overwrite conflicts
	prune             bool
	emptying          bool // there is no document, and prune empties the set
	start             bool
	yes               bool // do not ask
	failOnDifferences bool
	byAddress         bool // see allowByAddress
}

func applyCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "apply --file FILE…", Short: "Create or update machines and templates from documents", Args: cobra.ArbitraryArgs,
		Long: `Create or update the machines and templates in the documents, all or none, and show the
changes to each. FILE is a file, "-" for standard input, or a directory, where all files
*.yaml, *.yml, *.json and *.csv are read, but no subdirectories.

` + conflictHelp + `

By default, no run is started and no netboot window is opened. For each run, BMC job and
Genesis lab in the documents, the command that starts it is printed. With --start, these
commands are run, after a confirmation.

--prune deletes the machines and templates that were applied earlier with the same --set
and are in none of the documents now. It keeps what is in use (a machine with an open
run, a template that a machine names), decommissioned machines, and what was changed by
other means since then. Without a file, the set is emptied.

` + documentsHelp,
		Example: "  ingot apply --file site/ --dry-run\n" +
			"  ingot apply --file site/\n" +
			"  ingot apply --file rack-1.yaml --set rack-1 --prune",
	}
	a := &application{}
	x := a.addFileFlag(cmd)
	x.StringVar(&a.set, "set", "", "name of the set to which the objects in the documents belong")
	x.BoolVar(&a.dryRun, "dry-run", false, "show what would change, and store nothing")
	x.BoolVar(&a.force, "force-conflicts", false, "overwrite values that were changed by other means, and take over objects of other sets")
	x.BoolVar(&a.prune, "prune", false, "delete objects that were applied earlier with the same --set and are in no document now")
	x.BoolVar(&a.start, "start", false, "start the runs, BMC jobs and Genesis labs that the documents describe")
	x.BoolVar(&a.yes, "yes", false, "do not ask for confirmation of what --prune deletes and --start starts")
	a.addAddressFlag(x)
	return o.NewCommand(cmd, a.run)
}

func diffCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "diff --file FILE…", Short: "Show what apply would change", Args: cobra.ArbitraryArgs,
		Long: `Show how the documents differ from what the server stores, without storing anything. The
exit code is 0 if nothing differs, 1 if something differs, and 2 or higher after an
error. Secrets are compared, but never shown.`,
		Example: "  ingot diff --file site/",
	}
	a := &application{dryRun: true, failOnDifferences: true}
	a.addFileFlag(cmd).StringVar(&a.set, "set", "", "name of the set to which the objects in the documents belong")
	return o.NewCommand(cmd, a.run)
}

func importCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "import FILE…", Short: "Import machines and templates from Tinkerbell and EKS Anywhere documents", Args: cobra.MinimumNArgs(1),
		Long: `Create or update the machines and templates that the files describe, and show the
changes to each. All files are read together: a BMC may refer to a Secret in another
file. "-" is standard input. "ingot import FILE…" does the same as "ingot apply --file
FILE…".

` + conflictHelp + `

An import starts no run and opens no netboot window. For each Workflow and Job, it
prints the Ingot command that does the same.

` + documentsHelp,
		Example: "  ingot import hardware.csv cluster.yaml --offline   # show problems; needs no server\n" +
			"  ingot import hardware.csv cluster.yaml --dry-run   # also show what would change\n" +
			"  ingot import hardware.csv cluster.yaml\n" +
			"  kubectl get hardware,template -A -o yaml | ingot import -",
	}
	a := &application{}
	x := cmd.Flags()
	x.BoolVar(&a.dryRun, "dry-run", false, "show what would change, and store nothing")
	x.BoolVar(&a.offline, "offline", false, "check the files without a server, and store nothing")
	x.BoolVar(&a.force, "force-conflicts", false, "overwrite values that were changed by other means")
	a.addAddressFlag(x)
	return o.NewCommand(cmd, a.run)
}

// addFileFlag adds the flag --file to cmd, and returns the flags of cmd.
func (a *application) addFileFlag(cmd *cobra.Command) *pflag.FlagSet {
	cmd.Flags().StringArrayVarP(&a.files, "file", "f", nil, "file or directory, - for standard input; repeatable")
	return cmd.Flags()
}

// run reads the documents and applies them.
func (a *application) run(c *Call) error {
	read, err := a.read(c)
	if err == nil {
		err = a.apply(c, read)
	}
	if a.failOnDifferences && err != nil && !errors.As(err, new(reported)) && exitCode(commandError{err}) == exitFailure {
		return human.WithKind(err, client.ErrUnavailable) // 1 means that something differs
	}
	return err
}

// read reads the documents.
func (a *application) read(c *Call) (none importfile.Import, err error) {
	names := slices.Concat(a.files, c.Args)
	a.emptying = len(names) == 0 && a.prune && a.set != ""
	switch {
	case a.emptying:
		return none, nil
	case len(names) == 0:
		return none, human.Advise(UsageError("no file was given"), c.CommandPath()+" --file FILE")
	}
	files, err := readFiles(c, names)
	if err != nil {
		return none, err
	}
	if !a.templates {
		return importfile.Read(files)
	}
	read, err := importfile.ReadTemplates(files, a.templateName)
	if t := read.Templates; err == nil && a.templateName != "" && (len(t) != 1 || t[0].Name != a.templateName) {
		err = UsageError("--name needs one file, which is a template itself")
	}
	return read, err
}

// readFiles reads the files with these names, and the documents in the directories with these names. The error is an
// inventory.Problems with a problem for each file that cannot be read.
func readFiles(c *Call, names []string) ([]importfile.File, error) {
	var out []importfile.File
	var ps inventory.Problems
	for _, given := range names {
		files := []string{given}
		if info, err := os.Stat(given); err == nil && info.IsDir() {
			if files, err = documentsIn(given); err != nil {
				ps = append(ps, inventory.Problem{File: given, What: err.Error()})
			}
		}
		for _, file := range files {
			name, b, err := readInput(c.Command, file)
			if err != nil {
				ps = append(ps, inventory.Problem{File: file, What: inventory.TextOf(err)})
			}
			out = append(out, importfile.File{Name: name, Content: b})
		}
	}
	return out, ps.Err()
}

// documentsIn returns the paths of the documents in a directory.
func documentsIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json", ".csv"}, filepath.Ext(e.Name())) {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	if len(out) == 0 {
		return nil, errors.New("holds no file *.yaml, *.yml, *.json or *.csv")
	}
	return out, nil
}

// apply makes the server apply the documents.
func (a *application) apply(c *Call, read importfile.Import) error {
	out, starting := newApplied(read), a.start && !a.dryRun
	if err := a.allowByAddress(c, read); err != nil {
		return err
	}
	if starting {
		if err := a.confirmStarts(c, read.Starts); err != nil {
			return err
		}
	}
	switch {
	case a.offline:
		for _, t := range read.Templates {
			out.Objects = append(out.Objects, appliedObject{t.Place, inventory.Applied{Kind: inventory.KindTemplate, Name: t.Name, Result: isRead}})
		}
		for _, m := range read.Machines {
			out.Objects = append(out.Objects, appliedObject{m.Place, inventory.Applied{Kind: inventory.KindMachine, Name: m.Name, Result: isRead}})
		}
	case len(read.Templates)+len(read.Machines) > 0, a.emptying:
		if err := a.send(c, read, &out); err != nil {
			return err
		}
	}
	conflicts := a.conflicts(out, read)
	var failed error
	if starting && !c.forPeople() { // a program gets one result
		out.Started, failed = startAll(c, read.Starts)
	}
	if err := out.show(c, starting); err != nil {
		return err
	}
	differs := func(x appliedObject) bool { return x.Result != inventory.ResultUnchanged || x.Foreign != nil }
	if a.failOnDifferences && slices.ContainsFunc(out.Objects, differs) {
		return reported{errors.New("something differs")}
	}
	if len(conflicts) > 0 {
		return inventory.Conflicts(conflicts)
	}
	if starting && c.forPeople() {
		_, failed = startAll(c, read.Starts)
	}
	return failed
}

// conflicts returns the conflicts that a dry run has found, with their places.
func (a *application) conflicts(out applied, read importfile.Import) (ps inventory.Problems) {
	if a.force {
		return nil
	}
	for _, x := range out.Objects {
		ps = append(ps, x.Conflicts()...)
	}
	return read.Locate(ps)
}

// send makes the server apply the documents, and adds its answer to out.
func (a *application) send(c *Call, read importfile.Import, out *applied) error {
	body := map[string]any{
		"set": a.set, "forceConflicts": a.force, "create": a.create, "replace": a.replace, "prune": a.prune, "dryRun": a.dryRun,
	}
	templates := []map[string]string{}
	for _, t := range read.Templates {
		templates = append(templates, map[string]string{"name": t.Name, "source": t.Source})
	}
	machines := []json.RawMessage{}
	for _, m := range read.Machines {
		b, err := marshalWithSecrets(m.Machine)
		if err != nil {
			return err
		}
		machines = append(machines, b)
	}
	body["templates"], body["machines"] = templates, machines

	if a.prune && !a.dryRun {
		if err := a.confirmPrune(c, body, read); err != nil {
			return err
		}
	}
	answer, err := post[apitypes.Application](c, client.Path("apply"), body)
	if err != nil {
		return locateApplied(err, read)
	}
	out.Stored, out.Warnings = answer.Value.Stored, append(out.Warnings, answer.Value.Warnings...)
	places := read.Places()
	for _, x := range answer.Value.Items {
		for n, change := range x.Changes {
			if x.Kind == inventory.KindTemplate {
				x.Changes[n] = inventory.Change(importfile.TextChange(change.Field, change.Old, change.New))
				x.Changes[n].Conflict = change.Conflict
			}
		}
		out.Objects = append(out.Objects, appliedObject{places[x.Kind+" "+x.Name], x})
	}
	return nil
}

// confirmPrune compares the documents with what is stored, and asks before objects are deleted.
func (a *application) confirmPrune(c *Call, body map[string]any, read importfile.Import) error {
	body["dryRun"] = true
	answer, err := post[apitypes.Application](c, client.Path("apply"), body)
	if err != nil {
		return locateApplied(err, read)
	}
	body["dryRun"] = false
	var lost []string
	only := []string{} // what is applied to the set after the question is not deleted
	for _, x := range answer.Value.Items {
		if x.Result == inventory.ResultDeleted {
			lost, only = append(lost, x.Kind+" "+x.Name), append(only, x.Kind+"/"+x.Name)
		}
	}
	body["pruneOnly"] = only
	switch {
	case len(answer.Value.Items) == 0:
		c.Note("nothing belongs to the set %q", a.set)
		return nil
	case len(lost) == 0:
		return nil
	case a.emptying:
		return c.Confirm(a.yes, "empties the set "+a.set+": it deletes "+strings.Join(lost, ", "), a.set)
	}
	return c.Confirm(a.yes, "deletes "+strings.Join(lost, ", "), "yes")
}

// confirmStarts asks before anything is stored or started.
func (a *application) confirmStarts(c *Call, starts []importfile.Start) error {
	if len(starts) == 0 {
		return nil
	}
	var what []string
	for _, s := range starts {
		what = append(what, Inert(s.Command+"   # "+s.Object))
	}
	return c.Confirm(a.yes, "runs:\n  "+strings.Join(what, "\n  ")+"\nThe content of disks may be lost", "yes")
}

// startAll runs the commands that start what the documents describe. They print what they start or, if programs read the output, it
// returns what they print in JSON.
func startAll(c *Call, starts []importfile.Start) (started []json.RawMessage, err error) {
	output := c.output
	if !c.forPeople() {
		output = outputJSON
	}
	for _, s := range starts {
		root := Root(c.ProgramVersion)
		cmd, _, err := root.Find(s.Args[1:])
		if err != nil {
			return started, fmt.Errorf("starting %s: %w", s.Object, err)
		}
		args := slices.Concat(s.Args[1:], []string{"--config", c.ConfigFile, "--output", output})
		if cmd.Flags().Lookup("yes") != nil {
			args = append(args, "--yes")
		}
		for flag, value := range map[string]string{"--server": c.ServerURL, "--token-file": c.TokenFile} {
			if value != "" {
				args = append(args, flag, value)
			}
		}
		root.SetArgs(args)
		root.SetIn(c.InOrStdin())
		if s.Input != nil {
			root.SetIn(bytes.NewReader(s.Input))
		}
		var result bytes.Buffer
		root.SetOut(&result)
		if c.forPeople() {
			root.SetOut(c.OutOrStdout())
		}
		root.SetErr(c.ErrOrStderr())
		err = root.ExecuteContext(c.Context())
		if json.Valid(result.Bytes()) {
			started = append(started, result.Bytes())
		}
		if err != nil {
			return started, fmt.Errorf("starting %s: %w", s.Object, err)
		}
	}
	return started, nil
}
