package host

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/cli"
)

// A documentedCommand is an ingot command in a document.
type documentedCommand struct {
	place string
	words []string // what follows ingot
	whole bool     // in a code block: it can be typed; else it may be just the name of a command
}

// TestDocumentedCommands: every ingot command in the documents exists, with its flags and its
// number of arguments.
func TestDocumentedCommands(t *testing.T) {
	files, err := filepath.Glob("../../../docs/*.md")
	require.NoError(t, err)
	all, whole := 0, 0
	for _, file := range append(files, "../../../README.md", "../../../CONTRIBUTING.md") {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, c := range documentedCommands(filepath.Base(file), string(b)) {
			if err := c.check(); err != nil {
				t.Errorf("%s: ingot %s: %v", c.place, strings.Join(c.words, " "), err)
			}
			all++
			if c.whole {
				whole++
			}
		}
	}
	require.Greater(t, all, 100, "commands are not found in the documents")
	require.Greater(t, whole, 50, "commands are not found in code blocks")
}

func TestCheckDocumentedCommand(t *testing.T) {
	for text, want := range map[string]string{
		"`ingot serve` and `ingot machine get NAME`, `ingot machine get`, `ingot recover start …`": "",
		"```\n$ ingot machine get node-1   # shows it\n```":                                        "",
		"```\nA=b sudo bin/ingot doctor && ingot export | ingot why node-1 > file\n```":            "",
		"```\ningot recover start a --selector rack=a1 \\\n  --concurrency 4\n```":                 "",
		"```yaml\ningot fly\n```":                                            "",
		"`ingot fly`":                                                        "m:1: unknown command",
		"\n`ingot machine fly`":                                              "m:2: unknown command",
		"`ingot machine get a b`":                                            "accepts 1 arg",
		"`ingot machine get --colour red`":                                   "unknown flag: --colour",
		"`ingot operation list --limit many`":                                "invalid argument",
		"```\ningot machine get\n```":                                        "accepts 1 arg",
		"```\nset -e\n\ningot machine add a\n```":                            "m:4: required flag",
		"```\neval \"$(ingot temporal fly)\"\n```":                           "unknown command",
		"```\ndocker compose exec -T ingot /usr/bin/ingot temporal fly\n```": "unknown command",
		"```\ningot serve && sleep 1; ingot fly\n```":                        "unknown command",
	} {
		var got []string
		for _, c := range documentedCommands("m", text) {
			if err := c.check(); err != nil {
				got = append(got, fmt.Sprintf("%s: %v", c.place, err))
			}
		}
		if want == "" {
			require.Empty(t, got, text)
			continue
		}
		require.Len(t, got, 1, text)
		require.Contains(t, got[0], want, text)
	}
}

// check returns what is wrong with a command.
func (d documentedCommand) check() error {
	root := cli.Root("test", AddCommands)
	cmd, rest, err := root.Find(d.words)
	if err != nil {
		return err
	}
	if cmd.Annotations[cli.InsteadOf] != "" {
		return fmt.Errorf("unknown command %q of %q", cmd.Name(), cmd.Parent().CommandPath())
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}

	args := cmd.Flags().Args()
	isGroup := cmd.HasSubCommands() && cmd.ValidateArgs([]string{"x", "x", "x", "x"}) == nil
	switch {
	case slices.Contains(args, "…"): // any number of them
		return nil
	case isGroup && len(args) > 0:
		return fmt.Errorf("unknown command %q of %q", args[0], cmd.CommandPath())
	case isGroup, !d.whole && len(args) == 0:
		return nil
	}
	if err := cmd.ValidateArgs(args); err != nil || !d.whole {
		return err
	}
	if err := cmd.ValidateRequiredFlags(); err != nil {
		return err
	}
	return cmd.ValidateFlagGroups()
}

var (
	codeBlock  = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```")
	codeSpan   = regexp.MustCompile("`([^`]+)`")
	substitute = regexp.MustCompile(`"?\$\(([^)]*)\)"?`)
	comment    = regexp.MustCompile(`(^|\s)#.*`)
	operator   = regexp.MustCompile(`\s(?:&&|\|\||\|)\s|;\s|$`)
)

// documentedCommands finds the commands of a Markdown file.
func documentedCommands(file, text string) (out []documentedCommand) {
	place := func(at int) string { return fmt.Sprintf("%s:%d", file, 1+strings.Count(text[:at], "\n")) }
	for _, m := range codeBlock.FindAllStringSubmatchIndex(text, -1) {
		kind, block := text[m[2]:m[3]], text[m[4]:m[5]]
		if kind != "" && kind != "sh" || strings.ContainsAny(block, "│└") { // another language, or a drawing
			continue
		}

		at := m[4]
		for line := range strings.Lines(strings.ReplaceAll(block, "\\\n", "\\\v")) {
			for _, words := range ingotCommands(line) {
				out = append(out, documentedCommand{place(at), words, true})
			}
			at += len(line)
		}
	}

	prose := codeBlock.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) })
	for _, m := range codeSpan.FindAllStringSubmatchIndex(prose, -1) {
		span := prose[m[2]:m[3]]
		if !strings.HasPrefix(span, "ingot ") {
			continue
		}
		line := fmt.Sprintf("%s:%d", file, 1+strings.Count(prose[:m[0]], "\n"))
		for _, words := range ingotCommands(span) {
			out = append(out, documentedCommand{line, words, false})
		}
	}
	return out
}

// ingotCommands returns the words after ingot of each such command in a line of a shell.
func ingotCommands(line string) (out [][]string) {
	line = comment.ReplaceAllString(strings.NewReplacer("\\\v", " ").Replace(line), "")
	for _, m := range substitute.FindAllStringSubmatch(line, -1) {
		out = append(out, ingotCommands(m[1])...)
	}
	line = substitute.ReplaceAllString(line, "VALUE")

	for _, part := range operator.Split(line, -1) {
		words := shellWords(part)
		for len(words) > 0 && (words[0] == "$" || words[0] == "sudo" || regexp.MustCompile(`^[A-Z_]+=`).MatchString(words[0])) {
			words = words[1:]
		}
		isIngot := func(s string) bool { return s == "ingot" || strings.HasSuffix(s, "/ingot") }
		at := 0
		if len(words) > 0 && words[0] == "docker" { // the last one is the program, or the service whose program it is
			for n, w := range words {
				if isIngot(w) {
					at = n
				}
			}
		}
		if at < len(words) && isIngot(words[at]) {
			out = append(out, words[at+1:])
		}
	}
	return out
}

// shellWords splits a command into words, up to a redirection.
func shellWords(s string) (out []string) {
	word, quote, started := "", rune(0), false
	for _, r := range s + " " {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, started = r, true
		case quote == 0 && (r == ' ' || r == '\t' || r == '\n'):
			if word == ">" || word == "<" || word == ">>" {
				return out
			}
			if started {
				out = append(out, word)
			}
			word, started = "", false
		default:
			word += string(r)
			started = true
		}
	}
	return out
}

// TestExamplesExist: every command of an example in the help exists as well.
func TestExamplesExist(t *testing.T) {
	every(cli.Root("test", AddCommands), func(cmd *cobra.Command) {
		for line := range strings.Lines(strings.ReplaceAll(cmd.Example, "\\\n", "")) {
			for _, words := range ingotCommands(line) {
				c := documentedCommand{cmd.CommandPath(), words, true}
				if err := c.check(); err != nil {
					t.Errorf("example of %s: ingot %s: %v", c.place, strings.Join(words, " "), err)
				}
			}
		}
	})
}
