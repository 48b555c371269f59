package template

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// A Rendering is a template rendered for a machine, as the API shows it.
type Rendering struct {
	Actions       []action.Action `json:"actions"`
	GlobalTimeout action.Seconds  `json:"globalTimeout"`
	DiskAlias     string          `json:"diskAlias,omitempty"`
	Warnings      []string        `json:"warnings,omitempty"`
	// Explanation is set if the request asks for it.
	Explanation *Explanation `json:"explanation,omitempty"`
}

// An Explanation describes where each part of a rendered template comes from. It contains no values of environments.
type Explanation struct {
	DiskAlias     string              `json:"diskAlias"`
	GlobalTimeout string              `json:"globalTimeout"`
	Actions       []ActionExplanation `json:"actions"`
	// Installer is the system that the machine boots after the actions; "" for none.
	Installer string `json:"installer,omitempty"`
}

// An ActionExplanation explains the rendered action with the same index.
type ActionExplanation struct {
	Native string `json:"native"`
	Rule   string `json:"rule"` // why the image selects this action
	// Appended is why Ingot added the action; "" for an action of the template.
	Appended string `json:"appended,omitempty"`
	Timeout  string `json:"timeout"`
	Writes   bool   `json:"writes,omitempty"` // the action needs the bound disk
	Leaves   bool   `json:"leaves,omitempty"`
	// Environment is where the value of each variable comes from. It includes variables that are not set but have a default.
	Environment map[string]string `json:"environment,omitempty"`
	Adds        string            `json:"adds,omitempty"` // what Ingot adds later
}

// environment is the environment of an action with the origin of each variable.
type environment struct{ values, from map[string]string }

// environmentOf returns the environment of a step: its own variables, and those of its task that it does not set.
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

// secretTexts are the names of the data of templates that are rendered as references.
var secretTexts = map[string]string{
	inventory.RefPhoneHomeURL: ".phone_home_url", inventory.RefMetadataURL: ".metadata_url", inventory.RefNonce: ".nonce",
	inventory.RefUserData: ".user_data", inventory.RefVendorData: ".vendor_data", inventory.RefDocumentsURL: ".documents_url",
	inventory.RefWebhookURL: ".webhook_url", inventory.RefBootURL: ".boot_url",
}

// explain describes where the parts of the rendered action a come from. given is the timeout in the template; 0 = none. It adds further
// texts to e.from.
func (e environment) explain(a action.Action, given action.Seconds) ActionExplanation {
	native, _ := action.Native(a.Image)
	row := action.Describe(native)
	out := ActionExplanation{
		Native: native, Rule: action.Rule(a.Image), Timeout: "the template", Environment: e.from, Adds: row.Adds,
		Writes: action.Writes(native, e.values), Leaves: row.Leaves,
	}
	if given == 0 {
		out.Timeout = "default of an action"
	}

	read := map[string]bool{}
	for _, v := range row.Variables {
		read[v.Name] = true
		if _, set := e.values[v.Name]; !set && v.Default != "" {
			e.from[v.Name] = "not set: " + v.Default
		}
	}

	for k, v := range e.values {
		if !read[k] {
			e.from[k] += "; " + native + " does not read this variable"
		}
		for _, ref := range slices.Sorted(maps.Keys(secretTexts)) {
			if inventory.Refers(v, ref) {
				e.from[k] += "; " + secretTexts[ref] + " is filled in when the agent gets the action"
			}
		}
	}
	return out
}

// explain describes the installer, which the machine boots after the actions; "" if i is nil.
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
