package cli

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/documents/importfile"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// Options holds the flags that every command has, and the settings of this program.
type Options struct {
	client.Lookup
	output string

	// pollEvery is the pause between two requests of a command that waits for a run or operation.
	pollEvery time.Duration
	// watchEvery is the pause between two requests of a list that is watched.
	watchEvery time.Duration
	// ProgramVersion is the version of this program.
	ProgramVersion string
	// Systems checks the documents of lab files. Without it, in the client-only program, the server checks lab files and
	// templates.
	Systems genesis.Systems
}

// A Call is one execution of a command, with its streams, flags and arguments.
type Call struct {
	*cobra.Command
	*Options
	Args       []string
	remoteLock sync.Mutex     // guards remote: an upload is watched while it is sent
	remote     *client.Client // nil until the first request
}

// NewCommand makes cmd call run, and returns cmd.
func (o *Options) NewCommand(cmd *cobra.Command, run func(c *Call) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c := &Call{Command: cmd, Options: o, Args: args}
		if wait := cmd.Flags().Lookup("wait"); c.requiresEvidence() && wait != nil && wait.Value.String() != "true" {
			return commandError{UsageError("--%s works only with --wait", requireEvidence)}
		}
		if err := run(c); err != nil {
			return commandError{c.suggestName(err)}
		}
		return nil
	}
	return cmd
}

// suggestName adds to an error about an object that does not exist the name that was probably meant: the completion of the
// first argument knows the names. Names that differ in a number are those of other objects.
func (c *Call) suggestName(err error) error {
	if !errors.Is(err, inventory.ErrNotFound) || len(c.Args) == 0 || c.ValidArgsFunction == nil {
		return err
	}

	names, _ := c.ValidArgsFunction(c.Command, nil, "")
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return digits(name) != digits(c.Args[0]) })
	if near := strictyaml.Nearest(c.Args[0], names); near != "" && near != c.Args[0] {
		return fmt.Errorf("%w; did you mean %s?", err, near)
	}
	return err
}

// digits returns the digits in s.
func digits(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return r
		}
		return -1
	}, s)
}

// Server returns the client of the server that the flags, the environment, the stored session or
// this host's configuration name.
func (c *Call) Server() (*client.Client, error) {
	c.remoteLock.Lock()
	defer c.remoteLock.Unlock()
	if c.remote != nil {
		return c.remote, nil
	}
	var err error
	c.remote, err = c.FindServer()
	return c.remote, err
}

// LoadConfig reads this host's configuration file. If the file is missing, that is an error only if --config names the
// file.
func (c *Call) LoadConfig() (config.Config, error) {
	return config.Load(c.ConfigFile, c.Flags().Changed("config"))
}

// Request sends a request with a body of length bytes; nil means no body. The caller closes the body of the response.
func (c *Call) Request(method, route string, body io.Reader, length int64) (*http.Response, error) {
	s, err := c.Server()
	if err != nil {
		return nil, err
	}
	return s.Request(c.Context(), method, route, body, length)
}

// ask sends a request to the server and decodes the answer. If in is not nil, it is encoded as JSON and sent as the body.
func ask[T any](c *Call, method, route string, in any) (client.Answer[T], error) {
	s, err := c.Server()
	if err != nil {
		return client.Answer[T]{}, err
	}
	return client.Send[T](c.Context(), s, method, route, in)
}

func get[T any](c *Call, route string) (client.Answer[T], error) {
	return ask[T](c, http.MethodGet, route, nil)
}

func post[T any](c *Call, route string, in any) (client.Answer[T], error) {
	return ask[T](c, http.MethodPost, route, in)
}

// postOnce does what post does, for a route that starts a run or operation. If the answer is lost, it sends the request
// again, and the server still starts only one run or operation; see client.Start.
func postOnce(c *Call, route string, in any) (client.Answer[apitypes.Started], error) {
	s, err := c.Server()
	if err != nil {
		return client.Answer[apitypes.Started]{}, err
	}
	return client.Start[apitypes.Started](c.Context(), s, route, in)
}

func remove(c *Call, route string) error {
	_, err := ask[struct{}](c, http.MethodDelete, route, nil)
	return err
}

