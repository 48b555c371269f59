package action

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Variables of cexec. They have the same names as in Tinkerbell's action.
const (
	CommandVariable     = "CMD_LINE"
	InterpreterVariable = "DEFAULT_INTERPRETER"
	ResolverVariable    = "UPDATE_RESOLV_CONF"
)

// Credentials lists the variables of actions that may contain a credential. cexec does not pass them on to its commands (security
// S22).
var Credentials = []string{"IMG_URL", ArchiveURLVariable, UploadURLVariable, HegelVariable, RegistryUserVariable, RegistryPasswordVariable}

// cexec runs commands in the installed system.
var cexec = Description{
	Text:   "Runs commands in the installed system, with its root file system as `/`.",
	Loader: true, Writes: true,
	Disk: "BLOCK_DEVICE", Volumes: true,
	Variables: []Variable{
		{Name: CommandVariable, Text: "commands, separated by `;`; quotes keep words together", Required: true, check: commandLine},
		{
			Name: InterpreterVariable, Text: "program of the installed system that gets all of CMD_LINE as its last argument, such as `/bin/sh -c`",
			Default: "none: each command is started directly, without a shell", check: interpreter,
		},
		{Name: "CHROOT", Text: "not read: commands always run in the installed system", Default: "y"},
		{Name: "BLOCK_DEVICE", Text: "path of the disk or partition", Default: runDisk},
		partitionOfFiles, fileSystem, storageOfFiles,
		{
			Name: ResolverVariable, Text: "true or false: copy the agent's /etc/resolv.conf into the installed system, where it stays",
			Default: "false", check: boolean,
		},
		{Name: "JSON_OUTPUT", Text: "not needed: the log is text", check: boolean},
	},
	Output: []string{"commands"},
	Limits: "The commands get all other variables of the environment, except " + strings.Join(
		Credentials,
		", ",
	) + ". `/dev`, `/proc` and `/sys` are the agent's. When a " +
		"command ends, all processes that it started end, too. The first exit code other than 0 ends the action with that code.",
}

// Commands returns the commands that cexec starts: for each command, the program and its arguments. The error does not contain the
// text of CMD_LINE.
func Commands(env map[string]string) ([][]string, error) {
	text := env[CommandVariable]
	switch {
	case strings.TrimSpace(text) == "":
		return nil, fmt.Errorf("reading %s: it is missing: give a command", CommandVariable)
	case strings.ContainsRune(text, 0):
		return nil, fmt.Errorf("invalid %s; must not contain a zero byte", CommandVariable)
	}
	shell, err := splitWords(env[InterpreterVariable])
	if err != nil || len(shell) > 1 || len(shell) == 1 && shell[0][0] == "" {
		return nil, fmt.Errorf("invalid %s; must be one program with its arguments", InterpreterVariable)
	}
	if len(shell) == 1 {
		return [][]string{append(shell[0], text)}, nil
	}

	commands, err := splitWords(text)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", CommandVariable, err)
	}
	if len(commands) == 0 {
		return nil, fmt.Errorf("reading %s: it contains no command: give one", CommandVariable)
	}
	for n, words := range commands {
		if words[0] == "" {
			return nil, fmt.Errorf("reading %s: command %d begins with an empty word; must begin with a program", CommandVariable, n+1)
		}
		if slices.ContainsFunc(words, func(w string) bool { return slices.Contains([]string{"&&", "||", "|", "&", ">", ">>", "<"}, w) }) {
			return nil, fmt.Errorf("reading %s: operators such as && and | need a shell: set %s=/bin/sh -c", CommandVariable, InterpreterVariable)
		}
	}
	return commands, nil
}

// splitWords divides text into commands, and each command into words. Commands are separated by a semicolon or a line break. Words
// can be quoted as in a shell; nothing is expanded.
func splitWords(text string) (commands [][]string, err error) {
	var words []string
	var word strings.Builder
	quote, inWord, escaped := rune(0), false, false
	endWord := func() {
		if inWord {
			words = append(words, word.String())
		}
		word.Reset()
		inWord = false
	}
	endCommand := func() {
		if endWord(); len(words) > 0 {
			commands = append(commands, words)
		}
		words = nil
	}

	for _, c := range text {
		switch {
		case c == 0:
			return nil, errors.New("a zero byte is not allowed")
		case escaped:
			word.WriteRune(c)
			escaped = false
		case c == '\\' && quote != '\'':
			escaped, inWord = true, true
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '\'' || c == '"':
			quote, inWord = c, true
		case c == ';' || c == '\n':
			endCommand()
		case c == ' ' || c == '\t':
			endWord()
		default:
			word.WriteRune(c)
			inWord = true
		}
	}
	if quote != 0 || escaped {
		return nil, errors.New("a quote is not closed, or a backslash is the last character")
	}
	endCommand()
	return commands, nil
}

func commandLine(env map[string]string, name string) error {
	_, err := Commands(env)
	return errors.Join(err, programEnvironment(env, name))
}

// programEnvironment returns an error for each variable whose name or value contains a zero byte. Such a variable cannot be passed
// to a program, because a zero byte ends the variable.
func programEnvironment(env map[string]string, _ string) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if name != CommandVariable && !slices.Contains(Credentials, name) && strings.ContainsRune(name+env[name], 0) {
			errs = append(errs, fmt.Errorf("invalid variable %q; must not contain a zero byte, because the action passes it to programs", name))
		}
	}
	return errors.Join(errs...)
}

func interpreter(env map[string]string, name string) error {
	_, err := splitWords(env[name])
	return err
}
