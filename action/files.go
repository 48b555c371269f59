package action

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// File is a file or a directory that inject writes to a file system.
type File struct {
	Path string `json:"path"` // absolute path in the file system
	// Contents, Base64 and From are three sources of the file's contents. At most one is set; if none is set, the file is empty.
	// From is the name of a variable of the environment that holds the contents, so that long texts and secrets need no quoting.
	Contents string `json:"contents,omitempty"`
	Base64   string `json:"base64,omitempty"`
	From     string `json:"from,omitempty"`
	// Directory: the action makes a directory, or sets owner and mode of an existing one.
	Directory bool `json:"directory,omitempty"`
	// Owner and Group are numbers, or names from /etc/passwd and /etc/group of the file system; "" = 0.
	Owner string `json:"owner,omitempty"`
	Group string `json:"group,omitempty"`
	Mode  string `json:"mode,omitempty"` // octal; "" = 0644, or 0755 for a directory
	// DirMode is the octal mode of missing parent directories; "" = 0755. These directories get the owner and group of the file.
	DirMode string `json:"dirMode,omitempty"`
}

// FilesVariable is the variable of inject that contains the files, as a JSON array of File.
const FilesVariable = "FILES"

// maxFiles is the maximum number of files that one action may write.
const maxFiles = 256

// accountName matches the account names that useradd accepts. It also matches numbers.
var accountName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}$`)

// Files parses the files in inject's environment. In each returned file, Contents holds the contents, whichever source was set, and
// Path is clean. The error joins all problems, in the order of the files, and does not contain the contents of files.
func Files(env map[string]string) ([]File, error) {
	if strings.TrimSpace(env[FilesVariable]) == "" {
		return nil, fmt.Errorf("reading %s: it is missing: give a JSON array of {path, contents, owner, group, mode}",
			FilesVariable)
	}

	var files []File
	if err := decodeStrictly(env[FilesVariable], "array", &files); err != nil {
		return nil, fmt.Errorf("reading %s as a JSON array of files: %w", FilesVariable, err)
	}
	if len(files) == 0 || len(files) > maxFiles {
		return nil, fmt.Errorf("invalid %s: %d files; must be 1 to %d", FilesVariable, len(files), maxFiles)
	}

	var errs []error
	seen := map[string]bool{}
	for i := range files {
		f := &files[i]
		wrong := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("reading %s[%d] %q: %s", FilesVariable, i, f.Path, fmt.Sprintf(format, args...)))
		}

		if !path.IsAbs(f.Path) || path.Clean(f.Path) == "/" || strings.HasSuffix(f.Path, "/") {
			wrong("path must be absolute and name a file or directory")
		} else if why := pathProblem(f.Path, env); why != "" {
			wrong("%s", why)
		}
		f.Path = path.Clean(f.Path)
		if seen[f.Path] {
			wrong("the path is listed twice: remove one")
		}
		seen[f.Path] = true

		f.fill(env, wrong)
		for _, v := range [][2]string{{"owner", f.Owner}, {"group", f.Group}} {
			n, err := strconv.ParseUint(v[1], 10, 31)
			switch {
			case v[1] == "":
			case !accountName.MatchString(v[1]), errors.Is(err, strconv.ErrRange):
				wrong("invalid %s %q; must be a name, or a number up to 2147483647", v[0], v[1])
			case env[FileSystemVariable] == "vfat" && (err != nil || n != 0):
				wrong("vfat has no owners: leave out %s", v[0])
			}
		}

		for _, v := range [][2]string{{"mode", f.Mode}, {"dirMode", f.DirMode}} {
			if _, err := Octal(v[1], 0); err != nil {
				wrong("invalid %s %q; must be an octal mode", v[0], v[1])
			}
		}
	}

	return files, errors.Join(append(errs, checkFolders(files))...)
}

// checkFolders returns an error for each file whose path would have to be a folder, because the path of another file begins with
// it.
func checkFolders(files []File) error {
	var errs []error
	for i, f := range files {
		at := slices.IndexFunc(files, func(x File) bool { return strings.HasPrefix(x.Path, f.Path+"/") })
		if !f.Directory && at >= 0 {
			errs = append(errs, fmt.Errorf("reading %s[%d] %q: it is a file, but %s[%d] %q needs a folder at this path", FilesVariable, i, f.Path,
				FilesVariable, at, files[at].Path))
		}
	}
	return errors.Join(errs...)
}

// decodeStrictly decodes a JSON value of this kind. Unknown fields and text after the value are errors.
func decodeStrictly(text, kind string, into any) error {
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("unexpected text after the " + kind)
	}
	return nil
}

// fill sets f.Contents from the source that is set, and clears Base64 and From. It calls wrong for each problem.
func (f *File) fill(env map[string]string, wrong func(string, ...any)) {
	sources := 0
	for _, s := range []string{f.Contents, f.Base64, f.From} {
		if s != "" {
			sources++
		}
	}

	switch {
	case f.Directory && sources > 0:
		wrong("a directory must not have contents, base64 or from")
	case sources > 1:
		wrong("give only one of contents, base64 and from")
	case f.From != "":
		text, ok := env[f.From]
		if !ok {
			wrong("from names the variable %q, which the environment does not contain", f.From)
		}
		f.Contents = text

	case f.Base64 != "":
		b, err := base64.StdEncoding.DecodeString(string(bytes.Join(bytes.Fields([]byte(f.Base64)), nil)))
		if err != nil {
			wrong("invalid base64")
		}
		f.Contents = string(b)
	}

	f.From, f.Base64 = "", ""
}

// Octal parses a file mode such as 0644 or 0o2775. If s is "", it returns the argument otherwise.
func Octal(s string, otherwise uint32) (uint32, error) {
	if s == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 32)
	if err != nil || n > 0o7777 {
		return 0, fmt.Errorf("invalid mode %q; must be octal digits up to 7777", s)
	}
	return uint32(n), nil
}
