package cli

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/selector"
	"github.com/ingotmetal/ingot/inventory"
)

// selectorName is the name of the flag that selects machines by their labels.
const selectorName = "selector"

// addSelectorFlag adds --selector to cmd, with the short form -l and the other name --label. If the flag is given more than once, a machine
// must match every one.
func addSelectorFlag(cmd *cobra.Command, usage string) *selector.Selector {
	var s selectorFlag
	x := cmd.Flags()
	x.VarP(&s, selectorName, "l", usage+", for example 'rack=a1,role!=db,site in (x,y),gpu,!old'; repeatable, all must match")
	x.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "label" {
			name = selectorName
		}
		return pflag.NormalizedName(name)
	})
	return (*selector.Selector)(&s)
}

// selectorFlag is the value of --selector.
type selectorFlag selector.Selector

// Set adds the requirements of text.
func (f *selectorFlag) Set(text string) error {
	s, err := selector.Parse(text)
	if err != nil {
		var problems inventory.Problems
		if errors.As(err, &problems) {
			problems[0].Field = "--" + selectorName
		}
		return err
	}
	*f = append(*f, s...)
	return nil
}

// String returns the selector as text.
func (f *selectorFlag) String() string { return selector.Selector(*f).String() }

// Type returns the word for the value in the help.
func (f *selectorFlag) Type() string { return "selector" }

// labels completes a selector with the labels of all machines, as key=value. It keeps the requirements before the last comma.
func (o *Options) labels() cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, to string) ([]string, cobra.ShellCompDirective) {
		before := to[:strings.LastIndexByte(to, ',')+1]
		return o.complete(func(c *Call) ([]string, error) {
			a, err := getAll[inventory.Machine](c, client.Path("machines"))
			words := map[string]bool{}
			for _, m := range a.Value.Items {
				for k, v := range m.Labels {
					words[before+k+"="+v] = true
				}
			}
			return slices.Sorted(maps.Keys(words)), err
		})(cmd, args, to)
	}
}
