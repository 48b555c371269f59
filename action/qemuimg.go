package action

import (
	"errors"
	"fmt"
)

// qemuImg2Disk does the same as image2disk, with the variables of Tinkerbell's qemuimg2disk. The agent does not read qcow2: the
// parts of a qcow2 file are in any order, so the agent would have to read the file a second time after it has verified the digest.
// Instead, the server converts qcow2 when an image is added.
var qemuImg2Disk = Description{
	Text:   "Writes an image to the disk or a partition of it, and reads it back: image2disk under another name.",
	Writes: true, Whole: true, Disk: "DEST_DISK", Partitions: true, URL: "IMG_URL", Digest: "IMG_SHA256",
	Variables: []Variable{
		imageURL, imageSHA256, imageSHA512, destination, partitionOfFiles,
		{Name: "FORMAT", Text: "only host_device", Default: "host_device", check: hostDevice},
		{Name: "EXTRA_ARGS", Text: "only empty: qemu-img is not run", check: noArguments},
	},
	Output: []string{"sha256", "contentSHA256", "bytes", "readback", "disk", "firstSeen"},
	Limits: "Without IMG_SHA256, as image2disk. With it, IMG_URL must not be a qcow2 image: `ingot image add NAME URL` converts it.",
	Adds:   "IMG_SHA256 and the pinned IMG_URL of a stored image, as for image2disk.",
}

func hostDevice(env map[string]string, name string) error {
	if v := env[name]; v != "" && v != "host_device" {
		return fmt.Errorf("invalid %s %q; must be host_device, because the image is written to a disk", name, v)
	}
	return nil
}

func noArguments(env map[string]string, name string) error {
	if env[name] != "" {
		return errors.New("reading " + name + ": it must be empty, because qemu-img is not run: leave it out")
	}
	return nil
}
