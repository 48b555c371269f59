package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/inventory"
)

func genesisCmd(o *options) *cobra.Command {
	return group("genesis", "Genesis: a whole lab from one file, from nothing to the running cluster",
		"  ingot genesis plan lab.yaml\n  ingot genesis start lab.yaml --wait\n  ingot genesis status home",
		genesisPlanCmd(o), genesisStartCmd(o), genesisStatusCmd(o), genesisResumeCmd(o), genesisCancelCmd(o), genesisListCmd(o), genesisDeleteCmd(o))
}

// genesisNames completes the names of stored labs.
func (o *options) genesisNames(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return o.names(cmd, "genesis")
}

// A labFile is a lab file with what it names, as it lies on this host.
type labFile struct {
	path   string
	bundle inventory.GenesisBundle
	lab    genesis.Lab
	wrong  inventory.Problems // with what could be read
}

// readLab reads a lab file and all that it names. Mistakes in them are no
// error: there may be more to tell.
func readLab(file string) (labFile, error) {
	f := labFile{path: file}
	var err error
	f.bundle, f.lab, err = genesis.Bundle(filepath.Base(file), func(name string) ([]byte, error) {
		return os.ReadFile(filepath.Join(filepath.Dir(file), filepath.FromSlash(name)))
	})
	switch {
	case errors.As(err, &f.wrong):
		return f, nil
	case errors.Is(err, fs.ErrNotExist):
		return f, usage("%v", err)
	}
	return f, err
}

// placed names the files of problems by their paths as seen from here.
func (f labFile) placed(ps inventory.Problems) inventory.Problems {
	out := make(inventory.Problems, len(ps))
	for i, p := range ps {
		if p.File != "" {
			p.File = filepath.Join(filepath.Dir(f.path), p.File)
		}
		out[i] = p
	}
	return out
}

// image is where the file of an image lies.
func (f labFile) image(i genesis.Image) string {
	if filepath.IsAbs(i.File) {
		return i.File
	}
	return filepath.Join(filepath.Dir(f.path), filepath.FromSlash(i.File))
}

// sum hashes the file of an image. It takes its time: an ISO has gigabytes.
func (f labFile) sum(cmd *cobra.Command, i genesis.Image) (string, error) {
	x, err := os.Open(f.image(i))
	if err != nil {
		return "", err
	}
	defer x.Close()
	st, err := x.Stat()
	if err != nil {
		return "", err
	}
	p := newProgress(cmd, st.Size())
	defer p.end()
	h := sha256.New()
	for n := int64(0); ; {
		c, err := io.CopyN(h, x, 64<<20)
		n += c
		p.at(n)
		switch {
		case errors.Is(err, io.EOF):
			return hex.EncodeToString(h.Sum(nil)), nil
		case err != nil:
			return "", fmt.Errorf("reading %q: %w", x.Name(), err)
		case cmd.Context().Err() != nil:
			return "", cmd.Context().Err()
		}
	}
}

// checkImages compares the images of the lab with those of the server and with
// the files here. lacking are those that have to be sent there.
func (f labFile) checkImages(cmd *cobra.Command, c *remote) (lacking []genesis.Image, ps inventory.Problems, err error) {
	stored := map[string]string{}
	a, err := ask[list[inventory.Image]](cmd.Context(), c, "GET", path("images"), nil)
	if err != nil {
		return nil, nil, err
	}
	for _, i := range a.v.Items {
		stored[i.Name] = i.SHA256
	}
	ps = f.lab.CheckImages(func(name string) string { return stored[name] }, func(i genesis.Image) (string, error) { return f.sum(cmd, i) })
	for _, i := range f.lab.Images {
		if stored[i.Name] != i.SHA256 {
			lacking = append(lacking, i)
		}
	}
	return lacking, ps, cmd.Context().Err()
}

// check tells everything that is wrong with the lab, here and on the server, as
// one inventory.Problems; nothing is stored. lacking are the images that the
// server has yet to get. What only keeps the lab from starting now is in the
// plan.
func (f labFile) check(cmd *cobra.Command, c *remote, replace bool) (plan answer[api.GenesisPlan], lacking []genesis.Image, err error) {
	lacking, ps, err := f.checkImages(cmd, c)
	wrong := f.lab.Together(f.wrong, ps)
	if err == nil && (len(wrong) == 0 || f.bundle.Check() == nil) { // without a name it cannot be sent
		plan, err = f.send(cmd, c, replace, true)
	}
	found := plan.v.Problems
	var refused *apiError
	if errors.As(err, &refused) {
		found = refused.Problems
	}
	found = f.unsent(found)
	switch {
	case cmd.Context().Err() != nil:
		return plan, nil, cmd.Context().Err()
	case len(wrong) > 0 || err != nil && len(found) > 0:
		if err != nil && len(found) == 0 {
			say(cmd, "the server has not been asked: %v", err)
		}
		return plan, nil, f.placed(f.lab.Together(wrong, found))
	case err != nil:
		return plan, nil, err
	}
	plan.v.Problems, plan.v.Warnings = f.placed(found), f.placed(plan.v.Warnings)
	return plan, lacking, nil
}

