package action

import (
	"fmt"
	"slices"
	"strings"
)

// Names of the native actions, which the agent carries out without a container.
const (
	Image2Disk   = "image2disk"
	QemuImg2Disk = "qemuimg2disk"
	OCI2Disk     = "oci2disk"
	Archive2Disk = "archive2disk"
	RootIO       = "rootio"
	WriteFile    = "writefile"
	Inject       = "inject" // several files, see Files
	ConfigDrive  = "configdrive"
	GrowPart     = "growpart"
	Wipe         = "wipe"
	EFIBoot      = "efiboot"
	CExec        = "cexec"
	Grub2Disk    = "grub2disk"
	Syslinux     = "syslinux"
	Kexec        = "kexec"
	Slurp        = "slurp"
	WaitDaemon   = "waitdaemon"
	Reboot       = "reboot"
	PowerOff     = "poweroff"
	Inspect      = "inspect"
	Noop         = "noop" // writes to the log, waits and fails as its variables say
)

// A Description describes a native action for the plan, the inventory, the agent and
// docs/templates.md.
type Description struct {
	Text    string // what it does
	Aliases []string
	// Variables are the variables that the action reads. The action ignores all other variables, because a task gives its
	// environment to all of its actions.
	Variables []Variable
	// Commands are the possible values of the action's command, which must be exactly one of them. If Commands is nil, the action
	// does not read its command.
	Commands []string
	Output   []string // names of the values that the action reports
	Limits   string   // "" for none
	// Adds describes what the plan or the server adds to the action automatically; "" for nothing.
	Adds string
	// Writes means that the action changes disks or, like kexec, starts a system from one.
	Writes bool
	// Reads means that the action reads the run's disk and changes nothing.
	Reads bool
	// Upload is the variable with the URL to which the action sends the content of the disk; "" if the action sends nothing.
	Upload string
	// Whole means that the action replaces everything on the disk or, if its environment names a partition, on that partition.
	Whole bool
	// URL is the variable with the URL of the file that the action fetches. Digest is the variable with the SHA-256 of this file in
	// the form in which it is served. Both are "" if the action fetches no file.
	URL, Digest string
	// Disk is the variable that names the disk. If the variable is not set, the action uses the
	// run's disk.
	Disk string
	// Partitions means that the variable Disk may also name a partition of the run's disk.
	Partitions bool
	// Volumes means that the variable Disk may also name an array, a logical volume or a partition of another disk, if the
	// machine's storage declares it. The run's disk and its partitions are always allowed.
	Volumes bool
	// AllDisks means that the action has the variable AllDisksVariable. If this variable is true, the action handles every disk and
	// needs no disk that is bound to the run.
	AllDisks bool
	// Leaves means that the action ends the agent, as a reboot does. Such an action must be the last one, and the next phase of the
	// run must prove that it succeeded.
	Leaves bool
	// Loader means that the action can install or start a boot loader or a kernel, so that the machine does not depend on
	// the loader of the image on its disk.
	Loader bool
}

// A Variable is one variable of a native action's environment.
type Variable struct {
	Name     string
	Text     string
	Default  string // value if the variable is empty or missing; "" for none
	Required bool
	check    checkVariable // nil: any text
}

// Check returns an error if the value of the variable in env is invalid on every machine.
func (v Variable) Check(env map[string]string) error {
	if v.check == nil {
		return nil
	}
	return v.check(env, v.Name)
}

