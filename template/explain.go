package template

import (
	"fmt"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// A Rendering is a template that was rendered for a machine, in the form in which the API shows it.
type Rendering struct {
	Actions       []action.Action `json:"actions"`
	GlobalTimeout action.Seconds  `json:"globalTimeout"`
	DiskAlias     string          `json:"diskAlias,omitempty"`
	Warnings      []string        `json:"warnings,omitempty"`
	// Explanation is only set if the request asks for it.
	Explanation *Explanation `json:"explanation,omitempty"`
}

// An Explanation says where each part of a rendered template comes from. It does not contain the values of variables.
type Explanation struct {
	DiskAlias     string              `json:"diskAlias"`
	GlobalTimeout string              `json:"globalTimeout"`
	Actions       []ActionExplanation `json:"actions"`
	// Installer describes the installer that the machine boots after the actions; "" = there is none.
	Installer string `json:"installer,omitempty"`
}

// An ActionExplanation explains one action: the rendered action that has the same index.
type ActionExplanation struct {
	Native string `json:"native,omitempty"` // "" for a container
	Rule   string `json:"rule"`             // why the value of image selects this native action
	// Appended says why Ingot added the action; "" = the action is from the template.
	Appended string `json:"appended,omitempty"`
	Timeout  string `json:"timeout"`
	Writes   bool   `json:"writes,omitempty"` // the action needs the run's disk
	Leaves   bool   `json:"leaves,omitempty"`
	// Environment says, for each variable, where its value comes from. It includes variables that are not set, if they have a default.
	Environment map[string]string `json:"environment,omitempty"`
	Adds        string            `json:"adds,omitempty"` // what Ingot adds later
}

// environment contains the variables of an action: the value of each variable, and where the value comes from.
type environment struct{ values, from map[string]string }

// environmentOf returns the variables of a step: its own, and those of its task that the step does not set itself.
func environmentOf(t task, s step) environment {
	e := environment{map[string]string{}, map[string]string{}}
	for k, v := range t.Environment {
		e.values[k], e.from[k] = v, "the task"
	}
	for k, v := range s.Environment {
		e.values[k], e.from[k] = v, "the action"
		if _, both := t.Environment[k]; both {
			e.from[k] = "the action, which overrides the task"
		}
	}
	return e
}

func (e environment) setDefault(key, value, from string) {
	if e.values[key] == "" {
		e.values[key], e.from[key] = value, from
	}
}

// secretTexts are the names by which templates read secrets, by the reference that takes the place of the secret in a rendered template.
var secretTexts = map[string]string{
	inventory.RefPhoneHomeURL: ".phone_home_url", inventory.RefMetadataURL: ".metadata_url", inventory.RefNonce: ".nonce",
	inventory.RefUserData: ".user_data", inventory.RefVendorData: ".vendor_data", inventory.RefDocumentsURL: ".documents_url",
	inventory.RefWebhookURL: ".webhook_url", inventory.RefBootURL: ".boot_url",
}

// explain says where each part of a, a rendered action, comes from. given is the timeout that the template sets; 0 = none. explain adds
// remarks to the texts in e.from.
func (e environment) explain(a action.Action, given action.Seconds) ActionExplanation {
	native, _ := a.Native()
	row := action.Describe(native)
	out := ActionExplanation{
		Native: native, Rule: action.Rule(a.Image), Timeout: "the template", Environment: e.from, Adds: row.Adds,
		Writes: action.Writes(native, e.values), Leaves: row.Leaves,
	}
	if given == 0 {
		out.Timeout = "default of an action"
	}
	if a.Container != nil {
		out.Rule, out.Writes = explainContainer(*a.Container), a.Container.Disk
	}

	read := map[string]bool{}
	for _, v := range row.Variables {
		read[v.Name] = true
		if _, set := e.values[v.Name]; !set && v.Default != "" {
			e.from[v.Name] = "not set: " + v.Default
		}
	}

	for k, v := range e.values {
		if !read[k] && a.Container == nil {
			e.from[k] += "; " + native + " does not read this variable"
		}
		for _, ref := range refs {
			if inventory.Refers(v, ref) {
				e.from[k] += "; " + secretTexts[ref] + " is filled in when the agent gets the action"
			}
		}
	}
	return out
}

// explain describes the installer that the machine boots after the actions. If i is nil, it returns "".
func (i *installer) explain() string {
	if i == nil {
		return ""
	}

	timeout := "the template"
	if i.Timeout == 0 {
		timeout = "default of an installer"
	}
	return fmt.Sprintf("kernel %s, initrd %s; completed by %s, within %d s (%s)",
		i.Kernel, strings.Join(i.Initrd, ", "), i.Complete, i.timeout(), timeout)
}
