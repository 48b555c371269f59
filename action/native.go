package action

import "strings"

// Names of the actions that the agent carries out natively.
const (
	Image2Disk  = "image2disk"
	WriteFile   = "writefile"
	ConfigDrive = "configdrive"
	Wipe        = "wipe"
	Reboot      = "reboot"
	PowerOff    = "poweroff"
	Inspect     = "inspect"
	Noop        = "noop" // does nothing, or what the test asks: see the agent
)

var natives = map[string]string{
	Image2Disk: Image2Disk, WriteFile: WriteFile, ConfigDrive: ConfigDrive, Wipe: Wipe,
	Reboot: Reboot, PowerOff: PowerOff, Inspect: Inspect, Noop: Noop,
	"disk-wipe":      Wipe,
	"osie-installer": Image2Disk,
}

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
func Leaves(native string) bool { return native == Reboot || native == PowerOff }

// Writes tells whether the native action writes to the bound disk.
func Writes(native string) bool {
	return native == Image2Disk || native == WriteFile || native == ConfigDrive || native == Wipe
}
