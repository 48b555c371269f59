package config

import _ "embed"

// Example is the template of the commented configuration that "ingot init" writes. %s is replaced by
// the keys below netboot: that init has determined.
//
//go:embed example.yaml
var Example string
