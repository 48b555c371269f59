package action

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// A maker describes a program that makes a file system, and the options that the storage of a machine may pass to the program.
type maker struct {
	program string
	args    []string
	// options are the letters of the allowed options that have a value. flags are the letters of those that have none.
	options, flags string
	// label is the letter of the option that sets the label. longest is the maximum size of a label, in bytes.
	label   string
	longest int
}

// makers maps each file system format to the program that creates it. The operator's options must not name another device,
// such as an external journal, because the program may write only to the partition.
var makers = map[string]maker{
	"ext2": {"mke2fs", []string{"-q", "-F", "-t", "ext2"}, "LUmbiINOETg", "jqF", "L", 16},
	"ext3": {"mke2fs", []string{"-q", "-F", "-t", "ext3"}, "LUmbiINOETg", "jqF", "L", 16},
	"ext4": {"mke2fs", []string{"-q", "-F", "-t", "ext4"}, "LUmbiINOETg", "jqF", "L", 16},
	"xfs":  {"mkfs.xfs", []string{"-q", "-f"}, "Lmbins", "qfK", "L", 12},
	"vfat": {"mkfs.fat", nil, "nFsiSRr", "a", "n", 11},
	"swap": {"mkswap", nil, "LU", "f", "L", 16},
}

// optionValue matches allowed values of options. It allows no slash, so that no value is the path of a file or device. The option
// -d of mkfs.xfs also accepts names without a slash; it is not allowed.
var optionValue = regexp.MustCompile(`^[A-Za-z0-9_.,:=^+%-]{1,128}$`)

// StorageFormats returns the possible values of StorageMount.Format, sorted.
func StorageFormats() []string { return slices.Sorted(maps.Keys(makers)) }

// Mkfs returns the program that makes a file system of this format, and its arguments without the device.
func Mkfs(format string, options []string) (program string, args []string, err error) {
	given, err := MkfsOptions(format, options)
	m := makers[format]
	return m.program, append(slices.Clone(m.args), given...), err
}

// MkfsOptions returns options as arguments for the program of the format, or an error if one is not allowed. An option with a value
// may be written in one element ("-L ROOT" or "-LROOT") or in two ("-L" and "ROOT").
func MkfsOptions(format string, options []string) ([]string, error) {
	m, ok := makers[format]
	if !ok {
		return nil, fmt.Errorf("unsupported format %q", format)
	}

	words := strings.Fields(strings.Join(options, " "))
	var args []string
	for i := 0; i < len(words); i++ {
		name, value := words[i], ""
		if len(name) < 2 || name[0] != '-' {
			return nil, fmt.Errorf("invalid option %q of %s; must be a dash and a letter", name, m.program)
		}
		letter := name[1:2]
		name, value = "-"+letter, name[2:]
		switch {
		case strings.Contains(m.flags, letter) && value == "":
			args = append(args, name)
			continue
		case !strings.Contains(m.options, letter):
			return nil, fmt.Errorf("option %s of %s is not allowed; allowed are the letters %s%s", name, m.program, m.options, m.flags)
		case value == "" && i+1 < len(words):
			i++
			value = words[i]
		}
		if !optionValue.MatchString(value) || strings.HasPrefix(value, "-") {
			return nil, fmt.Errorf(
				"option %s of %s has the invalid value %q; must be letters, digits and _ . , : = ^ + %% -",
				name,
				m.program,
				value,
			)
		}
		if letter == m.label && len(value) > m.longest {
			return nil, fmt.Errorf("option %s of %s: the label %q has %d bytes, and %s allows up to %d", name, m.program, value, len(value),
				format, m.longest)
		}
		args = append(args, name, value)
	}
	return args, nil
}
