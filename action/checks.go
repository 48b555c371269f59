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

// FileSystems lists the file systems that the agent can mount: the values of FS_TYPE.
var FileSystems = []string{"ext4", "xfs", "btrfs", "vfat"}

// checkVariable returns an error if the variable called name is invalid in env.
type checkVariable func(env map[string]string, name string) error

// Check returns all errors in the environment of the native action called name, except those that depend on the machine. The errors
// are joined and sorted by variable. Check ignores variables that the action does not read, because a task gives its environment to
// all of its actions. Both the plan and the agent call Check. The errors contain no value that could be part of a secret.
func Check(name string, env map[string]string) error {
	variables := slices.SortedFunc(slices.Values(natives[name].Variables), func(a, b Variable) int { return strings.Compare(a.Name, b.Name) })

	var errs []error
	for _, v := range variables {
		errs = append(errs, v.Check(env))
	}
	return errors.Join(errs...)
}

// CheckCommand returns an error if command is not one of Description.Commands of the native action called name. It returns nil for
// an action that does not read its command.
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

// vfatRefuses holds the characters that, besides control characters, cannot be in a file name on FAT.
const vfatRefuses = `*?<>|":\`

// maxPath is PATH_MAX of Linux: the maximum size of a path in bytes, including the zero byte at its end.
const maxPath = 4096

// pathProblem returns why a file with the path p cannot be created, or "" if it can. The variable FS_TYPE in env, if set, names the
// file system of the file.
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

// textPath returns an error for a path that contains a zero byte, because the kernel would end the path there.
func textPath(env map[string]string, name string) error {
	if strings.ContainsRune(env[name], 0) {
		return fmt.Errorf("invalid %s; must not contain a zero byte", name)
	}
	return nil
}

// owner returns an error if the variable is not a number. With FS_TYPE=vfat it must be 0, because vfat does not store owners.
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

// onlyWith returns a check that fails if a variable is set and the variable other is not set: the variable would then have no
// effect.
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

// SHA256 returns the value of the variable called name as 64 lower-case hex digits, or "" if the variable is not set. The value
// must be a SHA-256, with or without the prefix "sha256:".
func SHA256(env map[string]string, name string) (string, error) {
	s := strings.ToLower(strings.TrimPrefix(strings.TrimSpace(env[name]), "sha256:"))
	if b, err := hex.DecodeString(s); s != "" && (err != nil || len(b) != 32) {
		return "", fmt.Errorf("invalid %s %q; must be 64 hex digits", name, env[name])
	}
	return s, nil
}

// Number returns the value of the variable called name, or 0 if it is not set. The value must be a number from 0 to 2^31-1.
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
