package action

import (
	"errors"
	"fmt"
	"strings"
)

// Variables of oci2disk. They have the same names as in Tinkerbell's action.
const (
	RegistryUserVariable     = "REGISTRY_USERNAME"
	RegistryPasswordVariable = "REGISTRY_PASSWORD"
)

// oci2Disk does the same as image2disk, with an image from an OCI registry.
var oci2Disk = Description{
	Text:   "Writes an image from an OCI registry to the disk or a partition of it, and reads it back.",
	Writes: true, Whole: true, Disk: "DEST_DISK", Partitions: true,
	Variables: []Variable{
		{
			Name: "IMG_URL", Text: "REGISTRY/REPOSITORY@sha256:DIGEST, or with :TAG; http:// in front for a registry without TLS",
			Required: true, check: ociReference,
		},
		{Name: "IMG_SHA256", Text: "digest of the layer, 64 hex digits", Default: "the digest in the manifest", check: sha256Digest},
		destination, partitionOfFiles,
		{Name: RegistryUserVariable, Text: "user name at the registry", Default: "none is needed"},
		{Name: RegistryPasswordVariable, Text: "password or token; stored and shown like the rest of the template: use one with read access"},
		{Name: "SKIP_VERIFY", Text: "only false", check: verified},
		{Name: "COMPRESSED", Text: "not needed: an image is recognized by its content", check: boolean},
	},
	Output: []string{"sha256", "contentSHA256", "bytes", "readback", "disk"},
	Limits: "The manifest must have one layer; from an index, the manifest for linux/amd64 is used. " +
		"IMG_URL without a digest needs IMG_SHA256.",
}

// An OCIReference names an image in a registry (OCI distribution specification 1.1).
type OCIReference struct {
	Name   string // REGISTRY/REPOSITORY:TAG or REGISTRY/REPOSITORY@sha256:DIGEST
	Plain  bool   // the registry has no TLS
	Pinned bool   // Name contains a digest
}

// OCIImage returns the reference in IMG_URL. The error does not contain the value of IMG_URL, which may contain a password.
func OCIImage(env map[string]string) (OCIReference, error) {
	text := env["IMG_URL"]
	name, plain := strings.CutPrefix(text, "http://")
	if !plain {
		name = strings.TrimPrefix(text, "https://")
	}
	if !containerForm.MatchString(name) {
		return OCIReference{}, errors.New("invalid IMG_URL; must be REGISTRY/REPOSITORY@sha256:DIGEST or REGISTRY/REPOSITORY:TAG")
	}
	return OCIReference{Name: name, Plain: plain, Pinned: strings.Contains(name, "@")}, nil
}

func ociReference(env map[string]string, name string) error {
	r, err := OCIImage(env)
	if err == nil && !r.Pinned && env["IMG_SHA256"] == "" {
		err = fmt.Errorf("reading %s: a tag can be moved to another image: add @sha256:DIGEST, or give IMG_SHA256", name)
	}
	return err
}

func verified(env map[string]string, name string) error {
	if skip, err := Bool(env, name, false); err != nil || skip {
		return fmt.Errorf("reading %s: a registry's certificate is always verified: leave the variable out, "+
			"or write http:// for a registry without TLS", name)
	}
	return nil
}
