package config

import _ "embed"

// Example is the commented file that "ingot init" writes; %s is replaced by the lines
// of the interfaces.
//
//go:embed example.yaml
var Example string