// Variables that several actions read.
var (
	imageURL = Variable{
		Name: "IMG_URL", Text: "http or https URL of the image", Default: "the image of the run or of the machine",
		check: fileURL,
	}
	imageSHA256 = Variable{
		Name: "IMG_SHA256", Text: "digest of the file as it is served, 64 hex digits", Default: "the digest of the stored image",
		check: sha256Digest,
	}
	imageSHA512 = Variable{Name: "IMG_SHA512", Text: "not read; allowed only if IMG_SHA256 is set", check: onlyWith("IMG_SHA256")}
	destination = Variable{Name: "DEST_DISK", Text: "path of the disk", Default: runDisk}
	fileSystem  = Variable{
		Name: FileSystemVariable, Text: "file system of the partition: " + strings.Join(FileSystems, ", "), Default: "detected",
		check: oneOf(FileSystems...),
	}
	partitionOfFiles = Variable{
		Name: PartitionVariable, Text: partitionText,
		Default: "the root file system: the largest that has /etc/os-release; for an image or a seed, none", check: partition,
	}
	storageOfFiles = Variable{
		Name: StorageVariable, Text: "JSON in the form of the machine's `storage`; read if the path names an array, a logical volume or " +
			"another disk's partition", Default: "the machine's `storage`", check: storageOfRun,
	}
)

const (
	runDisk       = "the run's disk"
	partitionText = "partition of the disk: a number, or LABEL=, UUID=, PARTLABEL=, PARTUUID= or PARTTYPE= and a value"
)

