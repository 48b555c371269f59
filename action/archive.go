package action

import (
	"fmt"
	"net/url"
	"path"
	"strings"
)

// Variables of archive2disk, with the names of Tinkerbell's action.
const (
	ArchiveURLVariable    = "ARCHIVE_URL"
	ArchiveDigestVariable = "TARFILE_CHECKSUM" // of the file as it is served
	ArchivePathVariable   = "DEST_PATH"        // a folder
)

// archive2Disk extracts an archive faithfully and never outside of DEST_PATH.
var archive2Disk = Description{
	Text:   "Extracts a tar archive into a file system on the disk.",
	Writes: true, Disk: "DEST_DISK",
	Variables: []Variable{
		{Name: ArchiveURLVariable, Text: "where the agent fetches the archive, http or https", Required: true, check: fileURL},
		{
			Name: ArchiveDigestVariable, Text: "SHA-256 of the file as it is served, 64 hex digits", Required: true,
			check: requiredDigest,
		},
		{Name: ArchivePathVariable, Text: "absolute path of a folder in the file system", Default: "/", check: folderPath},
		{Name: "DEST_DISK", Text: "path of the disk or partition", Default: runDisk},
		partitionOfFiles, fileSystem,
		{Name: "ARCHIVE_TYPE", Text: "not needed: an archive is recognized by its content", check: oneOf("tar", "targz")},
		{Name: "INSECURE_NO_TARFILE_CHECKSUM_VERIFICATION", Text: "only false", check: checksumNeeded},
		{Name: "HTTP_CLIENT_TIMEOUT_MINUTES", Text: "not needed: the timeout of the action counts", check: number},
	},
	Output: []string{"device", "sha256", "entries", "bytes"},
}

func fileURL(env map[string]string, name string) error {
	u, err := url.Parse(env[name])
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("reading %s: want http:// or https:// and a host", name) // it may have a password
	}
	return nil
}

func requiredDigest(env map[string]string, name string) error {
	digest, err := sha256Of(env, name)
	if err == nil && digest == "" {
		err = fmt.Errorf("reading %s: it is missing: give the SHA-256 of the file as it is served", name)
	}
	return err
}

func folderPath(env map[string]string, name string) error {
	if v := env[name]; v != "" && (!path.IsAbs(v) || strings.ContainsRune(v, 0)) {
		return fmt.Errorf("reading %s=%q: want the absolute path of a folder", name, v)
	}
	return nil
}

func checksumNeeded(env map[string]string, name string) error {
	if off, err := Bool(env, name, false); err != nil || off {
		return fmt.Errorf("reading %s: an archive is not extracted without its digest: give %s", name, ArchiveDigestVariable)
	}
	return nil
}

// ArchiveDigest returns TARFILE_CHECKSUM, with or without the prefix "sha256:", as 64
// lower-case hex digits; "" if it is not set.
func ArchiveDigest(env map[string]string) (string, error) {
	return sha256Of(env, ArchiveDigestVariable)
}
