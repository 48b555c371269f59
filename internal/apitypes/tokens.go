package apitypes

import "github.com/ingotmetal/ingot/inventory"

// TokenRequest is the body of POST /v1/tokens.
type TokenRequest struct {
	Name string         `json:"name"`
	Role inventory.Role `json:"role"`
	For  string         `json:"for,omitempty"` // how long the token is valid; "" = until it is revoked
	// Replace revokes the token with the same name, if there is one.
	Replace bool `json:"replace,omitempty"`
}

// NewToken is the answer to POST /v1/tokens.
type NewToken struct {
	inventory.Token
	// Secret is the token itself. The server does not store it.
	Secret string `json:"token"`
}
