package config

import _ "embed"

// Example is the commented file that "ingot init" writes; %s stands for the lines
// of the interfaces.
//
//go:embed example.yaml
var Example string
