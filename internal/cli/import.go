package cli

import (
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/documents/importfile"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

func importCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "import FILE…", Short: "Store machines and templates from documents of other programs", Args: cobra.MinimumNArgs(1),
		Long: `Store the machines and templates that the files describe, and show what changes in
each. All files are read together: a BMC may refer to a Secret in another file. "-" is
standard input. Supported documents:

  Tinkerbell, v1alpha1   Hardware, Template, Workflow; Machine and Job of BMCs; Secrets
  Tinkerbell, v1alpha2   Hardware, Task, Workflow; Job of BMCs
  EKS Anywhere           hardware CSV, TinkerbellTemplateConfig, TinkerbellMachineConfig
  Ingot                  what "ingot export" and "ingot machine get --output yaml" write

All problems of all files are reported at once, with file and line, and then nothing
is stored. Only the first 100 problems are printed, with the number of the others. For
a CSV with passwords, the problems do not show values: if columns are shifted, any
value may be a password. Keys that are not imported are listed with the reason. Fields
of a stored machine that the document's format does not have are kept.

An import starts no run and never opens network boot. For a Workflow or a Job it
prints the command that starts the same in Ingot.`,
		Example: "  ingot import hardware.csv cluster.yaml --offline   # show problems; needs no server\n" +
			"  ingot import hardware.csv cluster.yaml --dry-run   # also show what would change\n" +
			"  ingot import hardware.csv cluster.yaml\n" +
			"  kubectl get hardware,template -A -o yaml | ingot import -",
	}

	dryRun := cmd.Flags().Bool("dry-run", false, "show what would change, and store nothing")
	offline := cmd.Flags().Bool("offline", false, "check the files without a server, and store nothing")

	return o.NewCommand(cmd, func(c *Call) error {
		files, err := readFiles(c, c.Args)
		if err != nil {
			return err
		}
		read, err := importfile.Read(files)
		if err != nil {
			return err
		}
		if *offline {
			return showImport(c, offlineImport(read))
		}
		return runImport(c, read, importOptions{dryRun: *dryRun, replace: true})
	})
}

// readFiles reads the files with these names. The error is an inventory.Problems with a problem for each file that
// cannot be read.
func readFiles(c *Call, names []string) ([]importfile.File, error) {
	var out []importfile.File
	var ps inventory.Problems
	for _, file := range names {
		name, b, err := readInput(c.Command, file)
		if err != nil {
			ps = append(ps, inventory.Problem{File: file, What: inventory.TextOf(err)})
		}
		out = append(out, importfile.File{Name: name, Content: b})
	}
	return out, ps.Err()
}

// What an import does with an object.
const (
	isRead    = "read" // the object was not compared with the server (--offline)
	isAdded   = "added"
	isChanged = "changed"
	isSame    = "unchanged"
)

// An imported is the result of an import, in the form of the JSON output.
type imported struct {
	Stored   bool                 `json:"stored"` // false after a dry run
	Objects  []importedObject     `json:"objects"`
	Ignored  []importfile.Ignored `json:"ignored"`
	Starts   []importfile.Start   `json:"starts"`
	Warnings []string             `json:"warnings"`
}

type importedObject struct {
	importfile.Place
	Kind    string              `json:"kind"` // machine or template
	Name    string              `json:"name"`
	Result  string              `json:"result"`
	Changes []importfile.Change `json:"changes,omitempty"`
}

func newImported(read importfile.Import) imported {
	return imported{
		Objects: []importedObject{}, Warnings: []string{},
		Ignored: append([]importfile.Ignored{}, read.Ignored...), Starts: append([]importfile.Start{}, read.Starts...),
	}
}

// offlineImport returns the result of an import without a server: it lists the objects of the files.
func offlineImport(read importfile.Import) imported {
	out := newImported(read)
	for _, t := range read.Templates {
		out.Objects = append(out.Objects, importedObject{Place: t.Place, Kind: "template", Name: t.Name, Result: isRead})
	}
	for _, m := range read.Machines {
		out.Objects = append(out.Objects, importedObject{Place: m.Place, Kind: "machine", Name: m.Name, Result: isRead})
	}
	return out
}

type importOptions struct {
	dryRun  bool
	replace bool // change existing objects; otherwise a change is a conflict
}

// runImport compares the objects of the files with the inventory and makes the server check all of them. Then it
// stores them: templates first, because machines refer to templates.
func runImport(c *Call, read importfile.Import, o importOptions) error {
	out := newImported(read)
	templates, err := compareTemplates(c, &out, read.Templates)
	if err != nil {
		return err
	}
	places, machines, err := compareMachines(c, &out, read.Machines)
	if err != nil {
		return err
	}
	if err := refuseChanges(out.Objects, o); err != nil {
		return err
	}

	if len(machines) > 0 {
		a, err := pushMachines(c, machines, pushOptions{replace: true, dryRun: true})
		if err != nil {
			return addPlaces(err, places)
		}
		out.Warnings = append(out.Warnings, a.Value.Warnings...)
	}
	if o.dryRun {
		return showImport(c, out)
	}

	for _, t := range templates {
		if _, err := post[inventory.Template](c, client.Path("templates"), map[string]string{"name": t.Name, "source": t.Source}); err != nil {
			return fmt.Errorf("storing template %q: %w", t.Name, err)
		}
	}
	if len(machines) > 0 {
		if _, err := pushMachines(c, machines, pushOptions{replace: true}); err != nil {
			return addPlaces(err, places)
		}
	}
	out.Stored = true
	return showImport(c, out)
}

