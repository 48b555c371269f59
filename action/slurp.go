package action

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode"
)

// Variables of slurp. They have the same names as in Tinkerbell's action.
const (
	SourceDiskVariable = "SOURCE_DISK"
	UploadURLVariable  = "DEST_URL"
	UploadNameVariable = "IMG_NAME"
	CompressedVariable = "COMPRESSED"
)

// UploadField is the field of the form in which slurp sends the disk.
const UploadField = "BootyImage"

// slurp sends the content of a disk to a host that the configuration lists.
var slurp = Description{
	Text:  "Reads the disk and posts its content to another host, as the file `" + UploadField + "` of a form (multipart/form-data).",
	Reads: true, Disk: SourceDiskVariable, Upload: UploadURLVariable,
	Variables: []Variable{
		{Name: SourceDiskVariable, Text: "path of the disk", Default: runDisk},
		{Name: UploadURLVariable, Text: "http or https URL to which the form is posted", Required: true, check: uploadURL},
		{Name: UploadNameVariable, Text: "name of the file in the form", Required: true, check: uploadName},
		{Name: CompressedVariable, Text: "true or false: compress the content with gzip", Default: "false", check: boolean},
	},
	Output: []string{"sha256", "bytes", "sent"},
	Limits: "The host of DEST_URL must be one of `images.upload_hosts`. An interrupted upload is not resumed. A redirect, or any status " +
		"other than 2xx, fails the action.",
}

func uploadURL(env map[string]string, name string) error {
	_, err := UploadHost(env[name])
	if err != nil {
		return fmt.Errorf("reading %s: %w", name, err)
	}
	return nil
}

// UploadHost returns the host of the upload URL text, without its port. The error does not contain text, which may contain a
// password.
func UploadHost(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return "", errors.New("must be an http:// or https:// URL with a host")
	}
	return u.Hostname(), nil
}

func uploadName(env map[string]string, name string) error {
	v := env[name]
	if v == "" || v == "." || v == ".." || len(v) > 255 || strings.ContainsAny(v, `/\"`) || strings.ContainsFunc(v, unicode.IsControl) {
		return fmt.Errorf("invalid %s %q; must be the name of a file, without a folder", name, v)
	}
	return nil
}

// Upload returns the URL to which the action a sends the content of a disk; "" if the action sends nothing.
func (a Action) Upload() string {
	native, _ := a.Native()
	if variable := natives[native].Upload; variable != "" {
		return a.Environment[variable]
	}
	return ""
}
