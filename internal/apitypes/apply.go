package apitypes

import "github.com/ingotmetal/ingot/inventory"

// An Application is the answer of POST /v1/apply.
type Application struct {
	Stored   bool                `json:"stored"` // false after a dry run
	Items    []inventory.Applied `json:"items"`
	Warnings []string            `json:"warnings"`
}