// getAll reads all pages of a list.
func getAll[T any](c *Call, route string) (client.Answer[client.List[T]], error) {
	s, err := c.Server()
	if err != nil {
		return client.Answer[client.List[T]]{}, err
	}
	return client.GetAll[T](c.Context(), s, route)
}

// getAndShow sends a GET request and shows the answer.
func getAndShow[T any](c *Call, route string, table func(w io.Writer, v T) error) error {
	a, err := get[T](c, route)
	if err != nil {
		return err
	}
	return show(c, a, table)
}

// postAndShow sends a POST request and shows the answer.
func postAndShow[T any](c *Call, route string, in any, table func(w io.Writer, v T) error) error {
	a, err := post[T](c, route, in)
	if err != nil {
		return err
	}
	return show(c, a, table)
}

// A filter is a flag of a "list" command. Its value is sent to the server as the query parameter of the
// same name.
type filter struct {
	name, usage string
	selector    bool     // the flag --selector
	set         bool     // a flag without a value
	number      bool     // the flag's value must be a positive number
	words       []string // valid values, case-insensitive; nil: any text
	complete    cobra.CompletionFunc
}

// pageFilters returns the flags of a list that the server divides into pages and sorts by
// key.
func pageFilters(key string) []filter {
	return []filter{
		{name: "limit", usage: "maximum number of entries to show", number: true},
		{name: "after", usage: "show the entries after this cursor, which the previous page printed (JSON: next)"},
		{name: "sort", usage: "sort by " + key + ", or by -" + key + " in descending order", words: []string{key, "-" + key}},
	}
}

// machineFilter returns the flag --selector for a list of machines or of their runs.
func machineFilter(o *Options) filter {
	return filter{name: selectorName, usage: "only entries of machines with these labels", selector: true, complete: o.labels()}
}

// stateFilter returns the flag --state for a list of runs or operations, or of machines by the state of their last run.
func stateFilter(usage string) filter {
	words := append(inventory.States(), inventory.FilterWaiting)
	usage += ": " + strings.Join(words, ", ") + "; waiting means waiting for an operator"
	return filter{name: "state", usage: usage, words: words}
}

// addFilters adds the flags to cmd. It returns a function that validates the flags that are set and returns them as a query.
func addFilters(cmd *cobra.Command, filters []filter) func() (url.Values, error) {
	for _, f := range filters {
		switch {
		case f.selector:
			addSelectorFlag(cmd, f.usage)
		case f.set:
			cmd.Flags().Bool(f.name, false, f.usage)
		case f.number:
			cmd.Flags().Int(f.name, 0, f.usage)
		default:
			cmd.Flags().String(f.name, "", f.usage)
		}
		if f.words != nil {
			completeWords(cmd, f.name, f.words...)
		}
		if f.complete != nil {
			CompleteFlag(cmd, f.name, f.complete)
		}
	}

	return func() (url.Values, error) {
		q := url.Values{}
		for _, f := range filters {
			if !cmd.Flags().Changed(f.name) {
				continue
			}
			v, err := f.read(cmd.Flag(f.name).Value.String())
			if err != nil {
				return nil, err
			}
			q.Set(f.name, v)
		}
		return q, nil
	}
}

// read validates v, the value of the flag, and returns the value to send to the server.
func (f filter) read(v string) (string, error) {
	if n, err := strconv.Atoi(v); f.number && (err != nil || n < 1) {
		return "", UsageError("invalid --%s %s; must be a number of at least 1", f.name, v)
	}
	if f.words == nil {
		return v, nil
	}

	for _, word := range f.words {
		if strings.EqualFold(v, word) {
			return word, nil
		}
	}

	return "", UsageError("invalid --%s %q; must be one of %s", f.name, v, strings.Join(f.words, ", "))
}

// A deletion describes the object that a "delete" command deletes.
type deletion struct {
	what  string // names the object in the confirmation, such as "machine node-1"
	lost  string // what is lost with the object; printed after what
	word  string // what the operator must type to confirm; "": the argument of the command
	route string
}

