package cli

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// headMark begins each line that openEditor writes above a document, and removes again.
const headMark = "# ingot: "

// A document is a text that the operator changes in an editor.
type document struct {
	what  string   // for example machine node-1
	text  string   // as it is stored
	notes []string // shown above the text
	// store sends the changed text to the server. The lines of its problems are those of the text.
	store func(text string) error
}

// openEditor lets the operator change a document, and stores it. If the operator can correct an error, the editor opens again with
// the error above the text. After any other error, and if the editor fails, the changed text stays in a file, which openEditor names.
func (c *Call) openEditor(d document) error {
	if !Interactive(c.Command) {
		return UsageError("an editor needs a terminal, but standard input is not a terminal")
	}
	// The document may hold secrets. The directory, of mode 0700, also hides the editor's own copies.
	dir, err := os.MkdirTemp("", "ingot-edit-")
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "document.yaml")
	text, failed := d.text, error(nil)
	for {
		if err := os.WriteFile(file, []byte(d.head(failed)+text), 0o600); err != nil {
			return errors.Join(failed, err)
		}
		changed, err := c.runEditor(file)
		unchanged := strings.TrimSpace(changed) == "" || changed == d.text
		switch {
		case err != nil && unchanged:
			return errors.Join(err, os.RemoveAll(dir))
		case err != nil:
			c.Note("the document with your changes is in %s", file)
			return errors.Join(failed, err)
		case unchanged:
			c.Note("%s not changed", d.what)
			return os.RemoveAll(dir)
		}
		if failed == nil || changed != text {
			if failed = d.store(changed); failed == nil {
				return os.RemoveAll(dir)
			}
			text = changed
			if correctable(failed) {
				continue
			}
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return errors.Join(failed, err)
		}
		c.Note("the document with your changes is in %s", file)
		return failed
	}
}

// head returns the comments above the text. failed is why the text could not be stored; nil: it was not sent yet.
func (d document) head(failed error) string {
	lines := append([]string{d.what + "; without a change, nothing is sent"}, d.notes...)
	var problems inventory.Problems
	var answered *client.Error
	switch {
	case failed == nil:
	case errors.As(failed, &answered) && len(answered.Problems) > 0:
		problems = answered.Problems
	case !errors.As(failed, &problems):
		problems = inventory.Problems{{What: inventory.TextOf(failed)}}
	}
	below := len(lines) + len(problems)
	for _, p := range problems {
		p.File = ""
		if p.Line > 0 {
			p.Line += below
		}
		lines = append(lines, "error: "+p.String())
	}

	var b strings.Builder
	for _, line := range lines {
		b.WriteString(headMark + Inert(line) + "\n")
	}
	return b.String()
}

// runEditor runs the operator's editor on a file, and returns the text of the file without the lines of head, also if the editor fails.
func (c *Call) runEditor(file string) (string, error) {
	standard := "vi"
	if runtime.GOOS == "windows" {
		standard = "notepad"
	}
	words := strings.Fields(cmp.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR"), standard))
	editor := exec.CommandContext(c.Context(), words[0], append(words[1:], file)...)
	editor.Stdin, editor.Stdout, editor.Stderr = os.Stdin, os.Stdout, os.Stderr
	failed := editor.Run()
	if failed != nil {
		failed = human.Advise(
			fmt.Errorf("running the editor %s: %w", words[0], failed),
			strings.Join(append([]string{"EDITOR=" + standard, c.CommandPath()}, c.Args...), " "),
		)
	}
	b, err := os.ReadFile(file)
	text := string(b)
	for strings.HasPrefix(text, headMark) {
		_, text, _ = strings.Cut(text, "\n")
	}
	return text, errors.Join(failed, err)
}

// correctable reports whether a change of the text can help against err.
func correctable(err error) bool {
	var answered *client.Error
	if errors.As(err, &answered) && answered.Status == http.StatusConflict {
		return len(answered.Problems) > 0
	}
	return errors.Is(err, inventory.ErrInvalid)
}
