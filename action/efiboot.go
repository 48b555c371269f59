package action

import (
	"fmt"
	"path"
	"strings"
)

// Variables of efiboot for a new boot entry.
const (
	CreateLabelVariable = "CREATE_LABEL"
	LoaderVariable      = "LOADER"
)

// EFISystemPartition selects the partition of a disk from which UEFI firmware starts loaders.
const EFISystemPartition = "PARTTYPE=c12a7328-f81f-11d2-ba4b-00a0c93ec93b"

func loaderNeeded(env map[string]string, name string) error {
	if env[name] != "" && env[LoaderVariable] == "" {
		return fmt.Errorf("reading %s: give %s, the path of the entry's loader", name, LoaderVariable)
	}
	return oneLine(env, name)
}

func loaderPath(env map[string]string, name string) error {
	v := strings.ReplaceAll(env[name], `\`, "/")
	if v != "" && (!path.IsAbs(v) || path.Clean(v) != v || v == "/") {
		return fmt.Errorf("invalid %s %q; must be the absolute path of a file", name, env[name])
	}
	return oneLine(env, name)
}