// compareTemplates adds the templates to out, and returns those that are new or that differ from the stored ones.
func compareTemplates(c *Call, out *imported, ts []importfile.Template) ([]inventory.Template, error) {
	a, err := getAll[inventory.Template](c, client.Path("templates"))
	if err != nil {
		return nil, err
	}

	var changed []inventory.Template
	var ps inventory.Problems
	for _, t := range ts {
		object := importedObject{Place: t.Place, Kind: "template", Name: t.Name, Result: isAdded}
		n := slices.IndexFunc(a.Value.Items, func(x inventory.Template) bool { return x.Name == t.Name })
		switch {
		case n < 0:
			changed = append(changed, t.Template)
		case a.Value.Items[n].Source == t.Source:
			object.Result = isSame
		case a.Value.Items[n].Builtin:
			ps = append(ps, inventory.Problem{
				File: t.File, Line: t.Line, What: fmt.Sprintf("template %q comes with the program", t.Name), Remedy: "choose another name",
			})
		default:
			object.Result, object.Changes = isChanged, []importfile.Change{importfile.TextChange("source", a.Value.Items[n].Source, t.Source)}
			changed = append(changed, t.Template)
		}
		out.Objects = append(out.Objects, object)
	}
	return changed, ps.Err()
}

// compareMachines adds the machines to out. It returns the machines that have to be stored, in two lists with the same
// order: as they were read, and as they are to be stored.
func compareMachines(c *Call, out *imported, ms []importfile.Machine) ([]importfile.Machine, []inventory.Machine, error) {
	a, err := getAll[inventory.Machine](c, client.Path("machines"))
	if err != nil {
		return nil, nil, err
	}

	var read []importfile.Machine
	var changed []inventory.Machine
	for _, m := range ms {
		object := importedObject{Place: m.Place, Kind: "machine", Name: m.Name, Result: isAdded}
		next := m.Machine
		if n := slices.IndexFunc(a.Value.Items, func(x inventory.Machine) bool { return x.Name == m.Name }); n >= 0 {
			next = m.Merge(a.Value.Items[n])
			object.Result = isSame
			if object.Changes, err = importfile.Differences(a.Value.Items[n], next); err != nil {
				return nil, nil, err
			}
			if len(object.Changes) > 0 {
				object.Result = isChanged
			}
		}
		// Store a machine with secrets even if nothing differs: the server shows no secrets, so they cannot be compared.
		if object.Result != isSame || next.HasSecrets() {
			read, changed = append(read, m), append(changed, next)
		}
		out.Objects = append(out.Objects, object)
	}
	return read, changed, nil
}

// refuseChanges returns a conflict if an existing object would change and o.replace is false.
func refuseChanges(objects []importedObject, o importOptions) error {
	var ps inventory.Problems
	for _, x := range objects {
		if x.Result == isChanged && !o.replace {
			ps = append(ps, inventory.Problem{
				File: x.File, Line: x.Line, What: fmt.Sprintf("%s %q exists, with other values", x.Kind, x.Name),
				Remedy: "show the difference with: ingot import --dry-run " + x.File + "; give --replace to change it",
			})
		}
	}
	if len(ps) > 0 {
		return inventory.Conflicts(ps)
	}
	return nil
}

// addPlaces adds file and line to the problems in err that the server found in the machines ms.
func addPlaces(err error, ms []importfile.Machine) error {
	return locateProblems(err, len(ms), func(n int) string { return ms[n].Name },
		func(n int, p inventory.Problem) inventory.Problem {
			p.File, p.Line = ms[n].File, ms[n].LineOf(p.Field)
			return p
		})
}

// showImport prints the imported objects, the ignored keys, and the commands that start runs and BMC jobs.
func showImport(c *Call, x imported) error {
	printWarnings(c, x.Warnings)
	return ShowValue(c, x, func(w io.Writer) error {
		for _, o := range x.Objects {
			fmt.Fprintf(w, "%s %s %s\n", o.Kind, Inert(o.Name), o.Result)
			for _, change := range o.Changes {
				fmt.Fprintf(w, "  %s\n", Inert(change.String()))
			}
		}
		for n, i := range x.Ignored {
			if n == 0 {
				fmt.Fprintln(w, "\nnot imported:")
			}
			fmt.Fprintf(w, "  %s: %s: %s: %s\n", i.Place, Inert(i.Object), Inert(i.Key), Inert(i.Why))
		}
		for n, s := range x.Starts {
			if n == 0 {
				fmt.Fprintln(w, "\nnot started; start with:")
			}
			fmt.Fprintf(w, "  %s   # %s\n", Inert(s.Command), Inert(s.Object))
		}
		if !x.Stored {
			fmt.Fprintln(w, "\nnothing was stored")
		}
		return nil
	})
}

// importOther imports a file if it is in the format of another program. Otherwise it returns false and does nothing.
func importOther(c *Call, file importfile.File, replace bool) (bool, error) {
	if !importfile.Known(file) {
		return false, nil
	}
	read, err := importfile.Read([]importfile.File{file})
	if err != nil {
		return true, err
	}
	return true, runImport(c, read, importOptions{replace: replace})
}

// refuseOther returns an error if a file from which a run is to be started is in the format of another program.
func refuseOther(file importfile.File) error {
	if !importfile.Known(file) {
		return nil
	}
	return human.Advise(inventory.Problems{{
		File: file.Name, Line: 1, What: "this is a document of another program; only Ingot's own format starts a run",
		Remedy: "import it; the import prints the command that starts the run",
	}}, "ingot import --dry-run "+file.Name)
}
