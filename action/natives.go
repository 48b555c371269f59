package action

import (
	"maps"
	"slices"
	"strings"
)

// Names of the actions that the agent carries out itself, without a container.
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
	Noop        = "noop" // does nothing, or what a test wants: see the agent
)

// native is what plan, inventory and agent know of an action.
type native struct {
	aliases []string
	// writes: the action changes disks or, like kexec, starts what is on them.
	writes bool
	// disk is the variable that names the disk; left out, it means the run's disk.
	disk string
	// allDisks: with AllDisksVariable the action is about every disk, and needs no
	// bound one.
	allDisks bool
	// leaves: the action takes the machine away from the agent, so that what comes
	// afterwards must prove its success. It can only be the last action.
	leaves bool
	// variables are those whose values have a form; see Check.
	variables map[string]checkVariable
}

// natives has one row for each action.
var natives = map[string]native{
	Image2Disk: {
		aliases: []string{"osie-installer"}, writes: true, disk: "DEST_DISK",
		variables: map[string]checkVariable{"IMG_SHA256": sha256Digest, "IMG_SHA512": onlyBeside("IMG_SHA256")},
	},
	WriteFile: {
		writes: true, disk: "DEST_DISK",
		variables: map[string]checkVariable{
			PartitionVariable: partition, "FS_TYPE": oneOf(FileSystems...), "DEST_PATH": filePath, "CONTENTS": contents,
			"UID": number, "GID": number, "MODE": octal, "DIRMODE": octal,
		},
	},
	Inject: {
		writes: true, disk: "DEST_DISK",
		variables: map[string]checkVariable{
			PartitionVariable: partition, "FS_TYPE": oneOf(FileSystems...), FilesVariable: files,
		},
	},
	ConfigDrive: {writes: true, disk: "DEST_DISK"},
	GrowPart: {
		writes: true, disk: "DEST_DISK",
		variables: map[string]checkVariable{PartitionVariable: partition, ReserveVariable: mebibytes, "FILESYSTEM": boolean},
	},
	Wipe: {
		aliases: []string{"disk-wipe"}, writes: true, disk: "BLOCK_DEVICE", allDisks: true,
		variables: map[string]checkVariable{AllDisksVariable: boolean, WipeModeVariable: oneOf(WipeModes[:]...)},
	},
	EFIBoot: {variables: map[string]checkVariable{"DELETE_STALE": boolean, "REQUIRED": boolean}},
	Kexec: {
		writes: true, disk: "BLOCK_DEVICE", leaves: true,
		variables: map[string]checkVariable{
			PartitionVariable: partition, "FS_TYPE": oneOf(FileSystems...), "CMD_LINE": oneLine,
		},
	},
	Reboot:   {leaves: true},
	PowerOff: {leaves: true},
	Inspect:  {},
	Noop:     {variables: map[string]checkVariable{"SLEEP": seconds, "EXIT": number}},
}

// Natives lists the actions, sorted.
func Natives() []string { return slices.Sorted(maps.Keys(natives)) }

// Names lists the actions and their aliases, sorted: what a template may name,
// without a repository.
func Names() []string {
	names := Natives()
	for _, n := range natives {
		names = append(names, n.aliases...)
	}
	slices.Sort(names)
	return names
}

// prefixes are the repositories whose last element names a native action.
var prefixes = []string{
	"tinkerbell/actions/", "tinkerbell-actions/", "eks-anywhere/tinkerbell/hub/", "eks-anywhere/tinkerbell/actions/",
	"embedded/",
}

// nameOf maps names and aliases to names. Workflows call Native, so it must not
// iterate over natives.
var nameOf = indexNames()

func indexNames() map[string]string {
	index := map[string]string{}
	for name, n := range natives {
		index[name] = name
		for _, alias := range n.aliases {
			index[alias] = name
		}
	}
	return index
}

// Native returns the native action that an image reference names, and whether
// there is one. Registry host, tag and digest do not matter. A repository that
// only ends in a known name is not an alias.
func Native(image string) (string, bool) {
	path, _, _ := strings.Cut(image, "@")
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

	name, ok := nameOf[path]
	return name, ok
}

// Leaves reports whether the native action takes the machine away from the
// agent, so that what comes afterwards must prove its success.
func Leaves(name string) bool { return natives[name].leaves }

// Writes reports whether the native action needs the bound disk: it writes to it
// or, like kexec, starts what is on it. A wipe of all disks needs none.
func Writes(name string, env map[string]string) bool {
	n := natives[name]
	if !n.allDisks {
		return n.writes
	}
	all, err := Bool(env, AllDisksVariable, false)
	return n.writes && (err != nil || !all)
}

// WritesAny reports whether the native action writes to disks, the bound one or
// others, or starts what is on them.
func WritesAny(name string) bool { return natives[name].writes }

// DiskVariable returns the variable of the native action's environment that
// names the disk; "" if there is none. Left out, it means the run's disk.
func DiskVariable(name string) string { return natives[name].disk }

// DiskVariables lists the variables that name the disk of some action, sorted.
func DiskVariables() []string {
	var all []string
	for _, n := range natives {
		if n.disk != "" {
			all = append(all, n.disk)
		}
	}

	slices.Sort(all)
	return slices.Compact(all)
}
