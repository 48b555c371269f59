package action

import (
	"fmt"
	"net/url"
	"path"
	"strings"
)

// Variables of archive2disk. They have the same names as in Tinkerbell's action.
const (
	ArchiveURLVariable    = "ARCHIVE_URL"
	ArchiveDigestVariable = "TARFILE_CHECKSUM" // SHA-256 of the file in the form in which it is served
	ArchivePathVariable   = "DEST_PATH"        // a folder
)

// archive2Disk extracts an archive with owners, modes and links, and writes nothing outside of DEST_PATH.
var archive2Disk = Description{
	Text:   "Extracts a tar archive into a file system on the disk.",
	Loader: true, Writes: true, Disk: "DEST_DISK", Volumes: true, URL: ArchiveURLVariable, Digest: ArchiveDigestVariable,
	Variables: []Variable{
		{
			Name: ArchiveURLVariable, Text: "http or https URL of the archive",
			Default: "the image of the run or machine, which must be an archive", check: fileURL,
		},
		{
			Name: ArchiveDigestVariable, Text: "SHA-256 of the file as it is served, 64 hex digits", Default: "the digest of the stored archive",
			check: sha256Digest,
		},
		{Name: ArchivePathVariable, Text: "absolute path of a folder in the file system", Default: "/", check: folderPath},
		{Name: "DEST_DISK", Text: "path of the disk or partition", Default: runDisk},
		partitionOfFiles, fileSystem, storageOfFiles,
		{Name: "ARCHIVE_TYPE", Text: "not needed: an archive is recognized by its content", check: oneOf("tar", "targz")},
		{Name: "INSECURE_NO_TARFILE_CHECKSUM_VERIFICATION", Text: "only false", check: checksumNeeded},
		{Name: "HTTP_CLIENT_TIMEOUT_MINUTES", Text: "not needed: the timeout of the action applies", check: number},
	},
	Output: []string{"device", "sha256", "entries", "bytes"},
	Limits: "ARCHIVE_URL on another server needs TARFILE_CHECKSUM.",
	Adds:   "TARFILE_CHECKSUM of a stored archive.",
}

func fileURL(env map[string]string, name string) error {
	if env[name] == "" {
		return nil // the plan sets the URL
	}
	u, err := url.Parse(env[name])
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("invalid %s; must be an http:// or https:// URL with a host", name) // the value is not shown: it may contain a password
	}
	return nil
}

func folderPath(env map[string]string, name string) error {
	if v := env[name]; v != "" && (!path.IsAbs(v) || strings.ContainsRune(v, 0)) {
		return fmt.Errorf("invalid %s %q; must be the absolute path of a folder", name, v)
	}
	return nil
}

func checksumNeeded(env map[string]string, name string) error {
	if off, err := Bool(env, name, false); err != nil || off {
		return fmt.Errorf("invalid %s; must be false, because the digest of an archive is always verified: give the digest in %s",
			name, ArchiveDigestVariable)
	}
	return nil
}
