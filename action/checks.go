package action

import (
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// FileSystems are those that the agent can mount: the values of FS_TYPE.
var FileSystems = []string{"ext4", "xfs", "btrfs", "vfat"}

// checkVariable returns what is wrong with the variable name of env.
type checkVariable func(env map[string]string, name string) error

// Check returns everything in a native action's environment that is wrong
// whatever the machine is, joined and in the order of the variables' names. A
// variable without a check may hold any text, because a task gives its environment
// to all of its actions. The plan and the agent both call Check. Errors show no
// value that could be part of a secret.
func Check(name string, env map[string]string) error {
	variables := slices.SortedFunc(slices.Values(natives[name].Variables), func(a, b Variable) int { return strings.Compare(a.Name, b.Name) })

	var errs []error
	for _, v := range variables {
		errs = append(errs, v.Check(env))
	}
	return errors.Join(errs...)
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
		return fmt.Errorf("reading %s=%q: want seconds", name, env[name])
	}
	return nil
}

func oneLine(env map[string]string, name string) error {
	if strings.ContainsAny(env[name], "\x00\n") {
		return fmt.Errorf("reading %s: it has more than one line", name)
	}
	return nil
}

func filePath(env map[string]string, name string) error {
	v := env[name]
	if !path.IsAbs(v) || path.Clean(v) == "/" || strings.HasSuffix(v, "/") {
		return fmt.Errorf("reading %s=%q: want the absolute path of a file", name, v)
	}
	return nil
}

// contents refuses a missing CONTENTS. If the variables have another source of
// the file, which EKS Anywhere's action reads, the error names it. Beside
// CONTENTS these sources are ignored.
func contents(env map[string]string, name string) error {
	if _, ok := env[name]; ok {
		return nil
	}

	for _, other := range []string{"BOOTCONFIG_CONTENTS", "HEGEL_URLS", "STATIC_NETPLAN", "STATIC_BOTTLEROCKET"} {
		if env[other] != "" {
			return unsupported(other, name)
		}
	}
	return fmt.Errorf("reading %s: it is missing", name)
}

func oneOf(words ...string) checkVariable {
	return func(env map[string]string, name string) error {
		if v := env[name]; v != "" && !slices.Contains(words, v) {
			return fmt.Errorf("reading %s=%q: want one of %s", name, v, strings.Join(words, ", "))
		}
		return nil
	}
}

// onlyBeside refuses a variable that does nothing without another one.
func onlyBeside(other string) checkVariable {
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

func sha256Digest(env map[string]string, _ string) error {
	_, err := ImageDigest(env)
	return err
}

// ImageDigest returns IMG_SHA256, with or without the prefix "sha256:", as 64
// lower-case hex digits; "" if it is not set.
func ImageDigest(env map[string]string) (string, error) {
	s := strings.ToLower(strings.TrimPrefix(strings.TrimSpace(env["IMG_SHA256"]), "sha256:"))
	if b, err := hex.DecodeString(s); s != "" && (err != nil || len(b) != 32) {
		return "", fmt.Errorf("reading IMG_SHA256=%q: want 64 hex digits", env["IMG_SHA256"])
	}
	return s, nil
}

// Number reads a variable that is a number from 0 to 2^31-1; "" is 0.
func Number(env map[string]string, name string) (int, error) {
	if env[name] == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(env[name], 10, 31)
	if err != nil {
		return 0, fmt.Errorf("reading %s=%q: want a number", name, env[name])
	}
	return int(n), nil
}
