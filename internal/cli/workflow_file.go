package cli

import (
	"fmt"

	"github.com/ingotmetal/ingot/internal/documents/importfile"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// workflowBody is the body of POST /v1/workflows.
type workflowBody struct {
	Type  string `json:"type"`
	Input any    `json:"input"`
}

// readWorkflow reads a workflow from a file. It is as strict as the server, but its problems have line numbers.
func readWorkflow(c *Call, file string) (workflowBody, error) {
	name, b, err := readInput(c.Command, file)
	if err != nil {
		return workflowBody{}, err
	}
	if err := refuseOther(importfile.File{Name: name, Content: b}); err != nil {
		return workflowBody{}, err
	}

	docs, err := strictyaml.Documents(name, b)
	if err != nil {
		return workflowBody{}, err
	}
	if len(docs) != 1 {
		what := fmt.Sprintf("holds %d documents; must be exactly one", len(docs))
		return workflowBody{}, inventory.Problems{{File: name, What: what}}
	}

	kind := docs[0].Text("type")
	decode, known := map[string]func(strictyaml.Document) (workflowBody, error){
		inventory.TypeProvision:    decodeWorkflow[contract.ProvisionInput],
		inventory.TypeReprovision:  decodeWorkflow[contract.ProvisionInput],
		inventory.TypeDecommission: decodeWorkflow[contract.DecommissionInput],
		inventory.TypeRecover:      decodeWorkflow[contract.RecoverInput],
		inventory.TypeTogether:     decodeWorkflow[contract.TogetherInput],
		inventory.TypeInspect:      decodeWorkflow[contract.InspectInput],
		inventory.TypeBMCJob:       decodeWorkflow[contract.BMCJobInput],
	}[kind]
	if !known {
		return workflowBody{}, docs[0].Locate(inventory.Problems{{
			Field: "type", What: fmt.Sprintf("unknown workflow type %q", kind),
			Remedy: "write Provision, Reprovision, Decommission, Inspect, BMCJob, Recover or ProvisionTogether",
		}})
	}

	return decode(docs[0])
}

func decodeWorkflow[T any](d strictyaml.Document) (workflowBody, error) {
	var in struct {
		Type  string `json:"type"`
		Input T      `json:"input"`
	}
	err := d.Decode(&in)
	return workflowBody{in.Type, in.Input}, err
}

// refuseOther returns an error if a file from which a run is to be started is in the format of another program.
func refuseOther(file importfile.File) error {
	if !importfile.Known(file) {
		return nil
	}
	return human.Advise(inventory.Problems{{
		File: file.Name, Line: 1, What: "this is a document of another program; only Ingot's own format starts a run",
		Remedy: "import it; the import prints the command that starts the run",
	}}, "ingot import --dry-run "+file.Name)
}