type genesisBody struct {
	File    string            `json:"file"`
	Files   map[string]string `json:"files"`
	Replace bool              `json:"replace,omitempty"`
	Only    bool              `json:"only,omitempty"`
}

// send checks the lab on the server, and stores it there unless only is set.
func (f labFile) send(cmd *cobra.Command, c *remote, replace, only bool) (answer[api.GenesisPlan], error) {
	b := genesisBody{File: f.bundle.File, Files: map[string]string{}, Replace: replace, Only: only}
	for name, text := range f.bundle.Files {
		b.Files[name] = text.Reveal()
	}
	return ask[api.GenesisPlan](cmd.Context(), c, "PUT", path("genesis", f.bundle.Name), b)
}

// isFile tells whether an argument is a lab file rather than the name of one
// that is stored.
func isFile(arg string) bool {
	if strings.ContainsAny(arg, `/\.`) {
		return true
	}
	st, err := os.Stat(arg)
	return err == nil && st.Mode().IsRegular()
}

func genesisPlanCmd(o *options) *cobra.Command {
	var offline, replace bool
	c := &cobra.Command{
		Use: "plan {FILE | NAME}", Short: "Say what Genesis would do: every step, and what is written to which disk", Args: cobra.ExactArgs(1),
		Long: `Say what Genesis would do with the lab that FILE describes, or with one that is
stored under NAME: every step, what is written to which disk, from which images,
what the step waits for, when it is done, how long that may take and how it is
taken back. It touches nothing.

Everything that is wrong with the file, with the files that it names and with
the images is told at once. The server is asked what it has and knows, and
itself asks whether it can fetch those images of the lab that have an address;
--offline leaves all that out.`,
		Example: "  ingot genesis plan lab.yaml\n  ingot genesis plan deploy/genesis/lab.yaml --offline\n  ingot genesis plan home --output json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if !isFile(args[0]) {
				return askAndShow(cmd, o, "POST", path("genesis", args[0], "plan"), nil, printPlan)
			}
			f, err := readLab(args[0])
			if err != nil {
				return err
			}
			if offline {
				if err := f.placed(f.wrong).Err(); err != nil {
					return err
				}
				p := api.GenesisPlan{
					Name: f.lab.Name, SHA256: f.bundle.Digest(), Steps: f.lab.Steps(), Destroys: f.lab.Destroys(),
					Problems: inventory.Problems{}, Warnings: f.placed(f.lab.Warnings()),
				}
				for name := range f.bundle.Files {
					p.Files = append(p.Files, name)
				}
				return showValue(cmd, o, p, func(w io.Writer) error { return printPlan(w, p) })
			}
			c, err := o.client()
			if err != nil && len(f.wrong) > 0 {
				return f.placed(f.wrong)
			}
			if err != nil {
				return advice{err, "ingot genesis plan " + args[0] + " --offline"}
			}
			a, _, err := f.check(cmd, c, replace)
			if err != nil {
				return err
			}
			return showValue(cmd, o, a.v, func(w io.Writer) error { return printPlan(w, a.v) })
		},
	}
	c.Flags().BoolVar(&offline, "offline", false, "do not ask the server, and do not look at images")
	c.Flags().BoolVar(&replace, "replace", false, "as for start: machines of the inventory that differ are replaced")
	c.ValidArgsFunction = o.labArgs
	return c
}

// unsent leaves out problems of images that only are not on the server yet:
// start sends them along.
func (f labFile) unsent(ps inventory.Problems) inventory.Problems {
	out := inventory.Problems{}
	for _, p := range ps {
		if !strings.HasPrefix(p.Field, "images[") || !strings.HasSuffix(p.Field, "].name") {
			out = append(out, p)
		}
	}
	return out
}

// labArgs completes files and the names of stored labs.
func (o *options) labArgs(cmd *cobra.Command, args []string, to string) ([]string, cobra.ShellCompDirective) {
	names, _ := o.genesisNames(cmd, args, to)
	return names, cobra.ShellCompDirectiveDefault
}

