package inventory

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// maxKernelArg is the maximum length of a kernel parameter, in bytes.
const maxKernelArg = 512

var (
	// ourArg matches the parameters that Ingot gives to every kernel. agentArg matches the parameters that Ingot gives only to the agent's
	// kernel.
	ourArg   = regexp.MustCompile(`^(ingot\..*|initrd)(=.*)?$`)
	agentArg = regexp.MustCompile(`^(rdinit|init)(=.*)?$`)
	// iPXEOperators are the words that end a command in iPXE (command_terminator in src/core/exec.c).
	iPXEOperators = []string{";", "&&", "||"}
)

// ParameterProblem returns why parameter is not allowed in Machine.KernelArgs, or "" if it is allowed. A parameter is not allowed if some
// boot loader would not pass it to the kernel as one unchanged word, or if Ingot itself gives it to the agent's kernel. The result
// completes a sentence that begins with the parameter.
func ParameterProblem(parameter string) string {
	if agentArg.MatchString(parameter) {
		return "is a parameter that Ingot sets itself"
	}
	return InstallerParameterProblem(parameter)
}

// InstallerParameterProblem is ParameterProblem for the kernel of another installer, for which Ingot does not set init and rdinit.
//
// iPXE splits a line at blanks, treats some whole words as operators or comments, and replaces settings; it has no quotes. GRUB accepts any
// word in single quotes (quoteGrub in bootsvc), but changes some characters on the way to the kernel (grub_create_loader_cmdline). Without
// the check, a parameter could be run as a command, as in CVE-2026-46447, or reach the kernel changed.
func InstallerParameterProblem(parameter string) string {
	const byGRUB = "\\'\""
	switch at := strings.IndexAny(parameter, byGRUB); {
	case parameter == "":
		return "is empty"
	case !plain(parameter):
		return "has characters that are not printable ASCII"
	case len(parameter) > maxKernelArg:
		return fmt.Sprintf("is longer than %d characters", maxKernelArg)
	case strings.Contains(parameter, " "):
		return "contains a blank, where iPXE and the kernel end a parameter"
	case at >= 0:
		return fmt.Sprintf("contains %c, which GRUB escapes by a backslash that the kernel keeps", parameter[at])
	case strings.Contains(parameter, "${"):
		return "contains ${, which iPXE replaces by a setting"
	case slices.Contains(iPXEOperators, parameter):
		return "is an operator of iPXE"
	case parameter[0] == '#':
		return "begins with #, which starts a comment in iPXE"
	case parameter == "--":
		return "ends the parameters of the kernel: the kernel passes all further words to init"
	case ourArg.MatchString(parameter):
		return "is a parameter that Ingot sets itself"
	}
	return ""
}
