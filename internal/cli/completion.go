package cli

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/client"
)

// NoFiles is the completion directive that offers no file names.
const NoFiles = cobra.ShellCompDirectiveNoFileComp

// CompleteFlag sets f as the completion function of a flag of cmd.
func CompleteFlag(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag, f))
}

// completeWords makes words the completions of a flag's value.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	CompleteFlag(cmd, flag, cobra.FixedCompletions(words, NoFiles))
}

// complete returns a completion function. It calls list and offers the returned words.
func (o *Options) complete(list func(c *Call) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		words, err := list(&Call{Command: cmd, Options: o, Args: args})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return words, NoFiles
	}
}

// names returns a completion function that offers the values of a field of all items of the list at route.
func (o *Options) names(route, field string) cobra.CompletionFunc {
	return o.complete(func(c *Call) ([]string, error) {
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

// firstArg returns a completion function that calls f for the first argument, and offers nothing for the others.
func firstArg(f cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, to string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, NoFiles
		}
		return f(cmd, args, to)
	}
}

func (o *Options) machines() cobra.CompletionFunc { return o.names(client.Path("machines"), "name") }

func (o *Options) templates() cobra.CompletionFunc { return o.names(client.Path("templates"), "name") }
func (o *Options) images() cobra.CompletionFunc    { return o.names(client.Path("images"), "name") }
func (o *Options) labs() cobra.CompletionFunc      { return o.names(client.Path("genesis"), "name") }

// operations completes the ids of operations of all types.
func (o *Options) operations() cobra.CompletionFunc { return o.names(client.Path("operations"), "id") }

// operationsOf completes the names of the operations of one type.
func (o *Options) operationsOf(kind string) cobra.CompletionFunc {
	return o.names(client.Path("operations")+"?type="+kind, "name")
}
