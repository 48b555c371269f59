package action

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// ContainerScheme begins the address of a container image: oci://HOST[:PORT]/REPOSITORY[:TAG][@DIGEST].
const ContainerScheme = "oci://"

// containerForm matches a reference to an image in the form of Docker: HOST[:PORT]/REPOSITORY[:TAG][@DIGEST].
var containerForm = regexp.MustCompile(
	`^([a-zA-Z0-9.-]+(?::[0-9]+)?)/([a-z0-9]+(?:(?:[._]|__|-+|/)[a-z0-9]+)*)` +
		`(?::([A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(sha256:[0-9a-f]{64}))?$`,
)

// A ContainerReference names an image in a registry (OCI distribution specification 1.1).
type ContainerReference struct {
	Registry   string // host and port
	Repository string
	Tag        string // "" if there is none
	Digest     string // of the manifest or of an index; "" if there is none
}

// ParseContainer parses the reference to a container image. As with Docker, the registry is Docker Hub if text names none, and the tag is
// "latest" if text has neither tag nor digest.
func ParseContainer(text string) (ContainerReference, error) {
	full := text
	if host, _, ok := strings.Cut(text, "/"); !ok || !strings.ContainsAny(host, ".:") && host != "localhost" {
		full = "docker.io/" + text
		if !ok {
			full = "docker.io/library/" + text
		}
	}
	m := containerForm.FindStringSubmatch(full)
	if m == nil {
		return ContainerReference{}, fmt.Errorf(
			"invalid container image %q; must be REGISTRY/REPOSITORY:TAG or REGISTRY/REPOSITORY@sha256:DIGEST",
			text,
		)
	}
	r := ContainerReference{Registry: m[1], Repository: m[2], Tag: m[3], Digest: m[4]}
	if r.Tag == "" && r.Digest == "" {
		r.Tag = "latest"
	}
	return r, nil
}

// String returns the reference in its full form.
func (r ContainerReference) String() string {
	s := r.Registry + "/" + r.Repository
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + r.Digest
	}
	return s
}

// A Volume is what a container sees at a path, in the notation of Docker: SOURCE:TARGET[:ro].
type Volume struct {
	// Partition selects a partition of the run's disk, whose file system the agent mounts. If it is not set, Device may be the path of
	// such a partition.
	Partition Partition
	Device    string
	// Directory is a directory that the containers of a run share, with the path that the source has, or a directory of the agent's system
	// that is always read-only (see SystemVolumes). Devices: the source is /dev.
	Directory string
	Devices   bool
	Target    string // absolute path in the container
	ReadOnly  bool
}

// SystemVolumes are the directories of the agent's system that a container may see, read-only.
var SystemVolumes = []string{"/lib/firmware", "/lib/modules"}

// hiddenVolumes are the directories that no container sees in another way than the agent provides them.
var hiddenVolumes = []string{"/boot", "/etc", "/init", "/lib", "/proc", "/root", "/run", "/sbin", "/sys", "/usr", "/var/run"}

var volumeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// ParseVolume parses a volume. disk is the path that the template uses for the run's disk; "" if it is not known: then every path of a
// device is accepted.
func ParseVolume(text, disk string) (Volume, error) {
	source, rest, ok := strings.Cut(text, ":")
	target, options, _ := strings.Cut(rest, ":")
	v := Volume{Target: target}
	if !ok || !isCleanPath(target) {
		return v, fmt.Errorf("invalid volume %q; must be SOURCE:TARGET or SOURCE:TARGET:ro, with an absolute path as target", text)
	}
	for _, o := range strings.Split(options, ",") {
		switch o {
		case "", "rw", "z", "Z", "rshared", "shared", "rslave", "slave", "rprivate", "private", "cached", "delegated", "consistent":
		case "ro":
			v.ReadOnly = true
		default:
			return v, fmt.Errorf("invalid option %q of volume %q; must be ro or rw", o, text)
		}
	}
	return v, v.setSource(text, source, disk)
}

