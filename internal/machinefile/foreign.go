package machinefile

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// File formats of other programs.
const (
	formatCSV   = "an EKS Anywhere hardware CSV"
	formatStack = "hardware of the first Tinkerbell (network.interfaces[].dhcp)"
)

// notYet is part of each remedy.
const notYet = "this version cannot import it; a later one will, with: ingot import FILE. "

// Foreign returns an error for a file in another program's format: an inventory.Problems
// that names the format and what to write instead.
func Foreign(file string, b []byte) error {
	if isCSV(b) {
		return inventory.Problems{{
			File: file, Line: 1, What: "this is " + formatCSV,
			Remedy: notYet + "Until then write each row as a machine: " + machineForm,
		}}
	}

	docs, err := strictyaml.Documents(file, b)
	if err != nil {
		return nil // reported by its reader
	}

	var ps inventory.Problems
	for _, d := range docs {
		if what, remedy := foreignDocument(d); what != "" {
			ps = append(ps, inventory.Problem{
				File: file, Line: d.Line(), What: "this is " + what, Remedy: notYet + remedy,
			})
		}
	}

	return ps.Err()
}

// machineForm is a machine in a file of Ingot.
const machineForm = `{name: node-1, interfaces: [{mac: "02:00:00:00:00:01", ` +
	`address: 10.0.0.11, netmask: 255.255.255.0}]}, see: ingot machine push --help`

// foreignDocument returns the format of a document, "" if unknown, and what to do until it
// can be imported.
func foreignDocument(d strictyaml.Document) (what, remedy string) {
	kind, group := d.Text("kind"), d.Text("apiVersion")
	group, _, _ = strings.Cut(group, "/")
	switch {
	case group == "tinkerbell.org" || group == "bmc.tinkerbell.org":
		what = fmt.Sprintf("a Tinkerbell document of kind %s", kind)
	case group == "v1" && slices.Contains([]string{"Secret", "ConfigMap", "Namespace"}, kind),
		strings.HasSuffix(group, ".eks.amazonaws.com"):
		return fmt.Sprintf("a Kubernetes document of kind %s", kind),
			"Until then write a machine's BMC and its password with the machine: " + machineForm
	case d.Has("network.interfaces[0].dhcp"):
		return formatStack, "Until then write it as: " + machineForm
	default:
		return "", ""
	}

	switch kind {
	case "Template":
		remedy = "Until then put the text under spec.data into a file of its own: " +
			"ingot template create --file FILE"
	case "Workflow":
		remedy = "Until then: ingot machine provision NAME --template TEMPLATE"
	case "Job", "Task":
		remedy = "Until then: ingot bmc job create --help"
	default:
		remedy = "Until then write it as: " + machineForm
	}

	return what, remedy
}

// isCSV reports whether b starts with the header of an EKS Anywhere CSV.
func isCSV(b []byte) bool {
	b = bytes.TrimSpace(bytes.TrimPrefix(b, []byte("\ufeff")))
	line, _, _ := bytes.Cut(b, []byte("\n"))
	head, err := csv.NewReader(bytes.NewReader(line)).Read()
	if err != nil {
		return false
	}

	for i := range head {
		head[i] = strings.ToLower(strings.TrimSpace(head[i]))
	}

	return slices.Contains(head, "hostname") && slices.Contains(head, "mac")
}
