package action

import (
	"maps"
	"slices"
	"strings"
)

// Names of the actions that the agent carries out natively.
const (
	Image2Disk  = "image2disk"
	WriteFile   = "writefile"
	Inject      = "inject" // several files, see Files
	ConfigDrive = "configdrive"
	GrowPart    = "growpart"
	Wipe        = "wipe"
	EFIBoot     = "efiboot"
	Kexec       = "kexec"
	Reboot      = "reboot"
	PowerOff    = "poweroff"
	Inspect     = "inspect"
	Noop        = "noop" // does nothing, or what the test asks: see the agent
)

var natives = map[string]string{
	Image2Disk: Image2Disk, WriteFile: WriteFile, Inject: Inject, ConfigDrive: ConfigDrive, GrowPart: GrowPart, Wipe: Wipe,
	EFIBoot: EFIBoot, Kexec: Kexec, Reboot: Reboot, PowerOff: PowerOff, Inspect: Inspect, Noop: Noop,
	"disk-wipe":      Wipe,
	"osie-installer": Image2Disk,
}

// Natives lists the names that a template may call native actions by, without
// repository, sorted.
func Natives() []string { return slices.Sorted(maps.Keys(natives)) }

// prefixes are the repositories whose last element names a native action.
var prefixes = []string{"tinkerbell/actions/", "tinkerbell-actions/", "eks-anywhere/tinkerbell/hub/", "eks-anywhere/tinkerbell/actions/", "embedded/"}

// Native returns the native action that an image reference names, and whether
// there is one. Registry host, tag and digest do not matter; a repository that
// merely ends in a known name is no alias.
func Native(image string) (string, bool) {
	path := strings.SplitN(image, "@", 2)[0]
	slash := strings.LastIndexByte(path, '/')
	if colon := strings.LastIndexByte(path, ':'); colon > slash {
		path = path[:colon]
	}
	if host, rest, ok := strings.Cut(path, "/"); ok && (strings.ContainsAny(host, ".:") || host == "localhost") {
		path = rest
	}
	for _, p := range prefixes {
		// A mirror keeps the repository path and may put folders before it.
		if i := strings.Index("/"+path, "/"+p); i >= 0 {
			path = path[i+len(p):]
			break
		}
	}
	name, ok := natives[path]
	return name, ok
}

// Leaves tells whether the native action takes the machine away from the
// agent, so that its success must be proven by what comes after.
func Leaves(native string) bool { return native == Reboot || native == PowerOff || native == Kexec }

// Writes tells whether the native action needs the bound disk: it writes to
// it or, as kexec does, trusts what is on it. A wipe of all disks needs none.
func Writes(native string, env map[string]string) bool {
	if native == Wipe {
		all, err := Bool(env, AllDisksVariable, false)
		return err != nil || !all
	}
	switch native {
	case Image2Disk, WriteFile, Inject, ConfigDrive, GrowPart, Kexec:
		return true
	}
	return false
}