func (v *Volume) setSource(text, source, disk string) (err error) {
	switch {
	case strings.Contains(source, "="):
		v.Partition, err = ParsePartition(source)
	case source == "/dev":
		v.Devices = true
		if v.Target != "/dev" {
			err = fmt.Errorf("invalid volume %q: /dev can only be at /dev", text)
		}
	case source == "/dev/console" || source == "/dev/null":
		v.Devices = true // a container has both
	case strings.HasPrefix(source, "/dev/"):
		v.Device = source
		if n, own := PartitionOf(source, disk); disk != "" && (!own || n == 0) {
			err = fmt.Errorf("invalid volume %q: %s is not a partition of the run's disk (%s)", text, source, disk)
		}
	case slices.Contains(SystemVolumes, source):
		v.Directory, v.ReadOnly = source, true
	case strings.HasPrefix(source, "/"):
		v.Directory = source
		hidden := slices.ContainsFunc(hiddenVolumes, func(dir string) bool { return source == dir || strings.HasPrefix(source, dir+"/") })
		if !isCleanPath(source) || hidden {
			err = fmt.Errorf("invalid volume %q: a container cannot see %s of the agent; use another path, which is a directory that the "+
				"containers of the run share", text, source)
		}
	case volumeName.MatchString(source):
		v.Directory = source
	default:
		err = fmt.Errorf("invalid source of volume %q; must be a partition of the run's disk, a path or a name", text)
	}
	return err
}

// isCleanPath reports whether p is an absolute path other than /, without "..", double slashes and the like.
func isCleanPath(p string) bool { return strings.HasPrefix(p, "/") && p != "/" && path.Clean(p) == p }

// RefersToDisk reports whether a container action refers to the run's disk: by /dev or a partition in its volumes, or by the path of the
// disk, or of one of its partitions, in its environment, its command or its handlers.
func (a Action) RefersToDisk(disk string) bool {
	for _, text := range a.Volumes {
		if v, err := ParseVolume(text, disk); err == nil && (v.Devices && v.Target == "/dev" || v.Partition.By != "" || v.Device != "") {
			return true
		}
	}
	words := slices.Concat(a.Command, a.OnFailure, a.OnTimeout, slices.Collect(maps.Values(a.Environment)))
	own := regexp.MustCompile(`(^|[^A-Za-z0-9/])` + regexp.QuoteMeta(disk) + `(p?\d+|-part\d+)?([^A-Za-z0-9/_-]|$)`)
	return disk != "" && slices.ContainsFunc(words, own.MatchString)
}

var (
	pathInText = regexp.MustCompile(`[A-Za-z0-9/_.-]*[A-Za-z0-9/_-]`)
	kernelDisk = regexp.MustCompile(`^/dev/(?:(?:sd|vd|xvd|hd|dasd)[a-z]+\d*|(?:nvme\d+n\d+|mmcblk\d+)(?:p\d+)?)$`)
)

// KernelDisks returns the paths of disks, such as /dev/sda, to which a container action refers in its environment, its command or its
// handlers, by the kernel's name of the disk or of one of its partitions. Each is returned once; they are sorted.
func (a Action) KernelDisks() (disks []string) {
	for _, text := range slices.Concat(a.Command, a.OnFailure, a.OnTimeout, slices.Collect(maps.Values(a.Environment))) {
		for _, word := range pathInText.FindAllString(text, -1) {
			if kernelDisk.MatchString(word) {
				disks = append(disks, DiskOf(word))
			}
		}
	}
	slices.Sort(disks)
	return slices.Compact(disks)
}

// SharesFolder reports whether a and b are containers that share a folder.
func (a Action) SharesFolder(b Action) bool {
	folders := func(x Action) (out []string) {
		for _, text := range x.Volumes {
			if v, err := ParseVolume(text, ""); err == nil && v.Directory != "" && !slices.Contains(SystemVolumes, v.Directory) {
				out = append(out, v.Directory)
			}
		}
		return out
	}
	shared := func(folder string) bool { return slices.Contains(folders(b), folder) }
	return a.Container != nil && b.Container != nil && slices.ContainsFunc(folders(a), shared)
}

var errNoContainer = errors.New("the plan has no container for this action")

// CheckContainer returns an error if a is not a complete container action. Both the server, before it signs an order, and the agent call
// CheckContainer.
func (a Action) CheckContainer(disk string) error {
	if a.Container == nil {
		return errNoContainer
	}
	var errs []error
	for _, text := range a.Volumes {
		_, err := ParseVolume(text, disk)
		errs = append(errs, err)
	}
	if !digestForm.MatchString(a.Container.Digest) {
		errs = append(errs, fmt.Errorf("invalid digest %q of container image; must be sha256: and 64 hex digits", a.Container.Digest))
	}
	if _, err := SHA256(map[string]string{"": a.Container.SHA256}, ""); err != nil || a.Container.SHA256 == "" {
		errs = append(errs, errors.New("the archive of the container image has no SHA-256"))
	}
	return errors.Join(errs...)
}

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
