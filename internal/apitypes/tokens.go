package apitypes

import "github.com/ingotmetal/ingot/inventory"

// NewToken is the answer to POST /v1/tokens.
type NewToken struct {
	inventory.Token
	// Secret is the token itself. The server does not store it.
	Secret string `json:"token"`
}