// printPlan writes the steps so that they can be read aloud.
func printPlan(w io.Writer, p api.GenesisPlan) error {
	fmt.Fprintf(w, "lab %s, %d steps\n", p.Name, len(p.Steps))
	for n, s := range p.Steps {
		fmt.Fprintf(w, "\n%d. %s", n+1, s.Name)
		if s.Machine != "" && !strings.HasSuffix(s.Name, s.Machine) {
			fmt.Fprintf(w, " (%s)", s.Machine)
		}
		fmt.Fprintf(w, "\n   %s\n", s.Does)
		t := newTable(w)
		field := func(name, value string) {
			if value != "" {
				t.field("   "+name, value)
			}
		}
		field("overwrites", s.Disk)
		for _, i := range s.Images {
			field("image", i.Name+"  sha256 "+i.SHA256)
		}
		field("template", s.Template)
		field("waits for", s.Waits)
		field("done when", s.Ready)
		field("may take", span(s.Budget))
		field("undo", s.Undo)
		if err := t.flush(); err != nil {
			return err
		}
	}
	fmt.Fprintf(w, "\nDisks of %s are overwritten:\n", count(len(p.Destroys), "machine"))
	for _, d := range p.Destroys {
		fmt.Fprintf(w, "  %s\n", d)
	}
	tell := func(what string, ps inventory.Problems) {
		if len(ps) > 0 {
			fmt.Fprintf(w, "\n%s:\n", what)
		}
		for _, x := range ps {
			fmt.Fprintf(w, "  %s\n", inert(x.String()))
		}
	}
	tell("Worth a look", p.Warnings)
	tell("It would not start now", p.Problems)
	return nil
}

func genesisStartCmd(o *options) *cobra.Command {
	var yes, replace, again, wait bool
	c := &cobra.Command{
		Use: "start {FILE | NAME}", Short: "Build the lab that a file describes: OVERWRITES the disks of its machines", Args: cobra.ExactArgs(1),
		Long: `Build the lab that FILE describes, or that is stored under NAME: ingot genesis
plan says how. The disks of its machines are overwritten; the command names them
and asks for the name of the lab first.

The file and all that it names are checked here and on the server, images that
the server lacks are sent there, the lab is stored, sealed, and Genesis begins as
the workflow genesis/NAME. There is one Genesis at a time. It goes on without
this command and over restarts of the server; where a person is needed it says so
here, on the page, and in ingot genesis status.`,
		Example: "  ingot genesis start lab.yaml --wait\n  ingot genesis start lab.yaml --yes --replace   # machines of the inventory that differ are replaced\n  ingot genesis start home --again               # install again what is installed",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			name, err := o.prepareLab(cmd, c, args[0], yes, replace)
			if err != nil {
				return err
			}
			a, err := ask[api.Started](cmd.Context(), c, "POST", path("genesis", name, "start"), map[string]bool{"again": again})
			if err != nil {
				return err
			}
			return o.begun(cmd, c, name, a, wait)
		},
	}
	yesFlag(c, &yes)
	c.Flags().BoolVar(&replace, "replace", false, "replace machines of the inventory that differ from the file's")
	c.Flags().BoolVar(&again, "again", false, "install again what an earlier Genesis of this name has installed")
	c.Flags().BoolVar(&wait, "wait", false, "show how it goes, until it ends")
	c.ValidArgsFunction = o.labArgs
	return c
}

// prepareLab does all that comes before the start: checks, the question, images
// and the file.
func (o *options) prepareLab(cmd *cobra.Command, c *remote, arg string, yes, replace bool) (name string, err error) {
	ask1 := func(name string, destroys []string) error {
		return confirm(cmd, yes, "overwrites disks of "+count(len(destroys), "machine")+":\n  "+strings.Join(destroys, "\n  ")+"\nand whatever is on them is lost", name)
	}
	if !isFile(arg) {
		a, err := ask[api.GenesisPlan](cmd.Context(), c, "POST", path("genesis", arg, "plan"), nil)
		if err != nil {
			return "", err
		}
		return arg, ask1(arg, a.v.Destroys)
	}
	f, err := readLab(arg)
	if err != nil {
		return "", err
	}
	a, lacking, err := f.check(cmd, c, replace)
	if err != nil {
		return "", err
	}
	if err := a.v.Problems.Err(); err != nil {
		return "", err
	}
	if err := ask1(f.lab.Name, f.lab.Destroys()); err != nil {
		return "", err
	}
	for _, i := range lacking {
		if err := o.sendImage(cmd, c, f, i); err != nil {
			return "", err
		}
	}
	_, err = f.send(cmd, c, replace, false)
	var refused *apiError
	if errors.As(err, &refused) {
		refused.Problems = f.placed(refused.Problems)
	}
	return f.lab.Name, err
}

func (o *options) sendImage(cmd *cobra.Command, c *remote, f labFile, i genesis.Image) error {
	sent := sentImage{name: i.Name, sha256: i.SHA256}
	if slices.ContainsFunc(f.lab.Machines, func(m genesis.Machine) bool { return installs(m, i.Name) }) {
		sent.use = inventory.UseInstaller
	}
	if i.URL != "" {
		_, err := o.fetch(cmd, c, sent, i.URL)
		return err
	}
	say(cmd, "image %s: %s is sent to the server", i.Name, f.image(i))
	_, err := o.upload(cmd, c, sent, f.image(i))
	return err
}

