package action

import (
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// FileSystems are the file systems that the agent can mount: the values of FS_TYPE.
var FileSystems = []string{"ext4", "xfs", "btrfs", "vfat"}

// checkVariable returns an error if the variable called name is invalid in env.
type checkVariable func(env map[string]string, name string) error

// Check returns all errors in the environment of the native action called name that do not depend on the machine. They are joined and
// sorted by variable. Check ignores variables that the action does not read, because a task gives its environment to all of its
// actions. Both the plan and the agent call Check. The errors contain no value that could be part of a secret.
func Check(name string, env map[string]string) error {
	variables := slices.SortedFunc(slices.Values(natives[name].Variables), func(a, b Variable) int { return strings.Compare(a.Name, b.Name) })

	var errs []error
	for _, v := range variables {
		errs = append(errs, v.Check(env))
	}
	return errors.Join(errs...)
}

// CheckCommand returns an error if the native action called name reads its command and command is not one of Description.Commands.
func CheckCommand(name string, command []string) error {
	known := natives[name].Commands
	if known == nil || len(command) == 1 && slices.Contains(known, command[0]) {
		return nil
	}
	return fmt.Errorf("invalid command %q of %s; must be one of %s", command, name, strings.Join(known, ", "))
}

func partition(env map[string]string, name string) error {
	_, err := ParsePartition(env[name])
	return err
}

func files(env map[string]string, _ string) error {
	_, err := Files(env)
	return err
}

func mebibytes(env map[string]string, name string) error {
	_, err := MiB(env, name)
	return err
}

func boolean(env map[string]string, name string) error {
	_, err := Bool(env, name, false)
	return err
}

func octal(env map[string]string, name string) error {
	if _, err := Octal(env[name], 0); err != nil {
		return fmt.Errorf("reading %s: %w", name, err)
	}
	return nil
}

func number(env map[string]string, name string) error {
	_, err := Number(env, name)
	return err
}

func seconds(env map[string]string, name string) error {
	if n, err := strconv.ParseFloat(env[name], 64); env[name] != "" && (err != nil || !(n >= 0)) {
		return fmt.Errorf("invalid %s %q; must be a number of seconds, 0 or more", name, env[name])
	}
	return nil
}

func oneLine(env map[string]string, name string) error {
	if strings.ContainsAny(env[name], "\x00\n") {
		return fmt.Errorf("invalid %s; must be one line without zero bytes", name)
	}
	return nil
}

func filePath(env map[string]string, name string) error {
	v := env[name]
	if !path.IsAbs(v) || path.Clean(v) == "/" || strings.HasSuffix(v, "/") {
		return fmt.Errorf("invalid %s %q; must be the absolute path of a file", name, v)
	}
	if why := pathProblem(v, env); why != "" {
		return fmt.Errorf("reading %s=%q: %s", name, v, why)
	}
	return nil
}

// vfatRefuses are the characters that a file name on FAT cannot contain, besides control characters.
const vfatRefuses = `*?<>|":\`

// maxPath is PATH_MAX of Linux: the maximum size of a path in bytes, including the zero byte at its end.
const maxPath = 4096

// pathProblem returns why no file with the path p can be created, or "" if it can. If env sets FS_TYPE, it is the file system for
// the file.
func pathProblem(p string, env map[string]string) string {
	vfat := env[FileSystemVariable] == "vfat"
	if len(p) >= maxPath {
		return fmt.Sprintf("the path has %d bytes, and Linux allows up to %d", len(p), maxPath-1)
	}
	for _, name := range strings.Split(path.Clean(p), "/") {
		switch {
		case strings.ContainsRune(name, 0):
			return "the path contains a zero byte"
		case len(name) > 255:
			return fmt.Sprintf("a name in the path has %d bytes, and file systems allow up to 255", len(name))
		case vfat && (strings.ContainsAny(name, vfatRefuses) || strings.ContainsFunc(name, unicode.IsControl)):
			return fmt.Sprintf("a name on vfat must not contain control characters or any of %s", vfatRefuses)
		}
	}
	return ""
}

// textPath returns an error for a path with a zero byte: for the kernel, the path ends there.
func textPath(env map[string]string, name string) error {
	if strings.ContainsRune(env[name], 0) {
		return fmt.Errorf("invalid %s; must not contain a zero byte", name)
	}
	return nil
}

// owner returns an error if the variable is not a number, or is not 0 while FS_TYPE is vfat, which has no owners.
func owner(env map[string]string, name string) error {
	n, err := Number(env, name)
	if err == nil && n != 0 && env[FileSystemVariable] == "vfat" {
		err = fmt.Errorf("reading %s=%q: vfat has no owners: leave the variable out", name, env[name])
	}
	return err
}

func oneOf(words ...string) checkVariable {
	return func(env map[string]string, name string) error {
		if v := env[name]; v != "" && !slices.Contains(words, v) {
			return fmt.Errorf("invalid %s %q; must be one of %s", name, v, strings.Join(words, ", "))
		}
		return nil
	}
}

// onlyWith returns a check that fails if a variable is set without the variable other: alone, it would have no effect.
func onlyWith(other string) checkVariable {
	return func(env map[string]string, name string) error {
		if env[other] == "" && env[name] != "" {
			return unsupported(name, other)
		}
		return nil
	}
}

func unsupported(name, instead string) error {
	return fmt.Errorf("reading %s: it is not supported: give %s", name, instead)
}

func sha256Digest(env map[string]string, name string) error {
	_, err := SHA256(env, name)
	return err
}

// SHA256 returns the variable called name as 64 lower-case hex digits; "" if it is not set. Its value must be a SHA-256, with or
// without the prefix "sha256:".
func SHA256(env map[string]string, name string) (string, error) {
	s := strings.ToLower(strings.TrimPrefix(strings.TrimSpace(env[name]), "sha256:"))
	if b, err := hex.DecodeString(s); s != "" && (err != nil || len(b) != 32) {
		return "", fmt.Errorf("invalid %s %q; must be 64 hex digits", name, env[name])
	}
	return s, nil
}

// Number returns the variable called name, a number from 0 to 2^31-1; 0 if it is not set.
func Number(env map[string]string, name string) (int, error) {
	if env[name] == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(env[name], 10, 31)
	if err != nil {
		return 0, fmt.Errorf("invalid %s %q; must be a whole number from 0 to 2147483647", name, env[name])
	}
	return int(n), nil
}