// natives holds the descriptions of the native actions, by name.
var natives = map[string]Description{
	Image2Disk: {
		Text:       "Writes an image to the disk or a partition of it, and reads it back.",
		Aliases:    []string{"osie-installer"},
		Writes:     true,
		Whole:      true,
		Disk:       "DEST_DISK",
		Partitions: true,
		URL:        "IMG_URL",
		Digest:     "IMG_SHA256",
		Variables: []Variable{
			imageURL, imageSHA256, imageSHA512, destination, partitionOfFiles,
			{Name: "COMPRESSED", Text: "not needed: an image is recognized by its content", check: boolean},
			{Name: "RETRY_ENABLED", Text: "not needed: an interrupted download continues at the same byte", check: boolean},
			{Name: "RETRY_DURATION_MINUTES", Text: "not needed: the timeout of the action applies", check: number},
			{Name: "PROGRESS_INTERVAL_SECONDS", Text: "not needed: every heartbeat reports the progress", check: number},
			{Name: "TEXT_LOGGING", Text: "not needed: the log is text", check: boolean},
		},
		Output: []string{"sha256", "contentSHA256", "bytes", "readback", "disk", "firstSeen"},
		Limits: "Without IMG_SHA256, the server fetches IMG_URL once, and the agent takes that copy. An image that is larger than the " +
			"disk or partition, or made for another sector size, is refused before the first write, and so is an image with a partition " +
			"table for a partition.",
		Adds: "IMG_SHA256 of a stored image. In the plan, IMG_URL of a stored image contains the digest, so that a run writes the " +
			"planned file.",
	},
	QemuImg2Disk: qemuImg2Disk,
	OCI2Disk:     oci2Disk,
	Archive2Disk: archive2Disk,
	RootIO:       rootIO,
	WriteFile: {
		Text:   "Writes one file into a file system on the disk.",
		Writes: true, Disk: "DEST_DISK", Volumes: true,
		Variables: []Variable{
			{Name: "DEST_PATH", Text: "absolute path of the file in the file system", Required: true, check: filePath},
			{
				Name: ContentsVariable, Text: "contents of the file, may be empty; or give one of the next four variables instead", Required: true,
				check: contents,
			},
			{Name: BootConfigVariable, Text: "a kernel boot configuration, written in the format of bootconfig -a", check: bootConfig},
			{
				Name: HegelVariable, Text: "URLs of metadata services, separated by commas: the file gets the user-data of the first service " +
					"that has any",
				check: hegelURLs,
			},
			{
				Name: NetplanVariable, Default: "false", check: boolean,
				Text: "true or false: write the machine's network as a netplan file, in place of CONTENTS",
			},
			{
				Name: BottlerocketVariable, Default: "false", check: boolean,
				Text: "true or false: write the machine's network as Bottlerocket's net.toml, in place of CONTENTS, and add its name servers to " +
					BottlerocketSettings + " in the same file system",
			},
			{Name: SettingsVariable, Text: "TOML to add to the end of " + BottlerocketSettings + "; set by " + BottlerocketVariable},
			{Name: "IFNAME", Text: "not read"},
			{Name: "DHCP_TIMEOUT", Text: "not read"},
			{Name: "UID", Text: "owner, a number", Default: "0", check: owner},
			{Name: "GID", Text: "group, a number", Default: "0", check: owner},
			{Name: "MODE", Text: "octal", Default: "0644", check: octal},
			{Name: "DIRMODE", Text: "octal mode of parent folders that are created", Default: "0755", check: octal},
			destination, partitionOfFiles, fileSystem, storageOfFiles,
		},
		Output: []string{"device", "files", "bytes"},
	},
	Inject: {
		Text:   "Writes several files and folders into a file system on the disk.",
		Writes: true, Disk: "DEST_DISK", Volumes: true,
		Variables: []Variable{
			{Name: FilesVariable, Text: "JSON array of the files, see below", Required: true, check: files},
			destination, partitionOfFiles, fileSystem, storageOfFiles,
		},
		Output: []string{"device", "files", "bytes"},
		Limits: fmt.Sprintf("Up to %d files.", maxFiles),
	},
	ConfigDrive: {
		Text: "Puts a FAT16 partition `CIDATA` with the documents for cloud-init at the end of the disk or, if a partition is named, the " +
			"documents into the file system of that partition.",
		Writes: true, Disk: "DEST_DISK", Partitions: true,
		Variables: []Variable{
			{Name: "META_DATA", Text: "meta-data", Default: "the machine's, with the instance id of the run"},
			{Name: "USER_DATA", Text: "user-data", Default: "the machine's, or an empty cloud-config"},
			{Name: "VENDOR_DATA", Text: "vendor-data", Default: "the machine's, and a phone-home to this server"},
			{Name: "NETWORK_CONFIG", Text: "network-config of version 2", Default: "made from the machine's interfaces"},
			destination, partitionOfFiles, fileSystem,
		},
		Output: []string{"partition", "bytes", "device", "files"},
		Limits: "`CIDATA` needs a GPT disk.",
		Adds:   "Documents that the template leaves out. They are added when the agent gets the action.",
	},
	GrowPart: {
		Text:   "Grows a partition and its file system to the end of the disk.",
		Writes: true, Disk: "DEST_DISK", Partitions: true,
		Variables: []Variable{
			{Name: PartitionVariable, Text: partitionText, Default: "the last partition", check: partition},
			{Name: ReserveVariable, Text: "MiB to leave free at the end of the disk", Default: "0", check: mebibytes},
			{Name: "FILESYSTEM", Text: "true or false: grow the file system, too", Default: "true", check: boolean},
			destination,
		},
		Output: []string{"partition", "from", "to", "filesystem"},
		Limits: "The partition must be the last on the disk, except for the partition of `configdrive`.",
	},
	Wipe: {
		Text:    "Clears the disk, or every disk, and reads back what was cleared.",
		Aliases: []string{"disk-wipe"}, Writes: true, Disk: "BLOCK_DEVICE", AllDisks: true,
		Variables: []Variable{
			{Name: "BLOCK_DEVICE", Text: "path of the disk", Default: runDisk},
			{Name: "DEST_DISK", Text: "path of the disk, if BLOCK_DEVICE is not set", Default: runDisk},
			{
				Name: AllDisksVariable, Text: "true or false: clear every disk that is neither removable nor protected", Default: "false",
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
		Text:   "Creates, deletes and orders the boot entries of UEFI firmware.",
		Loader: true, Disk: "DEST_DISK", Partitions: true,
		Variables: []Variable{
			{
				Name: CreateLabelVariable, Text: "description of an entry to create at the end of the boot order, or to correct if it exists",
				check: loaderNeeded,
			},
			{Name: LoaderVariable, Text: "path of that entry's loader on its partition, such as /EFI/debian/shimx64.efi", check: loaderPath},
			destination,
			{Name: PartitionVariable, Text: partitionText, Default: "the EFI system partition, for the new entry", check: partition},
			{Name: "DELETE_LABEL", Text: "descriptions of entries to delete, one on each line"},
			{
				Name: "DELETE_STALE", Text: "true or false: delete entries whose loader is on no disk of the machine",
				Default: "false", check: boolean,
			},
			{Name: "BOOT_ORDER", Text: "descriptions or numbers of the entries to put first, separated by commas"},
			{Name: "BOOT_NEXT", Text: "description or number of the entry for the next boot only"},
			{
				Name: "REQUIRED", Text: "true or false: fail on a machine that was not booted by UEFI", Default: "false",
				check: boolean,
			},
		},
		Output: []string{"firmware", "entries", "deleted", "order", "next"},
	},
	CExec:     cexec,
	Grub2Disk: grub2Disk,
	Syslinux:  syslinux,
	Kexec: {
		Text:   "Starts a kernel from the disk directly, without the firmware.",
		Loader: true, Writes: true, Disk: "BLOCK_DEVICE", Volumes: true, Leaves: true,
		Variables: []Variable{
			{Name: "BLOCK_DEVICE", Text: "path of the disk", Default: runDisk},
			partitionOfFiles, fileSystem, storageOfFiles,
			{
				Name: "KERNEL_PATH", Text: "path of the kernel", Default: "the kernel of the boot loader's default entry",
				check: textPath,
			},
			{
				Name: "INITRD_PATH", Text: "paths of initrds, separated by blanks", Default: "the initrds of that entry; none if KERNEL_PATH is set",
				check: textPath,
			},
			{Name: "CMD_LINE", Text: "kernel parameters, on one line", Default: "the parameters of that entry", check: oneLine},
			{
				Name: "GRUBCFG_PATH", Text: "path of the boot loader's configuration",
				Default: "grub.cfg or loader/entries in its usual place", check: textPath,
			},
		},
		Output: []string{"kernel", "leaving"},
		Limits: "A kernel or initrd has at most 1 GiB.",
	},
	Slurp:      slurp,
	WaitDaemon: waitDaemon,
	Reboot:     {Text: "Restarts the machine.", Leaves: true},
	PowerOff:   {Text: "Switches the machine off. The run ends without evidence that the installed system works.", Leaves: true},
	Inspect:    {Text: "Reports the hardware of the machine.", Output: []string{"facts", "disks"}},
	Noop: {
		Text: "Changes nothing. Use it to try templates, time-outs and failures.",
		Variables: []Variable{
			{Name: "LOG", Text: "lines to log"},
			{Name: "SLEEP", Text: "seconds to wait", Default: "0", check: seconds},
			{Name: "EXIT", Text: "exit code; any value except 0 fails the action", Default: "0", check: number},
			{Name: "MESSAGE", Text: "error text of the failure"},
		},
	},
}

// Describe returns the description of a native action, or the zero Description if there is none.
func Describe(name string) Description { return natives[name] }

// Leaves reports whether the native action ends the agent; see Description.Leaves.
func Leaves(name string) bool { return natives[name].Leaves }

// Writes reports whether the native action writes to the disk that is bound to the run or, like kexec, starts a system from it.
// Writes returns false for a wipe of all disks, because this wipe needs no bound disk.
func Writes(name string, env map[string]string) bool {
	n := natives[name]
	if !n.AllDisks {
		return n.Writes
	}
	all, err := Bool(env, AllDisksVariable, false)
	return n.Writes && (err != nil || !all)
}

// WritesAny reports whether the native action writes to any disk, bound to the run or not, or starts a system from one.
func WritesAny(name string) bool { return natives[name].Writes }

// Requires reports whether the template must set this variable of the native action.
func Requires(name, variable string) bool {
	return slices.ContainsFunc(natives[name].Variables, func(v Variable) bool { return v.Name == variable && v.Required })
}

// Installs reports whether the native action writes a system to a disk: an image or an archive.
func Installs(name string) bool { return natives[name].URL != "" || name == OCI2Disk }

// DiskVariables returns the names of all variables with which actions name their disk, sorted.
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