// deleteCommand returns a "delete" command: it calls find to get the object that the argument names, asks for
// confirmation, and deletes the object.
func deleteCommand(o *Options, cmd *cobra.Command, find func(c *Call) (deletion, error)) *cobra.Command {
	cmd.Args, cmd.Aliases = cobra.ExactArgs(1), []string{"rm"}
	yes := YesFlag(cmd)

	return o.NewCommand(cmd, func(c *Call) error {
		d, err := find(c)
		if err != nil {
			return err
		}
		if d.word == "" {
			d.word = c.Args[0]
		}
		if err := c.Confirm(*yes, "deletes "+d.what+d.lost, d.word); err != nil {
			return err
		}
		if err := remove(c, d.route); err != nil {
			return err
		}

		c.Note("%s deleted", d.what)
		return nil
	})
}

// Group returns a command that only holds subcommands. Without a subcommand it prints its help; an unknown subcommand
// is an error.
func Group(use, short, example string, subs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Example: example, Args: cobra.ArbitraryArgs, RunE: runGroup}
	c.AddCommand(subs...)
	return c
}

// runGroup is the RunE of a command that only holds subcommands.
func runGroup(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}

	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	similar := cmd.SuggestionsFor(args[0])
	if len(similar) == 0 {
		var names []string
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				names = append(names, sub.Name())
			}
		}
		if near := strictyaml.Nearest(args[0], names); near != "" {
			similar = []string{near}
		}
	}
	if len(similar) > 0 {
		text += "; did you mean " + strings.Join(similar, " or ") + "?"
	}
	return commandError{human.Advise(UsageError("%s", text), cmd.CommandPath()+" --help")}
}

// explainFlagError adds to an error about the flags of cmd what was probably meant.
func explainFlagError(cmd *cobra.Command, err error) error {
	args := cmd.Flags().Args()
	switch {
	case cmd.HasSubCommands() && cmd.ValidArgsFunction == nil && len(args) > 0: // the flags are those of an unknown command
		return runGroup(cmd, args)
	case err.Error() == "unknown flag: --json", err.Error() == "unknown flag: --yaml":
		return fmt.Errorf("%w; use: --output %s", err, strings.TrimPrefix(err.Error(), "unknown flag: --"))
	}
	return err
}

// YesFlag adds the flag --yes, which answers each request for confirmation with yes.
func YesFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().BoolP("yes", "y", false, "do not ask for confirmation")
}

func waitFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().BoolP("wait", "w", false, "show the progress, and wait until the workflow has ended")
}

// requireEvidence is the name of a flag of commands that can wait for an installation.
const requireEvidence = "require-evidence"

// waitFlags adds --wait and --require-evidence, for a command that starts or shows an installation.
func waitFlags(cmd *cobra.Command) *bool {
	evidenceFlag(cmd, "with --wait: ")
	return waitFlag(cmd)
}

// evidenceFlag adds --require-evidence. The argument when is the beginning of its help: a condition such as "with --wait: ", or "".
func evidenceFlag(cmd *cobra.Command, when string) {
	cmd.Flags().
		Bool(requireEvidence, false, when+"exit with 7 if nothing was installed, or without evidence that the installed system is up")
}

// requiresEvidence reports whether the command has the flag --require-evidence and the flag is set.
func (c *Call) requiresEvidence() bool {
	f := c.Flags().Lookup(requireEvidence)
	return f != nil && f.Value.String() == "true"
}

func fileFlag(cmd *cobra.Command, usage string) *string {
	return cmd.Flags().StringP("file", "f", "", usage)
}

// requireFlags makes flags of cmd mandatory.
func requireFlags(cmd *cobra.Command, flags ...string) {
	for _, f := range flags {
		cobra.CheckErr(cmd.MarkFlagRequired(f))
	}
}

// readInput reads a file, or standard input for "-". It also returns the name to use in messages.
func readInput(cmd *cobra.Command, file string) (name string, b []byte, err error) {
	if file == "-" {
		b, err = io.ReadAll(cmd.InOrStdin())
		return importfile.Stdin, b, err
	}

	b, err = os.ReadFile(file)
	if err != nil {
		return file, nil, UsageError("%v", err)
	}

	return file, b, nil
}

// readSecret reads a file that holds a secret, or standard input for "-". It refuses a file whose mode
// [durablefile.ReadPrivate] refuses.
func readSecret(cmd *cobra.Command, file string) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(cmd.InOrStdin())
	}
	b, err := durablefile.ReadPrivate(file)
	if err != nil {
		return nil, UsageError("reading %s: %v", file, err)
	}
	return b, nil
}

// orNone formats a number; 0 is "".
func orNone(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}
