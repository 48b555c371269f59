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
	"strconv"
	"strings"
)

// File is a file or a directory that inject puts into a file system.
type File struct {
	Path string `json:"path"` // absolute, in the file system
	// What it holds: one of these, or none for an empty file. From names the
	// variable of the environment that has it, so that long texts and secrets
	// need no quoting.
	Contents string `json:"contents,omitempty"`
	Base64   string `json:"base64,omitempty"`
	From     string `json:"from,omitempty"`
	// Directory: make a directory, or give the one that is there this owner and
	// mode.
	Directory bool `json:"directory,omitempty"`
	// Owner and Group are numbers, or names in the file system's own
	// /etc/passwd and /etc/group; "" = 0.
	Owner string `json:"owner,omitempty"`
	Group string `json:"group,omitempty"`
	Mode  string `json:"mode,omitempty"` // octal; "" = 0644, of a directory 0755
	// DirMode is that of directories that have to be made on the way, octal;
	// "" = 0755. They get the owner and group of the file.
	DirMode string `json:"dirMode,omitempty"`
}

// FilesVariable is the variable of inject's environment that lists its files,
// as a JSON array of File.
const FilesVariable = "FILES"

// maxFiles bounds what one action writes.
const maxFiles = 256

// accountName is what useradd takes for a name, and a number.
var accountName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}$`)

// Files reads what inject's environment lists: in each result Contents holds
// what the file holds, and Path is clean. All that is wrong is one error, entry
// by entry, without any contents in it.
func Files(env map[string]string) ([]File, error) {
	if strings.TrimSpace(env[FilesVariable]) == "" {
		return nil, fmt.Errorf("reading %s: it is missing: give a JSON array of {path, contents, owner, group, mode}",
			FilesVariable)
	}

	files, err := decodeFiles(env[FilesVariable])
	if err != nil {
		return nil, fmt.Errorf("reading %s as a JSON array of files: %w", FilesVariable, err)
	}
	if len(files) == 0 || len(files) > maxFiles {
		return nil, fmt.Errorf("reading %s: %d files, want 1 to %d", FilesVariable, len(files), maxFiles)
	}

	var errs []error
	seen := map[string]bool{}
	for i := range files {
		f := &files[i]
		wrong := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("reading %s[%d] %q: %s", FilesVariable, i, f.Path, fmt.Sprintf(format, args...)))
		}

		if !path.IsAbs(f.Path) || path.Clean(f.Path) == "/" || strings.HasSuffix(f.Path, "/") ||
			strings.ContainsRune(f.Path, 0) {
			wrong("path must be absolute and that of a file or directory")
		}
		f.Path = path.Clean(f.Path)
		if seen[f.Path] {
			wrong("it is listed twice")
		}
		seen[f.Path] = true

		f.fill(env, wrong)
		for _, v := range [][2]string{{"owner", f.Owner}, {"group", f.Group}} {
			if v[1] != "" && !accountName.MatchString(v[1]) {
				wrong("invalid %s %q: want a number or a name", v[0], v[1])
			}
		}

		for _, v := range [][2]string{{"mode", f.Mode}, {"dirMode", f.DirMode}} {
			if _, err := Octal(v[1], 0); err != nil {
				wrong("invalid %s %q: want an octal mode", v[0], v[1])
			}
		}
	}

	return files, errors.Join(errs...)
}

// decodeFiles reads a JSON array strictly: unknown fields, and anything after the
// array, are errors.
func decodeFiles(text string) ([]File, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	var files []File
	if err := d.Decode(&files); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the array")
	}
	return files, nil
}

// fill puts into f.Contents what the file holds.
func (f *File) fill(env map[string]string, wrong func(string, ...any)) {
	sources := 0
	for _, s := range []string{f.Contents, f.Base64, f.From} {
		if s != "" {
			sources++
		}
	}

	switch {
	case f.Directory && sources > 0:
		wrong("a directory holds no contents")
	case sources > 1:
		wrong("give one of contents, base64 and from")
	case f.From != "":
		text, ok := env[f.From]
		if !ok {
			wrong("from names %q, which the environment does not have", f.From)
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

// Octal reads a file mode such as 0644 or 0o2775; "" is otherwise.
func Octal(s string, otherwise uint32) (uint32, error) {
	if s == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 32)
	if err != nil || n > 0o7777 {
		return 0, fmt.Errorf("reading the mode %q: want octal digits up to 7777", s)
	}
	return uint32(n), nil
}
