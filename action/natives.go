package action

import (
	"fmt"
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

// A Description is what the plan, the inventory, the agent and docs/templates.md know
// of a native action.
type Description struct {
	Text    string // what it does
	Aliases []string
	// Variables are those that the action reads. Other variables are ignored, because a
	// task gives its environment to all of its actions.
	Variables []Variable
	Output    []string // the names of what it reports
	Limits    string   // "" for none
	// Adds says what the plan or the server adds without being asked; "" for nothing.
	Adds string
	// Writes: the action changes disks or, like kexec, starts what is on them.
	Writes bool
	// Disk is the variable that names the disk; left out, it means the run's disk.
	Disk string
	// AllDisks: with AllDisksVariable the action is about every disk, and needs no
	// bound one.
	AllDisks bool
	// Leaves: the action takes the machine away from the agent, so that what comes
	// afterwards must prove its success. It can only be the last action.
	Leaves bool
}

// A Variable is one variable of a native action's environment.
type Variable struct {
	Name     string
	Text     string
	Default  string // what an empty or missing one means; "" for nothing
	Required bool
	check    checkVariable // nil: any text
}

// Check returns what is wrong with the variable in env, whatever the machine is.
func (v Variable) Check(env map[string]string) error {
	if v.check == nil {
		return nil
	}
	return v.check(env, v.Name)
}

// The variables that several actions have.
var (
	destination = Variable{Name: "DEST_DISK", Text: "path of the disk", Default: runDisk}
	fileSystem  = Variable{
		Name: "FS_TYPE", Text: "file system of the partition: " + strings.Join(FileSystems, ", "), Default: "what the partition holds",
		check: oneOf(FileSystems...),
	}
	partitionOfFiles = Variable{
		Name: PartitionVariable, Text: partitionText, Default: "the root file system: the largest that has /etc/os-release",
		check: partition,
	}
)

const (
	runDisk       = "the run's disk"
	partitionText = "partition of the disk: a number, or LABEL=, UUID=, PARTLABEL=, PARTUUID= or PARTTYPE= and a value"
)

// natives has one row for each action.
var natives = map[string]Description{
	Image2Disk: {
		Text:    "Writes an image to the disk and reads it back.",
		Aliases: []string{"osie-installer"}, Writes: true, Disk: "DEST_DISK",
		Variables: []Variable{
			{Name: "IMG_URL", Text: "where the agent fetches the image, http or https", Default: "the image of the run or of the machine"},
			{
				Name: "IMG_SHA256", Text: "digest of the file as it is served, 64 hex digits", Default: "the digest of the stored image",
				check: sha256Digest,
			},
			{Name: "IMG_SHA512", Text: "not read; allowed beside IMG_SHA256", check: onlyBeside("IMG_SHA256")},
			destination,
		},
		Output: []string{"sha256", "contentSHA256", "bytes", "readback", "disk", "firstSeen"},
		Limits: "A URL of another server needs IMG_SHA256.",
		Adds: "IMG_SHA256 of a stored image. IMG_URL of a stored image names its digest in the plan, so that a run writes the file that " +
			"was planned.",
	},
	WriteFile: {
		Text:   "Writes one file into a file system on the disk.",
		Writes: true, Disk: "DEST_DISK",
		Variables: []Variable{
			{Name: "DEST_PATH", Text: "absolute path of the file in the file system", Required: true, check: filePath},
			{Name: "CONTENTS", Text: "what the file holds; may be empty", Required: true, check: contents},
			{Name: "UID", Text: "owner, a number", Default: "0", check: number},
			{Name: "GID", Text: "group, a number", Default: "0", check: number},
			{Name: "MODE", Text: "octal", Default: "0644", check: octal},
			{Name: "DIRMODE", Text: "octal, of folders that are made on the way", Default: "0755", check: octal},
			destination, partitionOfFiles, fileSystem,
		},
		Output: []string{"device", "files", "bytes"},
	},
	Inject: {
		Text:   "Writes several files and folders into a file system on the disk.",
		Writes: true, Disk: "DEST_DISK",
		Variables: []Variable{
			{Name: FilesVariable, Text: "JSON array of the files, see below", Required: true, check: files},
			destination, partitionOfFiles, fileSystem,
		},
		Output: []string{"device", "files", "bytes"},
		Limits: fmt.Sprintf("Up to %d files.", maxFiles),
	},
	ConfigDrive: {
		Text:   "Puts a FAT16 partition `CIDATA` with the documents for cloud-init at the end of the disk.",
		Writes: true, Disk: "DEST_DISK",
		Variables: []Variable{
			{Name: "META_DATA", Text: "meta-data", Default: "the machine's, with the instance id of the run"},
			{Name: "USER_DATA", Text: "user-data", Default: "the machine's, or an empty cloud-config"},
			{Name: "VENDOR_DATA", Text: "vendor-data", Default: "the machine's, and a phone-home to this server"},
			{Name: "NETWORK_CONFIG", Text: "network-config of version 2", Default: "made of the machine's interfaces"},
			destination,
		},
		Output: []string{"partition", "bytes"},
		Limits: "A GPT disk.",
		Adds:   "The documents that the template does not give, when the agent gets the action.",
	},
	GrowPart: {
		Text:   "Lets a partition, and its file system, grow to the end of the disk.",
		Writes: true, Disk: "DEST_DISK",
		Variables: []Variable{
			{Name: PartitionVariable, Text: partitionText, Default: "the last partition", check: partition},
			{Name: ReserveVariable, Text: "MiB that stay free at the end", Default: "0", check: mebibytes},
			{Name: "FILESYSTEM", Text: "true or false: whether the file system grows, too", Default: "true", check: boolean},
			destination,
		},
		Output: []string{"partition", "from", "to", "filesystem"},
		Limits: "The partition is the last on the disk, but for a seed of `configdrive`.",
	},
	Wipe: {
		Text:    "Clears the disk, or every disk, and reads back what was cleared.",
		Aliases: []string{"disk-wipe"}, Writes: true, Disk: "BLOCK_DEVICE", AllDisks: true,
		Variables: []Variable{
			{Name: "BLOCK_DEVICE", Text: "path of the disk", Default: runDisk},
			{Name: "DEST_DISK", Text: "the same, where BLOCK_DEVICE is not given", Default: runDisk},
			{
				Name: AllDisksVariable, Text: "true or false: every disk that is neither removable nor protected", Default: "false",
				check: boolean,
			},
			{
				Name: WipeModeVariable, Text: strings.Join(WipeModes[:], " or "), Default: WipeModes[0],
				check: oneOf(WipeModes[:]...),
			},
		},
		Output: []string{"mode", "bytes", "verified", "disks"},
	},
	EFIBoot: {
		Text: "Deletes and orders the boot entries of UEFI firmware.",
		Variables: []Variable{
			{Name: "DELETE_LABEL", Text: "descriptions of entries to delete, one on each line"},
			{
				Name: "DELETE_STALE", Text: "true or false: delete entries whose loader is on no disk of the machine",
				Default: "false", check: boolean,
			},
			{Name: "BOOT_ORDER", Text: "descriptions or numbers that come first, separated by commas"},
			{Name: "BOOT_NEXT", Text: "description or number of the entry for the next boot alone"},
			{
				Name: "REQUIRED", Text: "true or false: fail on a machine that was not booted by UEFI", Default: "false",
				check: boolean,
			},
		},
		Output: []string{"firmware", "entries", "deleted", "order", "next"},
	},
	Kexec: {
		Text:   "Starts a kernel that is installed on the disk in place of the firmware.",
		Writes: true, Disk: "BLOCK_DEVICE", Leaves: true,
		Variables: []Variable{
			{Name: "BLOCK_DEVICE", Text: "path of the disk", Default: runDisk},
			partitionOfFiles, fileSystem,
			{Name: "KERNEL_PATH", Text: "path of the kernel", Default: "the default entry of the boot loader's configuration"},
			{Name: "INITRD_PATH", Text: "paths of initrds, separated by blanks", Default: "that of the entry; none with KERNEL_PATH"},
			{Name: "CMD_LINE", Text: "kernel parameters, on one line", Default: "those of the entry; none with KERNEL_PATH", check: oneLine},
			{Name: "GRUBCFG_PATH", Text: "path of the boot loader's configuration", Default: "grub.cfg or loader/entries where they are usual"},
		},
		Output: []string{"kernel", "leaving"},
		Limits: "A kernel or initrd has at most 1 GiB.",
	},
	Reboot:   {Text: "Restarts the machine.", Leaves: true},
	PowerOff: {Text: "Switches the machine off. The run ends without evidence of the installed system.", Leaves: true},
	Inspect:  {Text: "Reports the hardware of the machine.", Output: []string{"facts", "disks"}},
	Noop: {
		Text: "Changes nothing: to try templates, time-outs and failures.",
		Variables: []Variable{
			{Name: "LOG", Text: "lines to log"},
			{Name: "SLEEP", Text: "seconds to take", Default: "0", check: seconds},
			{Name: "EXIT", Text: "exit code; other than 0 fails", Default: "0", check: number},
			{Name: "MESSAGE", Text: "text of that failure"},
		},
	},
}

// Describe returns the row of the native action; the zero Description if there is none.
func Describe(name string) Description { return natives[name] }

// Leaves reports whether the native action takes the machine away from the
// agent, so that what comes afterwards must prove its success.
func Leaves(name string) bool { return natives[name].Leaves }

// Writes reports whether the native action needs the bound disk: it writes to it
// or, like kexec, starts what is on it. A wipe of all disks needs none.
func Writes(name string, env map[string]string) bool {
	n := natives[name]
	if !n.AllDisks {
		return n.Writes
	}
	all, err := Bool(env, AllDisksVariable, false)
	return n.Writes && (err != nil || !all)
}

// WritesAny reports whether the native action writes to disks, the bound one or
// others, or starts what is on them.
func WritesAny(name string) bool { return natives[name].Writes }

// DiskVariable returns the variable of the native action's environment that
// names the disk; "" if there is none. Left out, it means the run's disk.
func DiskVariable(name string) string { return natives[name].Disk }

// DiskVariables lists the variables that name the disk of some action, sorted.
func DiskVariables() []string {
	var all []string
	for _, n := range natives {
		if n.Disk != "" {
			all = append(all, n.Disk)
		}
	}

	slices.Sort(all)
	return slices.Compact(all)
}
