package cli

import (
	"slices"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/spf13/cobra"
)

// noFiles disables the completion of file names.
const noFiles = cobra.ShellCompDirectiveNoFileComp

// completeFlag sets the completion of an existing flag's value.
func completeFlag(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag, f))
}

// completeWords completes a flag's value from fixed words.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	completeFlag(cmd, flag, cobra.FixedCompletions(words, noFiles))
}

// complete completes with what list returns.
func (o *options) complete(list func(c *call) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		words, err := list(&call{Command: cmd, options: o, args: args})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return words, noFiles
	}
}

// names completes from a field of the items of a list.
func (o *options) names(route, field string) cobra.CompletionFunc {
	return o.complete(func(c *call) ([]string, error) {
		a, err := getAll[map[string]any](c, route)
		if err != nil {
			return nil, err
		}
		var out []string
		for _, item := range a.Value.Items {
			if name, ok := item[field].(string); ok {
				out = append(out, name)
			}
		}
		slices.Sort(out)
		return slices.Compact(out), nil
	})
}

// firstArg completes only the first argument.
func firstArg(f cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, to string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, noFiles
		}
		return f(cmd, args, to)
	}
}

func (o *options) machines() cobra.CompletionFunc { return o.names(client.Path("machines"), "name") }

func (o *options) templates() cobra.CompletionFunc { return o.names(client.Path("templates"), "name") }
func (o *options) images() cobra.CompletionFunc    { return o.names(client.Path("images"), "name") }
func (o *options) labs() cobra.CompletionFunc      { return o.names(client.Path("genesis"), "name") }

// operations completes the ids of operations, of every type or of one.
func (o *options) operations() cobra.CompletionFunc { return o.names(client.Path("operations"), "id") }

// operationsOf completes the names of the operations of one type.
func (o *options) operationsOf(kind string) cobra.CompletionFunc {
	return o.names(client.Path("operations")+"?type="+kind, "name")
}