// installs tells whether an installer of m boots or fetches an image: its
// template is given the name, or its document names it, as Harvester's does its ISO.
func installs(m genesis.Machine, image string) bool {
	is := func(values map[string]string) bool {
		return slices.Contains(slices.Collect(maps.Values(values)), image)
	}
	return m.Image != image && (is(m.HardwareMap) || is(m.Labels) || inventory.NamesImage(m.UserData.Reveal(), image))
}

// begun tells that a Genesis has begun, or shows it until it ends.
func (o *options) begun(cmd *cobra.Command, c *remote, name string, a answer[api.Started], wait bool) error {
	if wait {
		return o.waitOperation(cmd, c, a.v.Workflow)
	}
	return show(cmd, o, a, func(w io.Writer, x api.Started) error {
		_, err := fmt.Fprintf(w, "%s has begun as run %s\nnext: ingot genesis status %s --wait\n", x.Workflow, x.Run, name)
		return err
	})
}

func genesisStatusCmd(o *options) *cobra.Command {
	var wait bool
	c := &cobra.Command{
		Use: "status NAME", Short: "Show where a Genesis stands: its steps, and what it waits for", Args: cobra.ExactArgs(1), ValidArgsFunction: o.genesisNames,
		Example: "  ingot genesis status home\n  ingot genesis status home --wait\n  ingot genesis status home --output json",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			if wait {
				return o.waitOperation(cmd, c, "genesis/"+args[0])
			}
			a, err := ask[inventory.Operation](cmd.Context(), c, "GET", path("genesis", args[0], "status"), nil)
			if err != nil {
				return err
			}
			return show(cmd, o, a, printOperation)
		},
	}
	c.Flags().BoolVar(&wait, "wait", false, "show how it goes, until it ends")
	return c
}

func genesisResumeCmd(o *options) *cobra.Command {
	var wait bool
	c := &cobra.Command{
		Use: "resume NAME", Short: "Go on with a Genesis that has stopped", Args: cobra.ExactArgs(1), ValidArgsFunction: o.genesisNames,
		Long: `Go on with a Genesis that has stopped. One that asks a person about a step is
told to try that step again; ingot operation decide has the other choices. One
that has failed or was cancelled begins again: what it has done, and what still
works, is not done twice.`,
		Example: "  ingot genesis resume home\n  ingot genesis resume home --wait",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			a, err := ask[api.Started](cmd.Context(), c, "POST", path("genesis", args[0], "resume"), nil)
			if err != nil {
				return err
			}
			return o.begun(cmd, c, args[0], a, wait)
		},
	}
	c.Flags().BoolVar(&wait, "wait", false, "show how it goes, until it ends")
	return c
}

func genesisCancelCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "cancel NAME", Short: "End a Genesis; steps that are done stay done", Args: cobra.ExactArgs(1), ValidArgsFunction: o.genesisNames,
		Example: "  ingot genesis cancel home",
		RunE: func(cmd *cobra.Command, args []string) error {
			return askAndShow(cmd, o, "POST", path("genesis", args[0], "cancel"), nil, func(w io.Writer, x api.Started) error {
				_, err := fmt.Fprintf(w, "%s was asked to end\nnext: ingot genesis status %s\n", x.Workflow, args[0])
				return err
			})
		},
	}
}

func genesisListCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List stored labs", Args: cobra.NoArgs, Aliases: []string{"ls"}, Example: "  ingot genesis list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return askAndShow(cmd, o, "GET", path("genesis"), nil, func(w io.Writer, l list[inventory.GenesisBundle]) error {
				if len(l.Items) == 0 {
					say(cmd, "no labs; begin with: ingot genesis plan FILE")
					return nil
				}
				t := newTable(w, "NAME", "FILE", "STORED", "SHA256")
				for _, b := range l.Items {
					t.row(b.Name, b.File, when(b.Updated), b.SHA256)
				}
				return t.flush()
			})
		},
	}
}

func genesisDeleteCmd(o *options) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "delete NAME", Short: "Delete a stored lab with the files that it names", Args: cobra.ExactArgs(1), ValidArgsFunction: o.genesisNames,
		Example: "  ingot genesis delete home\n  ingot genesis delete home --yes",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			if err := confirm(cmd, yes, fmt.Sprintf("deletes the lab file %s and the files that it names from the server; machines stay as they are", args[0]), args[0]); err != nil {
				return err
			}
			if _, err := ask[struct{}](cmd.Context(), c, "DELETE", path("genesis", args[0]), nil); err != nil {
				return err
			}
			say(cmd, "lab %s deleted", args[0])
			return nil
		},
	}
	yesFlag(c, &yes)
	return c
}
