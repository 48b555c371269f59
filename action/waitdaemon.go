package action

import (
	"fmt"
	"slices"
	"strings"
)

// Variables of waitdaemon.
const (
	InnerImageVariable = "IMAGE" // the action that waitdaemon starts
	waitVariable       = "WAIT_SECONDS"
)

// waitDaemonRepository is the repository where waitdaemon is published. No other native action is published there.
const waitDaemonRepository = "jacobweinstock/"

// leaving lists the native actions that end the agent (Leaves), except waitdaemon itself. A test compares the list with natives.
var leaving = []string{Kexec, PowerOff, Reboot}

// leavingCommands maps the command of a container that waitdaemon starts to the native action that does the same. Commands are in
// the shortened form that LeavingCommand makes.
var leavingCommands = map[string]string{
	"reboot": Reboot, "systemctl reboot": Reboot, "shutdown -r now": Reboot, "echo b > /proc/sysrq-trigger": Reboot,
	"poweroff": PowerOff, "systemctl poweroff": PowerOff, "shutdown -h now": PowerOff, "shutdown -P now": PowerOff,
	"halt -p": PowerOff, "echo o > /proc/sysrq-trigger": PowerOff,
}

// LeavingCommand returns Reboot or PowerOff if the command of a container restarts the machine or switches it off. Examples are
// ["reboot"] and ["/bin/sh", "-c", "sleep 5; reboot -f"]. For any other command, ok is false.
func LeavingCommand(command []string) (native string, ok bool) {
	words := command
	if len(words) == 3 && words[1] == "-c" && strings.HasSuffix(words[0], "sh") {
		lines := strings.FieldsFunc(words[2], func(r rune) bool { return r == ';' || r == '\n' || r == '&' })
		lines = slices.DeleteFunc(lines, func(l string) bool {
			f := strings.Fields(l)
			return len(f) == 0 || f[0] == "sleep" || f[0] == "sync"
		})
		if len(lines) != 1 {
			return "", false
		}
		words = strings.Fields(lines[0])
	}
	words = slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == "-f" || w == "--force" || w == "busybox" })
	if len(words) == 0 {
		return "", false
	}
	words[0] = words[0][strings.LastIndexByte(words[0], '/')+1:]
	native, ok = leavingCommands[strings.Join(words, " ")]
	return native, ok
}

// waitDaemon starts another action after a delay, so that its own success is reported before the other action restarts the machine.
// Ingot's agent always reports success before it carries out such an action, so the plan contains the other action in place of
// waitdaemon.
var waitDaemon = Description{
	Text: "In the plan, the action that `IMAGE` names replaces waitdaemon. The agent always reports success before it carries out " +
		"that action.",
	Leaves: true,
	Variables: []Variable{
		{Name: InnerImageVariable, Text: "one of " + strings.Join(leaving, ", "), Required: true, check: leavingImage},
		{Name: waitVariable, Text: "not needed", check: number},
		{Name: "CONTAINER_RUNTIME", Text: "not needed"},
		{Name: "NERDCTL_NAMESPACE", Text: "not needed"},
		{Name: "NERDCTL_HOST", Text: "not needed"},
	},
	Limits: "The environment also contains the variables of that action. `IMAGE` may also name a container (`alpine`), if " +
		"`command` restarts the machine or switches it off (`[reboot]`, `[poweroff]`, `[sh, -c, \"sleep 5; reboot\"]`): " +
		"the plan then contains `reboot` or `poweroff`, and no container runs.",
}

func leavingImage(env map[string]string, name string) error {
	if env[name] == "" {
		return fmt.Errorf("reading %s: it is missing: give one of %s", name, strings.Join(leaving, ", "))
	}
	inner := parseImage(env[name])
	if !slices.Contains(leaving, inner.name) {
		return fmt.Errorf("invalid %s %q; must be an action that leaves the agent: one of %s; or give command: [reboot] or [poweroff]", name,
			env[name], strings.Join(leaving, ", "))
	}
	if !inner.published() {
		return fmt.Errorf("reading %s=%q: %s; write only %s", name, env[name], inner.foreign(inner.name), inner.name)
	}
	return nil
}
