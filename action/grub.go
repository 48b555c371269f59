package action

import (
	"errors"
	"fmt"
	"strings"
)

// Variables of grub2disk. They have the same names as in Tinkerbell's action.
const (
	GrubSystemVariable = "GRUB_INSTALL_PATH"
	GrubDisksVariable  = "GRUB_DISK"
)

// grub2Disk installs GRUB on the disk, with the programs of the installed system.
var grub2Disk = Description{
	Text:    "Installs GRUB for BIOS on the disk and writes its configuration, both with programs of the installed system.",
	Loader:  true,
	Writes:  true,
	Disk:    GrubSystemVariable,
	Volumes: true,
	Variables: []Variable{
		{Name: GrubSystemVariable, Text: "path of the disk or partition with the system", Default: runDisk},
		{
			Name: GrubDisksVariable, Text: "paths of the disks that get GRUB, separated by blanks: the run's disk, and disks of " +
				"the machine's `storage`", Default: runDisk, check: diskPaths,
		},
		partitionOfFiles, fileSystem, storageOfFiles,
	},
	Output: []string{"disks"},
	Limits: "The system must contain `grub-install` and `grub-mkconfig`, or `grub2-install` and `grub2-mkconfig`, with the modules of " +
		"`i386-pc`. A GPT needs a partition `BIOS`. UEFI does not need this action: it starts the boot loader in the EFI partition.",
}

// GrubDisks returns the paths of the disks that get GRUB.
func GrubDisks(env map[string]string) []string { return strings.Fields(env[GrubDisksVariable]) }

func diskPaths(env map[string]string, name string) error {
	errs := []error{programEnvironment(env, name)}
	for _, p := range strings.Fields(env[name]) {
		if !devicePath(p) {
			errs = append(errs, fmt.Errorf("reading %s: invalid disk path %q; must be a path such as /dev/sda", name, p))
		}
	}
	return errors.Join(errs...)
}
