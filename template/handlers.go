package template

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// checkHandlers checks the handlers on-timeout and on-failure of the action at path.
func (c *checker) checkHandlers(path string, s step) {
	for _, key := range []string{"on-timeout", "on-failure"} {
		words := s.handlers()[key]
		if slices.ContainsFunc(words, c.open) {
			continue // some words depend on data
		}
		if _, native := s.native(); !native && action.IsCommandOfContainer(words) {
			continue
		}
		h, err := action.ParseHandler(words)
		if err != nil {
			c.add(path+"."+key, "see "+actionsPage, "%v", err)
			continue
		}
		if h.Native == action.Noop && slices.ContainsFunc(refs, func(ref string) bool { return inventory.Refers(h.Environment["LOG"], ref) }) {
			c.add(path+"."+key, "leave it out", "writes a secret to the log")
		}
	}
}

// checkHandlerShells adds a problem if a handler may pass data to a shell as commands (security S42). The handler uses a shell if a word
// sets the interpreter; a word whose name depends on data may do so, too.
func (l *linter) checkHandlerShells(at place, s step) {
	for _, key := range []string{"on-timeout", "on-failure"} {
		words, shell, fromData := s.handlers()[key], false, false
		for n, word := range words {
			written := at.source.Text(fmt.Sprintf("%s.%s[%d]", at.step, key, n))
			name, _, _ := strings.Cut(written, "=")
			data := written != word
			fromData = fromData || data
			shell = shell || name == action.InterpreterVariable || data && n > 0 && (strings.Contains(name, "{{") || name == written)
		}
		if !shell || !fromData || words[0] == action.Echo {
			continue
		}
		if native, known := action.Native(words[0]); native == action.CExec || !known {
			l.check.add(
				at.step+"."+key,
				"leave out "+action.InterpreterVariable+", or the data",
				"a shell would run the template's data as commands",
			)
		}
	}
}

// checkHandlerDisks adds a problem if a handler of the action at path names another disk than the run's disk.
func (p *planner) checkHandlerDisks(path string, s step, disk string) {
	for _, key := range []string{"on-timeout", "on-failure"} {
		h, err := action.ParseHandler(s.handlers()[key])
		if err != nil {
			continue // checkHandlers reports it
		}
		second := false
		for _, name := range action.DiskVariables() {
			if value := h.Environment[name]; value != "" && action.DiskOf(value) != disk {
				p.check.add(path+"."+key, "leave out "+name, "%q is a second disk next to %q; a run is bound to one disk", value, disk)
				second = true
			}
		}
		if err := action.CheckDevice(h.Native, h.Environment, disk); err != nil && !second {
			p.check.add(path+"."+key, "see "+actionsPage, "%v", err)
		}
	}
}
